"""The checkers, checked: each is shown a small tree with one fault and must see it.

The rules and the drawing are those of `tests/test_architecture.py`; the trees are made up.
"""

from functools import partial
from pathlib import Path

import pytest

from tests.architecture import drawing, tidiness
from tests.architecture.drawing import Door
from tests.architecture.layers import LAYERS
from tests.architecture.tidiness import Ratchet
from tests.architecture.violations import SOUND, VIOLATIONS, Violation, build
from tests.test_architecture import DOORS, RULES, Rule

# The architecture is tried as it stands; lists that change with every step are tried with these.
TRIED: dict[str, Rule] = RULES | {
    "the drawing is true": partial(
        drawing.untrue_rows, layers={"idl.cos": "idl.mapping", "~idl.mq": "", "idl.mapping": ""}
    ),
    "no module is dead": partial(
        drawing.dead_modules, alive={"idl.parser": "read by tests", "idl.orb": "comes first"}
    ),
    "sizes only go down": partial(tidiness.ratchet_slips, ratchet=Ratchet(500, 50)),
    "handlers name what they catch": partial(
        tidiness.broad_handlers, allowed={"idl.orb.server": "serves calls"}
    ),
    "nobody prints": partial(tidiness.prints, allowed="clients.cli"),
    "no room is empty": partial(
        tidiness.empty_rooms, waiting={"mqserver": "comes next", "coordinator": "comes next"}
    ),
    "the root holds what it should": partial(
        tidiness.strange_root_entries,
        allowed=dict.fromkeys({path.partition("/")[0] for path in SOUND}, "needed")
        | {"~later": "not yet needed"},
    ),
}


@pytest.mark.parametrize("violation", VIOLATIONS, ids=lambda violation: violation.fault)
def test_a_rule_sees_a_fault(violation: Violation, tmp_path: Path) -> None:
    [found] = TRIED[violation.rule](build(tmp_path, SOUND | violation.files))
    assert violation.seen_as in found


@pytest.mark.parametrize("rule", TRIED)
def test_a_sound_tree_breaks_no_rule(rule: str, tmp_path: Path) -> None:
    assert TRIED[rule](build(tmp_path, SOUND)) == []


def test_every_rule_has_a_fault_it_must_see() -> None:
    assert {violation.rule for violation in VIOLATIONS} == RULES.keys() == TRIED.keys()


def test_every_door_has_a_fault_it_must_see() -> None:
    seen = " ".join(v.seen_as for v in VIOLATIONS if v.rule == "the outside world has its doors")
    assert [door.name for door in DOORS if door.name not in seen] == []


@pytest.mark.parametrize(
    ("layers", "seen_as"),
    [
        ({"idl.mapping": "", "idl.cos": "idl.mapping"}, "which stands above it"),
        ({"idl.cos": "idl.mapping"}, "which has no row"),
        ({"idl.gone": ""}, "does not exist"),
    ],
)
def test_a_row_that_is_not_true_is_reported(
    layers: dict[str, str], seen_as: str, tmp_path: Path
) -> None:
    [found] = drawing.untrue_rows(build(tmp_path, SOUND), layers)
    assert seen_as in found


def test_rows_that_point_down_are_not_reported(tmp_path: Path) -> None:
    layers = {"idl.cos": "idl.mapping", "~idl.later": "idl.mapping", "idl.mapping": ""}
    assert drawing.untrue_rows(build(tmp_path, SOUND), layers) == []


def test_a_ratchet_that_can_be_lowered_is_reported(tmp_path: Path) -> None:
    [found] = tidiness.ratchet_slips(build(tmp_path, SOUND), Ratchet(600, 50))
    assert "longest_file_lines is 600 and can be lowered to 500" in found


def test_a_handler_that_passes_everything_on_is_not_reported(tmp_path: Path) -> None:
    text = '"""Tidies up."""\ntry:\n    pass\nexcept BaseException:\n    tidy()\n    raise\n'
    assert tidiness.broad_handlers(build(tmp_path, {"idl/call.py": text}), allowed={}) == []


def test_a_door_without_a_known_keeper_is_reported() -> None:
    door = Door("the moon", things="rocket", keepers="idl.moon", instead="Stay.")
    assert "idl.moon" in drawing.strange_keepers(LAYERS, (door,))[0]
