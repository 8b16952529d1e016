"""A pipeline with real Spark and real servers: one transaction for each batch, whoever dies."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients import cli
from clients.commands.terminal import ExitCode
from tests.integration.spark.world import World

ORDERS = 600
FILE = """
[pipeline]
name = "billing"
batch_messages = 250

[[source]]
queue = "{orders}"
name = "orders"
payload = "json"
schema = "id BIGINT, amount BIGINT"

[[step]]
name = "invoices"
sql = "select id, amount * 119 div 100 as total from orders"

[[step]]
name = "large"
function = "billing_functions:large"

[[sink]]
from = "invoices"
queue = "{invoices}"
payload = "json"

[[sink]]
from = "large"
table = "large"
database = "{books}"
"""
FUNCTIONS = """
def large(invoices):
    return invoices.where("total > 500")
"""


def _total(number: int) -> int:
    return number * 119 // 100


class Billing:
    """Orders, what is to become of them, and the file that says so."""

    def __init__(self, server: World, folder: Path) -> None:
        self.server = server
        self.orders, self.invoices = server.new_queue("orders"), server.new_queue("invoices")
        self.database = folder / "books.db"
        self._run("CREATE TABLE large (id bigint, total bigint)")
        books = f"books-{self.orders}"
        server.connection.register_database(books, f"sqlite:///{self.database}")
        names = {"orders": self.orders, "invoices": self.invoices, "books": books}
        self.file = folder / "billing.toml"
        self.file.write_text(FILE.format(**names))
        (folder / "billing_functions.py").write_text(FUNCTIONS)
        server.fill(self.orders, [self.order(number) for number in range(ORDERS)])

    def order(self, number: int) -> bytes:
        """An order as it is put."""
        return json.dumps({"id": number, "amount": number}).encode()

    def run(self, *options: str) -> int:
        """The command's exit code."""
        return cli.main(["pipeline", "run", str(self.file), "--url", self.server.url, *options])

    def change(self, before: str, after: str) -> None:
        """The file says something else."""
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after))

    def check_exact(self) -> None:
        """Every order is an invoice, and every large one a row, once; no order is left."""
        # Whoever could not be told of a decision hears of it later.
        self.server.check_settled()
        found = [json.loads(payload) for payload in self.server.payloads(self.invoices)]
        assert sorted((each["id"], each["total"]) for each in found) == [
            (number, _total(number)) for number in range(ORDERS)
        ]
        rows = self._run("SELECT id, total FROM large ORDER BY id")
        assert rows == [(n, _total(n)) for n in range(ORDERS) if _total(n) > 500]
        assert self.server.payloads(self.orders) == []

    def _run(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(self.database, timeout=30)
        with connection:
            rows = connection.execute(statement).fetchall()
        connection.close()
        return rows


@pytest.fixture
def billing(spark: Any, server: World, tmp_path: Path) -> Iterator[Billing]:
    yield Billing(server, tmp_path)
    server.start_again()
    server.check_settled()


def test_messages_become_messages_and_rows_in_one_transaction_a_batch(
    billing: Billing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert billing.run("--json") == ExitCode.OK
    billing.check_exact()
    told = capsys.readouterr()
    summary = json.loads(told.out)
    assert (summary["batches"], summary["retries"]) == (3, 0)
    assert summary["rows_in"] == {"orders": ORDERS}
    assert summary["rows_out"][f"queue {billing.invoices}"] == ORDERS
    assert "batch 1: 250 in, 250 to queue" in told.err


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["node", "coordinator"])
def test_a_batch_in_which_a_server_dies_is_tried_again(
    billing: Billing, victim: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = getattr(billing.server, victim)
    killing = _after_the_first_message(billing, lambda: (server.kill(), server.start()))
    assert billing.run("--json") == ExitCode.OK
    killing.join()
    billing.check_exact()
    assert json.loads(capsys.readouterr().out)["rows_out"][f"queue {billing.invoices}"] > 0


def _after_the_first_message(billing: Billing, act: Callable[[], object]) -> threading.Thread:
    """Acts as soon as an order is locked by the first batch."""

    def wait() -> None:
        queue = billing.server.connection.queue(billing.orders)
        while len(queue) == ORDERS:
            threading.Event().wait(0.005)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.thorough
def test_spark_submit_runs_a_pipeline(
    billing: Billing, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the guide has it; master, resources and settings are those of spark-submit."""
    import pyspark

    assert cli.main(["pipeline", "script"]) == ExitCode.OK
    script = capsys.readouterr().out.strip()
    monkeypatch.delenv("SPARK_HOME")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = ["--master", "local[2,4]", "--conf", "spark.ui.enabled=false"]
    ran = subprocess.run(
        [submit, *settings, script, "run", billing.file, "--url", billing.server.url, "--json"],
        cwd=billing.file.parent,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == ExitCode.OK, ran.stderr[-4000:]
    assert json.loads(ran.stdout)["batches"] == 3
    billing.check_exact()


def test_a_batch_that_fails_by_itself_leaves_no_trace(
    billing: Billing, capsys: pytest.CaptureFixture[str]
) -> None:
    billing.change("amount * 119 div 100", "if(amount < 400, amount, raise_error('too much'))")
    assert billing.run() == ExitCode.ROLLED_BACK
    assert "The batch at hand was rolled back." in " ".join(capsys.readouterr().err.split())
    assert len(billing.server.payloads(billing.orders)) == ORDERS - 250


def test_wrong_sql_is_told_in_one_sentence_and_takes_nothing(
    billing: Billing, capsys: pytest.CaptureFixture[str]
) -> None:
    billing.change("amount * 119", "amont * 119")
    assert billing.run() == ExitCode.ROLLED_BACK
    told = " ".join(capsys.readouterr().err.split())
    assert "step 'invoices': [UNRESOLVED_COLUMN" in told
    assert "Did you mean one of the following? [`amount`" in told
    assert "Traceback" not in told
    assert len(billing.server.payloads(billing.orders)) == ORDERS


@pytest.mark.thorough
def test_a_stream_does_the_same_from_its_checkpoint(
    billing: Billing, capsys: pytest.CaptureFixture[str]
) -> None:
    billing.change('name = "billing"', 'name = "billing"\nmode = "stream"\ncheckpoint = "c"')
    assert billing.run("--json") == ExitCode.OK
    billing.check_exact()
    summary = json.loads(capsys.readouterr().out)
    assert summary["batches"] == 3
    # Once more, with nothing to do: what was committed is let go.
    assert billing.run() == ExitCode.OK
    billing.check_exact()


def test_a_file_is_checked_without_a_server(
    billing: Billing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pipeline", "check", str(billing.file), "--spark"]) == ExitCode.OK
    billing.change("amount * 119", "amont * 119")
    assert cli.main(["pipeline", "check", str(billing.file), "--spark"]) == ExitCode.REFUSED
    assert "UNRESOLVED_COLUMN" in capsys.readouterr().err
