"""A node in this process that commands reach as if it were a server, for tests."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from clients import cli
from clients.connecting import connect
from clients.connection import Connection

_numbers = itertools.count()


@dataclass
class Answer:
    """What a command said, and its exit code."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode()

    @property
    def json(self) -> Any:
        """The object on standard output."""
        return json.loads(self.out)


class CommandNode:
    """Runs commands against one node, which keeps what it was given."""

    def __init__(
        self, url: str, connection: Connection, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        self.url = url
        self.connection = connection
        self._capture = capture

    def run(self, *arguments: str) -> Answer:
        """One command, from beginning to end."""
        self._capture.readouterr()
        here = mock.Mock(side_effect=lambda url, **_: connect(self.url))
        with mock.patch("clients.connecting.connect", here):
            code = cli.main(["--url", "memory:", *arguments])
        out, err = self._capture.readouterr()
        return Answer(code, out, err.decode())


@contextlib.contextmanager
def command_node(capture: pytest.CaptureFixture[bytes]) -> Iterator[CommandNode]:
    """A node with nothing in it."""
    url = f"memory:commands-{next(_numbers)}"
    with connect(url) as connection:
        # It runs from now on, and for as long as this connection is open.
        connection.ping()
        yield CommandNode(url, connection, capture)
