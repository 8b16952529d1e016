"""The guides of Spark and of pipelines say what is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from clients.pipeline.keys import TABLES
from clients.pipeline.plan import read_plan
from idl.toml_files import parse_toml

ROOT = Path(__file__).parents[4]
SPARK = (ROOT / "docs" / "guide" / "spark.md").read_text()
PIPELINES = (ROOT / "docs" / "guide" / "pipelines.md").read_text()


def test_every_row_of_the_failure_table_names_a_test_that_exists() -> None:
    folder = ROOT / "tests" / "integration" / "spark"
    text = "\n".join(file.read_text() for file in folder.glob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    table = SPARK[SPARK.index("## Who dies when") :].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named or "`make demo`" in row, row
        assert set(named) <= there, row


@pytest.mark.parametrize("table", TABLES)
def test_every_key_of_a_file_is_in_the_guide(table: str) -> None:
    heading = f"| `[[{table}]]` |" if table in ("source", "step", "sink") else f"| `[{table}]` |"
    section = PIPELINES[PIPELINES.index(heading) :].split("\n\n")[0]
    cells = [line.split("|")[1] for line in section.splitlines()[2:]]
    assert re.findall(r"`(\w+)`", " ".join(cells)) == list(TABLES[table])


def test_the_file_in_the_guide_is_right() -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PIPELINES, re.DOTALL)
    plan = read_plan(parse_toml(text, "guide.toml"))
    assert [sink.where for sink in plan.sinks] == ["queue invoices", "table large_invoices"]


@pytest.mark.parametrize("text", [SPARK, PIPELINES], ids=["spark", "pipelines"])
def test_the_programs_in_the_guides_can_be_read(text: str) -> None:
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(program)
