"""Who may do what: rights on queues by name, the roles, and what each operation asks for.

`OPERATION_RIGHTS` has a row for every operation that a node publishes; what has no row is refused.
Where the queue is in the object's name the orb's authorisation decides all of it. Where it is among
the arguments the orb lets in those who have such a right on some queue, and the servant asks again,
with `check`, for the queue that is meant. Refusals read alike whether or not a thing exists, and
are audited. This module knows no servant and no storage, and never who somebody is.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from idl import system
from idl.call import Call
from idl.orb.audit import Audit
from idl.toml_files import BadFile, TomlText, parse_toml, read_toml, suggestion

CACHED_MAX = 10_000


class Right(enum.Enum):
    """What a principal may do to a queue. Who may read may browse."""

    READ = "read"
    WRITE = "write"
    BROWSE = "browse"
    ADMIN = "admin"


class Need(enum.Enum):
    """What an operation asks for that is not a right on one queue."""

    ANYONE = "whoever is let in"
    OWNER = "its owner: who began the branch, or made the channel"
    WORK = "write where it puts, read where it removes, in a branch of one's own or alone"
    VISIBLE = "any right on the queue; others are left out"
    OPERATOR = "role operator"
    COORDINATOR = "role coordinator"


Rule = Right | Need

_RESOURCE: dict[str, Rule] = {
    "prepare": Need.COORDINATOR,
    "commit": Need.COORDINATOR,
    "commit_one_phase": Need.COORDINATOR,
    "rollback": Need.COORDINATOR,
    "forget": Need.COORDINATOR,
}

# By the first part of an object's name. The names of channels are matched like those of queues.
OPERATION_RIGHTS: Mapping[str, Mapping[str, Rule]] = {
    "standard": {
        "mqPut": Right.WRITE,
        "mqGet": Right.READ,
        "mqRead": Right.BROWSE,
        "mqRemove": Right.READ,
        "mqGetAttribList": Right.BROWSE,
        "mqStartNotify": Right.BROWSE,
    },
    "fifo": {
        "mqPut": Right.WRITE,
        "mqGetNext": Right.READ,
        "mqStartNotify": Right.BROWSE,
        "mqSetPriorization": Right.ADMIN,
        "mqGetPriorization": Right.BROWSE,
    },
    "node": {
        "getNode": Need.ANYONE,
        "countMessages": Right.BROWSE,
        "putMany": Right.WRITE,
        "putBulk": Right.WRITE,
        "getMany": Right.READ,
        "moveMany": Need.WORK,
        "getKeys": Right.READ,
        "browse": Right.BROWSE,
        "pushDown": Need.WORK,
        "prepareBranch": Need.OWNER,
        "rollbackBranch": Need.OWNER,
        "getOutcome": Need.ANYONE,
        "getVersion": Need.ANYONE,
        "lockMany": Right.READ,
        "fetchLocked": Need.OWNER,
        "reserve": Right.READ,
        "getReservationSize": Right.READ,
        "fetchReserved": Right.READ,
        "finishReservations": Right.READ,
        "getFinished": Right.READ,
    },
    "admin": {
        "mqShutdown": Need.OPERATOR,
        "setEnabled": Need.OPERATOR,
        "isEnabled": Need.ANYONE,
        "getStatus": Need.OPERATOR,
        "createQueue": Right.ADMIN,
        "changeQueue": Right.ADMIN,
        "deleteQueue": Right.ADMIN,
        "purgeQueue": Right.ADMIN,
        "getQueue": Need.VISIBLE,
        "listQueues": Need.VISIBLE,
        "listBranches": Need.OPERATOR,
        "decideBranch": Need.OPERATOR,
        "forgetBranch": Need.OPERATOR,
        "listConsumers": Need.OPERATOR,
        "dropConsumer": Need.OPERATOR,
    },
    "channel": {
        "for_consumers": Right.BROWSE,
        "for_suppliers": Right.WRITE,
        "destroy": Need.OWNER,
    },
    "resource": _RESOURCE,
    "branch": _RESOURCE,
    "settler": {
        "commitBranches": Need.COORDINATOR,
        "settle": Need.COORDINATOR,
        "getEnded": Need.COORDINATOR,
    },
    "decider": {
        "vote": Need.WORK,
        "decide": Need.WORK,
        "endVoter": Need.OWNER,
        "getDecision": Need.COORDINATOR,
        "fence": Need.COORDINATOR,
    },
    "carried": {
        "hold": Need.WORK,
        "deliver": Need.OWNER,
    },
}
# Objects without a name of their own: they are known to whom they were given, and ask who calls.
UNNAMED = "object"
# Whose names end in that of a queue, or of a channel.
_NAMED_BY_QUEUE = frozenset({"standard", "fifo", "channel"})

_ALLOW_KEYS = frozenset({"principal", "queues", "rights"})
_ROLE_KEYS = frozenset({"coordinator", "operator"})
_PATTERN = re.compile(r"[A-Za-z0-9._@*-]{1,128}", re.ASCII)
_WORDS = {
    Right.READ: "read from",
    Right.WRITE: "write to",
    Right.BROWSE: "browse",
    Right.ADMIN: "administer",
}


@dataclass(frozen=True)
class Allow:
    """One entry: these principals have these rights on these queues."""

    principal: str
    queues: tuple[str, ...]
    rights: frozenset[Right]


@dataclass(frozen=True)
class Rules:
    """All that a file of permissions says."""

    allow: tuple[Allow, ...] = ()
    coordinators: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    def rights(self, principal: str, queue: str) -> frozenset[Right]:
        """Everything that the principal may do to the queue."""
        found = [
            entry.rights
            for entry in self.allow
            if matches(entry.principal, principal)
            and any(matches(pattern, queue) for pattern in entry.queues)
        ]
        return _complete(frozenset().union(*found), principal in self.operators)

    def rights_anywhere(self, principal: str) -> frozenset[Right]:
        """Everything that the principal may do to some queue or other."""
        found = [entry.rights for entry in self.allow if matches(entry.principal, principal)]
        return _complete(frozenset().union(*found), principal in self.operators)


@dataclass
class _InForce:
    """Rules, and what was found by them. Both are exchanged together."""

    rules: Rules | None
    rights: dict[tuple[str, str], frozenset[Right]] = field(default_factory=dict)
    let_in: set[tuple[str, str, str]] = field(default_factory=set)


class Permissions:
    """Decides, for any number of threads. Without rules everybody may do everything."""

    def __init__(self, rules: Rules | None, clock: Callable[[], float]) -> None:
        self._in_force = _InForce(rules)
        self._audit = Audit(clock)
        self._path: Path | None = None

    @classmethod
    def everything(cls) -> Permissions:
        """For a node that only this machine can reach, and where nobody is told apart."""
        return cls(None, lambda: 0.0)

    @classmethod
    def load(cls, path: Path, clock: Callable[[], float]) -> Permissions:
        """What the file says. Raises `BadFile`."""
        made = cls(read_rules(read_toml(path)), clock)
        made._path = path
        return made

    @classmethod
    def parse(cls, text: str, clock: Callable[[], float] = lambda: 0.0) -> Permissions:
        """What the text of such a file says. Raises `BadFile`."""
        return cls(read_rules(parse_toml(text, "permissions")), clock)

    def reload(self) -> None:
        """What the file says now is in force. Raises `BadFile`, and then all is as it was."""
        if self._path is not None:
            self._in_force = _InForce(read_rules(read_toml(self._path)))

    def allows(self, principal: str, queue: str, right: Right) -> bool:
        """Whether the principal may do this to the queue, which need not exist."""
        in_force = self._in_force
        if in_force.rules is None:
            return True
        known = in_force.rights.get((principal, queue))
        if known is None:
            known = self._find(in_force, in_force.rules, principal, queue)
        return right in known

    def sees(self, principal: str, queue: str) -> bool:
        """Whether the principal has any right on the queue, and so may know of it."""
        return any(self.allows(principal, queue, right) for right in Right)

    def check(self, principal: str, queue: str, right: Right, operation: str = "") -> None:
        """Raises NO_PERMISSION unless the principal may do this; says nothing of the queue."""
        if not self.allows(principal, queue, right):
            self._refuse(principal, operation, queue, f"{_WORDS[right]} {queue[:128]!r}")

    def is_coordinator(self, principal: str) -> bool:
        """Whether the principal decides transactions here."""
        rules = self._in_force.rules
        return rules is None or principal in rules.coordinators

    def is_operator(self, principal: str) -> bool:
        """Whether the principal runs this node."""
        rules = self._in_force.rules
        return rules is None or principal in rules.operators

    def authorize(self, call: Call, object_name: str, operation: str) -> None:
        """Raises NO_PERMISSION unless the caller may use the operation; see `Authorize`."""
        in_force = self._in_force
        if in_force.rules is None:
            return
        principal = call.principal.name
        asked = (principal, object_name, operation)
        if asked in in_force.let_in:
            return
        family, _, rest = object_name.partition("/")
        if not self._may_use(in_force.rules, principal, family, rest, operation):
            self._refuse(principal, operation, object_name, f"call {operation[:100]!r} there")
        if len(in_force.let_in) >= CACHED_MAX:
            in_force.let_in.clear()
        in_force.let_in.add(asked)

    def _may_use(
        self, rules: Rules, principal: str, family: str, rest: str, operation: str
    ) -> bool:
        if family == UNNAMED:
            return True
        match OPERATION_RIGHTS.get(family, {}).get(operation):
            case Right() as right if family in _NAMED_BY_QUEUE:
                return self.allows(principal, rest, right)
            case Right() as right:
                return right in rules.rights_anywhere(principal)
            case Need.COORDINATOR:
                return principal in rules.coordinators
            case Need.OPERATOR:
                return principal in rules.operators
            case Need.OWNER | Need.WORK:
                # Whoever may do nothing has begun nothing.
                return bool(rules.rights_anywhere(principal))
            case rule:
                return rule is not None

    def _find(
        self, in_force: _InForce, rules: Rules, principal: str, queue: str
    ) -> frozenset[Right]:
        found = rules.rights(principal, queue)
        if len(in_force.rights) >= CACHED_MAX:
            in_force.rights.clear()
        # What was found by old rules goes where they went.
        in_force.rights[principal, queue] = found
        return found

    def _refuse(self, principal: str, operation: str, target: str, what: str) -> None:
        self._audit.record("refused", principal=principal, operation=operation, target=target)
        raise system.NO_PERMISSION(f"{principal} may not {what}: ask the operator of this node")


def matches(pattern: str, name: str) -> bool:
    """Whether the name is of the pattern, in which `*` stands for any characters, or none."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    *middle, last = rest
    if len(name) < len(first) + len(last) or not name.startswith(first):
        return False
    position, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return name.endswith(last)


