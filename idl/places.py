"""Where a transaction is decided, if not at the coordinator: a database, or a node. Pure.

A place stands in the names of objects and of branches in databases, so that whoever finds one of
these knows whom to ask. A database is called by the name under which it is registered; the place of
a node holds its address, and no database can be called so.
"""

from __future__ import annotations

from idl.mapping import InvalidValue

# With a transaction's and a branch's name it must fit into that of an object.
PLACE_LENGTH_MAX = 60
_NODE = "node."


def place_of(host: str, port: int) -> str:
    """The place of a node; empty for one whose address does not fit into such a name."""
    if ":" in host and not {"-", "%"} & set(host):
        host = "-" + host.replace(":", "-")
    elif {":", "%"} & set(host) or host.startswith("-"):
        return ""
    place = f"{_NODE}{host}_{port}"
    return place if len(place) <= PLACE_LENGTH_MAX else ""


def is_node(place: str) -> bool:
    """Whether a node decides there, and no database."""
    return place.startswith(_NODE)


def node_at(place: str) -> tuple[str, int]:
    """Host and port of the node that decides; raises `InvalidValue` for what is no such place."""
    host, _, port = place.removeprefix(_NODE).rpartition("_")
    if host.startswith("-"):
        host = host[1:].replace("-", ":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not is_number or place != place_of(host, int(port)):
        raise InvalidValue(f"{place[:80]!r} names no node")
    return host, int(port)
