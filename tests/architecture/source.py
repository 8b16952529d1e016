"""Our own source as data: the modules, what each imports, and what of the outside world it names.

Reads Python by its syntax tree and never imports what it reads, so a checker can be shown a small
made-up tree as well as the real one. It knows how files are read and holds no rule of ours.
"""

import ast
import builtins
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOMS = ("idl", "mqserver", "coordinator", "clients", "benchmarks", "tests")
_NOT_SOURCE = ("__pycache__", "build", "dist", "node_modules", "venv")
_PATHS = ("pathlib", "importlib.resources")
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Module:
    """One Python file of ours, under the name by which it is imported."""

    name: str
    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """The syntax tree of the file."""
        return _parsed(self.text, self.path)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All that is in the syntax tree, from the outside in."""
        return _walked(self.text, self.path)

    @property
    def is_package(self) -> bool:
        """The module is the `__init__` of a folder."""
        return self.path.endswith("__init__.py")

    @property
    def is_product(self) -> bool:
        """The module is part of what users install, not of what tests or measures it."""
        return not self.path.startswith(("tests/", "benchmarks/"))

    @property
    def line_count(self) -> int:
        """How many lines the file has."""
        return len(self.text.splitlines())


@dataclass(frozen=True)
class Use:
    """A dotted name that a module imports or mentions, and the line where it does.

    `builtins.open` is a call of a builtin; a leading dot, as in `.read_text`, a method of a path.
    """

    name: str
    line: int


def modules(root: Path) -> list[Module]:
    """Every Python file of the project: the rooms, and the one-file front doors beside them."""
    files = [*root.glob("*.py"), *(file for room in ROOMS for file in files_under(root / room))]
    return [_module(root, file) for file in sorted(files) if file.suffix == ".py"]


def files_under(folder: Path) -> Iterator[Path]:
    """Every file of a folder that a person wrote: no caches, no builds, nothing hidden."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(".") or path.name in _NOT_SOURCE or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            yield from files_under(path)
        else:
            yield path


@functools.cache
def imports(module: Module) -> tuple[Use, ...]:
    """Every name the module imports, anywhere in it; `from a import b` imports `a.b`."""
    return tuple(_imports(module))


def forget() -> None:
    """Nothing that was read is kept any more: the trees of a whole project are large."""
    for kept in (imports, _walked, _parsed):
        kept.cache_clear()


def _imports(module: Module) -> Iterator[Use]:
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Use(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            for alias in node.names:
                yield Use(f"{origin}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
            yield Use(name, node.lineno)


def imports_of_ours(module: Module, known: frozenset[str]) -> Iterator[Use]:
    """What the module imports of `known`, each use named by the longest known name it starts with.

    Importing itself is not importing: a package may say `from . import x` without a loop.
    """
    for use in imports(module):
        target = use.name
        while target and target not in known:
            target = target.rpartition(".")[0]
        if target and target != module.name:
            yield Use(target, use.line)


def uses(module: Module) -> Iterator[Use]:
    """Every outside name the module imports, mentions through an import, or calls as a builtin."""
    yield from imports(module)
    bound = _bound_by_imports(module)
    handles_paths = any(use.name.startswith(_PATHS) for use in imports(module))
    own = {node.name for node in module.nodes if isinstance(node, ast.FunctionDef)}
    for name in _outermost_names(module.tree):
        first, *rest = _chain(name)
        if first in bound:
            yield Use(".".join([bound[first], *rest]), name.lineno)
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=called) if called in _BUILTINS and called not in {*bound, *own}:
                yield Use(f"builtins.{called}", node.lineno)
            case ast.Attribute(value=value, attr=attr) if handles_paths and not _is_disk(value):
                if _chain(value)[0] not in bound:
                    yield Use(f".{attr}", node.lineno)


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of the module, nested ones included."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end of the body, the docstring included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def matches(name: str, patterns: str) -> bool:
    """A module's name fits one of the patterns, which are written with spaces between them."""
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


def _module(root: Path, file: Path) -> Module:
    path = file.relative_to(root)
    parts = path.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path.as_posix(), file.read_text(encoding="utf-8"))


@functools.cache
def _parsed(text: str, path: str) -> ast.Module:
    return ast.parse(text, filename=path)


# Most rules look at every node, and to find them all again takes longer than to look at them.
@functools.cache
def _walked(text: str, path: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parsed(text, path)))


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def _imported_by_call(call: ast.Call) -> str:
    """The name given to `import_module` or `__import__`, where it is written out."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else _chain(call.func)[0]
    if called in ("import_module", "__import__") and call.args:
        match call.args[0]:
            case ast.Constant(value=str(name)):
                return name
    return ""


def _bound_by_imports(module: Module) -> dict[str, str]:
    """Local name to the dotted name it stands for."""
    bound: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{_origin(module, node)}.{alias.name}"
    return bound


def _outermost_names(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attribute chains of a tree, each once and whole: `os.path.join`, not its `os.path`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute) and _chain(child)[0]:
            yield child
        else:
            yield from _outermost_names(child)


def _chain(node: ast.AST) -> list[str]:
    """`a.b.c` as its parts; the first part is empty when the chain does not start at a name."""
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=value, attr=attr):
            return [*_chain(value), attr]
    return [""]


def _is_disk(receiver: ast.AST) -> bool:
    return _chain(receiver)[-1] in ("disk", "_disk")
