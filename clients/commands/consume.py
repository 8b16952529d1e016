"""`oncemq consume`: follows a queue and handles each message once, by a command or by writing it.

Getting the message and handling it are one transaction, which is committed when the command ended
with 0, or the message is written out, and rolled back otherwise: then it comes again, later each
time. With `--browse` only the events are shown, and nothing is taken.
"""

import contextlib
import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from clients.commands.message import as_json_line, with_line_end
from clients.commands.options import QueueName
from clients.commands.reaching import Place, Reach, at_node, with_connection
from clients.commands.terminal import ExitCode, complain, note
from clients.commands.written import StreamSink
from clients.connection import Connection
from clients.errors import OnceMQError
from clients.following import Event, Following
from clients.messages import Message
from clients.queue import Queue
from clients.store_lines import counted
from idl.mq import check_queue_name

CHANNEL_BYTES = 12

EXAMPLES = {
    "oncemq consume": {
        "oncemq consume greetings": "write out each message as it comes",
        "oncemq consume mail --command 'sendmail -t'": "a command for each message",
        "oncemq consume jobs --command ./work --failures-max 5": "stop when it fails for good",
        "oncemq consume jobs --command ./work --wait 60": "stop when there is no more",
        "oncemq consume orders --browse": "only look who comes",
    },
}


class NotHandled(OnceMQError):
    """The message was not handled, and stays in the queue."""

    retryable = True


class NobodyReads(BaseException):
    """No failure of the message, which is rolled back without a word: there is nobody to tell."""


Command = Annotated[
    str,
    typer.Option(metavar="CMD", help="Is run for each message, with the payload coming in."),
]
Count = Annotated[int, typer.Option(metavar="N", min=0, help="Stop after so many; 0: go on.")]
Wait = Annotated[
    float | None, typer.Option(metavar="S", min=0, help="Stop when none came for so long.")
]
FailuresMax = Annotated[
    int, typer.Option(metavar="N", min=0, help="Stop after so many failures in a row; 0: go on.")
]
TimeMax = Annotated[float, typer.Option(metavar="S", min=1, help="How long the command may take.")]
Jsonl = Annotated[bool, typer.Option("--jsonl", help="Write a line of JSON for each message.")]
Browse = Annotated[bool, typer.Option("--browse", help="Only show the events; take nothing.")]
Group = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="With --browse: only this group.")
]


def consume(
    queue: QueueName,
    reach: Reach,
    command: Command = "",
    count: Count = 0,
    wait: Wait = None,
    failures_max: FailuresMax = 0,
    time_max: TimeMax = 300.0,
    jsonl: Jsonl = False,
    browse: Browse = False,
    group: Group = 0,
) -> int:
    """Follows a queue, and handles each message once.

    A message leaves the queue when it is written out, or when the command ended with 0; otherwise
    it comes again, after a pause that grows. The command finds MQ_QUEUE, MQ_KEY, MQ_PRIORITY,
    MQ_GROUP and MQ_ATTRIBUTES (JSON) in its environment. Ctrl-C ends it after the message at hand.
    """
    if browse and command:
        raise typer.BadParameter("--browse takes nothing, so that no command can be run")
    if group and not browse:
        raise typer.BadParameter("--group goes with --browse")
    if browse:
        return _show_events(queue, reach, count, jsonl, group)

    def run(connection: Connection) -> int:
        if command:
            handle: Callable[[Message], None] = CommandHandler(queue, command, time_max)
        else:
            handle = _writer(jsonl)
        consuming = Consuming(connection.queue(queue), handle, count, time_max)
        return consuming.run(wait, failures_max)

    with _told_on_standard_error("oncemq.client"):
        return with_connection(reach, run)


COMMANDS: dict[str, Callable[..., int]] = {"consume": consume}


