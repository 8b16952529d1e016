"""A node under attack, in this process: its callers have tokens, and a file says what each may do.

Whoever attacks it uses the network, as from outside. After an attack an honest client still puts
and gets, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import zlib
from collections.abc import Iterator

from idl import mq
from idl.access import Token, Tokens, token_entry
from idl.call import Address
from idl.cos import RecoveryCoordinator, otid_t
from idl.mq import Mq_Node, mqBatch, mqBranch, mqSelection
from idl.orb import Limits, NetworkOrb
from idl.otids import NULL_OTID, PREFIX_BYTES, issue, otid_of
from mqserver.node import Node, NodeSettings
from mqserver.permissions import Permissions
from mqserver.storage.contract import Storage
from mqserver.storage.memory import MemoryStorage
from tests.security.attacker import Wire, login

NAMES = ("alice", "bob", "reader", "writer", "browser", "keeper", "root", "tx", "nobody", "any")
FILE = """
[[allow]]
principal = "alice"
queues = ["a.*"]
rights = ["read", "write"]

[[allow]]
principal = "bob"
queues = ["b.*", "a.shared"]
rights = ["read", "write"]

[[allow]]
principal = "reader"
queues = ["a.*"]
rights = ["read"]

[[allow]]
principal = "writer"
queues = ["a.*"]
rights = ["write"]

[[allow]]
principal = "browser"
queues = ["a.*"]
rights = ["browse"]

[[allow]]
principal = "keeper"
queues = ["a.*"]
rights = ["admin"]

[[allow]]
principal = "any"
queues = ["*"]
rights = ["read", "write", "admin"]

[roles]
coordinator = ["tx"]
operator = ["root"]
"""
MESSAGE_BYTES_MAX = 1024 * 1024
ALL = mqSelection(0, 0, ())
ALONE = mqBranch(NULL_OTID, "", None)
QUICK = Limits(message_bytes_max=4 * 1024 * 1024, handshake_s=2.0, message_s=2.0, drain_s=0.5)

SMALL = NodeSettings(
    queues_max=50,
    branches_per_principal_max=20,
    message_bytes_max=MESSAGE_BYTES_MAX,
    branch_messages_max=1000,
    branch_bytes_max=8 * MESSAGE_BYTES_MAX,
)


def token_of(name: str) -> str:
    """The token of one of the callers."""
    return f"{name}.{zlib.crc32(name.encode()):08x}canary5ca1ab1e0ddba11ca5cade"


class GuardedNode:
    """One node, and the ways to it."""

    def __init__(
        self,
        storage: Storage | None = None,
        settings: NodeSettings | None = None,
        coordinator: Address | None = None,
        limits: Limits = QUICK,
    ) -> None:
        self.permissions = Permissions.parse(FILE, time.monotonic)
        digests = dict(token_entry(token_of(name)).split(":") for name in NAMES)
        self.coordinator = coordinator or Address("127.0.0.1", 1)
        self._orb = NetworkOrb(
            Address("127.0.0.1", 0),
            authenticator=Tokens(digests),
            authorize=self.permissions.authorize,
            token=Token(token_of("bob")),
            limits=limits,
            timeout_s=2.0,
            trusted=frozenset({self.coordinator}),
            takes_turns=True,
        )
        assert self._orb.address is not None
        self.address = self._orb.address
        self.node = Node(
            self._orb,
            storage or MemoryStorage(time.monotonic),
            name="guarded",
            coordinator=str(self.coordinator),
            permissions=self.permissions,
            settings=settings or SMALL,
        )
        self.node.start()
        self._orbs: dict[str, NetworkOrb] = {}
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Ends the node and all its callers."""
        for orb in self._orbs.values():
            orb.close()
        self.node.drain()
        self._orb.close()
        self.node.close()

    def orb(self, name: str) -> NetworkOrb:
        """The orb of a caller."""
        if name not in self._orbs:
            token = Token(token_of(name))
            self._orbs[name] = NetworkOrb(token=token, timeout_s=5.0, limits=QUICK)
        return self._orbs[name]

    def reference(self, name: str) -> str:
        """The reference of one of the node's objects."""
        return f"PYRO:{name}@{self.address}"

    def as_node(self, name: str) -> Mq_Node:
        """The node, as this caller reaches it."""
        return self.orb(name).proxy(self.reference("node"), Mq_Node)

    def as_admin(self, name: str) -> mq.Mq_Admin:
        """The node's administration, as this caller reaches it."""
        return self.orb(name).proxy(self.reference("admin"), mq.Mq_Admin)

    def wire(self, name: str) -> Wire:
        """A bare connection that was let in as this caller."""
        wire = Wire.to(self.address)
        wire.answer(login(token_of(name)))
        return wire

    def new_otid(self) -> otid_t:
        """The name of a transaction that nobody has used."""
        number = next(self._numbers)
        return otid_of(issue(bytes(PREFIX_BYTES), b"secret of a test", number))

    def branch(self, otid: otid_t | None = None, name: str = "n1") -> mqBranch:
        """A branch, whose outcome the coordinator knows."""
        reference = f"PYRO:recovery/x@{self.coordinator}"
        recovery = self.orb("alice").proxy(reference, RecoveryCoordinator)
        return mqBranch(otid or self.new_otid(), name, recovery)

    @contextlib.contextmanager
    def unharmed(self) -> Iterator[None]:
        """After what happens inside an honest client is served, and nothing is left at work."""
        before = len(self.node.storage.branches())
        # Before too, so that the queue is there when no more can be made.
        self._serve_honest()
        yield
        begun = time.monotonic()
        self._serve_honest()
        assert time.monotonic() - begun < 1.0
        assert len(self.node.storage.branches()) == before

    def _serve_honest(self) -> None:
        node = self.as_node("alice")
        node.putMany(ALONE, 0, "a.honest", batch(b"still here"))
        taken = node.getMany(ALONE, 0, "a.honest", ALL, 1, 0)
        assert taken.messages.payloads == (b"still here",)


def batch(*payloads: bytes) -> mqBatch:
    """Messages that have nothing but a payload."""
    digests = tuple(zlib.crc32(payload) for payload in payloads)
    return mqBatch(payloads, digests, (), (), (), (), ())
