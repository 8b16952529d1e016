"""One queue in the memory of the paged storage: its messages by key, and which of them are free.

Pure: no file, no thread, no clock. It knows neither branches nor consumers, only that a message has
a holder. See `index.py`, whose states of a message these are.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence

from mqserver.storage.contract import QueueInfo, QueueSettings
from mqserver.storage.entries import Entry, Parcel
from mqserver.storage.order import Order

PRIORITY_MAX = 65535
_KEY_BITS = 64
_KEY_MASK = (1 << _KEY_BITS) - 1


class Queue:
    """Committed messages by key, and the order of those that are free.

    What was stored as a parcel stays one until somebody asks for one of its messages; all of them
    are free then.
    """

    def __init__(self, name: str, settings: QueueSettings) -> None:
        self.name = name
        self.settings = settings
        self.payload_bytes = 0
        self._entries: dict[int, Entry] = {}
        # By their keys, which never overlap.
        self._parcels: list[Parcel] = []
        self._free = Order()
        # The keys of those that are free, where their order is another one.
        self._free_keys = Order() if settings.prioritized else None

    def __len__(self) -> int:
        return len(self._entries) + sum(map(len, self._parcels))

    @property
    def entries(self) -> dict[int, Entry]:
        """All messages one by one: for those who look at everything."""
        for parcel in self._parcels:
            self._open(parcel)
        self._parcels = []
        return self._entries

    @property
    def opened(self) -> Mapping[int, Entry]:
        """The messages that are known one by one: all but those of `parcels`."""
        return self._entries

    @property
    def parcels(self) -> Sequence[Parcel]:
        """Those of which nobody has wanted a message so far."""
        return self._parcels

    def find(self, key: int) -> Entry | None:
        """The message with this key, if there is one."""
        found = self._entries.get(key)
        if found is None and self._parcels:
            place = self._place_of_parcel(key)
            if place is not None:
                self._open(self._parcels.pop(place))
                found = self._entries[key]
        return found

    def parcel_of(self, key: int) -> Parcel | None:
        """The parcel that has this message, as long as nobody wanted one of it."""
        place = self._place_of_parcel(key) if self._parcels else None
        return None if place is None else self._parcels[place]

    def _place_of_parcel(self, key: int) -> int | None:
        place = bisect_right(self._parcels, key, key=_first_key) - 1
        return place if place >= 0 and key in self._parcels[place].keys else None

    def _open(self, parcel: Parcel) -> None:
        self._entries.update(zip(parcel.keys, parcel.entries(), strict=True))

    def _of_rank(self, rank: int) -> Entry:
        key = rank & _KEY_MASK
        entry = self._entries.get(key) or self.find(key)
        assert entry is not None, "a message that is free is in the queue"
        return entry

    def change(self, settings: QueueSettings) -> None:
        """The queue has these settings; its order follows them."""
        is_reordered = settings.prioritized != self.settings.prioritized
        self.settings = settings
        if is_reordered:
            free = list(map(self._of_rank, self._free))
            self._free = Order(self.rank(entry) for entry in free)
            keys = Order(entry.key for entry in free)
            self._free_keys = keys if settings.prioritized else None

    def rank(self, entry: Entry) -> int:
        """Where the message stands in the order, as one number."""
        if self.settings.prioritized:
            return (PRIORITY_MAX - entry.priority) << _KEY_BITS | entry.key
        return entry.key

    def add(self, entries: list[Entry]) -> None:
        """The messages are in the queue, and free. Those already there stay as they are."""
        known = self._entries
        if len(entries) == 1:
            # The common case of one message in a branch: there is no order to be found in it.
            entry = entries[0]
            if entry.key not in known:
                entry.holder = None
                known[entry.key] = entry
                self.payload_bytes += entry.size
                if self._free_keys is None:
                    self._free.add(entry.key)
                else:
                    self._set_free(entry)
            return
        new = [entry for entry in entries if entry.key not in known]
        for entry in new:
            entry.holder = None
            known[entry.key] = entry
            self.payload_bytes += entry.size
        self._set_all_free(new)

    def add_parcel(self, parcel: Parcel) -> None:
        """The messages of the parcel, all of them new, are in the queue, and free."""
        if self.settings.prioritized:
            self.add(parcel.entries())
            return
        insort(self._parcels, parcel, key=_first_key)
        self.payload_bytes += parcel.size
        self._free.update(parcel.keys)

    def hold(self, entry: Entry, holder: object) -> None:
        """The message has a holder, and is not free."""
        if entry.holder is None:
            self._set_held(entry)
        entry.holder = holder

    def release(self, entry: Entry) -> None:
        """The message is free again, at its old place."""
        if entry.holder is not None:
            entry.holder = None
            self._set_free(entry)

    def restore(self, entries: list[Entry]) -> None:
        """Those of the messages that are in the queue are free."""
        ours = [entry for entry in entries if self._entries.get(entry.key) is entry]
        self._set_all_free(ours)

    def remove(self, key: int) -> Entry | None:
        """The message is gone."""
        entry = self._entries.pop(key, None)
        if entry is None and self._parcels and self.find(key) is not None:
            entry = self._entries.pop(key)
        if entry is not None:
            self.payload_bytes -= entry.size
            if entry.holder is None:
                self._set_held(entry)
        return entry

    def remove_all(self, entries: list[Entry]) -> list[Entry]:
        """The messages are gone; those of them that were there."""
        if len(entries) == 1:
            # The common case, without a list to be made.
            return entries if self.remove(entries[0].key) is not None else []
        if self._parcels:
            # Those that are in one still become messages one by one.
            for entry in entries:
                if entry.key not in self._entries:
                    self.find(entry.key)
        pop = self._entries.pop
        gone = [entry for entry in entries if pop(entry.key, None) is not None]
        self.payload_bytes -= sum([entry.size for entry in gone])
        for entry in gone:
            if entry.holder is None:
                self._set_held(entry)
        return gone

    def _set_free(self, entry: Entry) -> None:
        self._free.add(self.rank(entry))
        if self._free_keys is not None:
            self._free_keys.add(entry.key)

    def _set_all_free(self, entries: list[Entry]) -> None:
        self._free.update(map(self.rank, entries))
        if self._free_keys is not None:
            self._free_keys.update([entry.key for entry in entries])

    def _set_held(self, entry: Entry) -> None:
        self._free.discard(self.rank(entry))
        if self._free_keys is not None:
            self._free_keys.discard(entry.key)

    def hold_next(self, holder: object, count: int) -> list[Entry]:
        """The next free messages in order have a holder now."""
        if count == 1:
            return self._hold_first(holder)
        keys = [rank & _KEY_MASK for rank in self._free.take_first(count)]
        entries = self._entries
        if self._parcels:
            for key in keys:
                if key not in entries:
                    self.find(key)
        held = [entries[key] for key in keys]
        if self._free_keys is not None:
            for key in keys:
                self._free_keys.discard(key)
        for entry in held:
            entry.holder = holder
        return held

    def _hold_first(self, holder: object) -> list[Entry]:
        """As above, for the common case: there is nothing to go through."""
        rank = self._free.pop_first()
        if rank is None:
            return []
        entry = self._of_rank(rank)
        if self._free_keys is not None:
            self._free_keys.discard(entry.key)
        entry.holder = holder
        return [entry]

    def free_in_order(self) -> Iterator[Entry]:
        """The free messages in the queue's order."""
        return map(self._of_rank, self._free)

    def free_by_key(self, after: int) -> Iterator[Entry]:
        """The free messages in the order of keys, behind a key."""
        keys = self._free if self._free_keys is None else self._free_keys
        return map(self._of_rank, keys.behind(after))

    def info(self) -> QueueInfo:
        """What the queue holds."""
        return QueueInfo(
            name=self.name,
            settings=self.settings,
            visible=len(self._free),
            locked=len(self) - len(self._free),
            payload_bytes=self.payload_bytes,
            oldest_us=self._oldest_us(),
        )

    def _oldest_us(self) -> int:
        """When the first that is free, by key, was put. To ask opens no parcel."""
        keys = self._free if self._free_keys is None else self._free_keys
        first = next(keys.behind(0), None)
        if first is None:
            return 0
        entry = self._entries.get(first)
        if entry is not None:
            return entry.time_us
        place = self._place_of_parcel(first)
        assert place is not None, "a message that is free is in the queue"
        # Of a parcel that is not open all are free.
        return self._parcels[place].first_time_us


def _first_key(parcel: Parcel) -> int:
    return parcel.keys.start
