"""A simulated disk under a coordinator's log: what is not synced may be lost when its host crashes.

Small and quick, so that thousands of runs can have one; `tests/crash` has the disk that leaves no
state untried. A crash keeps, of everything that was not synced, each sector or not, as chance has
it; names likewise. Operations that change something are points at which the host may die.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mqserver.errors import StorageError
from mqserver.storage.disk import Bytes
from tests.simulation.world import World

SECTOR = 512
# A start writes much before it serves anybody: were each write as deadly as a message, few would.
DEADLY_SHARE = 0.1


@dataclass(eq=False)
class _Inode:
    durable: bytearray = field(default_factory=bytearray)
    now: bytearray = field(default_factory=bytearray)

    def sync(self) -> None:
        self.durable = bytearray(self.now)


def _maybe_die(world: World) -> None:
    if world.random.random() < DEADLY_SHARE:
        world.step()


class SimulatedDisk:
    """One directory that outlives its host. See `Disk`."""

    description = "simulated"

    def __init__(self, world: World) -> None:
        self._world = world
        self._durable: dict[str, _Inode] = {}
        self._now: dict[str, _Inode] = {}

    def crash(self) -> None:
        """The host has died: what was synced is there, and chance decides about the rest."""
        chance = self._world.random
        if self._now != self._durable and chance.random() < 0.5:
            self._now = dict(self._durable)
        self._durable = dict(self._now)
        for inode in self._now.values():
            if inode.now != inode.durable:
                inode.now = self._torn(inode)
                inode.sync()

    def _torn(self, inode: _Inode) -> bytearray:
        chance = self._world.random
        keep = chance.choice((0.0, 0.5, 1.0))
        size = len(inode.now) if chance.random() < keep else len(inode.durable)
        torn = bytearray(size)
        for start in range(0, size, SECTOR):
            source = inode.now if chance.random() < keep else inode.durable
            piece = source[start : min(start + SECTOR, size)]
            torn[start : start + len(piece)] = piece
        return torn

    def names(self) -> list[str]:
        """See `Disk.names`."""
        return sorted(self._now)

    def exists(self, name: str) -> bool:
        """See `Disk.exists`."""
        return name in self._now

    def open(self, name: str, create: bool = False) -> SimulatedFile:
        """See `Disk.open`."""
        if name not in self._now:
            if not create:
                raise StorageError(name, "no such file")
            _maybe_die(self._world)
            self._now[name] = _Inode()
        return SimulatedFile(self._world, name, self._now[name])

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        _maybe_die(self._world)
        self._now[new] = self._now.pop(old)

    def remove(self, name: str) -> None:
        """See `Disk.remove`."""
        _maybe_die(self._world)
        del self._now[name]

    def sync_directory(self) -> None:
        """See `Disk.sync_directory`."""
        _maybe_die(self._world)
        self._durable = dict(self._now)
        _maybe_die(self._world)

    def free_bytes(self) -> int:
        """See `Disk.free_bytes`."""
        return 1 << 40

    def lock(self) -> SimulatedDisk:
        """See `Disk.lock`."""
        return self

    def close(self) -> None:
        """See `Disk.close`."""


class SimulatedFile:
    """See `File`."""

    def __init__(self, world: World, name: str, inode: _Inode) -> None:
        self.description = name
        self._world = world
        self._inode = inode

    def size(self) -> int:
        """See `File.size`."""
        return len(self._inode.now)

    def read(self, offset: int, size: int) -> bytes:
        """See `File.read`."""
        return bytes(self._inode.now[offset : offset + size])

    def write(self, offset: int, data: Bytes) -> None:
        """See `File.write`."""
        _maybe_die(self._world)
        content = self._inode.now
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    def write_many(self, offset: int, pieces: Sequence[Bytes]) -> None:
        """See `File.write_many`."""
        self.write(offset, b"".join(pieces))

    def sync(self) -> None:
        """See `File.sync`."""
        _maybe_die(self._world)
        self._inode.sync()
        _maybe_die(self._world)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        _maybe_die(self._world)
        content = self._inode.now
        del content[size:]
        content.extend(bytes(size - len(content)))

    def allocate(self, size: int) -> None:
        """See `File.allocate`."""
        self.truncate(max(size, len(self._inode.now)))

    def close(self) -> None:
        """See `File.close`."""
