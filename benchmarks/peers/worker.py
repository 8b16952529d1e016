"""A client process: `python -m benchmarks.peers.worker SYSTEM ADDRESS OPERATION BYTES NUMBER OF`.

It says `ready`, and then works once for each line of its input, which is a number of calls. What it
answers are the moments at which the calls began and the last one ended, by the machine's clock.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.peers.clients import Operation
from benchmarks.peers.systems import BY_NAME
from benchmarks.peers.workloads import BATCH


def call_of(client: Any, operation: Operation, payload: bytes) -> Callable[[], None]:
    """One call of the operation."""
    calls: dict[Operation, Callable[[], Callable[[], None]]] = {
        Operation.PUT: lambda: functools.partial(client.put, payload),
        Operation.PUT_MANY: lambda: functools.partial(client.put_many, [payload] * BATCH),
        Operation.GET: lambda: client.get,
        Operation.GET_MANY: lambda: functools.partial(client.get_many, BATCH),
        Operation.MOVE: lambda: client.move,
        Operation.MOVE_AT_ONCE: lambda: client.move_at_once,
        Operation.TWO_PHASE: lambda: functools.partial(client.two_phase, payload),
        Operation.PUT_AND_GET: lambda: functools.partial(client.put_and_get, payload),
    }
    return calls[operation]()


def main(
    system: str, address: str, operation: str, payload_bytes: str, number: str, count: str
) -> None:
    """Works until the input ends."""
    client = BY_NAME[system].connect(address, int(number), int(count))
    call = call_of(client, Operation(operation), b"x" * int(payload_bytes))
    _say("ready")
    for line in sys.stdin:
        moments = [time.perf_counter()]
        for _ in range(int(line)):
            call()
            moments.append(time.perf_counter())
        _say(json.dumps(moments))
        gc.collect()
    client.close()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
