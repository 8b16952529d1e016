"""The checkers that hold the source against the drawing: layers, doors, purity, dead files.

Each takes the root of a tree and its part of the drawing, and returns what does not hold, one
sentence each: where, which rule, what to do. The drawing itself is in `tests/test_architecture.py`.
"""

import ast
import graphlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.source import Module, Use, imports_of_ours, matches, modules, uses

PLANNED = "~"


@dataclass(frozen=True)
class Door:
    """A piece of the outside world and the modules that keep its key.

    `things` are dotted names with all that is inside them; `os.*` is what is inside `os`, but not
    the bare import; `.read_text` is that method, called in a module that handles paths. `free`
    names those inside that touch nothing. All are written with spaces between them.
    """

    name: str
    things: str
    keepers: str
    instead: str
    free: str = ""

    def reach(self, thing: str) -> int:
        """How narrowly the door leads to a name; 0 when it does not."""
        if thing in self.free.split():
            return 0
        return max((len(own) for own in self.things.split() if _is_inside(thing, own)), default=0)


def imports_pointing_up(root: Path, layers: Mapping[str, str]) -> list[str]:
    """Modules that are not in the drawing, and imports that it does not allow."""
    rows = _unmarked(layers)
    known = frozenset(module.name for module in modules(root)) | frozenset(rows)
    found = []
    for module in modules(root):
        row = _row_of(module.name, rows)
        if row is None and not module.is_package:
            found.append(
                f"{module.path}:1: {module.name} is not in the drawing. "
                "Give it a row in LAYERS, above all that it imports."
            )
            continue
        found += [
            f"{module.path}:{use.line}: {module.name} imports {use.name}, which LAYERS does not "
            f"allow ({row or 'no row'} may import: {rows.get(row or '') or 'nothing of ours'}). "
            "Pass the thing in or move the code down; change the row only if the drawing is wrong."
            for use in _once(imports_of_ours(module, known))
            if not matches(use.name, rows.get(row or "", ""))
        ]
    return found


def untrue_rows(root: Path, layers: Mapping[str, str]) -> list[str]:
    """Rows of the drawing that point up, name a stranger, or are wrong about what exists."""
    names = [module.name for module in modules(root)]
    order = list(_unmarked(layers))
    found = []
    for place, (row, allowed) in enumerate(layers.items()):
        name, is_planned = row.removeprefix(PLANNED), row.startswith(PLANNED)
        exists = any(matches(module, name) for module in names)
        if not exists and not is_planned:
            found.append(
                f"LAYERS: {name} does not exist. Mark its row with {PLANNED} if it is planned, "
                "or take the row out."
            )
        for target in allowed.split():
            if not any(matches(other, target) or matches(target, other) for other in order):
                found.append(f"LAYERS: {name} may import {target}, which has no row. Add it below.")
            if any(matches(above, target) for above in order[:place]):
                found.append(
                    f"LAYERS: {name} may import {target}, which stands above it. Imports point "
                    "down: reorder the rows, or turn the import round."
                )
    return found


