"""What can go wrong inside a node. None of these crosses the wire: servants translate them.

    MqError
    ├── RetryableError            try the same transaction again
    │   ├── LockTimeout
    │   └── Deadlock
    ├── QueueError
    │   ├── QueueNotFound
    │   ├── QueueExists
    │   ├── QueueInUse
    │   ├── QueueDisabled
    │   └── QueueFull
    ├── MessageNotFound
    ├── LimitExceeded             more than this node allows at once
    ├── BranchEnded               what comes late is refused
    ├── ReservationError
    │   ├── ReservationNotFound
    │   └── ReservationOutdated
    └── StorageError
        ├── StorageLocked         another process has the directory
        ├── StorageFull           the disk is full; what was stored is safe
        ├── StorageFailed         a write or a sync failed: nothing more is accepted
        ├── WrongFormat           magic or version is not ours
        └── Corruption            a checksum or an invariant does not hold

The docstring of a class is its message, and tells the operator what to do next.
"""

from __future__ import annotations


class MqError(Exception):
    """Something went wrong in the queue server."""

    def __init__(self, *details: object) -> None:
        super().__init__(*details)

    def __str__(self) -> str:
        meaning = (type(self).__doc__ or type(self).__name__).strip()
        told = ", ".join(str(detail) for detail in self.args)
        return f"{meaning} ({told})" if told else meaning


class RetryableError(MqError):
    """Nothing was changed; try the transaction again."""


class LockTimeout(RetryableError):
    """Another transaction holds the message and did not let go in time. Try again."""


class Deadlock(RetryableError):
    """Transactions waited for each other, and this one gave way. Roll it back and try again."""


class QueueError(MqError):
    """The queue cannot be used so."""


class QueueNotFound(QueueError):
    """There is no such queue."""


class QueueExists(QueueError):
    """There is a queue with this name already."""


class QueueInUse(QueueError):
    """The queue holds messages, or transactions and consumers work on it."""


class QueueDisabled(QueueError):
    """The queue, or the whole node, is switched off. An operator switches it on."""


class QueueFull(QueueError):
    """The queue has reached its limit. Get messages, or raise the limit."""


class LimitExceeded(MqError):
    """This is more than the node allows; nothing was changed. Send or ask for less at a time."""


class MessageNotFound(MqError):
    """No message with this key can be got from the queue."""


class BranchEnded(MqError):
    """The branch is over and takes no more work."""


class ReservationError(MqError):
    """The reservation cannot be used so."""


class ReservationNotFound(ReservationError):
    """There is no such reservation."""


class ReservationOutdated(ReservationError):
    """The consumer has finished more than it asks to go on behind: an old checkpoint came back."""


class StorageError(MqError):
    """The storage cannot do its work."""


class StorageLocked(StorageError):
    """Another process has this data directory open. Stop it, or choose another directory."""


class StorageFull(StorageError):
    """The disk is full. What was stored is safe; make room, then try again."""


class StorageFailed(StorageError):
    """A write or a sync failed, so what is on the disk is not known. Restart to find out."""


class WrongFormat(StorageError):
    """These files are not of a kind or version that this program reads. They were not touched."""


class Corruption(StorageError):
    """A file is damaged. It was not touched; restore it, or ask `oncemq check` what is left."""
