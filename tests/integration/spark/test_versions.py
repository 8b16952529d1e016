"""On another PySpark than that of the environment, which takes minutes and a large download.

pytest tests/integration/spark/test_versions.py --spark-version 4.2.0
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clients.extras import LEAST_PYSPARK
from tests.integration.spark.job_process import ROOT, judge, own_servers, run_job


def test_the_doctor_and_the_package_ask_for_the_same_spark() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"pyspark>={LEAST_PYSPARK},<5" in extras["optional-dependencies"]["spark"]


@pytest.mark.timeout(900)
def test_a_job_is_exact_on_the_version_that_was_asked_for(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    version = request.config.getoption("--spark-version", None)
    if not version:
        pytest.skip("--spark-version says which")
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    # pandas, for the transaction over a job.
    wanted = [f"{ROOT}[spark]", f"pyspark=={version}", "pandas>=2.2"]
    install = [str(python), "-m", "pip", "install", "--quiet", "--editable", *wanted]
    subprocess.run(install, check=True)
    with own_servers(tmp_path / "servers") as world:
        answer = run_job(world, tmp_path, is_connect=False, python=str(python))
        assert answer["pyspark"] == version
        judge(world, answer)
