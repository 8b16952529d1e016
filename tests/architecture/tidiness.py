"""The checkers that need no drawing: sizes, names, handlers, words, links, the root folder.

Each takes the root of a tree (and its literal list, where there is one) and returns what does not
hold, one sentence each: where, which rule, what to do.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.architecture.source import (
    ROOMS,
    Module,
    files_under,
    functions,
    length,
    matches,
    modules,
)

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_SHORT = 30
FUNCTION_LINES_EASY = 50
FILE_LINES_MAX = 700
FILE_LINES_EASY = 500
REASON = "long because"

_BANNED_NAMES = frozenset(("util", "utils", "helper", "helpers", "common", "base", "impl", "misc"))
_MANAGERS = frozenset(("file_manager", "log_manager", "lock_manager"))
_BROAD = ("Exception", "BaseException")
_TEST_NAME_PARTS_MIN = 4

# Written so that no pattern finds itself here.
_FORGOTTEN = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X)\b")
_NOT_OURS = re.compile(
    r"\bsub[-]?agent|\bhelper[ ]session|\bdeveloper\W{0,2}s?[ ]session|index[-]url|trusted[-]host"
    r"|\bshared/(?:design|style|notes|seeds|tools|hooks)\b"
    r"|\bnotes/(?:aesthetics|features|peers|reliability|spark|standards)\b"
    r"|(?<![A-Za-z0-9_])(?:design|style)[.]md\b",
)
_MACHINE_PATH = re.compile(r"(?<![\w.:/~$}-])/(?:(?:home|Users)/\w+|root|tmp|work|workspace)/\w+")
# A link's words may begin on the line before, so only its end is looked for.
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s+(\S+)")
_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")


@dataclass(frozen=True)
class Ratchet:
    """How far the tree has gone past the easy sizes; a number may only go down.

    Below the easy size nothing is counted, and above it in steps, so that ordinary growth seldom
    meets the ratchet.
    """

    longest_file_lines: int
    longest_function_lines: int


def overlong_functions(root: Path) -> list[str]:
    """Functions that do not fit on a screen."""
    return [
        f"{module.path}:{function.lineno}: {function.name} has {length(function)} lines, "
        f"{FUNCTION_LINES_MAX} are the limit. Keep the branches here, move straight code to leaves."
        for module in modules(root)
        for function in functions(module)
        if length(function) > FUNCTION_LINES_MAX
    ]


def overlong_files(root: Path) -> list[str]:
    """Files past the limit, and long ones that do not say why they are."""
    found = []
    for module in modules(root):
        if module.line_count > FILE_LINES_MAX:
            found.append(
                f"{module.path}:1: {module.line_count} lines, {FILE_LINES_MAX} are the limit. "
                "Two things live here: give the second a module of its own."
            )
        elif module.line_count > FILE_LINES_EASY and REASON not in _flat_docstring(module):
            found.append(
                f"{module.path}:1: {module.line_count} lines and no reason. Above "
                f'{FILE_LINES_EASY} the module docstring says "{REASON} …"; or split it.'
            )
    return found


def ratchet_slips(root: Path, ratchet: Ratchet) -> list[str]:
    """Sizes that grew past what was reached, and numbers that can be lowered by now."""
    files = max((module.line_count for module in modules(root)), default=0)
    lengths = [length(function) for module in modules(root) for function in functions(module)]
    due_file = max(FILE_LINES_EASY, _up_to(files, step=50))
    due_function = max(FUNCTION_LINES_EASY, _up_to(max(lengths, default=0), step=5))
    return [
        *_slip("longest_file_lines", ratchet.longest_file_lines, due_file),
        *_slip("longest_function_lines", ratchet.longest_function_lines, due_function),
    ]


def crowds_of_long_functions(root: Path) -> list[str]:
    """Nine functions in ten stay short, in the product and in the tests each."""
    found = []
    for is_product, where in ((True, "the product"), (False, "tests and benchmarks")):
        lengths = [
            length(function)
            for module in modules(root)
            if module.is_product == is_product
            for function in functions(module)
        ]
        long = sum(lines > FUNCTION_LINES_SHORT for lines in lengths)
        if long * 10 > len(lengths):
            found.append(
                f"{where}: {long} of {len(lengths)} functions have more than "
                f"{FUNCTION_LINES_SHORT} lines; one in ten is the limit. Split the latest."
            )
    return found


def missing_docstrings(root: Path) -> list[str]:
    """Modules that do not say what they are for; public names that do not say what holds."""
    found = [
        f"{module.path}:1: no module docstring. Say what this is for and what it does not know."
        for module in modules(root)
        if not ast.get_docstring(module.tree)
    ]
    return found + [
        f"{module.path}:{node.lineno}: public {node.name} has no docstring. Say in one sentence "
        "what is true afterwards, or give the name an underscore."
        for module in modules(root)
        if module.is_product
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]


def broad_handlers(root: Path, allowed: Mapping[str, str]) -> list[str]:
    """Handlers that catch what they cannot know; one that ends in `raise` only looks on."""
    found = [
        f"{module.path}:{line}: catches {what}. Name the exceptions you can handle; "
        "only a loop that serves calls catches all, and it stands in BROAD_HANDLERS."
        for module in modules(root)
        for line, what in _broad_catches(module)
        if what == "everything" or not matches(module.name, " ".join(allowed))
    ]
    with_handlers = {module.name for module in modules(root) if any(_broad_catches(module))}
    return found + [
        f"BROAD_HANDLERS: {name} catches nothing broad. Take it out."
        for name in allowed
        if name not in with_handlers
    ]


def prints(root: Path, allowed: str) -> list[str]:
    """Calls of `print` outside the programs that talk to a person."""
    return [
        f"{module.path}:{node.lineno}: print. Log it, return it, or let the command show it."
        for module in modules(root)
        if not matches(module.name, allowed)
        for node in module.nodes
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def forgotten_words(root: Path) -> list[str]:
    """Notes to oneself, traces of how a text came to be, and paths of somebody's machine."""
    found = []
    for file in _texts(root):
        for number, line in enumerate(_lines(file), start=1):
            where = f"{file.relative_to(root).as_posix()}:{number}"
            if match := _FORGOTTEN.search(line):
                found.append(f"{where}: {match[0]}. Do it now, or open an issue and delete this.")
            if match := _NOT_OURS.search(line):
                found.append(f'{where}: "{match[0]}" does not belong in the repository.')
            if match := _MACHINE_PATH.search(line):
                found.append(f'{where}: "{match[0]}…" is a path of one machine. Make it relative.')
    return found


