"""Python functions that a pipeline's file names as `module:function`, found and called.

The module is looked for beside the file first. A function is handed what it asks for by the names
of its parameters: sources and steps before it, and the session as `spark`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from clients.pipeline.plan import Plan, Step
from idl.toml_files import suggestion

SESSION = "spark"


class BadFunction(Exception):
    """There is no such function, or it asks for what is not there; the message says which."""


def load_functions(plan: Plan) -> dict[str, Callable[..., Any]]:
    """The function of each step that has one, by the step's name. Raises `BadFunction`."""
    known = [source.name for source in plan.sources]
    found = {}
    for step in plan.steps:
        if step.function:
            found[step.name] = _load(step, plan.folder)
            _check_parameters(found[step.name], step, known)
        known.append(step.name)
    return found


def file_of(function: Callable[..., Any], folder: Path) -> Path | None:
    """The module's file where it lies beside the pipeline's, so that executors need to be sent it.

    Modules that are installed are there already.
    """
    file = inspect.getsourcefile(inspect.unwrap(function))
    if file is None:
        return None
    path = Path(file).absolute()
    return path if path.parent == folder else None


def arguments_for(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is offered, what the function has parameters for."""
    return {name: offered[name] for name in _parameters(function) if name in offered}


def _load(step: Step, folder: Path) -> Callable[..., Any]:
    module_name, _, name = step.function.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ImportError as missing:
        raise BadFunction(f"step {step.name!r}: {step.function}: {missing}") from missing
    function = getattr(module, name, None)
    if not callable(function):
        names = [each for each in vars(module) if callable(getattr(module, each))]
        public = [each for each in names if not each.startswith("_")] or ["nothing to call there"]
        told = f"step {step.name!r}: {module_name} has no function {name!r}"
        raise BadFunction(f"{told}; {suggestion(name, public)}")
    found: Callable[..., Any] = function
    return found


def _check_parameters(function: Callable[..., Any], step: Step, known: Iterable[str]) -> None:
    offered = {*known, SESSION}
    for name, parameter in _parameters(function).items():
        is_needed = parameter.default is inspect.Parameter.empty
        if is_needed and name not in offered:
            told = f"step {step.name!r}: {step.function} has a parameter {name!r}"
            raise BadFunction(
                f"{told}, and nothing before this step is called so; {suggestion(name, offered)}"
            )


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters
    return {name: each for name, each in parameters.items() if each.kind in named}
