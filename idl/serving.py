"""From settings to what a server listens with: TLS, who may connect, its own token, its limits.

The same for every server, as is the window for those who watch it. What it may not listen with is
for `idl.access` to say, and what callers may do for the server itself.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from idl import system
from idl.access import (
    Authenticator,
    Certificates,
    FirstOf,
    Tls,
    Token,
    Tokens,
    UnsafeSetting,
    check_listening,
)
from idl.call import Address, Call
from idl.dispatch import Authorize
from idl.measures import Durations, Measure, Measures
from idl.orb.guard import Limits
from idl.orb.monitor import Monitor, Watched
from idl.settings import Settings

log = logging.getLogger("oncemq.monitor")


class Entrance:
    """How a server is reached; `section` is the server's own in the settings."""

    def __init__(self, settings: Settings, section: str) -> None:
        self.listen = settings[f"{section}.listen"]
        self.advertise = settings[f"{section}.advertise"]
        self.tls = _tls(settings)
        self.authenticator = _authenticator(settings, section, self.tls)
        own = settings[f"{section}.token_file"]
        self.token = None if own is None else Token.load(own)
        self.trusted = frozenset(settings[f"{section}.trust"])
        self.limits = _limits(settings)
        check_listening(self.listen.host, self.tls, self.authenticator)
        if self.tls is not None:
            # Made for its complaints: what is wrong with the files is told before all else.
            self.tls.server_context()


class Opening:
    """The authorisation of a server that is listening and not yet ready: callers try again."""

    def __init__(self, name: str, authorize: Authorize) -> None:
        self._name = name
        self._authorize = authorize
        self.is_ready = False

    def authorize(self, call: Call, object_name: str, operation: str) -> None:
        """See `Authorize`."""
        if not self.is_ready:
            raise system.TRANSIENT(f"the {self._name} is starting; try again")
        self._authorize(call, object_name, operation)


class Watch:
    """What watchers see of a server, from its start to its end; nothing where none are wanted.

    `unready` says why it answers no calls, `measures` are its numbers, and `syncs` how long its
    disk takes. Raises ImportError where the library is missing that writes the numbers down.
    """

    def __init__(
        self, settings: Settings, section: str, entrance: Entrance, may_look: Callable[[str], bool]
    ) -> None:
        self.unready: Callable[[], str] = lambda: "starting"
        self.measures: Measures = lambda: ()
        self.syncs = Durations()
        self._monitor: Monitor | None = None
        self._listen = settings[f"{section}.metrics_listen"]
        if self.is_wanted:
            self._open(entrance, may_look)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is to watch."""
        return self._listen is not None

    def _open(self, entrance: Entrance, may_look: Callable[[str], bool]) -> None:
        try:
            from idl.exposition import CONTENT_TYPE, Exposition
        except ImportError as missing:
            told = f"{missing}; install it with: pip install 'oncemq[server]'"
            raise ImportError(told) from missing
        text = Exposition(self._measured).text
        watched = Watched(lambda: self.unready(), text, CONTENT_TYPE, may_look)
        try:
            self._monitor = Monitor(self._listen, watched, entrance.tls, entrance.authenticator)
        except OSError as wrong:
            raise OSError(f"for metrics: {not_listening(self._listen, wrong)}") from wrong
        log.info("metrics, health and readiness are told on %s", self._monitor.address)

    def _measured(self) -> list[Measure]:
        return list(self.measures())

    def close(self) -> None:
        """Nobody watches any more."""
        if self._monitor is not None:
            self._monitor.close()


def not_listening(address: Address, wrong: Exception) -> str:
    """Why a server cannot listen there, and what to do."""
    if not isinstance(wrong, OSError):
        return f"cannot listen on {address}: {wrong}"
    # What Python adds in brackets is the address once more.
    reason = str(wrong.strerror or wrong).partition(" (while")[0]
    advice = ""
    if wrong.errno == errno.EADDRINUSE:
        advice = "; another program listens there: stop it, or choose another port"
    return f"cannot listen on {address}: {reason}{advice}"


def _tls(settings: Settings) -> Tls | None:
    authority = settings["tls.authority"]
    if authority is not None:
        return Tls(authority, settings["tls.certificate"], settings["tls.key"])
    for key in ("tls.certificate", "tls.key"):
        if settings[key] is not None:
            raise UnsafeSetting(f"{key} is set ({settings.origin(key)}) and tls.authority is not")
    return None


def _authenticator(settings: Settings, section: str, tls: Tls | None) -> Authenticator | None:
    ways: list[Authenticator] = []
    tokens = settings[f"{section}.tokens"]
    if tokens is not None:
        ways.append(Tokens.load(tokens))
    if tls is not None:
        ways.append(Certificates())
    return FirstOf(ways) if ways else None


def _limits(settings: Settings) -> Limits:
    return Limits(
        message_bytes_max=settings["limits.call_bytes"],
        connections_max=settings["limits.connections"],
        connections_before_login_max=settings["limits.connections_before_login"],
        handshake_s=settings["limits.login_s"],
        message_s=settings["limits.transfer_s"],
        idle_s=settings["limits.idle_s"],
        drain_s=settings["limits.drain_s"],
    )
