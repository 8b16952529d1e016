"""Generated values of every IDL type, struct, exception and operation of the image."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from idl import cos, mq
from idl.call import Address, Reference
from idl.mapping import (
    Anything,
    Enumeration,
    IdlType,
    Integer,
    InvalidValue,
    ObjectReference,
    Plain,
    SequenceOf,
    Structure,
    Text,
    UserException,
    fields_of,
    is_interface,
    is_local,
)
from idl.proxies import Proxy, export_proxy, make_proxy


class NoCalls:
    """A caller that nobody calls, and references that need no network."""

    def invoke(self, proxy: Proxy, codec: Any, arguments: tuple[Any, ...]) -> Any:
        raise AssertionError("these proxies are only passed around")

    def start(
        self,
        proxy: Proxy,
        codec: Any,
        arguments: tuple[Any, ...],
        timeout_s: float | None = None,
    ) -> None:
        raise AssertionError("these proxies are only passed around")

    def get_ready(self, proxy: Proxy, codec: Any, arguments: tuple[Any, ...]) -> None:
        raise AssertionError("these proxies are only passed around")

    def export(self, target: object, interface: type) -> str:
        return export_proxy(target, interface)

    def resolve(self, name: str, interface: type) -> object:
        return make_proxy(Reference.parse(name), interface, self)


NO_CALLS = NoCalls()


def classes_of(module: ModuleType) -> list[type]:
    """The classes that the module itself defines."""
    found = [value for _, value in inspect.getmembers(module, inspect.isclass)]
    return [value for value in found if value.__module__ == module.__name__]


STRUCTS = [c for m in (cos, mq) for c in classes_of(m) if hasattr(c, "__dataclass_fields__")]
STRUCTS = [c for c in STRUCTS if not issubclass(c, UserException)]
EXCEPTIONS: list[type[UserException]] = [
    c for m in (cos, mq) for c in classes_of(m) if issubclass(c, UserException)
]
INTERFACES = [c for m in (cos, mq) for c in classes_of(m) if is_interface(c) and not is_local(c)]

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def _plain_any() -> st.SearchStrategy[Any]:
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False)
        | _TEXT
        | st.binary(max_size=40)
    )
    return st.recursive(
        leaves,
        lambda part: (
            st.lists(part, max_size=3).map(tuple) | st.dictionaries(_TEXT, part, max_size=3)
        ),
        max_leaves=8,
    )


def values(idl_type: IdlType) -> st.SearchStrategy[Any]:
    """Values of the type, the extreme ones among them."""
    match idl_type:
        case Integer(low=low, high=high):
            return st.integers(low, high) | st.sampled_from([low, high])
        case Text(bound=bound):
            return st.text(
                st.characters(codec="utf-8", exclude_characters="\0"), max_size=bound or 300
            )
        case Plain(python=python):
            return st.from_type(python) if python is not float else st.floats(allow_nan=False)
        case Anything():
            return _plain_any()
        case Enumeration(python=python):
            return st.sampled_from(python)
        case ObjectReference(python=python):
            return st.none() | references(python)
        case Structure(python=python):
            return structures(python)
        case SequenceOf(element=element):
            return st.lists(values(element), max_size=4).map(tuple)
    raise AssertionError(f"no values for {idl_type}")


def references(interface: type) -> st.SearchStrategy[Any]:
    """Proxies with this interface."""
    names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,40}", fullmatch=True)
    hosts = st.sampled_from(["127.0.0.1", "::1", "node-1.example", "10.0.0.2"])
    addresses = st.builds(Address, hosts, st.integers(0, 65535))
    return st.builds(Reference, names, addresses).map(
        lambda reference: make_proxy(reference, interface, NO_CALLS)
    )


@st.composite
def structures(draw: st.DrawFn, python: Any) -> Any:
    """Values of a struct or an exception that satisfy its own rules too."""
    fields = {name: draw(values(idl_type)) for name, idl_type in fields_of(python)}
    if python is cos.otid_t:
        fields["tid"] = fields["tid"][: cos.TID_LENGTH_MAX]
        most = min(len(fields["tid"]), cos.BQUAL_LENGTH_MAX)
        fields["bqual_length"] = draw(st.integers(0, most))
    if python is mq.mqTimestamp:
        fields["mq_usec"] %= mq.USEC_PER_SEC
    if python is mq.mqBatch:
        count = len(fields["payloads"])
        fields["digests"] = tuple(draw(st.lists(_U32, min_size=count, max_size=count)))
        for column in ("priorities", "groups", "times", "senders", "attribs"):
            if len(fields[column]) != count:
                fields[column] = ()
    if python is mq.mqTaken:
        count = len(fields["messages"].payloads)
        fields["keys"] = tuple(f"{position:015}" for position in range(count))
    return python(**fields)


_U32 = st.integers(0, 2**32 - 1)

__all__ = [
    "EXCEPTIONS",
    "INTERFACES",
    "NO_CALLS",
    "STRUCTS",
    "InvalidValue",
    "structures",
    "values",
]