def _complete(rights: frozenset[Right], is_operator: bool) -> frozenset[Right]:
    if Right.READ in rights:
        rights |= {Right.BROWSE}
    return rights | {Right.ADMIN} if is_operator else rights


# --- Reading the file ----------------------------------------------------------------------------


def read_rules(text: TomlText) -> Rules:
    """The rules that the file sets. Raises `BadFile`, with file and line, for anything else."""
    _known(text, text.values, ("allow", "roles"))
    entries = text.values.get("allow", [])
    if not isinstance(entries, list):
        raise BadFile(f"{text.where('allow')}: write [[allow]], with two brackets")
    roles = text.values.get("roles", {})
    if not isinstance(roles, dict):
        raise BadFile(f"{text.where('roles')}: write [roles] as a table")
    _known(text, roles, _ROLE_KEYS, "roles")
    return Rules(
        tuple(_read_allow(text, number, entry) for number, entry in enumerate(entries)),
        _read_role(text, roles, "coordinator"),
        _read_role(text, roles, "operator"),
    )


def _read_allow(text: TomlText, number: int, entry: object) -> Allow:
    where = text.where("allow", number)
    if not isinstance(entry, dict):
        raise BadFile(f"{where}: write [[allow]], with two brackets")
    _known(text, entry, _ALLOW_KEYS, "allow", number)
    for key in sorted(_ALLOW_KEYS - entry.keys()):
        raise BadFile(f"{where}: this entry has no {key!r}")
    principal, queues, rights = entry["principal"], entry["queues"], entry["rights"]
    _pattern(text, principal, "allow", number, "principal")
    for queue in _texts(text, queues, "allow", number, "queues"):
        _pattern(text, queue, "allow", number, "queues")
    words = {right.value: right for right in Right}
    for word in _texts(text, rights, "allow", number, "rights"):
        if word not in words:
            told = f"{text.where('allow', number, 'rights')}: there is no right {word!r}"
            raise BadFile(f"{told}; {suggestion(word, words)}")
    return Allow(principal, tuple(queues), frozenset(words[word] for word in rights))


def _read_role(text: TomlText, roles: dict[str, object], role: str) -> frozenset[str]:
    names = _texts(text, roles.get(role, []), "roles", role)
    for name in names:
        _pattern(text, name, "roles", role)
        if "*" in name:
            told = f"{text.where('roles', role)}: {name!r}: a role is given by name"
            raise BadFile(f"{told}, not to everybody whose name fits")
    return frozenset(names)


def _known(
    text: TomlText, table: dict[str, object], keys: Collection[str], *place: str | int
) -> None:
    for key in table:
        if key not in keys:
            told = f"{text.where(*place, key)}: {key!r} is not known here"
            raise BadFile(f"{told}; {suggestion(key, keys)}")


def _texts(text: TomlText, values: object, *place: str | int) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadFile(f'{text.where(*place)}: {place[-1]} is a list of texts, such as ["a", "b"]')
    return values


def _pattern(text: TomlText, value: object, *place: str | int) -> None:
    if not isinstance(value, str) or not _PATTERN.fullmatch(value):
        told = f"{text.where(*place)}: {place[-1]} {str(value)[:60]!r}"
        raise BadFile(f"{told}: use 1 to 128 letters, digits and . _ @ - and * for any of them")
