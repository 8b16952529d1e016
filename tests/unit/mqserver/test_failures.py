"""A storage whose failure is heard of at once."""

from __future__ import annotations

import pytest

from mqserver.errors import Corruption, StorageFailed, StorageFull
from mqserver.failures import reporting
from mqserver.storage.contract import EVERYTHING, QueueSettings
from mqserver.storage.memory import MemoryStorage


class _Failing(MemoryStorage):
    def __init__(self, failure: Exception) -> None:
        super().__init__(lambda: 0.0)
        self._failure = failure

    def force(self) -> None:
        raise self._failure


def test_a_failure_is_reported_and_told_to_the_caller() -> None:
    reported: list[StorageFailed] = []
    failure = StorageFailed("disk")
    with pytest.raises(StorageFailed):
        reporting(_Failing(failure), reported.append).force()
    assert reported == [failure]


@pytest.mark.parametrize("trouble", [StorageFull("disk"), Corruption("file", "offset 8")])
def test_what_only_one_call_suffers_from_is_not_reported(trouble: Exception) -> None:
    reported: list[StorageFailed] = []
    with pytest.raises(type(trouble)):
        reporting(_Failing(trouble), reported.append).force()
    assert reported == []


def test_all_else_goes_through() -> None:
    storage = reporting(MemoryStorage(lambda: 0.0), lambda failed: None)
    storage.create_queue("orders", QueueSettings())
    assert [info.name for info in storage.queues()] == ["orders"]
    assert storage.take(b"branch", "orders", selection=EVERYTHING, limit=1) == []
