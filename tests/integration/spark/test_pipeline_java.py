"""A Java for Spark: found, stood in for, or asked for in one sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clients.spark.java import NoSpark, ensure_java

JAVA = """#!/bin/sh
case "$*" in
    *jdk.incubator.vector*) {on_vector} ;;
esac
echo '    java.home = {home}'
echo '    java.specification.version = {version}'
"""


def _java(folder: Path, version: str, has_module: bool = True) -> Path:
    """A JAVA_HOME whose java says so of itself, and otherwise tells what it was asked."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    on_vector = ":" if has_module else "echo 'no such module' >&2; exit 1"
    program.write_text(JAVA.format(on_vector=on_vector, home=folder, version=version))
    program.chmod(0o755)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which there is no Java, and a cache of its own."""
    return {"PATH": str(tmp_path / "nothing"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_java_home_is_used_as_it_is(tmp_path: Path, environment: dict[str, str]) -> None:
    home = _java(tmp_path / "java", "21")
    environment["JAVA_HOME"] = str(home)
    assert ensure_java(environment, tmp_path) == home


def test_java_on_the_path_is_made_java_home(tmp_path: Path, environment: dict[str, str]) -> None:
    home = _java(tmp_path / "java", "17")
    environment["PATH"] = str(home / "bin")
    ensure_java(environment, tmp_path)
    assert environment["JAVA_HOME"] == str(home)


def test_one_that_is_too_old_is_passed_over(tmp_path: Path, environment: dict[str, str]) -> None:
    environment["JAVA_HOME"] = str(_java(tmp_path / "old", "1.8"))
    new = _java(tmp_path / "new", "17")
    environment["PATH"] = str(new / "bin")
    assert ensure_java(environment, tmp_path) == new


def test_a_runtime_without_the_vector_module_stands_behind_a_shim(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    real = _java(tmp_path / "small", "25", has_module=False)
    environment["PATH"] = str(real / "bin")
    home = ensure_java(environment, tmp_path)
    assert home is not None
    assert home != real
    java = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(java, check=False, capture_output=True).returncode == 0
    # Once more, by the shim that is there, and by one that the user names.
    del environment["JAVA_HOME"]
    assert ensure_java(environment, tmp_path) == home
    assert ensure_java(environment, tmp_path) == home


def test_what_make_java_has_left_is_found(tmp_path: Path, environment: dict[str, str]) -> None:
    real = _java(tmp_path / "small", "25")
    beside = tmp_path / "venv" / "java"
    (beside / "bin").mkdir(parents=True)
    (beside / "real").symlink_to(real)
    (beside / "bin" / "java").symlink_to(real / "bin" / "java")
    assert ensure_java(environment, tmp_path / "venv") == beside


def test_a_machine_without_java_is_told_what_to_do(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    environment["JAVA_HOME"] = str(_java(tmp_path / "old", "11"))
    with pytest.raises(NoSpark) as told:
        ensure_java(environment, tmp_path)
    for words in ("Java 17 or newer", "is Java 11", "default-jre-headless", "oncemq[spark-java]"):
        assert words in str(told.value)


def test_under_spark_submit_java_runs_already(environment: dict[str, str]) -> None:
    assert ensure_java({**environment, "PYSPARK_GATEWAY_PORT": "1"}) is None
