"""A finding: what one check came to and what to do about it; and the report that findings make.

Knows neither what is checked nor how it is shown. The JSON object made here is documented in
`docs/guide/command.md` and is a promise: fields are added, never changed or taken away.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

REPORT_FORMAT = 1


class Status(StrEnum):
    """What a check came to. The words are part of the JSON output and stay."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check. `commands` carry out the advice and can be copied as they are."""

    name: str
    status: Status
    found: str
    advice: str = ""
    commands: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.advice or self.status in (Status.OK, Status.NOT_NEEDED)
        assert self.advice or not self.commands


def has_problem(findings: Sequence[Finding]) -> bool:
    """Whether something must be put right before OnceMQ can be relied on."""
    return any(finding.status is Status.PROBLEM for finding in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in one sentence."""
    counts = Counter(finding.status for finding in findings)
    problems, warnings = counts[Status.PROBLEM], counts[Status.WARNING]
    if problems:
        aside = f" ({_counted(warnings, 'warning')} besides)" if warnings else ""
        return f"{_counted(problems, 'problem')} to solve before OnceMQ can be relied on{aside}."
    if warnings:
        return f"OnceMQ can run here, but read the {_counted(warnings, 'warning')} first."
    return "This machine is ready for OnceMQ."


def report(
    findings: Sequence[Finding], measured: Mapping[str, float | None], version: str
) -> dict[str, object]:
    """The findings as the object that `oncemq doctor --json` prints."""
    return {
        "format": REPORT_FORMAT,
        "oncemq": version,
        "ready": not has_problem(findings),
        "verdict": verdict(findings),
        "checks": [
            {
                "name": finding.name,
                "status": finding.status.value,
                "found": finding.found,
                "advice": finding.advice,
                "commands": list(finding.commands),
            }
            for finding in findings
        ],
        "measured": dict(measured),
    }


def duration(seconds: float) -> str:
    """A span of time in the unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.2g} ms" if seconds < 1e-2 else f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def size(size_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    amount, unit = float(size_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "bytes" else f"{amount:.1f} {unit}"


def moment(seconds: float) -> str:
    """A time of the clock, in UTC."""
    return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
