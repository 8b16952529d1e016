"""Who may name transactions: sessions, the names they lease, and what became of each name.

A client opens a session and is given blocks of numbers, from which it names its transactions by
itself. The coordinator hears of such a transaction only when it is decided or asked about; until
then it is undecided, as long as the session lives. When the session ends, whatever it had not
decided is rolled back. So the coordinator can always tell a name that is its own and undecided from
one that is over, and from one that was never issued here:

    the name                                            what it is
    of another coordinator, or with a wrong tag         foreign: nothing is known of it
    of an earlier incarnation, or an ended session      over: committed if the ledger says so
    of an earlier incarnation, and given by itself      lost: the same, but nothing said is nothing
                                                        known: its only participant may have decided
    the same, for clients to share                      over: no participant ever decides about it
    of a living session, and decided                    what was decided
    of a living session, and not decided                undecided

A byte is kept for each name of a living session; a block is dropped once the client says that all
its transactions are over. Not for several threads at once. Time comes from whoever calls.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest

from idl.otids import (
    BLOCK_NUMBERS,
    GTRID_BYTES,
    PREFIX_BYTES,
    SECRET_BYTES,
    TAG_BYTES,
    Block,
    block_secret,
    decode_gtrid,
    is_issued,
    is_of_coordinator,
    is_shared,
    issue,
    prefix_of,
    shared_secret,
)

SESSIONS_MAX = 10_000
BLOCKS_MAX = 10_000
_SESSION_ID_BYTES = 7


class Standing(enum.Enum):
    """What a name is."""

    FOREIGN = enum.auto()
    OVER = enum.auto()
    LOST = enum.auto()
    COMMITTED = enum.auto()
    ROLLED_BACK = enum.auto()
    UNDECIDED = enum.auto()


class TooMany(Exception):
    """A limit on sessions or names was reached."""


_UNDECIDED, _COMMITTED, _ROLLED_BACK = range(3)
# Blocks of clients have even numbers and those of the coordinator odd ones, for ever.
_LEASED, _OWN = range(2)
_STANDINGS = {
    _UNDECIDED: Standing.UNDECIDED,
    _COMMITTED: Standing.COMMITTED,
    _ROLLED_BACK: Standing.ROLLED_BACK,
}


@dataclass
class Session:
    """One client's leases. Whoever is silent until `deadline` has lost them."""

    number: int
    owner: str
    deadline: float
    blocks: dict[int, bytearray] = field(default_factory=dict)


