"""Where the command writes what it got: when a write returns, others can rely on it.

A stream is flushed, and synced where it is a file. A file for each message appears under its name
only when it is whole and on disk. So a message may leave its queue after the write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from clients.messages import Message


class Sink(Protocol):
    """Takes messages out of the product."""

    def write(self, messages: Sequence[Message]) -> None:
        """All of them are written out, for good."""


class StreamSink:
    """One stream for all, such as standard output. See `Sink`."""

    def __init__(self, stream: BinaryIO, written: Callable[[Message], bytes]) -> None:
        self._stream = stream
        self._written = written

    def write(self, messages: Sequence[Message]) -> None:
        """See `Sink.write`."""
        for message in messages:
            self._stream.write(self._written(message))
        self._stream.flush()
        try:
            os.fsync(self._stream.fileno())
        except OSError:
            # A pipe or a terminal: whoever reads has it, as far as we can know.
            return


class FileSink:
    """A file for each message, in one directory. See `Sink`."""

    def __init__(self, folder: Path, queue: str) -> None:
        self._folder = folder
        self._queue = queue
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, messages: Sequence[Message]) -> None:
        """See `Sink.write`."""
        for message in messages:
            name = f"{self._queue}-{message.key}"
            part = self._folder / f".{name}.part"
            with part.open("wb") as stream:
                stream.write(message.payload)
                stream.flush()
                os.fsync(stream.fileno())
            part.rename(self._folder / name)
        entries = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(entries)
        finally:
            os.close(entries)