def import_cycles(root: Path) -> list[str]:
    """Modules that import each other in a ring; one ring is told at a time."""
    known = {module.name: module for module in modules(root)}
    graph = {
        name: {use.name for use in imports_of_ours(module, frozenset(known))}
        for name, module in known.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        ring = " -> ".join(reversed(error.args[1]))
        first = known[error.args[1][-1]].path
        return [f"{first}:1: imports form a ring: {ring}. Move what they share below them both."]
    return []


def doors_passed(root: Path, doors: tuple[Door, ...]) -> list[str]:
    """Doors that a product module passes without a key, each told once, at the first use."""
    found = []
    for module in (module for module in modules(root) if module.is_product):
        passed = {_narrowest(doors, use): use for use in reversed(_once(uses(module)))}
        found += [
            f"{module.path}:{use.line}: uses {use.name}, but {door.name} has its door in "
            f"{door.keepers or 'no module at all'}. {door.instead}"
            for door, use in passed.items()
            if door and not matches(module.name, door.keepers)
        ]
    return found


def strange_keepers(layers: Mapping[str, str], doors: tuple[Door, ...]) -> list[str]:
    """Keepers of a door that the drawing does not know."""
    rows = _unmarked(layers)
    return [
        f"DOORS: {keeper} keeps the door of {door.name} but has no row in LAYERS. "
        "Correct the name, or take the key away."
        for door in doors
        for keeper in door.keepers.split()
        if not any(matches(row, keeper) or matches(keeper, row) for row in rows)
    ]


def impure_modules(root: Path, pure: str, acts: str, doors: tuple[Door, ...]) -> list[str]:
    """Modules declared pure that wait or log, keep a key, or lean on what is not pure."""
    known = frozenset(module.name for module in modules(root))
    found = [
        f"DOORS: {name} is declared pure and yet keeps the door of {door.name}. It cannot be both."
        for name in pure.split()
        for door in doors
        if matches(name, door.keepers)
    ]
    for module in modules(root):
        if not matches(module.name, pure):
            continue
        found += [
            f"{module.path}:{use.line}: uses {use.name}, but {module.name} is declared pure. "
            "Return what is to be done and let the caller do it."
            for use in _once(uses(module))
            if any(_is_inside(use.name, act) for act in acts.split())
        ]
        found += [
            f"{module.path}:{use.line}: imports {use.name}, which is not pure, but {module.name} "
            "is declared so. Move the shared values into a pure module."
            for use in _once(imports_of_ours(module, known))
            if not matches(use.name, pure)
        ]
    return found


def dead_modules(root: Path, alive: Mapping[str, str]) -> list[str]:
    """Product modules and test support that no entry point reaches, and stale excuses for them."""
    everything = modules(root)
    entries = _entry_points(root, everything)
    excused = {
        row: {module.name for module in everything if matches(module.name, row)}
        for row in _unmarked(alive)
    }
    reached = _reached(everything, entries.union(*excused.values()))
    found = [
        f"{module.path}:1: nothing that runs imports {module.name}. Use it, delete it, or name it "
        "in ALIVE with the reason."
        for module in everything
        if module.name not in reached and not module.is_package
    ]
    for row, names in excused.items():
        others = entries.union(*(names for other, names in excused.items() if other != row))
        if not names and f"{PLANNED}{row}" not in alive:
            found.append(f"ALIVE: {row} does not exist. Take it out.")
        elif names and names <= _reached(everything, others):
            found.append(f"ALIVE: {row} is imported by now and needs no excuse. Take it out.")
    return found


def _unmarked(layers: Mapping[str, str]) -> dict[str, str]:
    return {row.removeprefix(PLANNED): allowed for row, allowed in layers.items()}


def _row_of(name: str, rows: Mapping[str, str]) -> str | None:
    """The row that speaks of a module: its own, or else the narrowest pattern that fits."""
    if name in rows:
        return name
    return max((row for row in rows if matches(name, row)), key=len, default=None)


def _narrowest(doors: tuple[Door, ...], use: Use) -> Door | None:
    door = max(doors, key=lambda door: door.reach(use.name))
    return door if door.reach(use.name) else None


def _is_inside(thing: str, own: str) -> bool:
    return thing == own or thing.startswith(own.removesuffix("*").removesuffix(".") + ".")


def _once(found: Iterator[Use]) -> list[Use]:
    return sorted(set(found), key=lambda use: (use.line, use.name))


def _entry_points(root: Path, everything: list[Module]) -> set[str]:
    """What is started from outside: commands, front doors, programs and tests."""
    project = root / "pyproject.toml"
    settings = tomllib.loads(project.read_text(encoding="utf-8")) if project.exists() else {}
    scripts = settings.get("project", {}).get("scripts", {}).values()
    entries = {script.partition(":")[0] for script in scripts}
    for module in everything:
        last = module.name.rpartition(".")[2]
        is_started = last in ("__main__", "conftest") or "." not in module.name
        if is_started or last.startswith("test_") or _is_program(module):
            entries.add(module.name)
    return entries


def _is_program(module: Module) -> bool:
    """The module does something when it is started: `if __name__ == "__main__"`."""
    tests = [node.test for node in module.tree.body if isinstance(node, ast.If)]
    return any(ast.unparse(test) == "__name__ == '__main__'" for test in tests)


def _reached(everything: list[Module], entries: set[str]) -> set[str]:
    """What the entries import, and what that imports: a test keeps only test support alive."""
    known = {module.name: module for module in everything}
    reached: set[str] = set()
    ahead = {name for name in entries if name in known}
    while ahead:
        module = known[name := ahead.pop()]
        reached.add(name)
        for use in imports_of_ours(module, frozenset(known)):
            by_product = module.is_product or not known[use.name].is_product
            if by_product:
                ahead |= {use.name, *_packages_of(use.name, known)} - reached
    return reached


def _packages_of(name: str, known: Mapping[str, Module]) -> set[str]:
    parts = name.split(".")
    return {package for n in range(1, len(parts)) if (package := ".".join(parts[:n])) in known}
