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

    def doubt(self, gtrid: bytes, mark: str = "", node: Node | None = None) -> None:
        """The outcome was not told: that of this node, which had all the work, or else of the mark.

        A mark is that of a database, or of a node that decides; without it the coordinator decides.
        """
