"""`make demo`: orders go through Spark into a queue and a database, and everybody is killed.

With DEMO_POSTGRES=1 the database is a PostgreSQL. Ends with 0 only if the count is exact.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from clients.demo import tickets
from clients.demo.books import NoDatabase, opened
from clients.demo.processes import PYTHON_WORKER
from clients.demo.screen import Screen, show_verdict
from clients.demo.world import DRIVER, World, victims
from clients.spark.java import NoSpark, ensure_java

LOOK_S = 0.25
# Between two kills. After that of a server or the driver, a batch is let through before the next,
# or so much time.
PAUSE_S = (0.3, 1.5)
PATIENCE_S = 8.0
KILLING_S = 45.0
WHOLE_S = 170.0
STARTS_MAX = 5
# The driver dies once, when so much is done.
DRIVER_AT = 0.3


def main() -> int:
    """Runs the demo; 0 only if it is exact."""
    said = _parsed()
    console = Console()
    if said.without_spark:
        return tickets.run(said.tickets)
    try:
        import pyspark  # noqa: F401

        ensure_java()
    except (ImportError, NoSpark) as missing:
        console.print(f"Without Spark: {missing}.\n", style="yellow", highlight=False)
        return tickets.run(said.tickets)
    with tempfile.TemporaryDirectory(prefix="oncemq-demo-") as folder:
        try:
            with opened(Path(folder)) as books:
                chance = random.Random(said.seed)
                world = World(Path(folder), books, said.orders, said.batch, said.master, chance)
                return _show(console, world)
        except NoDatabase as missing:
            console.print(str(missing), style="red", highlight=False)
            return 1


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m clients.demo", description=__doc__)
    parser.add_argument("--orders", type=int, default=100_000, help="how many (%(default)s)")
    parser.add_argument("--batch", type=int, default=5_000, help="orders a batch (%(default)s)")
    parser.add_argument("--master", default="local[2,4]", help="where Spark runs (%(default)s)")
    parser.add_argument("--seed", type=int, help="who is killed when; otherwise by chance")
    parser.add_argument("--without-spark", action="store_true", help="two nodes, and no Spark")
    parser.add_argument("--tickets", type=int, default=4000, help="without Spark (%(default)s)")
    return parser.parse_args()


def _show(console: Console, world: World) -> int:
    screen = Screen(console, world)
    try:
        screen.introduce()
        with screen.waiting(f"Starting a coordinator and a node; {world.orders:,} orders"):
            world.start_servers()
            world.fill()
        begun = time.monotonic()
        world.start_pipeline()
        with screen.waiting("Starting Spark"):
            while not world.workers_seen() and world.exit_code() is None:
                time.sleep(LOOK_S)
        with screen.live() as refresh:
            is_over = _work_and_kill(world, screen, refresh, begun + WHOLE_S)
        # One that is still at work would commit between two counts, which then do not agree.
        world.end_pipeline()
        with screen.waiting("Counting"):
            verdict = world.verdict(time.monotonic() - begun)
        show_verdict(console, verdict)
        return 0 if verdict.is_exact and is_over else 1
    finally:
        world.end()


def _work_and_kill(
    world: World, screen: Screen, refresh: Callable[[], None], deadline: float
) -> bool:
    """Until everything is in its place; whether that came to pass in time."""
    stop = threading.Event()
    killing = threading.Thread(target=_kill_at_random, args=(world, screen, stop))
    killing.start()
    try:
        while not screen.is_done:
            if time.monotonic() > deadline:
                return False
            refresh()
            time.sleep(LOOK_S)
        return True
    finally:
        stop.set()
        killing.join()


def _kill_at_random(world: World, screen: Screen, stop: threading.Event) -> None:
    """One after the other, until it is time to let them finish."""
    kinds = victims(world.chance, world.master.startswith("local-cluster"))
    starts = 0
    # Somebody dies in the middle of the second batch first: before it, Spark is only warming up.
    batches, next_s, begun_s = 0, 0.0, 0.0
    while not stop.wait(LOOK_S):
        if world.exit_code() is not None and starts < STARTS_MAX:
            starts += 1
            world.tell("the pipeline has ended; starting it again")
            world.start_pipeline()
        now_s = world.seconds()
        begun_s = begun_s or (now_s if world.batches else 0.0)
        has_moved = world.batches > batches or now_s > next_s + PATIENCE_S
        is_over = now_s > begun_s + KILLING_S
        if not begun_s or not has_moved or now_s < next_s or is_over:
            continue
        is_turn_of_driver = screen.share > DRIVER_AT and not world.kills[DRIVER]
        kind = DRIVER if is_turn_of_driver else next(kinds)
        if world.kill(kind):
            next_s = world.seconds() + world.chance.uniform(*PAUSE_S)
            # Spark replaces a worker by itself, and the batch goes on.
            batches = world.batches - (kind == PYTHON_WORKER)


if __name__ == "__main__":
    sys.exit(main())
