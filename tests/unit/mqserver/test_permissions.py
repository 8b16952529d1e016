"""Who may do what: the file, the decision, and what the orb asks before every call."""

from __future__ import annotations

import json
import logging

import pytest

from idl import system
from idl.call import Call, Principal
from idl.toml_files import BadFile
from mqserver.permissions import (
    CACHED_MAX,
    OPERATION_RIGHTS,
    Need,
    Permissions,
    Right,
    matches,
)

FILE = """
[[allow]]
principal = "billing-*"
queues = ["orders", "invoices.*"]
rights = ["read", "write"]

[[allow]]
principal = "auditor"
queues = ["*"]
rights = ["browse"]

[[allow]]
principal = "keeper"
queues = ["orders"]
rights = ["admin"]

[roles]
coordinator = ["tx"]
operator = ["root"]
"""


@pytest.fixture
def permissions() -> Permissions:
    return Permissions.parse(FILE)


def _authorize(permissions: Permissions, principal: str, name: str, operation: str) -> bool:
    try:
        permissions.authorize(Call(bytes(16), Principal(principal), "127.0.0.1"), name, operation)
    except system.NO_PERMISSION:
        return False
    return True


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("*", "", True),
        ("*", "anything", True),
        ("a*", "a", True),
        ("a*", "ba", False),
        ("*a", "ba", True),
        ("*a", "ab", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("a*b*b", "ab", False),
        ("**", "x", True),
        ("invoices.*", "invoicesX", False),
        ("*a" * 60, "a" * 128 + "b", False),
    ],
)
def test_a_star_stands_for_any_characters(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) is fits


def test_what_no_entry_allows_is_refused(permissions: Permissions) -> None:
    assert permissions.allows("billing-1", "orders", Right.WRITE)
    assert permissions.allows("billing-1", "invoices.2026", Right.READ)
    assert not permissions.allows("billing-1", "invoices", Right.READ)
    assert not permissions.allows("billing-1", "orders", Right.ADMIN)
    assert not permissions.allows("stranger", "orders", Right.BROWSE)


def test_who_may_read_may_browse_and_not_the_other_way_round(permissions: Permissions) -> None:
    assert permissions.allows("billing-1", "orders", Right.BROWSE)
    assert not permissions.allows("auditor", "orders", Right.READ)


def test_an_operator_administers_every_queue_and_reads_none(permissions: Permissions) -> None:
    assert permissions.is_operator("root")
    assert permissions.allows("root", "whatever", Right.ADMIN)
    assert not permissions.allows("root", "orders", Right.READ)
    assert not permissions.allows("root", "orders", Right.BROWSE)


def test_a_role_is_for_those_who_are_named(permissions: Permissions) -> None:
    assert permissions.is_coordinator("tx")
    assert not permissions.is_coordinator("root")
    assert not permissions.is_operator("tx")


def test_any_right_makes_a_queue_visible(permissions: Permissions) -> None:
    assert permissions.sees("keeper", "orders")
    assert not permissions.sees("keeper", "invoices.1")
    assert permissions.sees("root", "invoices.1")
    assert not permissions.sees("tx", "orders")


def test_a_refusal_says_the_same_of_every_queue(permissions: Permissions) -> None:
    told = []
    for queue in ("orders", "nosuch"):
        with pytest.raises(system.NO_PERMISSION) as refused:
            permissions.check("stranger", queue, Right.READ, "getMany")
        told.append(str(refused.value).replace(queue, "Q"))
    assert told[0] == told[1]