def vague_names(root: Path) -> list[str]:
    """Modules and folders whose name would fit anything."""
    found = []
    for module in modules(root):
        for part in module.name.split("."):
            vague = _BANNED_NAMES.intersection(part.split("_"))
            is_manager = "manager" in part.split("_")
            if vague or (is_manager and part.removeprefix("test_") not in _MANAGERS):
                found.append(
                    f'{module.path}:1: "{part}" says nothing. Name the thing that lives here; '
                    "a function without a home belongs to its caller."
                )
    return found


def vague_test_names(root: Path) -> list[str]:
    """Tests whose name is not a sentence about behaviour."""
    return [
        f"{module.path}:{function.lineno}: {function.name} is not a sentence. "
        "Say what holds: test_rolled_back_get_returns_the_message_to_its_place."
        for module in modules(root)
        if not module.is_product
        for function in functions(module)
        if function.name.startswith("test_")
        if len(function.name.split("_")) < _TEST_NAME_PARTS_MIN
        or re.search(r"_\d+$", function.name)
    ]


def empty_rooms(root: Path, waiting: Mapping[str, str]) -> list[str]:
    """Folders with nothing in them, but for those that wait to be lived in."""
    rooms = {folder.relative_to(root).as_posix(): folder for folder in _folders(root)}
    return [
        f"{name}/: an empty room. A folder appears with the first file it needs."
        for name, folder in rooms.items()
        if name not in waiting
        if not any(_is_lived_in(file) for file in files_under(folder))
    ]


