"""From settings to what a server listens with: TLS, who may connect, its own token, its limits.

The same for every server. What it may not listen with is for `idl.access` to say, and what callers
may do for the server itself.
"""

from __future__ import annotations

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
from idl.call import Call
from idl.dispatch import Authorize
from idl.orb.guard import Limits
from idl.settings import Settings


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
