"""What a Spark session of ours is told."""

from __future__ import annotations

from clients.spark.java import DEFAULT_MASTER, LOCAL_SETTINGS, is_submitted, settings


def test_a_session_on_this_machine_is_made_small() -> None:
    told = settings("", (), {}, submitted=False)
    assert told["spark.master"] == DEFAULT_MASTER
    assert told.items() >= LOCAL_SETTINGS.items()


def test_a_cluster_is_not_told_what_is_meant_for_one_machine() -> None:
    told = settings("spark://h:7077", ("a:b:1", "c:d:2"), {}, submitted=False)
    assert told["spark.jars.packages"] == "a:b:1,c:d:2"
    assert not told.keys() & LOCAL_SETTINGS.keys()


def test_what_the_user_sets_is_stronger() -> None:
    conf = {"spark.log.level": "INFO", "spark.master": "local[1]"}
    told = settings("local[2]", (), conf, submitted=False)
    assert (told["spark.log.level"], told["spark.master"]) == ("INFO", "local[1]")


def test_under_spark_submit_nothing_is_added() -> None:
    assert settings("local[2]", ("a:b:1",), {"spark.x": "1"}, submitted=True) == {"spark.x": "1"}
    assert is_submitted({"PYSPARK_GATEWAY_PORT": "1"})
    assert not is_submitted({})
