"""The options of `format("oncemq")`: one literal table, and how they are read.

Spark hands over text under keys in lower case. Every option is read here, once, into `Options`; an
unknown one is refused with the nearest name, since an option that is silently ignored is a job that
silently does something else. Knows nothing of connections, transactions or rows.
`docs/guide/spark-options.md` is held against the table by a test.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from clients.spark.errors import OptionError
from idl.mapping import InvalidValue
from idl.mq import check_queue_name


class Role(Enum):
    """What the options are for."""

    SINK = "a batch write"
    STREAM_SINK = "a streaming write"
    BROWSE = "a batch read"
    TAKE = "a read in a transaction"
    STREAM_SOURCE = "a streaming read"


@dataclass(frozen=True)
class Options:
    """All options with their values; those that a role does not have keep their defaults.

    `None` stands for not said. `headers` is then decided by the rows (see `rows.py`).
    """

    url: str | None = None
    token_file: str | None = None
    tls_authority: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    coordinator: str | None = None
    timeout: float = 30.0
    queue: str = ""
    payload_format: str = "binary"
    headers: bool | None = None
    sender: str = ""
    txn_app_id: str = ""
    txn_version: int | None = None
    transaction_timeout: int = 3600
    overwrite: bool = False
    transaction: str = ""
    list_name: str = ""
    consumer: str = ""
    max_messages: int | None = None
    max_messages_per_trigger: int = 100_000
    group: int = 0
    priority_min: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    partitions: int | None = None
    push_filters: bool = False
    schema: str = ""
    on_bad_payload: str = "fail"
    bad_payload_column: str = ""


# --- How a text becomes a value ------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What values an option has, in words that follow `is`, and how a text is read."""

    told: str
    read: Callable[[str], Any]


def _whole(low: int, high: int) -> Kind:
    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    shown = f"from {low:,} on" if high >= 2**31 - 1 else f"from {low:,} to {high:,}"
    return Kind(f"a whole number {shown}", read)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _choice(*values: str) -> Kind:
    return Kind(" or ".join(values), lambda text: {value: value for value in values}[text.lower()])


def _attributes(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def _server_url(text: str) -> str:
    if not text.startswith("mq:"):
        raise ValueError
    return text


_TEXT = Kind("a text", str)
_FILE = Kind("the path of a file", str)
_NAME = Kind("1 to 128 letters, digits, dots, hyphens and underscores", check_queue_name)
_URL = Kind(
    "mq://HOST:PORT, the address of a server (Spark's tasks are other processes, so "
    "file: and memory: cannot be reached by them: start one with `oncemq up`)",
    _server_url,
)
_SECONDS = Kind("a positive number of seconds", _seconds)
_FLAG = Kind("true or false", _flag)
_COUNT = _whole(1, 2**63 - 1)
_VERSION = Kind(
    "a whole number from 1 on (txnVersion counts from 1: add 1 to the number of a batch)",
    _COUNT.read,
)
_SHORT = _whole(0, 2**16 - 1)
_PAIRS = Kind("pairs as in name=value,name=value", _attributes)

# --- The table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """One row of the table. `field` of `Options` holds its value, and its default."""

    name: str
    kind: Kind
    roles: tuple[Role, ...]
    help: str
    is_required: bool = False
    # Set by OnceMQ itself for its own reads and writes, not by people.
    is_internal: bool = False

    @property
    def field(self) -> str:
        """The name in `Options`."""
        return "".join(f"_{each.lower()}" if each.isupper() else each for each in self.name)

    @property
    def default(self) -> Any:
        """The value when nobody says one."""
        return _DEFAULTS[self.field]


_DEFAULTS = {each.name: each.default for each in fields(Options)}
_ALL = tuple(Role)
_WRITES = (Role.SINK, Role.STREAM_SINK)
_READS = (Role.BROWSE, Role.TAKE, Role.STREAM_SOURCE)
_LISTS = (Role.BROWSE, Role.TAKE)

OPTIONS = (
    # Where.
    Option("url", _URL, _ALL, "The node; without it $ONCEMQ_URL, or the node of this machine."),
    Option("queue", _NAME, _ALL, "The queue to write to, or to read.", is_required=True),
    Option("tokenFile", _FILE, _ALL, "A file with the token; it must be on every executor."),
    Option("tlsAuthority", _FILE, _ALL, "The certificate of who signs the servers' certificates."),
    Option("tlsCertificate", _FILE, _ALL, "The certificate that proves who this job is."),
    Option("tlsKey", _FILE, _ALL, "The key of that certificate."),
    Option("coordinator", _TEXT, _ALL, "HOST:PORT; found through the node unless it is said."),
    Option("timeout", _SECONDS, _ALL, "How long an answer may take, reconnecting included."),
    # Rows and messages.
    Option(
        "payloadFormat",
        _choice("binary", "json", "msgpack", "arrow"),
        _ALL,
        "Whether `value` is the payload (binary), or the whole row is, and how.",
    ),
    Option(
        "headers",
        _FLAG,
        _ALL,
        "Whether columns named like headers are headers, or belong to the payload.",
    ),
    Option("sender", _TEXT, _WRITES, "The sender of messages whose row does not say one."),
    Option("schema", _TEXT, _READS, "The columns in the payload, as DDL or JSON."),
    Option(
        "onBadPayload",
        _choice("fail", "null"),
        _READS,
        "A payload that does not fit the schema fails the job, or is a row of nulls.",
    ),
    Option(
        "badPayloadColumn",
        _TEXT,
        _READS,
        "A binary column of the schema, which gets each payload that does not fit.",
    ),
    # Writing.
    Option("txnAppId", _TEXT, _WRITES, "The name under which versions are remembered."),
    Option(
        "txnVersion",
        _VERSION,
        (Role.SINK,),
        "A version that is not above the last committed one is skipped.",
    ),
    Option(
        "transactionTimeout",
        _whole(1, 2**31 - 1),
        _WRITES,
        "After how many seconds a transaction that nobody finishes is rolled back.",
    ),
    Option(
        "overwrite",
        _FLAG,
        (Role.SINK,),
        'Whether .mode("overwrite") may remove what is in the queue; without it that is refused.',
    ),
    # Reading.
    Option("group", _SHORT, _READS, "Only messages of this group; 0 for all."),
    Option("priorityMin", _SHORT, _READS, "Only messages with at least this priority."),
    Option("attributes", _PAIRS, _READS, "Only messages with all these attributes: a=1,b=2."),
    Option("maxMessages", _COUNT, _LISTS, "At most so many messages."),
    Option("partitions", _whole(1, 100_000), _READS, "How many partitions the rows come in."),
    Option("pushFilters", _FLAG, (Role.BROWSE,), "Whether filters on headers go to the node."),
    Option(
        "consumer",
        _NAME,
        (Role.STREAM_SOURCE,),
        "Under this name messages are reserved for the query; one query has it at a time.",
        is_required=True,
    ),
    Option("maxMessagesPerTrigger", _COUNT, (Role.STREAM_SOURCE,), "At most so many per batch."),
    # Between the parts of a job.
    Option(
        "transaction",
        _TEXT,
        (Role.SINK, Role.TAKE),
        "The transaction that a read or write belongs to.",
        is_internal=True,
    ),
    Option(
        "listName",
        _TEXT,
        (Role.TAKE,),
        "The frozen list that is read.",
        is_internal=True,
    ),
)

# What Spark itself adds.
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})


