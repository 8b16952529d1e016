"""On Spark Connect, where the job's process is not Spark's: the same jobs, the same counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.integration.spark.job_process import judge, own_servers, run_job
from tests.integration.spark.world import has_java


@pytest.mark.thorough
def test_a_job_on_spark_connect_is_exact(
    tmp_path: Path, missing: Callable[[str], NoReturn]
) -> None:
    try:
        import grpc  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        missing("Spark Connect is not installed: pip install 'oncemq[spark-connect]'")
    if not has_java():
        missing("there is no Java; tests/setup/java.sh installs one")
    with own_servers(tmp_path / "servers") as world:
        answer = run_job(world, tmp_path, is_connect=True)
        assert answer["module"].startswith("pyspark.sql.connect")
        judge(world, answer)
