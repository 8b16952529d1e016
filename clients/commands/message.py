"""`oncemq put`, `get` and `browse`: messages from files and streams into queues, and back.

Each command reads the command line and moves messages between a queue and the outside. What is
got is taken from the queue only after it has been written out and flushed: whoever dies in between
finds the message still there.
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console

from clients.commands.message_lines import beginning, fields_of, line_of, message_of, row_of
from clients.commands.options import AsJson, QueueName
from clients.commands.reaching import Reach, with_connection
from clients.commands.terminal import (
    ExitCode,
    complain,
    note,
    print_json,
    print_plain,
    progress,
    show_table,
)
from clients.commands.written import FileSink, Sink, StreamSink
from clients.connection import Connection
from clients.errors import NotFound, OnceMQError, OutcomeUnknown, QueueFull
from clients.messages import Item, Message, size_of
from clients.queue import Queue
from clients.store_lines import counted
from idl.mapping import InvalidValue
from idl.mq import KEY_LENGTH

STANDARD_INPUT = "-"
BATCH = 1000
BATCH_BYTES = 8 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 1024 * 1024 * 1024
FULL_PAUSE_S = 0.1
# What is written out has so long to become durable.
WRITE_S = 60.0
PAYLOAD_WIDTH = 60

EXAMPLES = {
    "oncemq put": {
        "echo hello | oncemq put greetings": "what comes in, as one message",
        "oncemq put greetings --text hello": "the same",
        "oncemq put scans *.png": "a message for each file",
        "oncemq put log --lines app.log": "a message for each line",
        "oncemq put orders --jsonl -": "with priority, group, attributes",
        "oncemq put jobs --priority 9 --attribute type=mail job.json": "the same for all",
    },
    "oncemq get": {
        "oncemq get greetings": "the next message, as it was put",
        "oncemq get greetings --wait 30": "wait for one, up to 30 seconds",
        "oncemq get orders --count 500 --jsonl": "one line of JSON for each",
        "oncemq get scans --all --output ./scans": "a file for each",
    },
    "oncemq browse": {
        "oncemq browse orders": "a table of the first 100",
        "oncemq browse orders --key KEY": "the payload of one",
        "oncemq browse orders --limit 0 --jsonl": "everything, a line of JSON each",
    },
}

Group = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Only of this group.")]
Jsonl = Annotated[bool, typer.Option("--jsonl", help="A line of JSON for each message.")]


# --- put -----------------------------------------------------------------------------------------


Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="What to put; - or nothing is what comes in."),
]
Texts = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="A message; may be repeated.")
]
Lines = Annotated[bool, typer.Option("--lines", help="A message for each line.")]
Priority = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="A higher one goes first.")
]
ForGroup = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="For consumers of this group.")
]
Attributes = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")
]
AtOnce = Annotated[
    int, typer.Option(metavar="N", min=1, help="So many lines are put at once, or none.")
]
WhileFull = Annotated[
    float, typer.Option(metavar="S", min=0, help="How long to wait where the queue is full.")
]
JsonWithKeys = Annotated[bool, typer.Option("--json", help="Print one JSON object, with the keys.")]


def put(
    queue: QueueName,
    reach: Reach,
    files: Files = None,
    text: Texts = None,
    lines: Lines = False,
    jsonl: Jsonl = False,
    priority: Priority = 0,
    group: ForGroup = 0,
    attribute: Attributes = None,
    batch: AtOnce = BATCH,
    wait: WhileFull = 0.0,
    as_json: JsonWithKeys = False,
) -> int:
    """Puts messages into a queue; what it says it has put is on disk.

    A message is what comes in, a file, a text, a line (--lines) or a line of JSON (--jsonl): an
    object with payload or payload_base64, priority, group, attributes, sender.
    """
    if jsonl and (lines or priority or group or attribute):
        raise typer.BadParameter("with --jsonl every line says priority, group, attributes itself")
    if text and (files or lines or jsonl):
        raise typer.BadParameter("--text is the whole message: leave files, --lines, --jsonl out")
    pattern = Message(b"", priority, group, _attributes(attribute or []))
    source, total = _source(files or [STANDARD_INPUT], text, pattern, lines, jsonl)

    def run(connection: Connection) -> int:
        putting = Putting(connection.queue(queue), wait, as_json, time.monotonic, time.sleep)
        with progress(f"Putting into {queue}", total, time.monotonic) as shown:
            try:
                for messages in _batches(source, batch):
                    putting.put(messages)
                    shown.advance(len(messages))
            except (OnceMQError, InvalidValue, OSError, KeyboardInterrupt) as failed:
                shown.close()
                _tell_what_was_kept(putting, queue, failed)
                raise
        return _tell_put(putting, queue)

    return with_connection(reach, run)


def _source(
    files: list[str], texts: list[str] | None, pattern: Message, is_lines: bool, is_json: bool
) -> tuple[Iterator[list[Item]], int | None]:
    """The messages, and how many they are where that is known before they are read."""
    if texts:
        return iter([[_alike(pattern, each.encode()) for each in texts]]), None
    if is_lines or is_json:
        return _items_of_lines(files, pattern, is_json), None
    return _items_of_files(files, pattern), len(files)


class Putting:
    """Puts batch after batch, and knows how far it came."""

    def __init__(
        self,
        queue: Queue,
        wait_s: float,
        keeps_keys: bool,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.done = 0
        self.under_way = 0
        self.keys: list[str] | None = [] if keeps_keys else None
        self._queue = queue
        self._wait_s = wait_s
        self._clock = clock
        self._sleep = sleep

    def put(self, messages: list[Item]) -> None:
        """All of them are put, or none; a queue that is full is waited for."""
        self.under_way = len(messages)
        deadline = self._clock() + self._wait_s
        while True:
            try:
                keys = self._queue.put_many(messages)
                break
            except QueueFull:
                if self._clock() >= deadline:
                    raise
                self._sleep(FULL_PAUSE_S)
        self.done += len(messages)
        self.under_way = 0
        if self.keys is not None:
            self.keys += [str(key) if key.is_known else "" for key in keys]


def _tell_put(putting: Putting, queue: str) -> int:
    if putting.keys is not None:
        print_json({"queue": queue, "messages": putting.done, "keys": putting.keys})
    else:
        print_plain(f"{counted(putting.done, 'message')} put into {queue}.", Console())
    return ExitCode.OK


def _tell_what_was_kept(putting: Putting, queue: str, failed: BaseException) -> None:
    if not putting.done and not isinstance(failed, OutcomeUnknown):
        return
    kept = f"{counted(putting.done, 'message')} were put into {queue} before this, and stay there"
    if isinstance(failed, OutcomeUnknown):
        kept += f"; of the {putting.under_way:,} after them it is not known"
    else:
        kept += "; nothing after them was put"
    note(f"{kept}.")


def _attributes(said: list[str]) -> tuple[tuple[str, str], ...]:
    for each in said:
        if not each.partition("=")[1]:
            raise typer.BadParameter(f"{each!r}: write an attribute as NAME=VALUE")
    return tuple((name, value) for name, _, value in (each.partition("=") for each in said))


def _alike(pattern: Message, payload: bytes) -> Item:
    if not (pattern.priority or pattern.group or pattern.attributes):
        return payload
    return Message(payload, pattern.priority, pattern.group, pattern.attributes)


def _items_of_files(files: list[str], pattern: Message) -> Iterator[list[Item]]:
    for name in files:
        with _opened(name) as stream:
            yield [_alike(pattern, stream.read())]


def _items_of_lines(files: list[str], pattern: Message, is_json: bool) -> Iterator[list[Item]]:
    """The lines that are there now; whenever there are none for the moment, an empty list."""
    for name in files:
        number = 0
        with _opened(name) as stream:
            for lines in _lines(stream):
                items: list[Item] = []
                for line in lines:
                    number += 1
                    if not is_json:
                        items.append(_alike(pattern, line))
                    elif line.strip():
                        items.append(message_of(line, f"{_shown(name)}, line {number}"))
                yield items


def _lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    rest = b""
    while chunk := stream.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
        if len(rest) > LINE_BYTES_MAX:
            raise InvalidValue("a line is longer than a message may be")
        if len(chunk) < CHUNK_BYTES:
            yield []
    if rest:
        yield [rest]


def _batches(source: Iterable[Sequence[Item]], count: int) -> Iterator[list[Item]]:
    """As many as go together; what came in is not kept waiting for what may never come."""
    gathered: list[Item] = []
    size = 0
    for items in source:
        if not items and gathered:
            yield gathered
            gathered, size = [], 0
        for item in items:
            gathered.append(item)
            size += size_of(item)
            if len(gathered) >= count or size >= BATCH_BYTES:
                yield gathered
                gathered, size = [], 0
    if gathered:
        yield gathered


def _opened(name: str) -> BinaryIO:
    if name != STANDARD_INPUT:
        return open(name, "rb")
    if sys.stdin.isatty():
        note("Type what is to be put; Ctrl-D ends it.")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _shown(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else name


# --- get -----------------------------------------------------------------------------------------


def get(
    queue: QueueName,
    reach: Reach,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 1,
    everything: Annotated[bool, typer.Option("--all", help="All that can be got now.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="S", min=0, help="How long to wait for the first.")
    ] = 0.0,
    key: Annotated[str, typer.Option(metavar="KEY", help="This one and no other.")] = "",
    group: Group = 0,
    jsonl: Jsonl = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A file for each, named by queue and key."),
    ] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="So many are taken at once.")
    ] = BATCH,
) -> int:
    """Gets the next messages of a queue.

    They are taken from it once they are written out. One message is written as it was put, several
    with a line end behind each. Exit code 9: there was nothing to get.
    """
    if jsonl and output is not None:
        raise typer.BadParameter("--jsonl writes lines, --output files: choose one")
    most = None if everything else count

    def run(connection: Connection) -> int:
        sink = _sink(queue, output, jsonl, is_one=most == 1 or bool(key))
        named = connection.queue(queue)
        if key:
            done = _get_key(connection, named, _key(key), wait, sink)
        else:
            with progress(f"Getting from {queue}", most, time.monotonic) as shown:
                done = 0
                for number in _get_batches(connection, named, most, batch, wait, group, sink):
                    done += number
                    shown.advance(number)
        if not done:
            complain(f"there is nothing to get from {queue} now")
            return ExitCode.NOTHING_THERE
        if output is not None:
            print_plain(f"{counted(done, 'message')} written to {output}.", Console())
        return ExitCode.OK

    return with_connection(reach, run)


def _get_batches(
    connection: Connection,
    queue: Queue,
    most: int | None,
    batch: int,
    wait_s: float,
    group: int,
    sink: Sink,
) -> Iterator[int]:
    left = most
    while left is None or left > 0:
        with connection.transaction(timeout=wait_s + WRITE_S):
            number = batch if left is None else min(batch, left)
            messages = queue.get_many(number, wait_s, group=group)
            sink.write(messages)
        if not messages:
            return
        yield len(messages)
        left = None if left is None else left - len(messages)
        wait_s = 0.0


def _get_key(connection: Connection, queue: Queue, key: str, wait_s: float, sink: Sink) -> int:
    with connection.transaction(timeout=wait_s + WRITE_S):
        message = queue.get(wait_s, key=key)
        assert message is not None
        sink.write([message])
    return 1


def _key(text: str) -> str:
    """The key, whose leading zeros need not be typed."""
    if not (text.isascii() and text.isdigit()) or len(text) > KEY_LENGTH:
        raise typer.BadParameter(f"{text!r} is no key: a key has {KEY_LENGTH} digits")
    return text.zfill(KEY_LENGTH)


def _sink(queue: str, output: Path | None, is_json: bool, is_one: bool) -> Sink:
    if output is not None:
        return FileSink(output, queue)
    if is_json:
        return StreamSink(sys.stdout.buffer, as_json_line)
    if not is_one:
        return StreamSink(sys.stdout.buffer, with_line_end)
    is_seen = sys.stdout.isatty()
    return StreamSink(sys.stdout.buffer, with_line_end if is_seen else _as_it_is)


def with_line_end(message: Message) -> bytes:
    """The payload and a line end, unless it has one."""
    return message.payload if message.payload.endswith(b"\n") else message.payload + b"\n"


def as_json_line(message: Message) -> bytes:
    """The whole message as a line of JSON."""
    return line_of(message).encode() + b"\n"


def _as_it_is(message: Message) -> bytes:
    return message.payload


# --- browse --------------------------------------------------------------------------------------


def browse(
    queue: QueueName,
    reach: Reach,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="At most so many; 0: all.")] = 100,
    after: Annotated[str, typer.Option(metavar="KEY", help="Only those behind this one.")] = "",
    key: Annotated[str, typer.Option(metavar="KEY", help="The payload of this one.")] = "",
    group: Group = 0,
    jsonl: Jsonl = False,
    as_json: AsJson = False,
) -> int:
    """Shows the messages of a queue and leaves them there.

    They come in the order of their keys. What a transaction holds is not shown.
    """

    def run(connection: Connection) -> int:
        named = connection.queue(queue)
        if key:
            return _show_one(named, _key(key), jsonl or as_json)
        # One more than is shown, to know whether that was all.
        asked = limit + 1 if limit else None
        found = named.browse(asked, after=_key(after) if after else None, group=group)
        if jsonl:
            for message in itertools.islice(found, limit or None):
                sys.stdout.write(f"{line_of(message)}\n")
            return ExitCode.OK
        messages = list(found)
        shown = messages[:limit] if limit else messages
        if as_json:
            print_json({"queue": queue, "messages": [fields_of(each) for each in shown]})
            return ExitCode.OK
        columns = ("key", "time (UTC)", ">priority", ">group", ">bytes", "payload")
        rows = [row_of(each, PAYLOAD_WIDTH) for each in shown]
        show_table(columns, rows, f"There is nothing in {queue} to be had now.")
        if len(messages) > len(shown):
            note(f"There are more: --limit 0 shows all, --after {shown[-1].key} those behind.")
        return ExitCode.OK

    return with_connection(reach, run)


def _show_one(queue: Queue, key: str, is_json: bool) -> int:
    message = queue.read(key)
    if message is None:
        raise NotFound(f"queue {queue.name!r} has no message {key!r} that can be had now")
    if is_json:
        print_json(fields_of(message))
    elif sys.stdout.isatty():
        print_plain(beginning(message.payload, max(len(message.payload), 80)), Console())
    else:
        StreamSink(sys.stdout.buffer, _as_it_is).write([message])
    return ExitCode.OK


COMMANDS: dict[str, Callable[..., int]] = {"put": put, "get": get, "browse": browse}
