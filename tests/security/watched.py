"""The handle on a server under attack: started, measured from outside, served from, and ended.

What "unharmed" means stands here, once: an honest client that comes after the attack is served
within a second, memory has not grown, and the attack's threads and files are gone again within
the time that a stranger is given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from idl import mq
from idl.access import Tls, Token, token_entry
from idl.call import Address
from idl.orb import Limits, NetworkOrb
from idl.orb.pump import HELPER_IDLE_S
from tests.security.attacker import Wire, login

SERVED_WITHIN_S = 1.0
# What the machine may take to let go of a thread whose time is up: it is shared with other tests.
SLACK_S = 1.5
MEBIBYTE = 1024 * 1024
GROWTH_BYTES_MAX = 20 * MEBIBYTE
START_S_MAX = 20.0

HONEST = "honest.4d1c9fd3b2c74f0e8a65d7b1c0e3f291"
OTHER = "other.91e2a7c05b6d4c1f9f3e8d7a6b5c4d3e"
QUICK = Limits(message_bytes_max=MEBIBYTE, handshake_s=1.0, message_s=1.0, idle_s=2.0, drain_s=0.2)

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Setup:
    """What a victim is started with."""

    log: Path
    limits: Limits = QUICK
    tls: Tls | None = None
    has_tokens: bool = True
    own_token: str | None = None
    host: str = "127.0.0.1"
    # As a node serves, and not, as a coordinator does, with a thread for each peer.
    takes_turns: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """The settings as the victim reads them."""
        entries = [token_entry(token) for token in (HONEST, OTHER)] if self.has_tokens else []
        settings: dict[str, Any] = {
            "host": self.host,
            "log": str(self.log),
            "limits": dataclasses.asdict(self.limits),
            "tls": None
            if self.tls is None
            else [str(self.tls.authority), str(self.tls.certificate), str(self.tls.key)],
            "tokens": dict(entry.split(":") for entry in entries),
            "own_token": self.own_token,
            "takes_turns": self.takes_turns,
        }
        return json.dumps(settings)


@dataclass(frozen=True)
class Measured:
    """What the attack could have used up."""

    peak_bytes: int
    virtual_bytes: int
    threads: int
    files: int
    cpu_s: float


class Watched:
    """One running victim."""

    def __init__(self, setup: Setup, client_tls: Tls | None = None) -> None:
        self.setup = setup
        self.limits = setup.limits
        self.client_tls = client_tls
        self.stderr = setup.log.with_suffix(".stderr")
        self._process = _start(setup, self.stderr)
        self._watch = psutil.Process(self._process.pid)
        try:
            self.address = Address(setup.host, self._announced_port())
            with self.unharmed():
                pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the process, by its own process id."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def honest_orb(
        self,
        token: str | None = HONEST,
        tls: Tls | None = None,
        limits: Limits | None = None,
        awake_s: float = 0.0,
    ) -> NetworkOrb:
        """An orb of an honest client."""
        return NetworkOrb(
            tls=tls or self.client_tls,
            token=None if token is None else Token(token),
            limits=limits,
            timeout_s=SERVED_WITHIN_S,
            awake_s=awake_s,
        )

    def serve_newcomer(self) -> float:
        """An honest client that was not here before gets an answer; returns how long it took."""
        begun = time.monotonic()
        with contextlib.closing(self.honest_orb()) as orb:
            assert orb.proxy(self.reference("service"), mq.Mq_Service).isEnabled() is True
        took = time.monotonic() - begun
        assert took < SERVED_WITHIN_S, f"an honest client waited {took:.2f} s"
        return took

    def status(self, token: str = HONEST) -> dict[str, Any]:
        """What the service tells about itself and about whoever asks."""
        with contextlib.closing(self.honest_orb(token)) as orb:
            told = orb.proxy(self.reference("service"), mq.Mq_Service).getStatus()
        status: dict[str, Any] = json.loads(told)
        return status

    def reference(self, name: str) -> str:
        """The reference of one of the victim's objects."""
        return f"PYRO:{name}@{self.address}"

    def connect(self) -> Wire:
        """A connection that has not logged in."""
        tls = None if self.client_tls is None else self.client_tls.client_context()
        return Wire.to(self.address, tls)

    def logged_in(self, token: str = HONEST) -> Wire:
        """A connection that the victim has let in."""
        wire = self.connect()
        wire.answer(login(token))
        return wire

    @contextlib.contextmanager
    def unharmed(self) -> Iterator[None]:
        """What happens inside does not harm the victim."""
        before = self.measure_afresh()
        yield
        self.serve_newcomer()
        self.wait_until_calm(before, self.limits.handshake_s + SLACK_S)
        grown = self.measure().peak_bytes - before.peak_bytes
        assert grown <= GROWTH_BYTES_MAX, f"memory grew by {grown / MEBIBYTE:.0f} MiB"

    def wait_until_calm(self, before: Measured, within_s: float) -> None:
        """Threads and files come down to what they were before."""

        def is_calm() -> bool:
            now = self.measure()
            return now.threads <= before.threads and now.files <= before.files

        found = wait_until(is_calm, within_s + HELPER_IDLE_S)
        assert found, f"{self._watch.num_threads()} threads, {before.threads} before the attack"

    def measure_afresh(self) -> Measured:
        """The figures of the process now; its peak of memory is counted from here on."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")
        return self.measure()

    def measure(self) -> Measured:
        """The figures of the process now."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        memory, cpu = self._watch.memory_info(), self._watch.cpu_times()
        return Measured(
            peak_bytes=int(peak.split()[1]) * 1024,
            virtual_bytes=memory.vms,
            threads=self._watch.num_threads(),
            files=self._watch.num_fds(),
            cpu_s=cpu.user + cpu.system,
        )

    def log_text(self) -> str:
        """Everything that has been logged, or printed, so far."""
        return self.setup.log.read_text(encoding="utf-8") + self.stderr.read_text(encoding="utf-8")

    def audited(self, event: str, since: int = 0) -> list[dict[str, str]]:
        """The audit's records of one kind, from this position of the log on."""
        lines = self.setup.log.read_text(encoding="utf-8")[since:].splitlines()
        prefix = "oncemq.audit: "
        records = [json.loads(line.removeprefix(prefix)) for line in lines if prefix in line]
        return [record for record in records if record["event"] == event]

    def log_position(self) -> int:
        """Where the log ends now."""
        return len(self.setup.log.read_text(encoding="utf-8"))

    def _announced_port(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip(), f"the victim did not start: {self.stderr.read_text()}"
        return int(line)


def wait_until(holds: Callable[[], bool], within_s: float) -> bool:
    """Whether it holds before the time is over; it is asked often."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def clean_environment() -> dict[str, str]:
    """The environment of this process, without what Pyro5 would read from it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYRO_")}


def _start(setup: Setup, stderr: Path) -> subprocess.Popen[str]:
    with stderr.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.security.victim"],
            cwd=ROOT,
            env=clean_environment() | dict(setup.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdin is not None
    process.stdin.write(setup.line() + "\n")
    process.stdin.flush()
    return process