class Sessions:
    """The sessions of one incarnation, and the names it issues."""

    def __init__(
        self,
        identity: bytes,
        incarnations: Mapping[int, bytes],
        randomness: Callable[[int], bytes],
        duration_s: float,
        per_owner_max: int = SESSIONS_MAX,
    ) -> None:
        self.incarnation = max(incarnations)
        self.prefix = prefix_of(identity, self.incarnation)
        self.duration_s = duration_s
        self._per_owner_max = per_owner_max
        self._owners: Counter[str] = Counter()
        self._identity = identity
        self._incarnations = incarnations
        self._randomness = randomness
        self._sessions: dict[int, Session] = {}
        # Whose each block is, with what makes its names, by which they are checked.
        self._holders: dict[int, tuple[Session, Block]] = {}
        self._next_block = {_LEASED: 0, _OWN: 0}
        self._own = iter(range(0))
        self._own_secret = bytes(SECRET_BYTES)

    # --- Sessions

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._sessions)

    def open(self, owner: str, now: float) -> Session:
        """A session that nobody else can name."""
        if len(self._sessions) >= SESSIONS_MAX:
            raise TooMany(f"{SESSIONS_MAX} sessions are open")
        if self._owners[owner] >= self._per_owner_max:
            raise TooMany(
                f"{self._owners[owner]} sessions of {owner} are open: end some of them, or wait "
                "until those that are silent end"
            )
        number = 0
        while not number or number in self._sessions:
            number = int.from_bytes(self._randomness(_SESSION_ID_BYTES))
        session = Session(number, owner, now + self.duration_s)
        self._sessions[number] = session
        self._owners[owner] += 1
        return session

    def renew(self, number: int, owner: str, now: float) -> Session | None:
        """The session, which has given a sign of life; None where it has none, or is another's."""
        session = self._sessions.get(number)
        if session is None or session.owner != owner or session.deadline <= now:
            return None
        session.deadline = now + self.duration_s
        return session

    def end(self, number: int) -> None:
        """The session is over, and so are all names that it did not decide."""
        session = self._sessions.pop(number, None)
        if session is None:
            return
        self._owners[session.owner] -= 1
        if not self._owners[session.owner]:
            del self._owners[session.owner]
        for first in session.blocks:
            del self._holders[first]

    def silent(self, now: float) -> list[int]:
        """The sessions that have been silent for too long."""
        return [s.number for s in self._sessions.values() if s.deadline <= now]

    def next_deadline(self) -> float | None:
        """When the next session may have been silent for too long."""
        return min((s.deadline for s in self._sessions.values()), default=None)

    # --- Names

    def lease(self, session: Session, oldest: int) -> tuple[int, bytes]:
        """A new block of the session: its first number and its secret."""
        for first in [f for f in session.blocks if f + BLOCK_NUMBERS <= oldest]:
            del session.blocks[first], self._holders[first]
        if len(session.blocks) >= BLOCKS_MAX:
            raise TooMany(f"the session holds {BLOCKS_MAX} blocks of names")
        first, secret = self._take_block(_LEASED)
        session.blocks[first] = bytearray(BLOCK_NUMBERS)
        self._holders[first] = session, Block(self.prefix, secret)
        return first, secret

    def issue(self, is_shared: bool = False) -> bytes:
        """A name for a transaction that the coordinator itself begins.

        `is_shared`: only decisions end it, so that after a restart what has none is rolled back.
        """
        number = next(self._own, None)
        if number is None:
            first, self._own_secret = self._take_block(_OWN)
            self._own = iter(range(first, first + BLOCK_NUMBERS))
            number = next(self._own)
        secret = shared_secret(self._own_secret) if is_shared else self._own_secret
        return issue(self.prefix, secret, number)

    def is_own(self, gtrid: bytes) -> bool:
        """Whether the coordinator has given the name, and no session remembers how it ended."""
        return is_of_coordinator(gtrid)

    def standing(self, gtrid: bytes) -> Standing:
        """What the name is, as far as it can be told from names."""
        return self.look_up(gtrid)[0]

    def look_up(self, gtrid: bytes) -> tuple[Standing, Session | None]:
        """What the name is, and the session from whose block it is, if that lives."""
        held = self._held(gtrid)
        if held is not None:
            session, names, number, block = held
            if not compare_digest(names.issue(number), gtrid):
                return Standing.FOREIGN, None
            return _STANDINGS[block[number % BLOCK_NUMBERS]], session
        name = decode_gtrid(gtrid)
        known = self._incarnations.get(name.incarnation)
        if name.identity != self._identity or known is None:
            return Standing.FOREIGN, None
        is_own = is_of_coordinator(gtrid)
        if is_own and is_shared(name, known):
            return Standing.OVER, None
        if not is_issued(name, known):
            return Standing.FOREIGN, None
        is_lost = is_own and name.incarnation != self.incarnation
        return Standing.LOST if is_lost else Standing.OVER, None

    def holder(self, gtrid: bytes) -> Session | None:
        """The session from whose block the name is."""
        held = self._held(gtrid)
        return None if held is None else held[0]

    def note(self, gtrid: bytes, is_committed: bool) -> None:
        """The transaction is over; while its session lives, its name is known to be."""
        held = self._held(gtrid)
        if held is not None:
            _, _, number, block = held
            block[number % BLOCK_NUMBERS] = _COMMITTED if is_committed else _ROLLED_BACK

    def _held(self, gtrid: bytes) -> tuple[Session, Block, int, bytearray] | None:
        """Whose a name is that looks like one of a living session, its number, and its block."""
        if len(gtrid) != GTRID_BYTES or not gtrid.startswith(self.prefix):
            # It raises for what is no name at all.
            decode_gtrid(gtrid)
            return None
        number = int.from_bytes(gtrid[PREFIX_BYTES:-TAG_BYTES])
        first = number - number % BLOCK_NUMBERS
        holder = self._holders.get(first)
        if holder is None:
            return None
        session, names = holder
        return session, names, number, session.blocks[first]

    def _take_block(self, kind: int) -> tuple[int, bytes]:
        first = (2 * self._next_block[kind] + kind) * BLOCK_NUMBERS
        self._next_block[kind] += 1
        return first, block_secret(self._incarnations[self.incarnation], first)
