"""The simulation finds a bug where there is one, and none where there is none.

Money goes from an account on one host to an account on another, ordered by a third; any of them may
crash at any step. The teller writes the key of each order down before sending it, and repeats it
until it is acknowledged, also after a crash. A naive account does twice what it is told twice. A
careful one remembers the keys of what it has done, in the same write as the money. A hasty one does
so in a second write, and errs only where it dies between the two. It is an example, too, of what a
system under test looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from idl import system
from idl.call import current_call, limited, repeating
from idl.mapping import Long, interface, operation
from tests.simulation.conftest import ForEachSeed
from tests.simulation.network import SimulatedOrb
from tests.simulation.world import World

TRANSFERS = 5
AMOUNT = 7


@interface("Bank")
class Account(Protocol):
    """An account, of which the balance is all that matters."""

    @operation()
    def change(self, amount: Long) -> None:
        """Adds the amount, which may be negative, to the balance."""


@dataclass
class Disk:
    """What survives a crash of its host; what happens between two steps is one write to it."""

    balance: int = 0
    keys: frozenset[bytes] = frozenset()
    orders: list[tuple[bytes, bytes]] = field(default_factory=list)
    done: int = 0


class Naive:
    """Does what it is told."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world = world
        self._disk = disk

    def change(self, amount: int) -> None:
        self._disk.balance += amount


class Hasty:
    """Does what it is told, and then remembers that it did."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world = world
        self._disk = disk

    def change(self, amount: int) -> None:
        key = current_call().request_id
        if key not in self._disk.keys:
            self._disk.balance += amount
            self._world.step()
            self._disk.keys |= {key}


class Careful:
    """Does what it is told, and remembers it in the same write."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world = world
        self._disk = disk

    def change(self, amount: int) -> None:
        key = current_call().request_id
        self._world.step()
        if key not in self._disk.keys:
            self._disk.balance += amount
            self._disk.keys |= {key}
        self._world.step()


Making = Callable[[World, Disk], Account]


class Bank:
    """The three hosts of the example, and their disks."""

    def __init__(self, world: World, account: Making) -> None:
        self.disks = {name: Disk() for name in ("giro", "savings", "teller")}
        self._world = world
        self._account = account
        world.boot("giro", lambda: self._open("giro"))
        world.boot("savings", lambda: self._open("savings"))
        world.boot("teller", self._transfer)

    def is_done(self) -> bool:
        return self.disks["teller"].done == TRANSFERS

    def balances(self) -> tuple[int, int]:
        return self.disks["giro"].balance, self.disks["savings"].balance

    def _open(self, name: str) -> None:
        orb = SimulatedOrb(self._world, name)
        orb.publish(self._account(self._world, self.disks[name]), Account, "account")

    def _transfer(self) -> None:
        orb, disk = SimulatedOrb(self._world, "teller"), self.disks["teller"]
        giro = orb.proxy("PYRO:account@giro:7000", Account)
        savings = orb.proxy("PYRO:account@savings:7000", Account)
        while disk.done < TRANSFERS:
            if len(disk.orders) == disk.done:
                randbytes = self._world.random.randbytes
                disk.orders.append((randbytes(16), randbytes(16)))
            self._world.step()
            out, into = disk.orders[disk.done]
            self._insist(giro, -AMOUNT, out)
            self._insist(savings, AMOUNT, into)
            disk.done += 1

    def _insist(self, account: Account, amount: int, key: bytes) -> None:
        """Repeats the call until it is acknowledged."""
        while True:
            try:
                with limited(2.0), repeating(key):
                    account.change(amount)
                return
            except system.SystemException:
                self._world.sleep(0.5)


def run_bank(seed: int, account: Making) -> World:
    """One run, with faults and then without; asserts that each transfer happened once."""
    with World.swarm(seed) as world:
        bank = Bank(world, account)
        world.run(until=20.0)
        world.calm()
        world.settle(bank.is_done, within_s=600.0)
        # Duplicates may still be on their way.
        world.run(until=world.now() + 60.0)
        assert bank.balances() == (-TRANSFERS * AMOUNT, TRANSFERS * AMOUNT)
        return world


@pytest.mark.parametrize(("account", "seeds"), [(Naive, 20), (Hasty, 100)])
def test_a_bug_is_found_within_few_seeds(account: Making, seeds: int) -> None:
    def search() -> None:
        for seed in range(seeds):
            run_bank(seed, account)

    with pytest.raises(AssertionError) as found:
        search()
    assert found.value.__notes__[0].startswith("seed ")


def test_the_correct_bank_passes_every_seed(for_each_seed: ForEachSeed) -> None:
    for_each_seed(lambda seed: run_bank(seed, Careful), 300)


def test_the_seeds_try_everything_that_can_go_wrong() -> None:
    worlds = [run_bank(seed, Careful) for seed in range(100)]
    for kind in (
        *("lost", "duplicated", "copy arrived", "cut", "overtaking", "broken", "in vain"),
        *("partition", "parted", "heal", "crash", "unanswered", "restart"),
    ):
        assert sum(world.count(kind) > 0 for world in worlds) >= 5, f"{kind} is too rare"
