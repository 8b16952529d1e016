"""What an examination of a store finds: where, what is wrong, and what an operator can do.

A finding is damage if something is lost or a server would not start, and otherwise a notice. Pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mqserver.errors import MqError

BACKUP = "Copy the directory as it is, then restore a backup of all of it."
RESTORE = f"{BACKUP} `oncemq dump` shows what can still be read."
NOTHING_TO_DO = "Nothing is lost, and nothing needs to be done."

# What code that trusts its files runs into when these are whole and yet nonsense.
STUMBLES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class Severity(enum.Enum):
    """What a finding means. The words are part of the JSON output and stay."""

    DAMAGE = "damage"
    NOTICE = "notice"


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be. `lsn` is there for what was found in the log."""

    severity: Severity
    file: str
    what: str
    advice: str
    offset: int | None = None
    lsn: int | None = None

    @property
    def place(self) -> str:
        """Where it is, for people."""
        parts = [self.file]
        if self.offset is not None:
            parts.append(f"offset {self.offset}")
        if self.lsn is not None:
            parts.append(f"LSN {self.lsn}")
        return ", ".join(parts)


class Notes:
    """Findings, in the order in which they were made."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def damage(
        self,
        file: str,
        what: str,
        advice: str = RESTORE,
        offset: int | None = None,
        lsn: int | None = None,
    ) -> None:
        """Something is lost, or keeps a server from starting."""
        self.findings.append(Finding(Severity.DAMAGE, file, what, advice, offset, lsn))

    def notice(self, file: str, what: str, offset: int | None = None) -> None:
        """Something is odd and harmless."""
        self.findings.append(Finding(Severity.NOTICE, file, what, NOTHING_TO_DO, offset))

    @property
    def has_damage(self) -> bool:
        """Whether any finding is damage."""
        return any(finding.severity is Severity.DAMAGE for finding in self.findings)


def told(error: BaseException) -> str:
    """What an error says of its case, without what its class says of all cases."""
    if isinstance(error, MqError):
        return ", ".join(str(detail) for detail in error.args)
    return f"{type(error).__name__}: {error}"
