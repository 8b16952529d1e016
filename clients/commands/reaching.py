"""How a command reaches a server: the options that say where and as whom, and what is answered when
that fails.

A command with a parameter `reach` is given these options. They may also stand before the command,
where they hold unless it says otherwise. What nobody says is found in the environment, then in the
settings file. It decides nothing about what is asked there.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clients.commands.terminal import ExitCode, complain

if TYPE_CHECKING:
    from clients.connection import Connection
    from idl.access import Tls
    from idl.call import Address, Orb
    from idl.settings import Settings

DEFAULT_URL = "mq://127.0.0.1:7411"
DEFAULT_PORT = 7411
DEFAULT_TIMEOUT_S = 10.0
SCHEME = "mq://"

OPTIONS = {
    "url": (str, "--url", "URL", f"The node ({DEFAULT_URL})."),
    "timeout_s": (float, "--timeout", "S", f"How long an answer may take ({DEFAULT_TIMEOUT_S:g})."),
    "token_file": (Path, "--token-file", "FILE", "Your token, in a file of your own."),
    "tls_authority": (Path, "--tls-authority", "FILE", "Who signs the servers' certificates."),
    "tls_certificate": (Path, "--tls-certificate", "FILE", "Your own certificate."),
    "tls_key": (Path, "--tls-key", "FILE", "Its key, if not with the certificate."),
    "config": (Path, "--config", "FILE", "The settings file (oncemq.toml)."),
}
# The others are the same for every command, and are shown in the help of `oncemq` itself.
_SHOWN_EVERYWHERE = ("url", "timeout_s")


@dataclass(frozen=True)
class Reach:
    """Where the server is, and as whom to go there; None is what nobody has said."""

    url: str | None = None
    token_file: Path | None = None
    tls_authority: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    timeout_s: float | None = None
    config: Path | None = None

    def over(self, other: "Reach") -> "Reach":
        """This, and the other where this says nothing."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(other, **{name: value for name, value in said.items() if value is not None})


def with_options(signature: inspect.Signature, is_shown: bool) -> inspect.Signature:
    """The signature with these options in place of the parameter `reach`."""
    kept = [each for each in signature.parameters.values() if each.name != "reach"]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotation(name, is_shown or name in _SHOWN_EVERYWHERE),
        )
        for name in OPTIONS
    ]
    return signature.replace(parameters=[*kept, *added])


def _annotation(name: str, is_shown: bool) -> Any:
    kind, flag, metavar, text = OPTIONS[name]
    option = typer.Option(flag, metavar=metavar, help=text, hidden=not is_shown)
    return Annotated[kind | None, option]


# --- Going there ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A node that can be asked."""

    orb: "Orb"
    address: "Address"


def flags_of(reach: Reach, coordinator: str | None = None) -> dict[str, str]:
    """What was said on the command line, by the names of the settings."""
    said = {
        "client.url": reach.url,
        "client.coordinator": coordinator,
        "client.token_file": reach.token_file,
        "client.timeout_s": reach.timeout_s,
        "tls.authority": reach.tls_authority,
        "tls.certificate": reach.tls_certificate,
        "tls.key": reach.tls_key,
    }
    return {key: str(value) for key, value in said.items() if value is not None}


def settled(reach: Reach, coordinator: str | None = None) -> "Settings":
    """All that a client goes by, with what nobody said taken from elsewhere."""
    from idl.settings import Program, read_settings

    return read_settings(Program.CLIENT, flags_of(reach, coordinator), reach.config)


def at_node(reach: Reach, run: Callable[[Place], int]) -> int:
    """Runs the command with the node, and turns what went wrong into a sentence and a code."""

    def go() -> int:
        with node_of(reach) as place:
            return run(place)

    return answered(go)


@contextlib.contextmanager
def node_of(reach: Reach) -> Iterator[Place]:
    """The node, reached over the network, or run within this process for `file:DIR`."""
    settings = settled(reach)
    if not settings["client.url"].startswith(SCHEME):
        with connection_of(settings) as connection:
            node = connection.node()
            yield Place(node.orb, node.address)
        return
    with orb_of(settings) as orb:
        yield Place(orb, node_address(settings))


