"""The world of one simulated run: hosts that crash and come back, what keeps them apart, the log.

One seed, one run: there is one clock, one `random.Random`, no thread, no real time, and no order
that hashing decides, so the same seed writes the same log, byte by byte. It knows no message and
no object; those are in `network.py`. In brief:

    with World.swarm(seed) as world:             # the seed decides the faults too
        world.boot("node", start_the_node)       # faults may crash it; it boots again by itself
        world.spawn("client", work, 17)          # an activity: it calls, sleeps and waits
        world.run(until=60.0)                    # a minute with faults
        world.calm()                             # no more of them: everything must come right
        world.settle(all_is_done)                # raises if it never does
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any

from tests.simulation.scheduler import Activity, Event, Life, Places, Promise, Scheduler

REAL_LIMIT_S = 20.0
SETTLE_S = 3600.0
SHOWN_EVENTS = 30


class Unsettled(AssertionError):
    """What should have come about in the given time did not."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What may go wrong: probabilities, for each message where nothing else is said, and times."""

    loss: float = 0.0
    duplication: float = 0.0
    cut: float = 0.0
    overtaking: float = 0.0
    # From this message on the two hosts cannot reach each other, in one direction or in both.
    partition: float = 0.0
    # For each call: its connection breaks before, while or after the request leaves.
    breaking: float = 0.0
    # For each step of a host that can boot again.
    crash: float = 0.0
    # How long every message takes, and how much longer the slowest ones.
    latency_s: float = 0.001
    spread_s: float = 0.001
    # How much later a duplicate may come, and how long a partition or a crash may last.
    lateness_s: float = 8.0
    outage_s: float = 5.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value, high = getattr(self, each.name), math.inf if each.name.endswith("_s") else 1.0
            assert 0.0 <= value <= high, f"{each.name}={value} is no probability and no time"

    @classmethod
    def drawn(cls, chance: random.Random) -> Faults:
        """The faults of one run: which there are at all, and how strong, so that runs differ."""
        return cls(
            loss=chance.choice((0.0, 0.05, 0.3)),
            duplication=chance.choice((0.0, 0.05, 0.3)),
            cut=chance.choice((0.0, 0.02, 0.1)),
            overtaking=chance.choice((0.0, 0.2, 1.0)),
            partition=chance.choice((0.0, 0.005, 0.02)),
            breaking=chance.choice((0.0, 0.05, 0.2)),
            crash=chance.choice((0.0, 0.01, 0.05)),
            spread_s=chance.choice((0.001, 0.1, 5.0)),
        )

    def described(self) -> str:
        """Those that are not as in a calm world."""
        own = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        return " ".join(f"{name}={value}" for name, value, calm in own if value != calm) or "none"


CALM = Faults()


@dataclass(eq=False, slots=True)
class Host:
    """A process of the simulated system. What it holds goes with its life, but for its disk."""

    name: str
    life: Life
    # A machine without power answers nobody; where only the process died, callers are refused.
    is_silent: bool = False
    boot: Callable[[], object] | None = None
    # For the network: who listens where, what a crash tells others, when the last message to each
    # other host arrives.
    ports: dict[int, object] = field(default_factory=dict)
    at_crash: list[Callable[[], None]] = field(default_factory=list)
    lanes: dict[str, float] = field(default_factory=dict)

    def is_up(self) -> bool:
        """Whether the host lives."""
        return not self.life.is_over


