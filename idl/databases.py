"""What clients and the coordinator must agree on about databases in transactions. Pure.

A database takes part in one of two ways. With two-phase commit it prepares a branch, under an xid
made of our format id, the transaction's name and the branch's. Without, its local commit is the
decision: the *mark*. Both leave a row in one table of that database:

    otid                 branch    outcome        what it says
    transaction, in hex  branch    'branch'       this prepared branch was committed
    transaction, in hex  ''        'committed'    the mark: the transaction is committed
    transaction, in hex  ''        'rolled back'  the fence: it is not, and never will be
    'identity'           ''        16 hex digits  which database this is, whoever asks

The first is written in the transaction that is prepared, so that "there is no such prepared branch"
can be told apart after a commit and after nothing. The mark is written in the local commit; fence
and mark have the same key, so that only one of them can ever be there.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from idl.mapping import InvalidValue
from idl.otids import FORMAT_ID, GTRID_BYTES, check_branch
from idl.places import is_node, node_at

# Families of objects at the coordinator: the Resource of a prepared branch, and the Mq_Settler of a
# database.
DATABASE = "database"
DATABASE_SETTLER = "database-settler"

TABLE = "oncemq_outcome"
IDENTITY = "identity"
IDENTITY_BYTES = 8
# What stands in the column `outcome`.
BRANCH, COMMITTED, ROLLED_BACK = "branch", "committed", "rolled back"
# What stands in the column `branch` where the row is about the whole transaction.
WHOLE = ""

NAME_LENGTH_MAX = 32
_is_name = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}", re.ASCII).fullmatch
_is_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII).fullmatch
_is_host = re.compile(r"[A-Za-z0-9.:_%/-]{1,60}", re.ASCII).fullmatch
# What of an address of MariaDB behind the `?` is about TLS. PostgreSQL reads its own.
MARIADB_TLS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity")
_SECRETS = ("password", "passwd", "sslpassword", "secret", "token")


class Kind(enum.StrEnum):
    """The kinds of databases that can take part."""

    POSTGRESQL = "postgresql"
    MARIADB = "mariadb"
    SQLITE = "sqlite"


_SCHEMES = {
    "postgresql": Kind.POSTGRESQL,
    "postgres": Kind.POSTGRESQL,
    "mariadb": Kind.MARIADB,
    "mysql": Kind.MARIADB,
    "sqlite": Kind.SQLITE,
}
_HOW = "write postgresql://USER@HOST:PORT/DATABASE, mariadb://… or sqlite:///PATH"


def check_name(name: str) -> str:
    """The name itself, when a database can be registered under it."""
    if not _is_name(name):
        raise InvalidValue(
            f"database name {name[:60]!r}: use 1 to {NAME_LENGTH_MAX} letters, digits, hyphens and "
            "underscores, beginning with a letter"
        )
    return name


def check_place(place: str) -> str:
    """The place itself, when a transaction can be decided there: a database or a node."""
    if is_node(place):
        node_at(place)
        return place
    return check_name(place)


# --- Where a database is -------------------------------------------------------------------------


class Dsn(NamedTuple):
    """Where a database is, without any secret; `place` is its path, or its name at the server."""

    text: str
    kind: Kind
    host: str
    port: int | None
    place: str
    user: str


def parse_dsn(text: str) -> Dsn:
    """The parts of an address; raises `InvalidValue`, also for one that holds a password."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as wrong:
        raise InvalidValue(f"{_without_secrets(text)!r} is not an address: {wrong}") from wrong
    # As in `postgresql+psycopg`, where SQLAlchemy names the driver.
    scheme, _, driver = parts.scheme.partition("+")
    kind = _SCHEMES.get(scheme)
    if kind is None:
        raise InvalidValue(f"{_without_secrets(text)!r} is not an address of a database: {_HOW}")
    names = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if parts.password is not None or names.intersection(_SECRETS):
        raise InvalidValue(
            "the address holds a password, which would be kept in a file: leave it out, and say "
            "where it is with --password-file or --password-env, or in ~/.pgpass"
        )
    if kind is Kind.MARIADB:
        _check_mariadb_options(dict(parse_qsl(parts.query, keep_blank_values=True)))
    place = unquote(parts.path)
    if kind is Kind.SQLITE:
        if parts.netloc or not place.startswith("/") or place == "/":
            raise InvalidValue(f"{text!r}: write the whole path, as in sqlite:////var/lib/app.db")
        place = "/" + place.lstrip("/")
    else:
        place = place.strip("/")
        if not place:
            raise InvalidValue(f"{text!r} names no database: {_HOW}")
    plain = parts._replace(scheme=scheme).geturl() if driver else text
    return Dsn(
        plain, kind, unquote(parts.hostname or ""), port, place, unquote(parts.username or "")
    )