def read_options(given: Mapping[str, str], role: Role) -> Options:
    """The options of one read or write; raises `OptionError` for the first that is wrong."""
    known = {option.name.lower(): option for option in OPTIONS if role in option.roles}
    values: dict[str, Any] = {}
    for key, text in given.items():
        option = known.get(key.lower())
        if option is not None:
            values[option.field] = _value(option, text)
        elif key.lower() not in _SPARKS_OWN:
            raise OptionError(_unknown(key, role, known))
    for option in known.values():
        if option.is_required and option.field not in values:
            raise OptionError(
                f'the option "{option.name}" is missing: {role.value} needs '
                f'.option("{option.name}", …). {option.help}'
            )
    _check_together(values, role)
    return Options(**values)


def _value(option: Option, text: str) -> Any:
    try:
        return option.kind.read(text)
    except (ValueError, KeyError, InvalidValue):
        raise OptionError(
            f'the option "{option.name}" cannot be {text!r}: it is {option.kind.told}'
        ) from None


def _unknown(key: str, role: Role, known: Mapping[str, Option]) -> str:
    elsewhere = [each for each in OPTIONS if each.name.lower() == key.lower()]
    if elsewhere:
        where = " or ".join(each.value for each in elsewhere[0].roles)
        return f'the option "{elsewhere[0].name}" belongs to {where}, not to {role.value}'
    near = difflib.get_close_matches(key.lower(), known, n=1)
    hint = f'did you mean "{known[near[0]].name}"?' if near else f"there are {_names(known)}"
    return f'the option "{key}" is unknown for {role.value}: {hint}'


def _names(known: Mapping[str, Option]) -> str:
    return ", ".join(each.name for each in known.values() if not each.is_internal)


def _check_together(values: Mapping[str, Any], role: Role) -> None:
    if role is Role.SINK and ("txn_app_id" in values) != ("txn_version" in values):
        raise OptionError("txnAppId and txnVersion go together: say both, or none of them")
    if "tls_authority" not in values and {"tls_certificate", "tls_key"} & values.keys():
        raise OptionError("tlsCertificate and tlsKey need tlsAuthority beside them")
    if values.get("payload_format", "binary") == "binary" and values.get("schema"):
        raise OptionError(
            'the option "schema" describes a payload: say payloadFormat json, msgpack or arrow'
        )
    if "bad_payload_column" in values and values.get("on_bad_payload") != "null":
        raise OptionError('badPayloadColumn has a meaning only with onBadPayload "null"')
