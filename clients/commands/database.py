"""`oncemq database`: the databases that the coordinator knows, and what is prepared in them.

Reads the command line, asks the coordinator's administration and shows. No password passes through
here: the coordinator is told where to find one.
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from clients.admin import COORDINATOR_ADMIN, NotOne, Switches, seconds
from clients.commands.options import Yes, coordinator_option
from clients.commands.reaching import Reach, answered, node_of, orb_of, settled
from clients.commands.terminal import (
    ExitCode,
    complain,
    confirm,
    duration,
    note,
    print_json,
    print_plain,
    show_table,
)
from idl import custody
from idl.call import Address, Orb
from idl.coordination import (
    DatabaseNotFound,
    Mq_TransactionAdmin,
    mqDatabaseInfo,
    mqDatabaseSettings,
)
from idl.custody import can_carry
from idl.databases import Kind, creation, parse_dsn, table_of

EXAMPLES = {
    "oncemq database": {
        "oncemq database add orders postgresql://app@HOST/orders": "that takes part",
        "oncemq database list": "what is prepared there",
    },
    "oncemq database add": {
        "oncemq database add orders postgresql://app@HOST/orders": "the password is in ~/.pgpass",
        "oncemq database add orders DSN --password-file /etc/oncemq/orders": "or in a file",
        "oncemq database add stock sqlite:////var/lib/stock.db": "one without two-phase commit",
    },
    "oncemq database list": {
        "oncemq database list": "all, and what was found there",
        "oncemq database list --json": "one object, for scripts",
    },
    "oncemq database prepare": {
        "oncemq database prepare orders": "make the tables that are missing",
        "oncemq database prepare orders --grant app": "for applications with another role",
        "oncemq database prepare orders --sql": "what whoever owns the database is to run",
    },
    "oncemq database remove": {"oncemq database remove orders": "nobody looks after it any more"},
}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the database.")]
AtCoordinator = Annotated[str | None, coordinator_option("Tell this coordinator.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Run = Callable[[Mq_TransactionAdmin], int]


def add(
    name: Name,
    dsn: Annotated[
        str,
        typer.Argument(
            metavar="DSN", help="postgresql://USER@HOST/DATABASE, mariadb://… or sqlite:////PATH."
        ),
    ],
    reach: Reach,
    coordinator: AtCoordinator = None,
    password_file: Annotated[
        str, typer.Option(metavar="PATH", help="Where the password is, at the coordinator.")
    ] = "",
    password_env: Annotated[
        str, typer.Option(metavar="VARIABLE", help="Or in which variable of its environment.")
    ] = "",
    schema: Annotated[
        str, typer.Option(metavar="SCHEMA", help="Where the tables are, if not in public.")
    ] = "",
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="After that, what nobody decided is rolled back.")
    ] = "60s",
) -> int:
    """Registers a database with the coordinator, and makes the tables in it that it needs.

    The coordinator then finishes what is prepared there, also when the application has died.
    """

    def run(admin: Mq_TransactionAdmin) -> int:
        # Checked here too, so that a password does not even travel.
        table_of(parse_dsn(dsn), schema)
        grace_ms = round(1000 * seconds(grace))
        asked = mqDatabaseSettings(name, dsn, password_file, password_env, schema, grace_ms)
        info = admin.addDatabase(asked)
        if info.isReachable and not info.database.identity:
            info = admin.prepareDatabase(name, "")
        return _told(info, f"{name} is registered.")

    return _at(run, reach, coordinator)


def show_list(reach: Reach, coordinator: AtCoordinator = None, as_json: AsJson = False) -> int:
    """Lists the databases, and what was prepared in them when each was last looked at.

    Ours are branches of this coordinator's transactions; others are never touched.
    """

    def run(admin: Mq_TransactionAdmin) -> int:
        found = admin.listDatabaseInfos()
        if as_json:
            print_json({"databases": [_fields(info) for info in found]})
            return ExitCode.OK
        columns = ("database", "kind", "address", ">ours", ">oldest", ">others", "state")
        show_table(columns, [_row(info) for info in found], "No database is registered.")
        return ExitCode.OK

    return _at(run, reach, coordinator)


def prepare(
    name: Name,
    reach: Reach,
    coordinator: AtCoordinator = None,
    grant: Annotated[
        str, typer.Option(metavar="ROLE", help="Whom else to allow to write there.")
    ] = "",
    sql: Annotated[bool, typer.Option("--sql", help="Only print the statements.")] = False,
) -> int:
    """Makes the tables that transactions need in a database, where they are not there yet."""

    def run(admin: Mq_TransactionAdmin) -> int:
        if sql:
            known = {each.database.name: each.database for each in admin.listDatabaseInfos()}
            if name not in known:
                raise DatabaseNotFound(name)
            found = known[name]
            for statement in _statements(Kind(found.kind), found.table):
                print_plain(f"{statement};", Console(soft_wrap=True))
            return ExitCode.OK
        return _told(admin.prepareDatabase(name, grant), f"{name} is ready.")

    return _at(run, reach, coordinator)


def remove(name: Name, reach: Reach, coordinator: AtCoordinator = None, yes: Yes = False) -> int:
    """Removes a database from the coordinator's list; nothing is changed in it.

    What is prepared there stays so, and has to be ended by hand.
    """

    def run(admin: Mq_TransactionAdmin) -> int:
        confirm(f"Remove {name}? What is prepared there stays, with its locks.", yes)
        admin.removeDatabase(name)
        print_plain(f"{name} is not registered any more.", Console())
        return ExitCode.OK

    return _at(run, reach, coordinator)


COMMANDS: dict[str, Callable[..., int]] = {
    "add": add,
    "list": show_list,
    "prepare": prepare,
    "remove": remove,
}


def _statements(kind: Kind, table: str) -> list[str]:
    made = [creation(kind, table)]
    return [*made, custody.creation(kind, table)] if can_carry(kind) else made


def _told(info: mqDatabaseInfo, done: str) -> int:
    print_plain(done, Console())
    if not info.isReachable:
        complain(f"it cannot be reached: {info.trouble}")
        return ExitCode.UNREACHABLE
    if info.trouble:
        note(info.trouble)
    if not info.database.isTwoPhase:
        note(_ONE_PHASE[Kind(info.database.kind)])
    return ExitCode.OK


_ONE_PHASE = {
    Kind.POSTGRESQL: "It has max_prepared_transactions = 0, and takes part as the only one of its "
    "kind in a transaction. Set it to as many as there are connections for more.",
    Kind.MARIADB: "It takes part as the only one of its kind in a transaction.",
    Kind.SQLITE: "It takes part as the only one of its kind in a transaction.",
}


def _row(info: mqDatabaseInfo) -> tuple[str, ...]:
    return (
        info.database.name,
        info.database.kind,
        info.database.dsn,
        str(info.ours),
        duration(info.oldest) if info.ours else "",
        str(info.others),
        info.trouble or ("two-phase" if info.database.isTwoPhase else "marked"),
    )


def _fields(info: mqDatabaseInfo) -> dict[str, Any]:
    database = info.database
    return {
        "name": database.name,
        "kind": database.kind,
        "dsn": database.dsn,
        "table": database.table,
        "identity": database.identity,
        "two_phase": database.isTwoPhase,
        "reachable": info.isReachable,
        "trouble": info.trouble,
        "prepared_ours": info.ours,
        "prepared_others": info.others,
        "oldest_s": info.oldest,
    }


def _at(run: Run, reach: Reach, coordinator: str | None) -> int:
    """Runs the command with the coordinator: the one that was named, or the node's."""

    def go() -> int:
        try:
            return reached()
        except DatabaseNotFound as unknown:
            told = f"no database is registered as {unknown.database!r}: see `oncemq database list`"
            raise NotOne(told) from unknown

    def reached() -> int:
        settings = settled(reach, coordinator)
        if settings.origin("client.coordinator") != "default":
            with orb_of(settings) as orb:
                return run(_admin(orb, settings["client.coordinator"]))
        with node_of(reach) as place:
            recommended = Switches(place.orb, place.address).node().coordinator
            return run(_admin(place.orb, Address.parse(recommended)))

    return answered(go)


def _admin(orb: Orb, address: Address) -> Mq_TransactionAdmin:
    return orb.proxy(f"PYRO:{COORDINATOR_ADMIN}@{address}", Mq_TransactionAdmin)
