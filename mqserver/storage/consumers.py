"""Reservations of the paged storage: what the rules are, and the records that make them last.

Called with the storage's monitor held. A record is appended here and forced by the caller, once the
monitor is free. Where nothing is to be done, the caller forces what is there: another call may have
done it a moment ago, and its record may still be on its way to the disk.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqserver.errors import ReservationError, ReservationNotFound, ReservationOutdated
from mqserver.storage.contract import ConsumerInfo
from mqserver.storage.entries import Entry
from mqserver.storage.format import RecordKind
from mqserver.storage.index import Consumer, Index
from mqserver.storage.log_manager import LogManager
from mqserver.storage.queue_index import Queue
from mqserver.storage.records import pack_plain


class Consumers:
    """The consumers of a storage."""

    def __init__(self, index: Index, log: LogManager) -> None:
        self._index = index
        self._log = log

    def reserve(
        self, consumer: str, queue: str, after: int, free: Iterable[int]
    ) -> tuple[int, int]:
        """The number of the reservation behind `after`, and the LSN of its record."""
        self._log.check_usable()
        known = self._index.consumers.get(consumer, Consumer(consumer, queue))
        if known.queue != queue:
            raise ReservationError(consumer, known.queue)
        if after < known.finished:
            raise ReservationOutdated(consumer, known.finished)
        if after > known.last:
            raise ReservationNotFound(consumer, after)
        if after < known.last:
            return after + 1, self._last_lsn
        keys = list(free)
        if not keys:
            return 0, self._last_lsn
        lsn = self._log.append(RecordKind.RESERVED, pack_plain(consumer, queue, after + 1, keys))
        self._index.reserve(consumer, queue, after + 1, keys)
        return after + 1, lsn

    def reservation(self, consumer: str, number: int) -> tuple[Queue, list[int]]:
        """The queue and the keys of a reservation."""
        self._log.check_usable()
        known = self._index.consumers.get(consumer)
        if known is None or number not in known.reservations:
            raise ReservationNotFound(consumer, number)
        return self._index.queue(known.queue), known.reservations[number]

    def finish(self, consumer: str, upto: int) -> tuple[list[Entry], int]:
        """The messages that are gone now, and the LSN of the record that says so."""
        self._log.check_usable()
        known = self._index.consumers.get(consumer, Consumer(consumer, ""))
        if upto > known.last:
            raise ReservationNotFound(consumer, upto)
        if upto <= known.finished:
            return [], self._last_lsn
        done = [number for number in known.reservations if number <= upto]
        keys = [key for number in done for key in known.reservations[number]]
        # The keys are in the record: at a restart the reservation itself may be unknown already.
        body = pack_plain(consumer, known.queue, upto, keys)
        lsn = self._log.append(RecordKind.FINISHED, body, may_use_spare=True)
        return self._index.finish(consumer, upto), lsn

    def drop(self, consumer: str) -> int:
        """The consumer is unknown; the LSN of the record that says so."""
        self._log.check_usable()
        if consumer not in self._index.consumers:
            return self._last_lsn
        body = pack_plain(consumer)
        lsn = self._log.append(RecordKind.CONSUMER_DROPPED, body, may_use_spare=True)
        self._index.drop_consumer(consumer)
        return lsn

    @property
    def _last_lsn(self) -> int:
        return self._log.end_lsn - 1

    def infos(self) -> list[ConsumerInfo]:
        """What can be told of all consumers."""
        self._log.check_usable()
        return [
            ConsumerInfo(
                consumer=known.name,
                queue=known.queue,
                finished=known.finished,
                reserved=known.last,
                messages=sum(map(len, known.reservations.values())),
            )
            for _, known in sorted(self._index.consumers.items())
        ]
