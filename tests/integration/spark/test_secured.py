"""A job and servers that demand TLS and a token: it is let in, and nobody sees its secret.

Tasks are told paths, and read the files themselves.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

import oncemq
from idl.access import Tls, token_entry
from tests.integration.cluster import Server, ended, free_port
from tests.integration.spark.saving import numbers, texts
from tests.security.authority import CLIENT, HERE, SERVER, Authority

# What a transaction over a job needs of pandas works with every one.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

PERMISSIONS = """
[[allow]]
principal = "spark"
queues = ["in", "out", "stream"]
rights = ["read", "write"]

[roles]
coordinator = ["tx"]
operator = []
"""


@dataclass(frozen=True)
class Guarded:
    """A node behind TLS that lets in whoever has a token, and the token of the job."""

    url: str
    token: str
    token_file: Path
    authority: Path

    @property
    def options(self) -> dict[str, str]:
        """How a read or write gets there."""
        return {
            "url": self.url,
            "tokenFile": str(self.token_file),
            "tlsAuthority": str(self.authority),
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A coordinator and a node, each with a certificate; the job has a token."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder / "authority", "ours")
    token, token_file = f"spark.{secrets.token_hex(16)}", folder / "spark.token"
    for file, text in (
        (token_file, token),
        (folder / "tokens", token_entry(token)),
        (folder / "permissions.toml", PERMISSIONS),
    ):
        file.touch(mode=0o600)
        file.write_text(f"{text}\n")

    def server(name: str, port: int, *command: object) -> Server:
        uri = x509.UniformResourceIdentifier(f"mq:{name}")
        own = authority.issue(name, (*HERE, uri), (SERVER, CLIENT))
        words = (*command, "--tokens", folder / "tokens", "--tls-authority", authority.certificate)
        words += ("--tls-certificate", own.certificate, "--tls-key", own.key)
        return Server(name, port, [*map(str, words)], folder)

    chance = random.Random()
    deciding, port = free_port(chance), free_port(chance)
    coordinator = server("tx", deciding, "coordinator", "--trust", f"127.0.0.1:{port}")
    node = ("mqserver", "--name", "n1", "--permissions", folder / "permissions.toml")
    guarded_node = server("n1", port, *node, "--coordinator", f"127.0.0.1:{deciding}")
    with ended(coordinator, guarded_node):
        for each in (coordinator, guarded_node):
            each.start()
            each.wait_until_ready()
        yield Guarded(f"mq://{guarded_node.address}", token, token_file, authority.certificate)


@pytest.fixture
def connection(guarded: Guarded) -> Iterator[oncemq.Connection]:
    """The job's own way to the node."""
    tls = Tls(guarded.authority)
    with oncemq.connect(guarded.url, token_file=guarded.token_file, tls=tls) as made:
        yield made


def payloads(connection: oncemq.Connection, queue: str) -> list[bytes]:
    return sorted(message.payload for message in connection.queue(queue).browse(limit=None))


def test_a_job_proves_itself_and_nobody_sees_how(
    spark: Any, guarded: Guarded, connection: oncemq.Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = numbers(spark, 100).write.format("oncemq").mode("append")
    writer.options(**guarded.options, queue="in").save()
    seen = spark.read.format("oncemq").options(**guarded.options, queue="in").load()
    assert seen.count() == 100
    with oncemq.spark.transaction(spark, connection) as job:
        taken = job.read("in")
        assert job.write(taken.select("value"), "out") == 100
        taken.explain("extended")
    assert payloads(connection, "out") == sorted(texts(100))
    seen.explain("extended")
    shown = "\n".join([*plans_of(spark), capfd.readouterr().out])
    assert "oncemq" in shown.lower()
    shown += "".join(f"{key}={value}" for key, value in spark.sparkContext.getConf().getAll())
    assert guarded.token.partition(".")[2] not in shown


def plans_of(spark: Any) -> list[str]:
    """What Spark's pages show of everything that was run."""
    store = spark._jsparkSession.sharedState().statusStore()
    run = store.executionsList()
    each = [run.apply(number) for number in range(run.size())]
    return [f"{one.details()} {one.physicalPlanDescription()}" for one in each]


def test_a_job_without_its_token_is_told_and_takes_nothing(
    spark: Any, guarded: Guarded, connection: oncemq.Connection
) -> None:
    known = {key: value for key, value in guarded.options.items() if key != "tokenFile"}
    for options in (known, {"url": guarded.url}):
        with pytest.raises(Exception, match=r"NotAllowed|ConnectionLost|OnceMQError"):
            numbers(spark, 1).write.format("oncemq").mode("append").options(
                **options, queue="stream"
            ).save()
    with contextlib.suppress(oncemq.NotFound):
        assert payloads(connection, "stream") == []


def test_a_token_that_is_no_file_is_not_sent_to_tasks(spark: Any, guarded: Guarded) -> None:
    tls = Tls(guarded.authority)
    with oncemq.connect(guarded.url, token=guarded.token, tls=tls) as open_handed:
        with (
            pytest.raises(oncemq.OnceMQError, match="its token is a secret") as told,
            oncemq.spark.transaction(spark, open_handed) as job,
        ):
            job.write(numbers(spark, 1), "out")
        assert guarded.token.partition(".")[2] not in str(told.value)


def test_a_stream_proves_itself_too(
    spark: Any, guarded: Guarded, connection: oncemq.Connection, tmp_path: Path
) -> None:
    connection.queue("in").put_many(texts(20))
    rows = spark.readStream.format("oncemq").options(
        **guarded.options, queue="in", consumer="copier"
    )
    writer = rows.load().select("value").writeStream.format("oncemq")
    writer = writer.options(**guarded.options, queue="stream", checkpointLocation=str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert payloads(connection, "stream") == sorted(texts(20))
    checkpoint = "".join(
        each.read_text(errors="replace") for each in tmp_path.rglob("*") if each.is_file()
    )
    assert guarded.token.partition(".")[2] not in checkpoint
