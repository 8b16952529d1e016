"""The server under attack: a process of its own, with servants that remember what reached them.

Its settings come as one line of JSON on the standard input, and so does its end: it stops when the
input does. It announces its port on the standard output, and logs everything, at the level of
debugging, into the file that it is given.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from idl import cos, mq, system
from idl.access import AnyoneHere, Authenticator, Certificates, FirstOf, Tls, Token, Tokens
from idl.call import Address, current_call
from idl.orb import Limits, NetworkOrb
from idl.turns import prompt

SERVER_SECRET = "tablespace at /srv/oncemq/secret.db, SELECT canary FROM messages"
HEADER = mq.mqHeader(1, 2, mq.mqTimestamp(3, 4), "victim")


def main() -> None:
    """Serves until the standard input ends."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    log_everything(Path(settings["log"]))
    orb = open_orb(settings)
    publish_all(orb)
    assert orb.address is not None
    sys.stdout.write(f"{orb.address.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    orb.close()


def log_everything(path: Path) -> None:
    """Sends the records of every logger into the file."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG)


def open_orb(settings: dict[str, Any]) -> NetworkOrb:
    """The orb that the settings describe; they hold digests of tokens, and one token of its own."""
    tls = None if settings["tls"] is None else Tls(*map(Path, settings["tls"]))
    authenticator: Authenticator = AnyoneHere()
    if settings["tokens"]:
        tokens = Tokens(settings["tokens"])
        authenticator = tokens if tls is None else FirstOf((Certificates(), tokens))
    own = settings["own_token"]
    return NetworkOrb(
        Address(settings["host"], 0),
        tls=tls,
        authenticator=authenticator,
        limits=Limits(**settings["limits"]),
        token=None if own is None else Token(own),
        timeout_s=2.0,
        takes_turns=settings["takes_turns"],
    )


def publish_all(orb: NetworkOrb) -> None:
    """Publishes one servant of each kind that the attacks are about."""
    service = Service()
    orb.publish(service, mq.Mq_Service, "service")
    orb.publish(Fifo(), mq.Mq_Fifo, "fifo")
    orb.publish(Witness(), mq.Mq_Fifo, "witness")
    orb.publish(_complete(Standard(), mq.Mq_Standard), mq.Mq_Standard, "standard")
    orb.publish(_complete(Coordinator(service), cos.Coordinator), cos.Coordinator, "coordinator")
    orb.publish(Consumer(service), cos.PushConsumer, "consumer")
    orb.publish(Synchronization(service), cos.Synchronization, "synchronization")


class Service:
    """Tells in its status who calls, in which transaction, and what has happened here."""

    def __init__(self) -> None:
        self.is_on = True
        self.events: list[str] = []

    def mqShutdown(self) -> None:
        raise KeyError(SERVER_SECRET)

    def setEnabled(self, b: bool) -> None:
        self.is_on = b
        self.events.append(f"enabled {b}")

    @prompt
    def isEnabled(self) -> bool:
        return self.is_on

    @prompt
    def getStatus(self) -> str:
        call = current_call()
        told = {
            "principal": call.principal.name,
            "transaction": None if call.transaction is None else repr(call.transaction),
            "events": self.events[-20:],
        }
        return json.dumps(told)

    def remember(self, event: str) -> None:
        """Public for the servants here, and no operation of any interface."""
        self.events.append(event)


class Fifo:
    """Keeps what is put, in order."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    @prompt
    def mqPut(
        self, ctrl: object, header: mq.mqHeader, attrib: mq.mqAttribList, data: bytes
    ) -> None:
        self._kept.append(data)

    @prompt
    def mqGetNext(self, ctrl: object) -> tuple[mq.mqHeader, mq.mqAttribList, bytes]:
        if not self._kept:
            raise mq.QueueEmpty("fifo")
        return HEADER, (), self._kept.pop(0)

    def mqStartNotify(self, channelName: str, groupID: int) -> None:
        raise ZeroDivisionError(SERVER_SECRET)

    def mqSetPriorization(self, b: bool) -> None:
        raise mq.QueueDisabled("fifo")

    def mqGetPriorization(self) -> bool:
        return False


class Witness(Fifo):
    """Keeps all that came with a put, word for word."""

    @prompt
    def mqPut(
        self, ctrl: object, header: mq.mqHeader, attrib: mq.mqAttribList, data: bytes
    ) -> None:
        call = current_call()
        seen = (ctrl, header, attrib, data, call.transaction, call.request_id, call.principal)
        super().mqPut(ctrl, header, attrib, repr(seen).encode())


class Standard:
    """Answers with as many bytes as the key says."""

    @prompt
    def mqRead(self, key: str) -> tuple[bool, mq.mqHeader, mq.mqAttribList, bytes]:
        return True, HEADER, (), b"x" * int(key)


class Coordinator:
    """Calls the resource that it is given, as a coordinator does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def register_resource(self, r: Any) -> None:
        self._service.remember(f"registered {r!r}")
        r.prepare()

    def get_txcontext(self) -> cos.PropagationContext:
        context = current_call().transaction
        if context is None:
            raise cos.Unavailable
        return context


class Consumer:
    """Takes any value, and remembers what kinds it was made of."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def push(self, data: object) -> None:
        self._service.remember(f"pushed {_kinds(data)}")

    def disconnect_push_consumer(self) -> None:
        raise cos.Disconnected


class Synchronization:
    """Takes an enum."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def before_completion(self) -> None:
        raise system.TRANSACTION_ROLLEDBACK("before completion")

    def after_completion(self, s: cos.Status) -> None:
        self._service.remember(f"completed {s.name}")


def _kinds(value: object) -> str:
    if isinstance(value, dict):
        return f"dict of {sorted({_kinds(part) for part in value.values()})}"
    if isinstance(value, tuple):
        return f"tuple of {sorted({_kinds(part) for part in value})}"
    return type(value).__name__


def _complete(servant: Any, interface: type) -> Any:
    """The servant, with every operation that it does not have refused."""

    def refuse(*_: object) -> None:
        raise system.NO_IMPLEMENT("not here")

    for name in vars(interface):
        if not name.startswith("_") and not hasattr(servant, name):
            setattr(servant, name, refuse)
    return servant


if __name__ == "__main__":
    main()