def node_address(settings: "Settings") -> "Address":
    """Host and port of the node that is to be asked over the network."""
    from idl.call import Address
    from idl.mapping import InvalidValue

    url = settings["client.url"]
    if not url.startswith(SCHEME):
        raise InvalidValue(f"{url} is no server that can be asked: write mq://HOST:PORT")
    place = url.removeprefix(SCHEME).rstrip("/")
    if place and ":" not in place.rpartition("]")[2]:
        place = f"{place}:{DEFAULT_PORT}"
    try:
        return Address.parse(place)
    except InvalidValue as wrong:
        raise InvalidValue(f"url {url}: {wrong}; write mq://HOST:PORT") from wrong


def with_connection(reach: Reach, run: Callable[["Connection"], int]) -> int:
    """The same with a connection, for those who put and get."""

    def go() -> int:
        with connection_of(settled(reach)) as connection:
            return run(connection)

    return answered(go)


def connection_of(settings: "Settings") -> "Connection":
    """A connection as it was asked for; nothing is opened yet."""
    from clients.connecting import connect

    url, timeout_s = settings["client.url"], settings["client.timeout_s"]
    if not url.startswith(SCHEME):
        return connect(url, timeout=timeout_s)
    # Before anything else, so that a wrong url is wrong usage.
    node_address(settings)
    is_named = settings.origin("client.coordinator") != "default"
    return connect(
        url,
        token_file=settings["client.token_file"],
        tls=_tls(settings),
        coordinator=str(settings["client.coordinator"]) if is_named else None,
        timeout=timeout_s,
    )


@contextlib.contextmanager
def orb_of(settings: "Settings") -> Iterator["Orb"]:
    """The way over the network, with what proves who we are."""
    from idl.access import Token
    from idl.orb import NetworkOrb

    token_file = settings["client.token_file"]
    token = None if token_file is None else Token.load(token_file)
    orb = NetworkOrb(tls=_tls(settings), token=token, timeout_s=settings["client.timeout_s"])
    try:
        yield orb
    finally:
        orb.close()


def _tls(settings: "Settings") -> "Tls | None":
    from idl.access import Tls

    if settings["tls.authority"] is None:
        return None
    return Tls(settings["tls.authority"], settings["tls.certificate"], settings["tls.key"])


def answered(run: Callable[[], int]) -> int:
    """Runs it, and turns what went wrong into a sentence and a code."""
    try:
        return run()
    except _told() as raised:
        complain(_words(raised))
        return next(code for kinds, code in _rows() if isinstance(raised, kinds))


def _words(raised: Exception) -> str:
    from idl import system

    if isinstance(raised, system.OBJECT_NOT_EXIST):
        return (
            "the server there is of another kind than is asked here; by default a node listens on "
            f"port 7411 and a coordinator on 7410 ({raised.reason})"
        )
    queue = getattr(raised, "queue", None)
    if queue is None:
        return str(raised)
    return f"{queue}: {inspect.cleandoc(type(raised).__doc__ or '')}"


def _told() -> tuple[type[Exception], ...]:
    return tuple(kind for kinds, _ in _rows() for kind in kinds)


def _rows() -> "tuple[tuple[tuple[type[Exception], ...], ExitCode], ...]":
    """What may go wrong, and the code for it; the last rows are of a more general kind."""
    from clients import errors
    from clients.admin import NotOne
    from idl import coordination, cos, mq, system
    from idl.access import UnsafeSetting
    from idl.mapping import InvalidValue
    from idl.toml_files import BadFile

    missing = (
        NotOne,
        coordination.TransactionNotFound,
        mq.BranchNotFound,
        mq.QueueNotFound,
        mq.ConsumerNotFound,
        errors.NotFound,
    )
    away = (
        errors.ConnectionLost,
        errors.Timeout,
        system.COMM_FAILURE,
        system.TIMEOUT,
        system.TRANSIENT,
    )
    refused = (
        errors.OnceMQError,
        cos.NotPrepared,
        mq.QueueExists,
        mq.QueueInUse,
        mq.QueueDisabled,
        system.SystemException,
    )
    return (
        ((InvalidValue, UnsafeSetting, BadFile), ExitCode.USAGE),
        (missing, ExitCode.NOT_FOUND),
        (away, ExitCode.UNREACHABLE),
        ((errors.RolledBack,), ExitCode.ROLLED_BACK),
        (
            (errors.OutcomeUnknown, cos.HeuristicMixed, cos.HeuristicHazard),
            ExitCode.OUTCOME_UNKNOWN,
        ),
        ((errors.Damaged,), ExitCode.DAMAGED),
        (refused, ExitCode.REFUSED),
    )