@contextlib.contextmanager
def _told_on_standard_error(name: str) -> Iterator[None]:
    """What the client logs about messages that come again is for whoever runs the command."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("oncemq: %(message)s"))
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class Consuming:
    """Handles messages until enough are, none came, or it was told to stop."""

    def __init__(
        self, queue: Queue, handle: Callable[[Message], None], count: int, time_max_s: float
    ) -> None:
        self._queue = queue
        self._handle = handle
        self._left = count or None
        self._time_max_s = time_max_s
        self._taken = 0

    def run(self, wait_s: float | None, failures_max: int) -> int:
        """Returns the exit code. Raises what ended it, after the message was rolled back."""
        done = 0
        while True:
            self._taken = 0
            try:
                counts = self._queue.consume(
                    self._one,
                    timeout=wait_s,
                    stop=self._is_enough,
                    stop_on_signals=True,
                    failures_max=failures_max or None,
                    transaction_timeout=self._time_max_s + 10,
                )
            except NotHandled as failed:
                complain(
                    f"{failed} It failed {failures_max} times in a row, and stays in the queue."
                )
                return ExitCode.ROLLED_BACK
            except NobodyReads as gone:
                raise BrokenPipeError from gone
            done += counts.committed
            if self._left is not None:
                self._left -= counts.committed
            # What was handled and then not committed comes again, and does not count.
            if not self._is_short(counts.committed):
                break
        if sys.stderr.isatty():
            note(f"{counted(done, 'message')} handled.")
        return ExitCode.OK if done or wait_s is None else ExitCode.NOTHING_THERE

    def _is_short(self, committed: int) -> bool:
        return self._left is not None and self._left > 0 and self._taken > committed > 0

    def _is_enough(self) -> bool:
        return self._left is not None and self._taken >= self._left

    def _one(self, message: Message) -> None:
        try:
            self._handle(message)
        except BrokenPipeError as gone:
            raise NobodyReads from gone
        except OSError as failed:
            raise NotHandled(f"{failed.strerror or failed}.") from failed
        self._taken += 1


class CommandHandler:
    """Runs a command for a message; raises `NotHandled` unless it ends with 0."""

    def __init__(self, queue: str, command: str, time_max_s: float) -> None:
        self._queue = queue
        self._command = command
        self._time_max_s = time_max_s

    def __call__(self, message: Message) -> None:
        told = {
            "MQ_QUEUE": self._queue,
            "MQ_KEY": str(message.key),
            "MQ_PRIORITY": str(message.priority),
            "MQ_GROUP": str(message.group),
            "MQ_ATTRIBUTES": json.dumps(message.attributes),
        }
        try:
            # By the shell, since that is what people write: a line as they would type it.
            ended = subprocess.run(
                self._command,
                shell=True,
                input=message.payload,
                env=os.environ | told,
                timeout=self._time_max_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise NotHandled(f"the command took more than {self._time_max_s:g} s.") from late
        if ended.returncode != 0:
            raise NotHandled(f"the command ended with {ended.returncode}.")


def _writer(is_json: bool) -> Callable[[Message], None]:
    sink = StreamSink(sys.stdout.buffer, as_json_line if is_json else with_line_end)
    return lambda message: sink.write([message])


# --- Only looking --------------------------------------------------------------------------------


def _show_events(queue: str, reach: Reach, count: int, is_json: bool, group: int) -> int:
    def run(place: Place) -> int:
        channel = f"oncemq-{secrets.token_hex(CHANNEL_BYTES)}"
        name = check_queue_name(queue)
        following = Following(place.orb, place.address, name, group, channel, time.sleep)
        seen = 0
        try:
            for event in following.events():
                sys.stdout.write(_event_line(event, is_json))
                sys.stdout.flush()
                seen += 1
                if seen == count:
                    break
        except KeyboardInterrupt:
            return ExitCode.OK
        finally:
            following.close()
        return ExitCode.OK

    return at_node(reach, run)


def _event_line(event: Event, is_json: bool) -> str:
    if is_json:
        return f"{json.dumps(event._asdict())}\n"
    return f"{event.queue}\t{event.key or 'look'}\t{event.group}\n"