class World:
    """Everything one run consists of. Leave it by `with`, so that no activity is left behind."""

    def __init__(
        self, seed: int, faults: Faults = CALM, *, real_limit_s: float = REAL_LIMIT_S
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.faults = CALM
        # Whether a duplicate finds only that life of a host to which its request was sent.
        self.names_lives = False
        self.hosts: dict[str, Host] = {}
        self.log: list[tuple[object, ...]] = []
        self._parted: dict[tuple[str, str], None] = {}
        name = f"seed {seed}"
        self._scheduler = Scheduler(name, self.random, self._maybe_crash, real_limit_s)
        self.suffer(faults)

    @classmethod
    def swarm(cls, seed: int) -> World:
        """A world whose faults, too, the seed decides."""
        world = cls(seed)
        world.suffer(Faults.drawn(world.random))
        return world

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if raised is not None:
            last = "\n".join(self.history(SHOWN_EVENTS))
            raised.add_note(f"seed {self.seed}, at {self.now():.6f} s. The last events:\n{last}")
        self.close()

    def close(self) -> None:
        """Ends every activity."""
        for host in self.hosts.values():
            self._scheduler.end(host.life)
        self._scheduler.close()

    # --- Time

    def now(self) -> float:
        """The virtual time in seconds; pass the method where a clock is asked for."""
        return self._scheduler.time

    def sleep(self, seconds: float) -> None:
        """Returns when the time has passed; others run meanwhile."""
        self._scheduler.sleep(seconds)

    def run(self, until: float | None = None) -> None:
        """Goes on to this time, or until nothing is left to happen."""
        self._scheduler.run(until)

    def settle(self, condition: Callable[[], bool], within_s: float = SETTLE_S) -> None:
        """Goes on until the condition holds; raises `Unsettled` when it does not in that time."""
        if not self._scheduler.advance(condition, within_s):
            raise Unsettled(f"seed {self.seed}: it has not come about by {self.now():.3f} s")

    def after(self, delay_s: float, function: Callable[..., object], *arguments: object) -> Event:
        """Lets something happen that no host does, such as the arrival of a message."""
        return self._scheduler.after(delay_s, function, *arguments)

    # --- Activities

    def spawn(
        self, host: str, work: Callable[..., object], *arguments: object, after_s: float = 0.0
    ) -> Activity:
        """Starts an activity on the host. What it raises and nobody catches ends the run."""
        self.step()
        place = self.host(host)
        assert place.is_up(), f"{host} is down: nothing can be started there"
        return self._scheduler.spawn(place.life, work, arguments, after_s)

    def step(self) -> None:
        """A point at which the host of the running activity may die.

        All that leaves a process passes such a point. The network and every wait have theirs; a
        simulated disk calls it before and after it writes.
        """
        self._scheduler.step()

    def promise(self) -> Promise[Any]:
        """A value that an activity can wait for, and that anybody can give."""
        return Promise(self._scheduler)

    def places(self, free: int) -> Places:
        """A semaphore on which activities wait in virtual time."""
        return Places(self._scheduler, free)

    def living(self) -> Life | None:
        """The life that the running activity belongs to; None outside of all activities."""
        running = self._scheduler.running
        return None if running is None else running.life

    # --- Hosts

    def host(self, name: str) -> Host:
        """The host of this name, which is there from the first time it is named."""
        found = self.hosts.get(name)
        if found is None:
            found = self.hosts[name] = Host(name, Life(name, 1))
        return found

    def boot(self, host: str, function: Callable[[], object]) -> Activity:
        """Starts a host by this function, as will every restart; from now on it may crash."""
        self.host(host).boot = function
        return self.spawn(host, function)

    def crash(self, host: str, *, is_silent: bool = False) -> None:
        """Ends the host where it stands; called by one of its own activities, does not return."""
        self._scheduler.check()
        place = self.host(host)
        if not place.is_up():
            return
        self.note("crash", host, place.life.number, "silent" if is_silent else "refusing")
        place.is_silent = is_silent
        self._scheduler.end(place.life)
        place.ports.clear()
        hooks, place.at_crash = place.at_crash, []
        for hook in hooks:
            hook()
        # Was it our own host? Then this raises.
        self._scheduler.check()

    def restart(self, host: str, boot: Callable[[], object] | None = None) -> None:
        """Starts the host's next life, by the function that booted it before or by another."""
        self.crash(host)
        place = self.host(host)
        place.life = Life(host, place.life.number + 1)
        place.boot = boot or place.boot
        self.note("restart", host, place.life.number)
        if place.boot is not None:
            self.spawn(host, place.boot)

    def partition(self, one: str, other: str, *, is_one_way: bool = False) -> None:
        """Nothing that the one sends reaches the other any more, nor back, unless it is one way."""
        self.note("partition", one, other, "one way" if is_one_way else "both ways")
        self._parted[one, other] = None
        if not is_one_way:
            self._parted[other, one] = None

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Ends the partition between the two, or every one."""
        self.note("heal", one, other)
        if one is None or other is None:
            self._parted.clear()
        else:
            self._parted.pop((one, other), None)
            self._parted.pop((other, one), None)

    def is_parted(self, sender: str, receiver: str) -> bool:
        """Whether nothing gets from the one to the other."""
        return (sender, receiver) in self._parted

    def suffer(self, faults: Faults) -> None:
        """These faults happen from now on, and no others."""
        self.note("faults", faults.described())
        self.faults = faults

    def calm(self) -> None:
        """Ends all faults and boots what is down: from now on everything must come right."""
        self.suffer(CALM)
        self.heal()
        for host in list(self.hosts.values()):
            if not host.is_up() and host.boot is not None:
                self.restart(host.name)

    # --- The log

    def note(self, kind: str, *facts: object) -> int:
        """Writes down what happened, and returns its place in the log."""
        self.log.append((self._scheduler.time, kind, *facts))
        return len(self.log) - 1

    def count(self, kind: str) -> int:
        """How often this has happened."""
        return sum(entry[1] == kind for entry in self.log)

    def history(self, last: int | None = None) -> list[str]:
        """The log as lines, or its last ones."""
        begin = 0 if last is None else max(0, len(self.log) - last)
        return [
            " ".join((f"#{place}", *map(_shown, entry)))
            for place, entry in enumerate(self.log[begin:], start=begin)
        ]

    def fingerprint(self) -> str:
        """A digest of the whole log: two runs that have the same one were the same run."""
        return hashlib.sha256("\n".join(self.history()).encode()).hexdigest()

    def _maybe_crash(self, life: Life) -> None:
        rate = self.faults.crash
        if not rate or self.random.random() >= rate:
            return
        host = self.hosts[life.host]
        if host.boot is not None:
            outage_s = self.random.uniform(0.0, self.faults.outage_s)
            self.after(outage_s, self._boot_again, host, life)
            self.crash(host.name, is_silent=self.random.random() < 0.5)

    def _boot_again(self, host: Host, life: Life) -> None:
        if host.life is life:
            self.restart(host.name)


def _shown(fact: object) -> str:
    match fact:
        case bytes():
            return fact.hex()
        case float():
            return f"{fact:.6f}"
        case _:
            return str(fact)
