"""Where a transaction is begun, as the transaction knows it: a connection."""

from __future__ import annotations

from typing import Protocol

from clients.deciding import Deciding
from clients.nodes import Node


class Home(Protocol):
    """Where a transaction is begun: a connection."""

    @property
    def realm(self) -> object:
        """What can take part in its transactions."""

    @property
    def sender(self) -> str:
        """Who puts."""

    @property
    def timeout_s(self) -> float:
        """How long an answer may take."""

    def node(self) -> Node:
        """The node to which it leads; raises an `OnceMQError`."""

    def deciding(self) -> Deciding:
        """The way to the coordinator; raises an `OnceMQError`."""

    def doubt(self, gtrid: bytes, mark: str = "") -> None:
        """The outcome is the coordinator's to tell, by this database's mark, and was not told."""