def test_a_refusal_is_audited_on_a_line_of_its_own(
    permissions: Permissions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncemq.audit")
    with pytest.raises(system.NO_PERMISSION):
        permissions.check("stranger", 'x\r\n{"event":"forged"}\x1b[2J', Right.READ, "getMany")
    (record,) = caplog.records
    line = record.getMessage()
    assert line.isprintable()
    written = json.loads(line)
    assert (written["event"], written["principal"], written["operation"]) == (
        "refused",
        "stranger",
        "getMany",
    )


def test_a_flood_of_refusals_is_counted_and_not_written_out(
    permissions: Permissions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncemq.audit")
    for number in range(1000):
        with pytest.raises(system.NO_PERMISSION):
            permissions.check("stranger", f"q{number}", Right.READ)
    assert len(caplog.records) <= 50


def test_what_is_remembered_does_not_grow_without_end(permissions: Permissions) -> None:
    for number in range(2 * CACHED_MAX + 1):
        permissions.allows("auditor", f"q{number}", Right.BROWSE)
    assert len(permissions._in_force.rights) <= CACHED_MAX
    assert permissions.allows("auditor", "q1", Right.BROWSE)


def test_without_rules_everybody_may_do_everything() -> None:
    everything = Permissions.everything()
    assert everything.allows("anybody", "any", Right.ADMIN)
    assert everything.is_coordinator("anybody")
    assert everything.is_operator("anybody")
    assert _authorize(everything, "anybody", "settler", "settle")


# --- What the orb asks ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["resource/x/n1", "branch/x/n1"])
@pytest.mark.parametrize("operation", ["prepare", "commit", "rollback", "forget"])
def test_only_a_coordinator_ends_branches(
    permissions: Permissions, family: str, operation: str
) -> None:
    assert _authorize(permissions, "tx", family, operation)
    for other in ("root", "billing-1", "auditor", "keeper", "stranger"):
        assert not _authorize(permissions, other, family, operation)


@pytest.mark.parametrize("operation", ["commitBranches", "settle"])
def test_only_a_coordinator_settles(permissions: Permissions, operation: str) -> None:
    assert _authorize(permissions, "tx", "settler", operation)
    assert not _authorize(permissions, "root", "settler", operation)


def test_the_queue_in_the_name_of_an_object_decides(permissions: Permissions) -> None:
    assert _authorize(permissions, "billing-1", "fifo/orders", "mqPut")
    assert not _authorize(permissions, "billing-1", "fifo/payroll", "mqPut")
    assert not _authorize(permissions, "auditor", "standard/orders", "mqGet")
    assert _authorize(permissions, "auditor", "standard/orders", "mqRead")
    assert _authorize(permissions, "keeper", "fifo/orders", "mqSetPriorization")
    assert not _authorize(permissions, "billing-1", "fifo/orders", "mqSetPriorization")


def test_whoever_has_a_right_nowhere_does_not_get_as_far_as_a_servant(
    permissions: Permissions,
) -> None:
    assert _authorize(permissions, "billing-1", "node", "putMany")
    assert not _authorize(permissions, "auditor", "node", "putMany")
    assert not _authorize(permissions, "stranger", "node", "browse")
    assert not _authorize(permissions, "stranger", "node", "rollbackBranch")
    assert not _authorize(permissions, "stranger", "node", "pushDown")
    assert not _authorize(permissions, "billing-1", "admin", "createQueue")
    assert _authorize(permissions, "keeper", "admin", "createQueue")
    assert _authorize(permissions, "root", "admin", "createQueue")


def test_the_node_itself_is_for_operators(permissions: Permissions) -> None:
    for operation in ("mqShutdown", "setEnabled", "decideBranch", "dropConsumer"):
        assert _authorize(permissions, "root", "admin", operation)
        assert not _authorize(permissions, "keeper", "admin", operation)
        assert not _authorize(permissions, "tx", "admin", operation)


@pytest.mark.parametrize(
    ("name", "operation"),
    [("node", "nosuch"), ("secret", "putMany"), ("later/x", "commit"), ("", ""), ("/", "x")],
)
def test_what_has_no_row_is_refused_to_everybody(
    permissions: Permissions, name: str, operation: str
) -> None:
    for principal in ("root", "tx", "billing-1"):
        assert not _authorize(permissions, principal, name, operation)


def test_a_caller_who_was_let_in_once_is_let_in_again(permissions: Permissions) -> None:
    assert _authorize(permissions, "billing-1", "fifo/orders", "mqPut")
    assert _authorize(permissions, "billing-1", "fifo/orders", "mqPut")
    assert not _authorize(permissions, "stranger", "fifo/orders", "mqPut")


def test_no_row_lets_a_client_decide_a_branch() -> None:
    for family in ("resource", "branch", "settler"):
        assert set(OPERATION_RIGHTS[family].values()) == {Need.COORDINATOR}


# --- The file ------------------------------------------------------------------------------------


def _entry(**changes: str) -> str:
    entry = {"principal": '"a"', "queues": '["q"]', "rights": '["read"]'} | changes
    return "\n[[allow]]\n" + "\n".join(f"{key} = {value}" for key, value in entry.items())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[alow]]", "permissions:1: 'alow' is not known here; did you mean 'allow'?"),
        (_entry(rigths="1"), "permissions:6: 'rigths' is not known here; did you mean 'rights'?"),
        (_entry(rights='["raed"]'), "permissions:5: there is no right 'raed'; did you mean 'read'"),
        (_entry(rights='"read"'), "permissions:5: rights is a list of texts"),
        (_entry(queues='["a b"]'), "permissions:4: queues 'a b': use 1 to 128 letters"),
        (_entry(queues='["../x"]'), "permissions:4: queues '../x': use"),
        (_entry(queues="[1]"), "permissions:4: queues is a list of texts"),
        (_entry(principal='""'), "permissions:3: principal '': use"),
        (_entry() + _entry(principal="3"), "permissions:7: principal '3': use"),
        ('[[allow]]\nprincipal = "a"', "permissions:1: this entry has no 'queues'"),
        ('[allow]\nprincipal = "a"', "permissions:1: write [[allow]], with two brackets"),
        ("allow = [1]", "permissions:1: write [[allow]], with two brackets"),
        ("roles = 1", "permissions:1: write [roles] as a table"),
        ('[roles]\n\noperators = ["a"]', "permissions:3: 'operators' is not known here; did you"),
        ('[roles]\ncoordinator = ["*"]', "permissions:2: '*': a role is given by name"),
        ("[roles]\nroot =", "permissions:2: "),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, told: str) -> None:
    with pytest.raises(BadFile) as wrong:
        Permissions.parse(text)
    assert str(wrong.value).startswith(told)


def test_an_empty_file_allows_nothing() -> None:
    nothing = Permissions.parse("")
    assert not nothing.allows("anybody", "any", Right.BROWSE)
    assert not nothing.is_operator("anybody")
