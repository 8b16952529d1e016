"""What is sent for a call is whole, though it is made without its class's own function."""

from __future__ import annotations

from typing import cast

from idl import wire
from idl.call import limited, repeating
from idl.marshal import operation_codecs
from idl.mq import Mq_Node
from idl.orb.endpoint import Request
from idl.orb.guard import Limits
from idl.orb.network import _Calls
from idl.proxies import Proxy, proxy_of

KEY = b"k" * 16


def test_a_request_has_all_its_parts() -> None:
    calls = _Calls(None, None, Limits(), 7.0, None)
    node = cast(Proxy, proxy_of("PYRO:node@localhost:7411", Mq_Node, calls))
    codec = operation_codecs(Mq_Node)["countMessages"]
    with repeating(KEY):
        request, timeout_s, endpoint = calls._request(node, codec, ("orders",))
    body = wire.pack_call("node", "countMessages", ("orders",))
    assert request == Request(body, KEY, b"", codec.operation.idempotent, "node.countMessages")
    assert timeout_s == 7.0
    with limited(2.0):
        again, shorter_s, same = calls._request(node, codec, ("orders",))
    assert (shorter_s, same) == (2.0, endpoint)
    assert again.request_id != KEY