def broken_links(root: Path) -> list[str]:
    """Links between our pages that lead nowhere: no such file, or no such heading."""
    found = []
    for page in _pages(root):
        for number, target in _links(page):
            where = f"{page.relative_to(root).as_posix()}:{number}"
            path, _, anchor = target.partition("#")
            goal = (page.parent / path).resolve() if path else page
            if not goal.is_relative_to(root.resolve()) or not goal.exists():
                found.append(f"{where}: {target} leads nowhere. Correct the link or add the page.")
            elif anchor and goal.suffix == ".md" and anchor not in _anchors(goal):
                found.append(
                    f"{where}: {target} names no heading there. Headings are linked in "
                    "lower case with hyphens."
                )
    return found


def strange_root_entries(root: Path, allowed: Mapping[str, str]) -> list[str]:
    """What lies in the root folder without a place there, and what is missing from it."""
    ignored = _ignored_in_root(root)
    names = {
        entry.name
        for entry in root.iterdir()
        if not entry.name.startswith(".") and (entry.is_file() or any(files_under(entry)))
    }
    places = {name.removeprefix("~") for name in allowed}
    found = [
        f"{name}: has no place in the root folder. Put it into a room, or name it in ROOT."
        for name in sorted(names - places)
        if not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    return found + [
        f"{name}: is missing from the root folder ({reason})."
        for name, reason in allowed.items()
        if name not in names and not name.startswith("~")
    ]


def _flat_docstring(module: Module) -> str:
    return " ".join((ast.get_docstring(module.tree) or "").split())


def _up_to(number: int, step: int) -> int:
    return -(-number // step) * step


def _slip(name: str, literal: int, due: int) -> Iterator[str]:
    if due > literal:
        yield f"RATCHET: {name} is {literal}, and something is longer. Shorten it; do not raise."
    if due < literal:
        yield f"RATCHET: {name} is {literal} and can be lowered to {due}. Well done."


def _broad_catches(module: Module) -> Iterator[tuple[int, str]]:
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield node.lineno, "everything"
            elif not _passes_on(node):
                yield from ((node.lineno, name) for name in _names(node.type) if name in _BROAD)
        elif isinstance(node, ast.Call) and "suppress" in _names(node.func):
            caught = [name for argument in node.args for name in _names(argument)]
            yield from ((node.lineno, name) for name in caught if name in _BROAD)


def _passes_on(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _names(node: ast.AST | None) -> list[str]:
    """The last parts of a name or of a tuple of names."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return [name]
        case ast.Tuple(elts=parts):
            return [name for part in parts for name in _names(part)]
    return []


def _texts(root: Path) -> Iterator[Path]:
    """Everything a person wrote: the root's own files, dot-files among them, and the rooms."""
    yield from (path for path in sorted(root.iterdir()) if path.is_file())
    for folder in (*ROOMS, "docs", ".ci", ".github"):
        yield from files_under(root / folder)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def _folders(root: Path) -> Iterator[Path]:
    """Every folder of every room, but those that only a cache keeps from being gone."""
    for room in (root / name for name in (*ROOMS, "docs")):
        for folder in sorted([room, *room.rglob("*/")]):
            names = (
                {entry.name for entry in folder.iterdir()} if folder.is_dir() else {"__pycache__"}
            )
            if "__pycache__" not in folder.parts and names != {"__pycache__"}:
                yield folder


def _is_lived_in(file: Path) -> bool:
    if file.name == "__init__.py":
        return len(ast.parse(file.read_text(encoding="utf-8")).body) > 1
    return file.name != "py.typed"


def _pages(root: Path) -> Iterable[Path]:
    pages = [file for file in files_under(root / "docs") if file.suffix == ".md"]
    return [*sorted(root.glob("*.md")), *pages]


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page outside its code."""
    in_code = False
    for number, line in enumerate(_lines(page), start=1):
        if line.lstrip().startswith(("```", "~~~")):
            in_code = not in_code
        elif not in_code:
            yield number, line


def _links(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in _prose(page):
        for inline, listed in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            target = inline or listed
            if not re.match(r"[a-z][a-z0-9+.-]*:", target):
                yield number, target


def _anchors(page: Path) -> set[str]:
    headings = [match[1] for _, line in _prose(page) if (match := _HEADING.match(line))]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _ignored_in_root(root: Path) -> list[str]:
    ignore = root / ".gitignore"
    lines = _lines(ignore) if ignore.exists() else []
    return [line.strip("/ ") for line in lines if line.strip() and not line.startswith("#")]
