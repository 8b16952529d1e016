"""Every storage against the model: random steps of many branches, restarts and crashes.

The machine does each step to a storage and to the model, and compares all that can be seen of them
after each. Keys are the storage's to give, as long as they grow; the model takes them over. After a
crash a storage may show any of the states that the model knows to be possible.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mqserver.errors import BranchEnded, MqError, QueueNotFound, ReservationError
from mqserver.storage.contract import (
    EVERYTHING,
    Attributes,
    Message,
    NewMessage,
    Outcome,
    QueueSettings,
    Selection,
    Storage,
    Vote,
)
from tests.conformance.storage_factory import Capability, StorageFactory
from tests.storage_model import StorageModel

pytest_plugins = ["tests.conformance.storages"]

QUEUES, CONSUMERS, APPLICATIONS = ("orders", "bills", "urgent"), ("etl", "copy"), ("job", "load")
SENDERS = ("", "ann", "bob")
ACTORS = 4

_PAIRS = (("colour", "red"), ("colour", "blue"), ("size", "big"))


def _message(
    payload: bytes, priority: int, group: int, time_us: int, sender: str, attributes: Attributes
) -> NewMessage:
    digest = zlib.crc32(payload)
    return NewMessage(payload, digest, priority, group, time_us, sender, attributes)


def _selection(
    group: int, priority_min: int, attributes: Attributes, sender: str | None
) -> Selection:
    if sender is None:
        return Selection(group, priority_min, attributes)

    def matches(message: Message) -> bool:
        return message.sender == sender

    return Selection(group, priority_min, attributes, matches, "sender = ?", (sender,))


queues = st.sampled_from(QUEUES)
consumers = st.sampled_from(CONSUMERS)
actors = st.integers(0, ACTORS - 1)
anybody = st.integers(0, 1000)
limits = st.sampled_from((0, 1, 2, 3, 100))
queue_settings = st.builds(QueueSettings, prioritized=st.booleans())
attributes = st.lists(st.sampled_from(_PAIRS), max_size=3).map(tuple)
messages = st.builds(
    _message,
    st.binary(max_size=4) | st.just(b"large" * 400),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 9),
    st.sampled_from(SENDERS),
    attributes,
)
selections = st.just(EVERYTHING) | st.builds(
    _selection,
    st.integers(0, 2),
    st.integers(0, 3),
    st.lists(st.sampled_from(_PAIRS), max_size=1).map(tuple),
    st.none() | st.sampled_from(SENDERS),
)


class StorageMachine(RuleBasedStateMachine):
    """Some branches at work on three queues. An actor has one branch at a time."""

    def __init__(self, factory: StorageFactory) -> None:
        super().__init__()
        self.factory = factory
        self.storage = factory.open()
        self.model = StorageModel()
        self.branches: list[bytes] = []
        self.actors = [self._new_branch() for _ in range(ACTORS)]
        self.keys = [1]
        self.steps = self.restarted_at = 0
        for name in QUEUES:
            self._do("create_queue", name, QueueSettings(prioritized=name == "urgent"), forced=True)

    def _new_branch(self) -> bytes:
        self.branches.append(b"branch %d" % len(self.branches))
        return self.branches[-1]

    def _do(self, name: str, *arguments: Any, forced: bool = False) -> Any:
        """Both have done it, with the same result or the same error, which is given back."""
        found = _result(getattr(self.storage, name), *arguments)
        if isinstance(found, range) and found:
            # How many keys a storage skips is its own affair.
            assert found.start >= self.model.state.next_key
            self.model.state.next_key = found.start
            self.keys.extend(found)
        expected = _result(getattr(self.model, name), *arguments)
        assert _is_as_good(found, expected), f"{name}{arguments}: {found!r}, not {expected!r}"
        self.model.done(forced and not isinstance(found, type))
        return found

    # --- Actions

    @rule(actor=actors, queue=queues, new=st.lists(messages, max_size=3))
    def store(self, actor: int, queue: str, new: Sequence[NewMessage]) -> None:
        self._do("store", self.actors[actor], queue, new)

    @rule(actor=actors, queue=queues, selection=selections, limit=limits)
    def take(self, actor: int, queue: str, selection: Selection, limit: int) -> None:
        self._do("take", self.actors[actor], queue, selection, limit)

    @rule(actor=actors, queue=queues, which=st.lists(anybody, max_size=3))
    def take_keys(self, actor: int, queue: str, which: list[int]) -> None:
        keys = [self.keys[-1 - number % len(self.keys)] for number in which]
        self._do("take_keys", self.actors[actor], queue, keys, 0)

    @rule(actor=actors, queue=queues, which=anybody)
    def take_the_key_of_a_message_that_is_seen(self, actor: int, queue: str, which: int) -> None:
        if seen := [row for row in self.model.state.rows if row.queue == queue]:
            key = seen[which % len(seen)].message.key
            self._do("take_keys", self.actors[actor], queue, [key], 0)

    @rule(actor=actors, queue=queues, which=st.lists(anybody, max_size=3))
    def read_what_was_taken(self, actor: int, queue: str, which: list[int]) -> None:
        keys = [self.keys[-1 - number % len(self.keys)] for number in which]
        self._do("taken", self.actors[actor], queue, keys)
        rows = self.model.state.rows
        held = [row for row in rows if (row.queue, row.taken_by) == (queue, self.actors[actor])]
        self._do("taken", self.actors[actor], queue, [row.message.key for row in held])

    @rule(actor=actors, application=st.sampled_from(APPLICATIONS), version=st.integers(1, 9))
    def raise_mark(self, actor: int, application: str, version: int) -> None:
        self._do("raise_mark", self.actors[actor], application, version)

    # --- Ends

    @rule(actor=actors, recovery=st.binary(max_size=3))
    def prepare(self, actor: int, recovery: bytes) -> None:
        was = self.model.outcome(self.actors[actor])
        vote = self._do("prepare", self.actors[actor], recovery)
        if vote is Vote.COMMIT and was is Outcome.ACTIVE:
            self.model.done(forced=True)

    @rule(actor=actors)
    def commit_one_phase(self, actor: int) -> None:
        branch = self.actors[actor]
        is_active = self.model.outcome(branch) is Outcome.ACTIVE
        is_empty = self._has_changed_nothing(branch)
        if is_active and is_empty:
            # What was done before is safe then; that this has ended is not.
            self.model.done(forced=True)
        self._do("commit_one_phase", branch, forced=is_active and not is_empty)

    def _has_changed_nothing(self, branch: bytes) -> bool:
        state = self.model.state
        changed = [row for row in state.rows if branch in (row.stored_by, row.taken_by)]
        return not changed and not state.raised.get(branch)

    @rule(actor=actors, force=st.booleans())
    def commit(self, actor: int, force: bool) -> None:
        self._do("commit", self.actors[actor], force, forced=force)

    @rule(actor=actors)
    def rollback(self, actor: int) -> None:
        self._do("rollback", self.actors[actor])

    @rule(actor=actors, commit=st.booleans())
    def resolve(self, actor: int, commit: bool) -> None:
        self._do("resolve", self.actors[actor], commit, forced=True)

    @rule(which=anybody, name=st.sampled_from(("commit", "rollback", "forget")))
    def end_any_branch(self, which: int, name: str) -> None:
        self._do(name, self.branches[which % len(self.branches)])

    @rule(actor=actors)
    def begin_another_branch(self, actor: int) -> None:
        if self.model.outcome(self.actors[actor]) is not Outcome.ACTIVE:
            self.actors[actor] = self._new_branch()

    # --- Reservations

    @rule(consumer=consumers, queue=queues, selection=selections, limit=limits, back=actors)
    def reserve(
        self, consumer: str, queue: str, selection: Selection, limit: int, back: int
    ) -> None:
        after = self._given(consumer) + 1 - back
        was = self.model.consumers()
        self._do("reserve", consumer, queue, selection, after, limit)
        if self.model.consumers() != was:
            self.model.done(forced=True)

    @rule(consumer=consumers, back=actors, start=st.integers(0, 3), count=st.integers(0, 3))
    def fetch(self, consumer: str, back: int, start: int, count: int) -> None:
        number = self._given(consumer) + 1 - back
        self._do("reserved", consumer, number)
        self._do("fetch", consumer, number, start, start + count)

    @rule(consumer=consumers, back=actors)
    def finish(self, consumer: str, back: int) -> None:
        upto = self._given(consumer) + 1 - back
        was = self.model.consumers()
        self._do("finish", consumer, upto)
        if self.model.consumers() != was:
            self.model.done(forced=True)

    @rule(consumer=consumers)
    def drop_consumer(self, consumer: str) -> None:
        is_known = consumer in self.model.state.consumers
        self._do("drop_consumer", consumer, forced=is_known)

    def _given(self, consumer: str) -> int:
        known = self.model.state.consumers.get(consumer)
        return known.reserved if known else 0

    # --- Queues and the storage itself

    @rule(queue=queues, changed=queue_settings)
    def change_queue(self, queue: str, changed: QueueSettings) -> None:
        self._do("change_queue", queue, changed, forced=True)

    @rule(queue=queues, made=queue_settings)
    def delete_and_create_queue(self, queue: str, made: QueueSettings) -> None:
        self._do("delete_queue", queue, forced=True)
        self._do("create_queue", queue, made, forced=True)

    @rule(queue=queues)
    def delete_queue(self, queue: str) -> None:
        self._do("delete_queue", queue, forced=True)

    @rule(checkpoint=st.booleans())
    def force(self, checkpoint: bool) -> None:
        (self.storage.checkpoint if checkpoint else self.storage.force)()
        self.model.done(forced=True)

    @precondition(lambda self: self._may_restart())
    @rule()
    def reopen(self) -> None:
        self.restarted_at = self.steps
        self.storage.close()
        self.storage = self.factory.open()
        self.model = self.model.after_close()
        self._compare()

    @precondition(lambda self: self._may_restart())
    @rule()
    def crash(self) -> None:
        self.restarted_at = self.steps
        self.factory.crash()
        self.storage = self.factory.open()
        possible = self.model.after_crash()
        shown = self._shown(self.storage)
        for model in possible:
            self._remember_as_the_storage_does(model)
        found = [model for model in possible if self._shown(model) == shown]
        assert found, f"{shown} is none of {[self._shown(model) for model in possible]}"
        self.model = found[0]

    def _may_restart(self) -> bool:
        """One restart right after another shows little and takes long."""
        is_durable = Capability.DURABLE in self.factory.capabilities
        return is_durable and self.steps >= self.restarted_at + self.factory.steps_per_look

    def _remember_as_the_storage_does(self, model: StorageModel) -> None:
        """A branch that a crash rolled back is remembered or forgotten, as the storage likes."""
        for branch in self.branches:
            told = self.storage.outcome(branch)
            if told is Outcome.ROLLED_BACK and model.outcome(branch) is Outcome.UNKNOWN:
                model.rollback(branch)

    # --- What is compared

    @invariant()
    def looks_the_same_now_and_then(self) -> None:
        """Each call is compared; all the rest in every so many steps."""
        self.steps += 1
        if self.steps % self.factory.steps_per_look == 0:
            self._compare()

    def _compare(self) -> None:
        """All that can be seen of the storage is what can be seen of the model."""
        found, expected = self._shown(self.storage), self._shown(self.model)
        for what, value in expected.items():
            assert found[what] == value, what

    def _shown(self, storage: Storage | StorageModel) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "queues": storage.queues(),
            "consumers": storage.consumers(),
            "branches": sorted(storage.branches(), key=lambda info: info.branch),
            "outcomes": [storage.outcome(branch) for branch in self.branches],
            "marks": [storage.mark(application) for application in APPLICATIONS],
        }
        for info in storage.queues():
            shown[info.name] = storage.browse(info.name, EVERYTHING, 0, 1000)
        for known in storage.consumers():
            numbers = range(known.finished + 1, known.reserved + 1)
            shown[f"held by {known.consumer}"] = [
                storage.fetch(known.consumer, number, 0, 1000) for number in numbers
            ]
        return shown

    def teardown(self) -> None:
        """The storage is closed, as at the end of every process that is not killed."""
        self.storage.close()


def _result(call: Callable[..., object], *arguments: object) -> object:
    try:
        return call(*arguments)
    except MqError as error:
        return type(error)


def _is_as_good(found: object, expected: object) -> bool:
    """Where two complaints are due, either will do; all else is the same."""
    if expected is BranchEnded:
        return found in (BranchEnded, QueueNotFound)
    if expected is ReservationError:
        return isinstance(found, type) and issubclass(found, ReservationError)
    return found == expected


def test_a_storage_does_what_the_model_does(new_factory: Callable[[], StorageFactory]) -> None:
    class Machine(StorageMachine):
        def __init__(self) -> None:
            super().__init__(new_factory())

    made = new_factory()
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=made.examples_max,
            stateful_step_count=50,
            phases=(*phases, Phase.shrink) if made.is_shrunk else phases,
        ),
    )
