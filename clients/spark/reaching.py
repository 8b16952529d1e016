"""How a job's connection is passed on to Spark's other processes: as options of reads and writes.

An embedded node cannot be reached from them, and a secret is not to travel. It knows no job.
"""

from __future__ import annotations

from collections.abc import Mapping

from clients.connecting import connect
from clients.connection import Connection
from clients.errors import OnceMQError
from clients.nodes import NETWORK
from clients.spark.sharing import EmbeddedUrl, connection_to
from idl.access import Tls


def reached(given: Connection | str | None) -> Connection:
    """A connection whose node tasks can reach too; raises an `OnceMQError`."""
    if given is None:
        given = connect()
    connection = connection_to(given) if isinstance(given, str) else given
    if connection.realm is not NETWORK:
        raise EmbeddedUrl(
            f"{connection!r} is a node inside one process, and Spark works in many: run a server "
            '(`oncemq up`) and give its url, as in "mq://HOST:PORT"'
        )
    return connection


def options_of(connection: Connection) -> dict[str, str]:
    """How tasks connect, as options of a read or write."""
    try:
        _, (again,) = connection.__reduce__()
    except TypeError as secret:
        raise OnceMQError(str(secret)) from secret
    tls: Tls | None = again["tls"]
    found = {
        "url": f"mq://{connection.node().address}",
        "coordinator": str(connection.deciding().address),
        "tokenFile": again["token_file"],
        "tlsAuthority": tls and tls.authority,
        "tlsCertificate": tls and tls.certificate,
        "tlsKey": tls and tls.key,
        "timeout": again["timeout"],
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def texts_of(options: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark would hand them over, from the names that Python has for them."""
    texts = {}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        else:
            text = value.json() if hasattr(value, "json") else str(value)
        texts[name.replace("_", "")] = text
    return texts
