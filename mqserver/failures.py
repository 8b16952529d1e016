"""A storage whose failure is heard of at once by whoever runs the node.

A write or a sync that failed cannot be mended while running: the caller is told, and the process
ends, so that a restart finds out what is on the disk. Damage to a single message, or a full disk,
is no such failure: the call that meets it fails, and the node goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

from mqserver.errors import StorageFailed
from mqserver.storage.contract import Storage


def reporting(storage: Storage, report: Callable[[StorageFailed], None]) -> Storage:
    """The same storage; `report` is told of each failure before the caller is."""
    names = [name for name in vars(Storage) if not name.startswith("_")]
    watched = {name: _reporting(getattr(storage, name), report) for name in names}
    return cast(Storage, _Reporting(watched))


class _Reporting:
    def __init__(self, operations: dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(operations)


def _reporting(
    operation: Callable[..., Any], report: Callable[[StorageFailed], None]
) -> Callable[..., Any]:
    @functools.wraps(operation)
    def watched(*arguments: Any, **named: Any) -> Any:
        try:
            return operation(*arguments, **named)
        except StorageFailed as failed:
            report(failed)
            raise

    return watched
