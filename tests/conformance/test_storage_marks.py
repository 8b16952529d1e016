"""What every storage promises about marks: raised with the commit, never falling."""

import pytest

from mqserver.storage.contract import Storage
from tests.conformance.storages import ORDERS, letter, put, seen, take

pytest_plugins = ["tests.conformance.storages"]


def test_an_application_without_a_mark_has_the_mark_zero(storage: Storage) -> None:
    assert storage.mark("job") == 0


def test_a_mark_is_raised_when_its_branch_commits(storage: Storage) -> None:
    storage.raise_mark(b"a", "job", 7)
    assert storage.mark("job") == 0
    storage.commit_one_phase(b"a")
    assert storage.mark("job") == 7


def test_a_mark_is_raised_with_the_work_it_stands_for(storage: Storage) -> None:
    put(storage, ORDERS, "order")
    take(storage, b"a", ORDERS)
    storage.store(b"a", ORDERS, [letter("result")])
    storage.raise_mark(b"a", "job", 1)
    storage.prepare(b"a", b"")
    assert (storage.mark("job"), seen(storage, ORDERS)) == (0, [])
    storage.commit(b"a")
    assert (storage.mark("job"), seen(storage, ORDERS)) == (1, ["result"])


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_mark_is_not_raised_by_a_branch_that_is_rolled_back(
    storage: Storage, is_prepared: bool
) -> None:
    storage.raise_mark(b"a", "job", 7)
    if is_prepared:
        storage.prepare(b"a", b"")
    storage.rollback(b"a")
    assert storage.mark("job") == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_mark_goes_by_what_the_operator_decides(storage: Storage, commit: bool) -> None:
    storage.raise_mark(b"a", "job", 7)
    storage.prepare(b"a", b"")
    storage.resolve(b"a", commit)
    assert storage.mark("job") == (7 if commit else 0)


def test_a_mark_is_the_highest_version_that_was_committed(storage: Storage) -> None:
    for branch, version in ((b"a", 5), (b"b", 3), (b"c", 2**53)):
        storage.raise_mark(branch, "job", version)
    storage.commit_one_phase(b"a")
    storage.commit_one_phase(b"b")
    assert storage.mark("job") == 5
    storage.commit_one_phase(b"c")
    assert storage.mark("job") == 2**53


def test_a_branch_raises_a_mark_to_the_highest_of_its_versions(storage: Storage) -> None:
    for version in (2, 9, 4):
        storage.raise_mark(b"a", "job", version)
    storage.commit_one_phase(b"a")
    assert storage.mark("job") == 9


def test_applications_have_marks_of_their_own(storage: Storage) -> None:
    storage.raise_mark(b"a", "job", 1)
    storage.raise_mark(b"a", "jöb/query 7", 2)
    storage.commit_one_phase(b"a")
    assert [storage.mark(name) for name in ("job", "jöb/query 7", "")] == [1, 2, 0]


def test_nobody_waits_for_a_mark(storage: Storage) -> None:
    storage.raise_mark(b"a", "job", 1)
    storage.prepare(b"a", b"")
    storage.raise_mark(b"b", "job", 2)
    storage.commit_one_phase(b"b")
    storage.commit(b"a")
    assert storage.mark("job") == 2
