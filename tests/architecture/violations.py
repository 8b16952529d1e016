"""One small sound tree, and for every rule the faults it must see in it.

A fault is a few files laid over the sound tree; it must be reported exactly once, in the words
given. A checker that has gone blind fails here, and not silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HANDLER = "\n\ntry:\n    pass\nexcept Exception:\n    pass\n"
SERVER = '"""Serves."""\n\nfrom idl import cos' + HANDLER

SOUND = {
    "pyproject.toml": '[project.scripts]\noncemq = "clients.cli:main"\n',
    "README.md": "# OnceMQ\n\nSee [the map](docs/MAP.md#the-map).\n",
    "docs/MAP.md": "# The map\n",
    "idl/__init__.py": '"""Contracts."""\n',
    "idl/mapping.py": '"""Types."""\n',
    "idl/cos.py": '"""Words."""\n\nfrom idl import mapping\n',
    "idl/orb/__init__.py": '"""The network."""\n\nfrom idl.orb import network\n',
    "idl/orb/network.py": '"""The orb."""\n\nfrom idl.orb import frames, server\n',
    "idl/orb/server.py": SERVER,
    "idl/orb/frames.py": '"""Frames."""\n\nimport Pyro5\n',
    "idl/parser.py": '"""Reads IDL."""\n\nimport lark\n',
    "mqserver/__init__.py": '"""Server."""\n',
    "coordinator/__init__.py": '"""Coordinator."""\n',
    "clients/__init__.py": '"""Public names."""\n',
    "clients/cli.py": '"""Command."""\n\nfrom clients import doctor, probes\n\nprint(1)\n',
    "clients/demo.py": '"""Shows."""\n\nif __name__ == "__main__":\n    pass\n',
    "clients/doctor.py": '"""Judges."""\n\nfrom clients import machine\n',
    "clients/machine.py": '"""Facts."""\n',
    "clients/probes.py": '"""Measures."""\n\nimport time\n\nfrom clients import machine\n',
    "tests/test_all.py": '"""Tests."""\n\n\ndef test_the_sun_rises_daily() -> None:\n    pass\n',
}


@dataclass(frozen=True)
class Violation:
    """A fault: the rule that must see it, the files that make it, and words of the report.

    A file whose text is empty is taken away.
    """

    rule: str
    fault: str
    files: dict[str, str]
    seen_as: str


def build(root: Path, files: Mapping[str, str]) -> Path:
    """Writes a tree of files and returns its root."""
    for name, text in files.items():
        if not text:
            continue
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def _module(body: str) -> str:
    return f'"""Is small."""\n\n{body}\n'


def _function(lines: int, name: str = "long") -> str:
    return f'def {name}() -> None:\n    """Counts."""\n' + "    int()\n" * (lines - 2)


IMPORTS = [
    Violation(
        "imports point down",
        "a client imports a server",
        {"mqserver/errors.py": _module(""), "clients/probes.py": _module("import mqserver.errors")},
        "clients/probes.py:3: clients.probes imports mqserver.errors",
    ),
    Violation(
        "imports point down",
        "vocabulary imports the network inside a function",
        {"idl/cos.py": _module("def f() -> None:\n    from .orb import serve")},
        "idl/cos.py:4: idl.cos imports idl.orb",
    ),
    Violation(
        "imports point down",
        "a program reaches into the orb",
        {"coordinator/interfaces.py": _module("from idl.orb import frames")},
        "coordinator/interfaces.py:3: coordinator.interfaces imports idl.orb.frames",
    ),
    Violation(
        "imports point down",
        "the coordinator uses more of storage than the log",
        {
            "mqserver/storage/paged.py": _module(""),
            "coordinator/decision_log.py": _module("from mqserver.storage import paged"),
        },
        "coordinator/decision_log.py:3: coordinator.decision_log imports mqserver.storage.paged",
    ),
    Violation(
        "imports point down",
        "another module of the coordinator uses the log",
        {
            "mqserver/storage/disk.py": _module(""),
            "coordinator/family.py": _module("import mqserver.storage.disk"),
        },
        "coordinator/family.py:3: coordinator.family imports mqserver.storage.disk",
    ),
    Violation(
        "imports point down",
        "storage imports vocabulary",
        {"mqserver/storage/memory.py": _module("from idl.cos import Status")},
        "mqserver/storage/memory.py:3: mqserver.storage.memory imports idl.cos",
    ),
    Violation(
        "imports point down",
        "the parser is used at run time",
        {
            "clients/probes.py": _module(
                'from importlib import import_module\nimport_module("idl.parser")'
            )
        },
        "clients/probes.py:4: clients.probes imports idl.parser",
    ),
    Violation(
        "imports point down",
        "a module has no row",
        {"idl/stranger.py": _module("")},
        "idl/stranger.py:1: idl.stranger is not in the drawing",
    ),
    Violation(
        "imports point down",
        "a package without a row imports",
        {"idl/__init__.py": _module("from idl import orb")},
        "idl/__init__.py:3: idl imports idl.orb",
    ),
    Violation(
        "the drawing is true",
        "a module of the drawing is gone",
        {"idl/cos.py": ""},
        "idl.cos does not exist",
    ),
    Violation(
        "no imports form a ring",
        "two modules import each other",
        {"tests/one.py": _module("import tests.two"), "tests/two.py": _module("import tests.one")},
        "tests.one",
    ),
    Violation(
        "what decides is pure",
        "a pure module starts threads",
        {"idl/cos.py": _module("import threading")},
        "idl/cos.py:3: uses threading",
    ),
    Violation(
        "what decides is pure",
        "a pure module leans on an impure one",
        {"clients/doctor.py": _module("from clients import machine, probes")},
        "clients/doctor.py:3: imports clients.probes, which is not pure",
    ),
    Violation(
        "no module is dead",
        "nothing imports a module",
        {"idl/marshal.py": _module("")},
        "idl/marshal.py:1: nothing that runs imports idl.marshal",
    ),
    Violation(
        "no module is dead",
        "only a test imports a module",
        {"idl/marshal.py": _module(""), "tests/test_all.py": _module("import idl.marshal")},
        "idl/marshal.py:1",
    ),
    Violation(
        "no module is dead",
        "an excuse is stale",
        {"clients/probes.py": _module("import idl.parser")},
        "ALIVE: idl.parser is imported by now",
    ),
]


def _forced(door: str, fault: str, body: str) -> Violation:
    """A module without keys passes a door."""
    files = {"clients/doctor.py": _module(f"{body}\nfrom clients import machine")}
    return Violation("the outside world has its doors", fault, files, f"but {door} has its door in")


DOORS = [
    _forced("the network (remote objects)", "Pyro5 is imported", "import Pyro5.api"),
    _forced("the network (sockets)", "a socket is imported", "from socket import socket"),
    _forced("the network (TLS)", "TLS is imported", "import ssl as tls"),
    _forced("the disk", "a file is opened", 'open("x")'),
    _forced("the disk", "os is used under another name", 'import os as o\no.remove("x")'),
    _forced("the disk", "a function of os is imported", "from os import rename"),
    _forced("the disk", "a path is read", "import pathlib\npathlib.Path('x').read_text()"),
    _forced(
        "the disk", "a path is written", "from pathlib import Path\nPath('x').write_bytes(b'')"
    ),
    _forced("databases", "a driver is imported", "import sqlite3"),
    _forced("Spark", "Spark is imported", "from pyspark.sql import SparkSession"),
    _forced(
        "the environment and the command line", "a variable is read", "import os\nos.environ['X']"
    ),
    _forced(
        "the environment and the command line", "arguments are read", "import sys\nsys.argv[1]"
    ),
    _forced("the clock", "time is imported", "import time"),
    _forced("the clock", "now is asked", "from datetime import datetime\ndatetime.now()"),
    _forced("randomness", "dice are thrown", "import random"),
    _forced("randomness", "an identifier is drawn", "from uuid import uuid4"),
    _forced("metrics", "a counter is made", "from prometheus_client import Counter"),
    _forced("grammars", "a grammar is loaded", "from lark import Lark"),
    _forced("the terminal", "a table is drawn", "from rich.table import Table"),
    _forced("processes and signals", "a program is started", "import subprocess"),
    _forced("code made from data", "a pickle is imported", "import pickle"),
    _forced("code made from data", "text is run", 'eval("1")'),
]

SIZES = [
    Violation(
        "functions fit on a screen",
        "a function is too long",
        {"clients/machine.py": _module(_function(71))},
        "clients/machine.py:3: long has 71 lines",
    ),
    Violation(
        "files have one subject",
        "a file is too long",
        {"clients/machine.py": '"""Facts, long because."""\n' + "X = 1\n" * 700},
        "clients/machine.py:1: 701 lines",
    ),
    Violation(
        "files have one subject",
        "a long file gives no reason",
        {"clients/machine.py": '"""Facts."""\n' + "X = 1\n" * 500},
        "501 lines and no reason",
    ),
    Violation(
        "nine functions in ten are short",
        "a crowd of functions is long",
        {"clients/machine.py": _module("\n\n".join(_function(31, f"f{n}") for n in range(5)))},
        "the product: 5 of 5 functions",
    ),
    Violation(
        "sizes only go down",
        "a file outgrows the ratchet",
        {"clients/machine.py": '"""Facts, long because."""\n' + "X = 1\n" * 900},
        "longest_file_lines",
    ),
    Violation(
        "sizes only go down",
        "a function outgrows the ratchet",
        {"clients/machine.py": _module(_function(90))},
        "longest_function_lines is 50, and something is longer",
    ),
]

WORDS = [
    Violation(
        "everything public says what it is",
        "a module has no docstring",
        {"clients/machine.py": "X = 1\n"},
        "clients/machine.py:1: no module docstring",
    ),
    Violation(
        "everything public says what it is",
        "a public name has no docstring",
        {"clients/machine.py": _module("class Fact:\n    pass")},
        "clients/machine.py:3: public Fact",
    ),
    Violation(
        "handlers name what they catch",
        "a handler is bare",
        {"idl/orb/server.py": SERVER.replace("except Exception", "except")},
        "idl/orb/server.py:7: catches everything",
    ),
    Violation(
        "handlers name what they catch",
        "a handler catches every exception",
        {"idl/cos.py": _module("try:\n    pass\nexcept (OSError, Exception):\n    pass")},
        "idl/cos.py:5: catches Exception",
    ),
    Violation(
        "handlers name what they catch",
        "every exception is suppressed",
        {
            "idl/cos.py": _module(
                "import contextlib\nwith contextlib.suppress(Exception):\n    pass"
            )
        },
        "idl/cos.py:4: catches Exception",
    ),
    Violation(
        "nobody prints",
        "a module prints",
        {"clients/machine.py": _module("print(1)")},
        "clients/machine.py:3: print",
    ),
    Violation(
        "nothing is forgotten",
        "a note to oneself is left",
        {"docs/MAP.md": "# The map\n\n" + "TO" + "DO: draw\n"},
        "docs/MAP.md:3",
    ),
    Violation(
        "nothing is forgotten",
        "a text tells how it came to be",
        {"idl/Mq_Fifo.idl": "// written in a helper" + " session\n"},
        "idl/Mq_Fifo.idl:1",
    ),
    Violation(
        "nothing is forgotten",
        "a path of one machine is left",
        {"README.md": "Run\n/home" + "/ada/venv/bin/pytest\n"},
        "README.md:2",
    ),
    Violation(
        "names say something",
        "a module is a drain",
        {"clients/string_utils.py": _module("")},
        '"string_utils" says nothing',
    ),
    Violation(
        "names say something",
        "a manager nobody asked for",
        {"clients/session_manager.py": _module("")},
        '"session_manager" says nothing',
    ),
    Violation(
        "test names are sentences",
        "a test has no sentence",
        {"tests/test_all.py": _module("def test_basic() -> None:\n    pass")},
        "tests/test_all.py:3: test_basic",
    ),
    Violation(
        "test names are sentences",
        "a test has a number",
        {"tests/test_all.py": _module("def test_that_it_works_2() -> None:\n    pass")},
        "test_that_it_works_2",
    ),
]

FOLDERS = [
    Violation(
        "no room is empty",
        "a package holds nothing",
        {"clients/console/__init__.py": _module("")},
        "clients/console/: an empty room",
    ),
    Violation(
        "links lead somewhere",
        "a page is missing",
        {"docs/MAP.md": "# The map\n\nSee [the\nformat](FORMAT.md).\n"},
        "docs/MAP.md:4: FORMAT.md leads nowhere",
    ),
    Violation(
        "links lead somewhere",
        "a heading is missing",
        {"docs/MAP.md": "# A map\n"},
        "README.md:3: docs/MAP.md#the-map names no heading",
    ),
    Violation(
        "the root holds what it should",
        "a stranger lies in the root",
        {"notes.txt": "Buy milk.\n"},
        "notes.txt: has no place",
    ),
    Violation(
        "the root holds what it should",
        "what belongs in the root is missing",
        {"README.md": ""},
        "README.md: is missing",
    ),
]

VIOLATIONS = [*IMPORTS, *DOORS, *SIZES, *WORDS, *FOLDERS]
