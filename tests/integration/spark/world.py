"""What tests of Spark stand on: a session as fast as it can be had, and servers that are killed.

The servers are real processes (`tests/integration/cluster.py`), each at the same address over all
its lives, so that one cluster serves all tests of a process, also those that kill it. Each test
takes queues of its own, and looks at the end that nothing is left of anybody's transactions.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import oncemq
from tests.integration.cluster import START_S, Cluster

BROWSED_AT_ONCE = 5000


def slim_home(folder: Path) -> Path:
    """Spark's programs without its zipped Python: workers import what is installed, with bytecode.

    That saves four seconds at the first write.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    home = folder / "spark-home"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(installed / name)
    return home


def has_java() -> bool:
    """Whether there is a Java that Spark would find."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return (Path(home) / "bin" / "java").exists()
    return shutil.which("java") is not None


def session_settings(folder: Path) -> dict[str, str]:
    """A session that starts soon, tries a task four times, and says little."""
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"{quick} -Djava.io.tmpdir={folder}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }


def new_session(folder: Path, master: str = "local[2,4]") -> Any:
    """A Spark session; the environment says where Spark is and which Python its workers run."""
    os.environ["SPARK_HOME"] = str(slim_home(folder))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.master(master).appName("oncemq-tests")
    for key, value in session_settings(folder).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class World:
    """A coordinator and two nodes, and what is in their queues."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.coordinator = cluster.coordinator
        self.node = cluster.nodes["n1"]
        self.other_node = cluster.nodes["n2"]
        self._names = itertools.count(1)
        self._connection: oncemq.Connection | None = None

    @property
    def url(self) -> str:
        """Where the first node is."""
        return f"mq://{self.node.address}"

    @property
    def other_url(self) -> str:
        """Where the second node is."""
        return f"mq://{self.other_node.address}"

    @property
    def connection(self) -> oncemq.Connection:
        """The first node, as a client has it."""
        if self._connection is None:
            self._connection = oncemq.connect(self.url)
        return self._connection

    def new_queue(self, name: str = "queue") -> str:
        """A name that no other queue has."""
        return f"{name}-{next(self._names)}"

    def fill(self, queue: str, payloads: Iterable[bytes]) -> None:
        """The queue holds these messages."""
        self.connection.queue(queue).put_many(list(payloads))

    def payloads(self, queue: str) -> list[bytes]:
        """What can be had from the queue, in its order; nothing is taken."""
        return [message.payload for message in self.connection.queue(queue).browse(limit=None)]

    def check_exact(self, queue: str, expected: Iterable[bytes]) -> None:
        """The queue holds exactly these, each as often as it was named, in whatever order."""
        there, wanted = Counter(self.payloads(queue)), Counter(expected)
        missing, extra = wanted - there, there - wanted
        assert not missing, f"{queue}: {missing.total()} of {wanted.total()} are missing"
        assert not extra, f"{queue}: {extra.total()} more than {wanted.total()}"

    def check_settled(self) -> None:
        """No transaction is under way, no branch in doubt, nothing locked."""
        undecided, branches, locked = self.cluster.settle()
        held = {queue: count for queue, count in locked.items() if count}
        assert (undecided, branches, held) == ([], [], {})

    def wait_for_branches(self, count: int) -> None:
        """So many branches have been begun at the nodes, and not ended."""
        deadline = time.monotonic() + START_S
        while len(self.cluster.unsettled()[1]) < count:
            assert time.monotonic() < deadline, f"there are no {count} branches"
            time.sleep(0.02)

    def start_again(self) -> None:
        """Whatever does not run is started, and ready."""
        for server in self.cluster.servers:
            if not server.is_running:
                server.start()
                server.wait_until_ready()

    def close(self) -> None:
        """The connection is closed, and all processes are gone."""
        if self._connection is not None:
            self._connection.close()
        self.cluster.kill()
