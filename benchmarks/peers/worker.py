"""Clients of one system: `python -m benchmarks.peers.worker SYSTEM ADDRESS OPERATION BYTES COUNT`.

It empties the system's queues and says `ready`. Then each line of its input is a turn: how many
messages are put into the queue first, how many calls each client makes, and after how many seconds
it begins no other call. What it answers are, for each client, the moments at which its calls began
and the last one ended, by the machine's clock.

Each client is a process. They are forked before anything is connected, because to import the same
modules again would take longer than most turns.
"""

from __future__ import annotations

import functools
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.peers.operations import Missing, Operation
from benchmarks.peers.systems import BY_NAME, System
from benchmarks.peers.workloads import BATCH

FILL = 1000
END_S = 5.0


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
    used, payload = BY_NAME[system], b"x" * int(payload_bytes)
    used.load()
    fork = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for number in range(int(count)):
        mine, its = fork.Pipe()
        arguments = (its, used, address, number, int(count), Operation(operation), payload)
        # If one fails, so does this program, which ends the others.
        processes.append(fork.Process(target=_be_client, args=arguments, daemon=True))
        processes[-1].start()
        # The end of a client is the end of its pipe, which nobody else may hold open.
        its.close()
        pipes.append(mine)
    filler = used.connect(address, 0, int(count))
    filler.create()
    _fill(filler, payload, used.queued)
    _answers(pipes, "connect")
    _say("ready")
    for line in sys.stdin:
        messages, calls, budget_s = line.split()
        _fill(filler, payload, int(messages))
        _say(json.dumps(_answers(pipes, (int(calls), float(budget_s)))))
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join(END_S)


def _answers(pipes: list[Connection], told: Any) -> list[Any]:
    for pipe in pipes:
        pipe.send(told)
    answers: dict[Any, Any] = {}
    while len(answers) < len(pipes):
        # Whoever comes first: if one has failed, that is to be heard, though another may hang.
        has_said = wait([pipe for pipe in pipes if pipe not in answers])
        answers |= {pipe: pipe.recv() for pipe in pipes if pipe in has_said}
    return [answers[pipe] for pipe in pipes]


def _fill(filler: Any, payload: bytes, messages: int) -> None:
    for begin in range(0, messages, FILL):
        filler.put_many([payload] * min(FILL, messages - begin))


def _be_client(
    pipe: Connection,
    system: System,
    address: str,
    number: int,
    count: int,
    operation: Operation,
    payload: bytes,
) -> None:
    # Once the queues are there.
    pipe.recv()
    client = system.connect(address, number, count)
    call = call_of(client, operation, payload)
    pipe.send("ready")
    while (told := pipe.recv()) is not None:
        calls, budget_s = told
        pipe.send(moments(call, calls, budget_s, time.perf_counter))
        gc.collect()
    client.close()


def moments(
    call: Callable[[], None], calls: int, budget_s: float, clock: Callable[[], float]
) -> list[float]:
    """Between the calls, of which there are fewer if the budget has been used up before."""
    found = [clock()]
    for _ in range(calls):
        try:
            call()
        except Missing:
            # What is left may be held for other clients, who had more of their share than this one.
            if clock() - found[0] > budget_s:
                break
            raise
        found.append(clock())
        if found[-1] - found[0] > budget_s:
            break
    return found


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