def _check_mariadb_options(options: dict[str, str]) -> None:
    """Of TLS nothing is passed over: who writes `ssl_ca` wrongly must not be without it."""
    tls = [name for name in options if name.lower().startswith(("ssl", "tls"))]
    unknown = [name for name in tls if name not in MARIADB_TLS]
    if unknown:
        raise InvalidValue(
            f"{unknown[0][:60]!r} is not known for MariaDB: use {', '.join(MARIADB_TLS)}"
        )
    if tls and not options.get("ssl_ca"):
        raise InvalidValue(
            f"{tls[0]} without ssl_ca: name the file with the certificates by which the server is "
            "known, or anybody could pass for it"
        )
    if ("ssl_cert" in options) is not ("ssl_key" in options):
        raise InvalidValue("ssl_cert and ssl_key belong together")
    if options.get("ssl_verify_identity", "true") not in ("true", "false"):
        raise InvalidValue("ssl_verify_identity is true or false")


def _without_secrets(text: str) -> str:
    return re.sub(r"//[^@/]*@", "//…@", text)[:80]


# --- The table -----------------------------------------------------------------------------------

_COLUMNS = {
    Kind.POSTGRESQL: (
        '(otid varchar(64) COLLATE "C" NOT NULL, branch varchar(64) NOT NULL, '
        "outcome varchar(16) NOT NULL, at timestamptz NOT NULL DEFAULT now(), "
        "PRIMARY KEY (otid, branch))"
    ),
    Kind.MARIADB: (
        "(otid varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
        "branch varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
        "outcome varchar(16) NOT NULL, at timestamp NOT NULL DEFAULT current_timestamp, "
        "PRIMARY KEY (otid, branch)) ENGINE=InnoDB"
    ),
    Kind.SQLITE: (
        "(otid TEXT NOT NULL, branch TEXT NOT NULL, outcome TEXT NOT NULL, "
        "at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (otid, branch)) WITHOUT ROWID"
    ),
}
_DEFAULT_SCHEMAS = {Kind.POSTGRESQL: "public", Kind.MARIADB: "", Kind.SQLITE: "main"}
_QUOTES = {Kind.POSTGRESQL: '"', Kind.MARIADB: "`", Kind.SQLITE: '"'}


def table_of(dsn: Dsn, schema: str = "") -> str:
    """The table as statements name it: with its schema, so that nobody's search path matters."""
    schema = schema or _DEFAULT_SCHEMAS[dsn.kind] or dsn.place
    if not _is_identifier(schema) and dsn.kind is not Kind.MARIADB:
        raise InvalidValue(f"schema {schema[:60]!r} is not the name of a schema")
    quote = _QUOTES[dsn.kind]
    return f"{quote}{schema.replace(quote, '')}{quote}.{TABLE}"


def creation(kind: Kind, table: str) -> str:
    """The statement that makes the table where there is none."""
    return f"CREATE TABLE IF NOT EXISTS {table} {_COLUMNS[kind]}"


def permission(kind: Kind, table: str, role: str) -> str:
    """The statement that lets a role of PostgreSQL, or an account of MariaDB, use the table."""
    if kind is Kind.MARIADB:
        user, _, host = role.partition("@")
        if not _is_identifier(user) or not _is_host(host or "%"):
            raise InvalidValue(f"{role[:60]!r} is not an account of MariaDB: write USER@HOST")
        return f"GRANT SELECT, INSERT ON {table} TO '{user}'@'{host or '%'}'"
    if kind is not Kind.POSTGRESQL or not _is_identifier(role):
        raise InvalidValue(f"{role[:60]!r} is not the name of a role of PostgreSQL")
    return f'GRANT SELECT, INSERT ON {table} TO "{role}"'


def insertion(table: str, place: str) -> str:
    """The statement that writes a row, from otid, branch and outcome; `place` is `%s` or `?`."""
    return f"INSERT INTO {table} (otid, branch, outcome) VALUES ({place}, {place}, {place})"


# --- Names of branches ---------------------------------------------------------------------------


@dataclass(frozen=True)
class BranchId:
    """A branch in a database: the transaction, and the branch's name there."""

    gtrid: bytes
    branch: str

    @property
    def otid(self) -> str:
        """The transaction as the table and the xid have it."""
        return self.gtrid.hex()

    @property
    def xid(self) -> tuple[int, str, str]:
        """Format id, transaction and branch, as `tpc_begin` is given them."""
        return FORMAT_ID, self.otid, self.branch


# The same few come again and again.
@functools.lru_cache(maxsize=1024)
def branch_name(number: int, mark: str = "") -> str:
    """The name of a database's branch; `mark` is the place whose mark decides, if one does."""
    name = f"d{number}"
    return check_branch(f"{name}.{check_place(mark)}" if mark else name)


def mark_of(branch: str) -> str:
    """The place whose mark decides about this branch; empty where the coordinator does."""
    return branch.partition(".")[2] if branch.startswith("d") else ""


def read_xid(format_id: int | None, gtrid: str, branch: str) -> BranchId | None:
    """The branch that an xid names, if it is one of OnceMQ's."""
    if format_id != FORMAT_ID or len(gtrid) != 2 * GTRID_BYTES:
        return None
    try:
        found = BranchId(bytes.fromhex(gtrid), check_branch(branch))
    except ValueError:
        return None
    return found if found.otid == gtrid else None
