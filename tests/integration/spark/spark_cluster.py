"""A Spark of several processes: a master, two workers with an executor each, and a driver.

The workers have two addresses of the loopback, so that Spark takes them for two machines: only then
does it run a task twice at once. The driver is a process of its own (`cluster_driver.py`), since
one process has one Spark; tests ask it for one job after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.cluster import ROOT, free_port
from tests.integration.spark.world import slim_home

HOSTS = ("127.0.0.1", "127.0.0.2")
START_S = 120.0
STOP_S = 20.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkProcess:
    """One of Spark's own programs."""

    def __init__(self, name: str, arguments: list[str], folder: Path, home: Path) -> None:
        self._log = folder / f"{name}.log"
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_NO_DAEMONIZE": "1",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_for(self, words: str) -> None:
        """It has written this."""
        deadline = time.monotonic() + START_S
        while not re.search(words, self._log.read_text(errors="replace")):
            assert self._process.poll() is None, self.last_words()
            assert time.monotonic() < deadline, self.last_words()
            time.sleep(0.05)

    def last_words(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """It is gone; a worker takes its executors with it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Driver:
    """The process that runs jobs, one at a time."""

    def __init__(self, master: str, folder: Path, home: Path) -> None:
        self._errors = folder / "driver.log"
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark.cluster_driver", master],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, job: str, **what: Any) -> str:
        """The job has ended: why it failed, empty if it did not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"job": job, **what}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._errors.read_text(errors="replace")[-4000:]
        failed: str = json.loads(answer)["failed"]
        return failed

    def stop(self) -> None:
        """It is gone, and Spark's part of it too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Driver]:
    """A driver with two executors, on two machines as far as Spark can tell."""
    home = slim_home(folder)
    with contextlib.ExitStack() as stack:
        port = free_port(random.Random(os.getpid()))
        where = ["--host", HOSTS[0], "--port", str(port), "--webui-port", "0"]
        master = SparkProcess("master.Master", where, folder, home)
        stack.callback(master.stop)
        master.wait_for("I have been elected leader")
        url = f"spark://{HOSTS[0]}:{port}"
        workers = []
        for host in HOSTS:
            own = folder / host
            own.mkdir()
            resources = ["--cores", "1", "--memory", "1g", "--host", host, "--webui-port", "0"]
            worker = SparkProcess("worker.Worker", [*resources, url], own, home)
            stack.callback(worker.stop)
            workers.append(worker)
        for worker in workers:
            worker.wait_for("Successfully registered with master")
        driver = Driver(url, folder, home)
        stack.callback(driver.stop)
        yield driver
