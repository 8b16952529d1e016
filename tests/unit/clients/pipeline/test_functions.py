"""Functions that a pipeline names: found, or refused with a sentence."""

from __future__ import annotations

import pytest

from clients.pipeline.functions import BadFunction, arguments_for, load_functions
from clients.pipeline.plan import Plan, Sink, Source, Step

HERE = "tests.unit.clients.pipeline.test_functions"


def invoices(orders: str, spark: str, rate: float = 1.19) -> str:
    """What a user would write; the names are those of sources, steps and the session."""
    return f"{orders} {spark} {rate}"


def _plan(*functions: str) -> Plan:
    steps = tuple(Step(f"step{n}", function=each) for n, each in enumerate(functions))
    return Plan("p", (Source("orders", "orders"),), steps, (Sink("orders", queue="out"),))


def test_a_function_is_handed_what_it_has_parameters_for() -> None:
    function = load_functions(_plan(f"{HERE}:invoices"))["step0"]
    offered = {"orders": "ORDERS", "spark": "SPARK", "other": "OTHER"}
    assert function(**arguments_for(function, offered)) == "ORDERS SPARK 1.19"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        (f"{HERE}:invoice", "has no function 'invoice'; did you mean 'invoices'?"),
        (f"{HERE}:test_a_function_is_missing", "has no function"),
    ],
)
def test_what_is_not_there_is_said(function: str, words: str) -> None:
    with pytest.raises(BadFunction, match=words.replace("?", r"\?")):
        load_functions(_plan(function))


def test_a_parameter_that_nothing_is_called_by_is_refused() -> None:
    plan = Plan("p", (Source("bills", "bills"),), _plan(f"{HERE}:invoices").steps, ())
    with pytest.raises(BadFunction, match="has a parameter 'orders', and nothing before"):
        load_functions(plan)
