"""`oncemq server`, `oncemq coordinator` and `oncemq up`: the servers, run from the command.

The first two take the place of this process, so that signals and exit codes are the server's own,
and what they are told goes to the server as it is. `up` is for development: both servers as child
processes on one data directory, which stop together.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from clients.commands.terminal import ExitCode, complain, note, print_json, print_plain
from clients.servers import NotStarted, Server

LOOK_S = 0.1
NODE = "node"
DEFAULT_NODE_PORT = 7411
DEFAULT_COORDINATOR_PORT = 7410

EXAMPLES = {
    "oncemq server": {
        "oncemq server --data ./data": "a node on 127.0.0.1:7411",
        "oncemq server --data DIR --coordinator HOST:PORT": "with a coordinator elsewhere",
        "oncemq server --data DIR --listen HOST:PORT": "elsewhere; needs TLS beyond 127.0.0.1",
        "oncemq server --storage memory": "nothing is kept",
    },
    "oncemq coordinator": {
        "oncemq coordinator --data ./transactions": "on 127.0.0.1:7410",
        "oncemq coordinator --data DIR --listen HOST:PORT": "elsewhere; needs TLS beyond 127.0.0.1",
        "oncemq coordinator --data DIR --session-timeout 60": "patience with silent clients",
    },
    "oncemq up": {
        "oncemq up": "both servers, with their data in ./data",
        "oncemq up --data ./try --port 0": "elsewhere, on a port that is free",
        "oncemq up --json": "one object, for scripts",
    },
}

More = Annotated[
    list[str] | None,
    typer.Argument(metavar="OPTION", help="All its other options."),
]


Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where it can be reached.")]
Storage = Annotated[str | None, typer.Option(metavar="KIND", help="paged, memory or sql:URL.")]


def server(
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="The directory of its messages.")
    ] = None,
    listen: Listen = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Who decides its transactions.")
    ] = None,
    storage: Storage = None,
    more: More = None,
) -> int:
    """Runs a node, which keeps queues.

    Runs until it is told to stop (SIGTERM, Ctrl-C, admin shutdown): running transactions are rolled
    back, prepared ones kept. All options go to it: python -m mqserver --help lists them, and
    oncemq config show says what it would be told.
    """
    said = {
        "--data": data,
        "--listen": listen,
        "--coordinator": coordinator,
        "--storage": storage,
    }
    _become("mqserver", said, more)


def coordinator(
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="The directory of its log.")
    ] = None,
    listen: Listen = None,
    more: More = None,
) -> int:
    """Runs the coordinator, which decides transactions and has them carried out.

    Runs until it is told to stop (SIGTERM, Ctrl-C). All options go to it: python -m coordinator
    --help lists them.
    """
    _become("coordinator", {"--data": data, "--listen": listen}, more)


Data = Annotated[Path, typer.Option(metavar="DIR", help="Where both keep their data.")]
Port = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="The node's; 0: any that is free.")
]
CoordinatorPort = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=65535,
        show_default=f"{DEFAULT_COORDINATOR_PORT}, or any where --port is 0",
        help="The coordinator's.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what the servers log.")]
JsonOfPlaces = Annotated[
    bool, typer.Option("--json", help="Say where they are in one JSON object.")
]


def up(
    data: Data = Path("data"),
    port: Port = DEFAULT_NODE_PORT,
    coordinator_port: CoordinatorPort = None,
    storage: Storage = None,
    verbose: Verbose = False,
    as_json: JsonOfPlaces = False,
) -> int:
    """Runs a coordinator and a node together, for development.

    Ctrl-C stops both in good order. If one ends by itself the other is stopped. Reachable from this
    machine only.
    """
    if coordinator_port is None:
        coordinator_port = DEFAULT_COORDINATOR_PORT if port else 0
    quiet = [] if verbose else ["--quiet"]
    with _stopped_by_signals():
        said = ["--data", str(data / "coordinator"), *quiet]
        deciding = Server("coordinator", "coordinator", said, f"127.0.0.1:{coordinator_port}")
        node: Server | None = None
        try:
            deciding.start()
            said = ["--data", str(data / "node"), "--coordinator", deciding.address, *quiet]
            said += ["--storage", storage] if storage else []
            node = Server(NODE, "mqserver", said, f"127.0.0.1:{port}")
            node.start()
            _welcome(data, node, deciding, as_json)
            return _watch(node, deciding)
        except NotStarted as failed:
            complain(str(failed))
            return _code_of(failed)
        except KeyboardInterrupt:
            note("Stopping ...")
            return ExitCode.OK
        finally:
            _stop([node, deciding])


COMMANDS: dict[str, Callable[..., int]] = {
    "server": server,
    "coordinator": coordinator,
    "up": up,
}


def _become(program: str, said: dict[str, str | None], more: list[str] | None) -> NoReturn:
    told = [word for name, value in said.items() if value is not None for word in (name, value)]
    # In place of this process, so that signals and exit codes are its own.
    os.execv(sys.executable, [sys.executable, "-m", program, *told, *(more or [])])


# --- Both together -------------------------------------------------------------------------------


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """A SIGTERM, or a terminal that is closed, is as good as Ctrl-C."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _welcome(data: Path, node: Server, deciding: Server, as_json: bool) -> None:
    url = f"mq://{node.address}"
    if as_json:
        print_json({"url": url, "coordinator": deciding.address, "data": str(data)})
        sys.stdout.flush()
        return
    console = Console()
    lines = [
        "OnceMQ is up. Ctrl-C stops it; its data stays.",
        "",
        f"  node         {url}",
        f"  coordinator  {deciding.address}",
        f"  data         {data}",
        "",
        "In another terminal:",
        "",
    ]
    if node.address != f"127.0.0.1:{DEFAULT_NODE_PORT}":
        lines.append(f"  export ONCEMQ_URL={url}")
    lines += [
        "  echo hello | oncemq put greetings",
        "  oncemq get greetings",
        "",
        "Or in Python:",
        "",
        f'  import oncemq; mq = oncemq.connect("{url}")',
        '  mq.queue("greetings").put(b"hello")',
    ]
    text = Text("\n".join(lines))
    text.highlight_regex(r"(?m)^  (export|echo|oncemq|import|mq\.).*$", "cyan")
    print_plain(text, console)
    sys.stdout.flush()


def _code_of(failed: NotStarted) -> int:
    """A node says by the codes of this command what is wrong; a coordinator has its own."""
    is_shared = failed.name == NODE or failed.code == ExitCode.USAGE
    known = frozenset(map(int, ExitCode)) - {ExitCode.OK}
    return failed.code if is_shared and failed.code in known else ExitCode.SERVER_ENDED


def _watch(node: Server, deciding: Server) -> int:
    """Returns when one has ended."""
    while True:
        for each, other in ((node, deciding), (deciding, node)):
            code = each.exit_code()
            if code is not None:
                return _tell_end(each, other, code)
        time.sleep(LOOK_S)


def _tell_end(ended: Server, other: Server, code: int) -> int:
    if code == 0:
        note(f"The {ended.name} was told to stop; the {other.name} is stopped too.")
        return ExitCode.OK
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    complain(
        f"the {ended.name} {how}; the {other.name} is stopped. What was committed is on disk: "
        "start again"
    )
    return ExitCode.SERVER_ENDED


def _stop(servers: list[Server | None]) -> None:
    """The node first: its transactions are rolled back while the coordinator still listens."""
    for each in servers:
        if each is None:
            continue
        try:
            each.stop()
        except KeyboardInterrupt:
            # Asked twice: whoever asks cannot wait. What was decided is on disk.
            each.stop()
