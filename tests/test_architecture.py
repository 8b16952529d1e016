"""The drawing that cannot lie: what may import what, who holds which key, and how big things get.

LAYERS (`tests/architecture/layers.py`) and DOORS are the architecture, written as tables and held
against the imports of every Python file. Below them stand the few exceptions we have granted, each
with its reason. The checkers themselves are tried in `tests/architecture/test_checkers.py`.

When a rule fails, the message says where, which rule and what to do. When a rule is wrong, change
the table here in the same commit as the code, and say why in its message.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.architecture import drawing, source, tidiness
from tests.architecture.drawing import Door
from tests.architecture.layers import LAYERS
from tests.architecture.tidiness import Ratchet

ROOT_FOLDER = Path(__file__).resolve().parent.parent

# --- Doors ---------------------------------------------------------------------------------------
#
# Each piece of the outside world, and the only modules that may touch it. Because all of it passes
# these doors, a test can stand in any of them: that is what makes crash enumeration and simulation
# possible. Tests and benchmarks stand outside the house and need no key. Where two doors lead to a
# thing, the narrower one counts: `os.environ` is the environment and not the disk.

NETWORK = (
    "idl.orb.frames idl.orb.client idl.orb.server idl.orb.pump idl.orb.doorway idl.orb.network "
    "idl.orb.monitor"
)

DOORS = (
    Door(
        "the network (remote objects)",
        things="Pyro5 serpent",
        keepers="idl.orb.frames",
        instead="Call through idl.proxies, serve through the orb.",
    ),
    Door(
        "the network (sockets)",
        things="socket socketserver selectors select asyncio http urllib.request xmlrpc requests",
        keepers=f"{NETWORK} clients.probes clients.demo.*",
        instead="Call through idl.proxies, serve through the orb.",
    ),
    Door(
        "the network (TLS)",
        things="ssl",
        keepers=f"{NETWORK} idl.access clients.probes",
        instead="Take the settings of idl.access; the orb makes the context.",
    ),
    Door(
        "the disk",
        things="os.* builtins.open io.open shutil tempfile glob fcntl mmap portalocker "
        "pathlib.Path.home pathlib.Path.cwd .open .read_text .read_bytes .write_text .write_bytes "
        ".mkdir .rmdir .unlink .touch .chmod .iterdir .rglob .exists .is_file .is_dir .stat .lstat "
        ".symlink_to .hardlink_to",
        free="os.PathLike os.fspath os.path os.path.basename os.path.dirname os.path.join os.sep "
        "os.getpid os.register_at_fork os.cpu_count",
        keepers="mqserver.storage.disk mqserver.storage.sql* mqserver.oql.syntax "
        "clients.cli clients.config clients.probes clients.demo.* idl.access idl.toml_files "
        "idl.parser clients.commands.written clients.commands.message clients.commands.bench "
        "clients.commands.server clients.tethered clients.spark.java "
        "clients.commands.pipeline clients.spark.database_links "
        "coordinator.database_drivers",
        instead="Ask mqserver.storage.disk, or be handed what was read.",
    ),
    Door(
        "databases",
        things="psycopg psycopg2 sqlalchemy sqlite3 pymysql MySQLdb mariadb",
        keepers="mqserver.storage.sql* coordinator.database_kinds clients.unwrapping "
        "clients.*_driver clients.spark.database_links "
        "clients.probes clients.demo.*",
        instead="Go through the storage contract, or enlist the caller's connection.",
    ),
    Door(
        "Spark",
        things="pyspark py4j",
        keepers="clients.spark* clients.pipeline.work clients.probes clients.demo.* pyspark_oncemq",
        instead="Only clients.spark speaks to Spark; hand it plain values.",
    ),
    # The frames only hide from Pyro5 the variables that would change what a server lets in.
    Door(
        "the environment and the command line",
        things="os.environ os.environb os.getenv os.getenvb os.putenv os.unsetenv sys.argv",
        keepers="clients.connecting clients.config clients.cli clients.commands.machine "
        "clients.probes clients.demo.* clients.tethered clients.commands.consume *.__main__ "
        "idl.settings idl.orb.frames coordinator.database_kinds clients.spark.java "
        "clients.spark.database_links",
        instead="Take the setting as a parameter.",
    ),
    Door(
        "the clock",
        things="time sched datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today "
        "datetime.date.today threading.Timer",
        keepers=f"{NETWORK} clients.cli clients.probes clients.connecting clients.embedded "
        "clients.commands.* clients.demo.* mqserver.node *.__main__",
        instead="Take the clock as a callable.",
    ),
    Door(
        "randomness",
        things="random secrets uuid os.urandom os.getrandom ssl.RAND_bytes",
        free="uuid uuid.UUID",
        keepers="idl.proxies clients.cli clients.commands.* clients.probes clients.embedded "
        "clients.demo.* *.__main__",
        instead="Take the source of randomness as a callable.",
    ),
    Door(
        "metrics",
        things="prometheus_client",
        keepers="idl.exposition",
        instead="Make measures of idl.measures; they are written out where they are asked for.",
    ),
    Door(
        "grammars",
        things="lark",
        keepers="idl.parser mqserver.oql.syntax",
        instead="Parse in idl.parser or mqserver.oql.syntax and pass the tree.",
    ),
    Door(
        "the terminal",
        things="typer click rich builtins.input sys.stdin sys.stdout sys.stderr",
        keepers="clients.cli clients.commands.* clients.servers clients.tethered clients.demo.* "
        "clients.spark.java *.__main__",
        instead="Return values; the command shows them.",
    ),
    Door(
        "processes and signals",
        things="subprocess multiprocessing signal os.fork os.kill os.system os.popen os._exit",
        keepers="clients.consumer clients.cli clients.commands.server clients.commands.consume "
        "clients.servers clients.tethered clients.probes clients.demo.* clients.spark.java "
        "clients.commands.pipeline *.__main__",
        instead="Let the command or the __main__ module start and stop things.",
    ),
    Door(
        "code made from data",
        things="pickle marshal shelve cloudpickle dill ctypes "
        "builtins.eval builtins.compile builtins.__import__ importlib.import_module",
        # Servers tell the allocator of C how much to keep.
        keepers="clients.pipeline.functions idl.memory",
        instead="Bytes from outside become values by a declared type, never by themselves.",
    ),
)
# Not of the outside world: what is made there comes from the contracts alone, and is pure as well.
WORKSHOP = Door(
    "code made from the contracts",
    things="builtins.exec",
    keepers="idl.straight",
    instead="Bytes from outside become values by a declared type, never by themselves.",
)

# What decides is pure: no key to any door, no thread, and nothing beneath it that is not pure too.
PURE = (
    "idl.mapping idl.system idl.cos idl.mq idl.marshal idl.straight idl.wire "
    "idl.checksums "
    "coordinator.protocol coordinator.participants coordinator.outcomes "
    "mqserver.errors mqserver.priorities mqserver.transactions.branch mqserver.storage.format "
    "mqserver.storage.contract idl.coordination idl.decider idl.otids idl.places idl.databases "
    "idl.custody "
    "coordinator.ledger coordinator.fates "
    "mqserver.distribution.ri_tree mqserver.oql.sql mqserver.oql.predicate "
    "clients.pipeline.keys clients.pipeline.progress "
    "clients.doctor clients.extras clients.findings clients.machine clients.store_lines "
    "mqserver.storage.findings mqserver.events.feed mqserver.events.settings"
)
ACTS = "threading _thread concurrent queue asyncio contextvars logging"

# --- Exceptions we have granted, each with its reason --------------------------------------------

# `~`: need not be there yet.
ROOT = {
    "pyproject.toml": "one distribution, and the settings of every tool",
    "README.md": "what it is, two commands, ten lines of use",
    "LICENSE": "the terms",
    "Makefile": "the commands that people and CI run",
    "idl": "the contracts",
    "mqserver": "the queue server",
    "coordinator": "the transaction service",
    "clients": "what a user imports or runs",
    "tests": "what proves it",
    "docs": "what explains it",
    "~benchmarks": "ours and the peers', on the same work",
    "oncemq.py": "import oncemq",
    "pyspark_oncemq.py": 'format("oncemq")',
}
WAITING_ROOMS: dict[str, str] = {}
ALIVE = {
    "idl.parser": "reads the contracts for tests and documentation, never at run time",
    "tests.integration.database_fixtures": "fixtures, which pytest loads by its name",
    "benchmarks.peers.brokers": "clients of peers, imported by name where their packages are there",
    "benchmarks.peers.kafka": "the same",
    "benchmarks.peers.tables": "the same",
}
BROAD_HANDLERS = {
    "idl.dispatch": "serves calls: no failure of a servant gets out but as an answer",
    "idl.orb.server": "serves connections: a failure ends one of them, not the server",
    "idl.orb.monitor": "serves watchers: a failure ends one answer, not what is watched",
    "mqserver.storage.log_manager": "does what follows for others: its failure is theirs to know",
    "coordinator.tasks": "runs work that nobody waits for: its failure stops the program, aloud",
    "coordinator.outbox": "the same, where that work takes turns with calls",
    "mqserver.events.workers": "runs work that nobody waits for: a fault ends it, not the channels",
    "tests.simulation.test_world": "shows that a crash gets past such a handler",
    "clients.consumer": "whatever a handler raises, its message comes again",
    "clients.workers": "whatever a function raises, its message is kept",
    "benchmarks.peers.spark_rows": "whatever Spark raises, the other workloads are measured",
    "tests.integration.spark.test_pitfalls": "carries what a thread raised to who waits for it",
    "tests.integration.spark.whole_job": "tells what Spark says, whatever its class",
    "tests.integration.spark.cluster_driver": "tells what Spark says, whatever its class",
    "clients.pipeline.run": "whatever Spark or a function raises ends a batch, and is told",
    "clients.cli": "the outermost edge: whoever typed the command gets a sentence and an exit code",
}
MAY_PRINT = "benchmarks.* *.__main__"
RATCHET = Ratchet(longest_file_lines=600, longest_function_lines=50)

# --- The rules -----------------------------------------------------------------------------------

Rule = Callable[[Path], list[str]]

RULES: dict[str, Rule] = {
    "imports point down": partial(drawing.imports_pointing_up, layers=LAYERS),
    "the drawing is true": partial(drawing.untrue_rows, layers=LAYERS),
    "no imports form a ring": drawing.import_cycles,
    "the outside world has its doors": partial(drawing.doors_passed, doors=(*DOORS, WORKSHOP)),
    "what decides is pure": partial(drawing.impure_modules, pure=PURE, acts=ACTS, doors=DOORS),
    "no module is dead": partial(drawing.dead_modules, alive=ALIVE),
    "functions fit on a screen": tidiness.overlong_functions,
    "files have one subject": tidiness.overlong_files,
    "nine functions in ten are short": tidiness.crowds_of_long_functions,
    "sizes only go down": partial(tidiness.ratchet_slips, ratchet=RATCHET),
    "everything public says what it is": tidiness.missing_docstrings,
    "handlers name what they catch": partial(tidiness.broad_handlers, allowed=BROAD_HANDLERS),
    "nobody prints": partial(tidiness.prints, allowed=MAY_PRINT),
    "nothing is forgotten": tidiness.forgotten_words,
    "names say something": tidiness.vague_names,
    "test names are sentences": tidiness.vague_test_names,
    "no room is empty": partial(tidiness.empty_rooms, waiting=WAITING_ROOMS),
    "links lead somewhere": tidiness.broken_links,
    "the root holds what it should": partial(tidiness.strange_root_entries, allowed=ROOT),
}


@pytest.fixture(scope="module", autouse=True)
def _reading() -> Iterator[None]:
    """What was read for one rule is there for the next, and is gone behind the last."""
    yield
    source.forget()


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_the_rule(rule: str) -> None:
    found = RULES[rule](ROOT_FOLDER)
    assert not found, f"{rule}, but:\n" + "\n".join(found)


def test_every_keeper_of_a_door_stands_in_the_drawing() -> None:
    assert drawing.strange_keepers(LAYERS, (*DOORS, WORKSHOP)) == []


def test_everything_declared_pure_stands_in_the_drawing() -> None:
    assert [name for name in PURE.split() if not {name, f"~{name}"} & LAYERS.keys()] == []
