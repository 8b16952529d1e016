"""Clients of one system: `python -m benchmarks.peers.worker SYSTEM ADDRESS OPERATION BYTES COUNT`.

It says `ready`, and then has all clients work once for each line of its input, which is a number of
calls. What it answers are, for each client, the moments at which its calls began and the last one
ended, by the machine's clock. A slow system makes fewer calls than it was told to, so that a round
of all systems remains short.

Each client is a process. They are forked before anything is connected, because to import the same
modules again would take longer than most rounds.
"""

from __future__ import annotations

import functools
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.peers.operations import Operation
from benchmarks.peers.systems import BY_NAME, System
from benchmarks.peers.workloads import BATCH

ROUND_S_MAX = 0.6
END_S = 20.0


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


def main(system: str, address: str, operation: str, payload_bytes: str, count: str) -> None:
    """Works until the input ends."""
    used = BY_NAME[system]
    used.load()
    fork = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for number in range(int(count)):
        mine, its = fork.Pipe()
        arguments = (its, used, address, number, int(count), operation, int(payload_bytes))
        processes.append(fork.Process(target=_be_client, args=arguments))
        processes[-1].start()
        # The end of a client is the end of its pipe, which nobody else may hold open.
        its.close()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    _say("ready")
    for line in sys.stdin:
        for pipe in pipes:
            pipe.send(int(line))
        _say(json.dumps([pipe.recv() for pipe in pipes]))
    for pipe in pipes:
        pipe.send(0)
    for process in processes:
        process.join(END_S)


def _be_client(
    pipe: Connection,
    system: System,
    address: str,
    number: int,
    count: int,
    operation: str,
    payload_bytes: int,
) -> None:
    client = system.connect(address, number, count)
    call = call_of(client, Operation(operation), b"x" * payload_bytes)
    pipe.send("ready")
    while calls := pipe.recv():
        pipe.send(_moments(call, calls))
        gc.collect()
    client.close()


def _moments(call: Callable[[], None], calls: int) -> list[float]:
    moments = [time.perf_counter()]
    for _ in range(calls):
        call()
        moments.append(time.perf_counter())
        if moments[-1] - moments[0] > ROUND_S_MAX:
            break
    return moments


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
