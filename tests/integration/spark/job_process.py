"""Runs `whole_job.py` in a process of its own, and judges what it has left in the queues."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.cluster import Cluster
from tests.integration.spark.world import World

ROOT = Path(__file__).resolve().parents[3]
COUNT = 2000


@contextmanager
def own_servers(folder: Path) -> Iterator[World]:
    """Servers whose queues have the names that the job gives them."""
    folder.mkdir()
    cluster = Cluster(folder, random.Random(os.getpid()))
    cluster.start()
    world = World(cluster)
    try:
        yield world
    finally:
        world.close()


def run_job(
    world: World, folder: Path, *, is_connect: bool, python: str = sys.executable
) -> dict[str, Any]:
    """The job has run to its end: what it saw."""
    settings = {
        "url": world.url,
        "folder": str(folder),
        "answer": str(folder / "answer.json"),
        "count": COUNT,
        "is_connect": is_connect,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    begun = time.monotonic()
    ran = subprocess.run(
        [python, "-m", "tests.integration.spark.whole_job", str(folder / "settings.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-6000:]}"
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    answer["seconds"] = round(time.monotonic() - begun, 1)
    return answer


def judge(world: World, answer: dict[str, Any]) -> None:
    """What the job saw and what it has left is exact."""
    half = COUNT // 2
    assert answer["write_and_read"] == [COUNT, COUNT]
    assert answer["move"] == {"written": half, "moved": half}
    left = [json.loads(each)["id"] for each in world.payloads("written")]
    gone = [json.loads(each)["id"] for each in world.payloads("one")]
    assert sorted(left + gone) == list(range(COUNT))
    assert sorted(world.payloads("other")) == sorted(world.payloads("one"))
    assert world.payloads("streamed") == world.payloads("moved") == []
    assert 'did you mean "queue"?' in answer["be_told"]
    world.check_settled()
