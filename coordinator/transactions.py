"""Live transactions: the table, and carrying out what the protocol says.

`protocol.py` decides; here its effects are done, in their order, and what came of them is the next
event. What holds:

1. A transaction's state changes with the lock held, and by `protocol.step` alone. Nothing is sent
   and nothing is forced while the lock is held.
2. An effect is carried out by the thread whose event led to it, so each is carried out once.
3. Who asks for the outcome before the protocol says ANSWER waits for a promise, kept by that.
4. A transaction that is over leaves the table; what remains is in the ledger and in its session.

It is long because every effect has its few lines here, and all of them rely on these rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from coordinator.decision_log import DecisionLog
from coordinator.delivery import Delivery, Parcel, parcels
from coordinator.ledger import Decision, Key, Member, Note, digest_of
from coordinator.live import Enlisted, Live, Settings
from coordinator.outbox import Outbox
from coordinator.outcomes import Heuristic, Outcome, damage_of
from coordinator.participants import Place
from coordinator.protocol import (
    Act,
    Effect,
    Effects,
    Event,
    Kind,
    Transaction,
    decided,
    outcome_of,
    step,
)
from coordinator.sessions import Sessions, Standing
from coordinator.tasks import Tasks
from idl import system
from idl.cos import Resource, Status
from idl.turns import step_aside, turns_here
from mqserver.errors import StorageError, StorageFull

# So many events happen before others get the lock.
FED_TOGETHER = 500
# What is known of a transaction: it is live, or this is how it ended.
Known = Live | Outcome


class Transactions:
    """All transactions of one coordinator. May be used from any thread."""

    def __init__(
        self,
        log: DecisionLog,
        sessions: Sessions,
        tasks: Tasks,
        settings: Settings,
        on_failure: Callable[[BaseException], object],
        at_end: Callable[[Live], object],
    ) -> None:
        self.sessions = sessions
        self.settings = settings
        self.tasks = tasks
        self.lock = threading.RLock()
        self._log = log
        self._live: dict[bytes, Live] = {}
        self._by_key: dict[Key, Live] = {}
        self._owners: dict[str, int] = {}
        self._on_failure = on_failure
        self._at_end = at_end
        self._failure: BaseException | None = None
        self._is_forcing = False
        self._delivery = Delivery(tasks, settings, self.feed, self.feed_all)
        self._outbox = Outbox(self._delivery, self._spawn_sending, on_failure)
        # What is done for a transaction, or for the participant of that number.
        self._doings: dict[Act, Callable[[Live, int], None]] = {
            Act.FORCE_DECISION: self._force_decision,
            Act.FORCE_HEURISTIC: self._force_heuristic,
            Act.NOTE_DONE: self._note_done,
            Act.ANSWER: self._answer,
            Act.END: self._end,
        }

    # --- Finding

    def find(self, gtrid: bytes) -> Known:
        """The transaction, or how it ended. One that a client has begun by itself is live now."""
        if self._failure is not None:
            raise _unusable(self._failure)
        with self.lock:
            live = self._live.get(gtrid)
            if live is not None:
                return live
            standing, session = self.sessions.look_up(gtrid)
            if standing is not Standing.UNDECIDED:
                return self._over(gtrid, standing)
            assert session is not None
            # Its time is its owner's to watch, who lives as long as the session does.
            return self._add(gtrid, session.owner, None, {session.number}, _NO_KEY, _LEASED)

    def _over(self, gtrid: bytes, standing: Standing) -> Outcome:
        ledger = self._log.ledger
        notes = ledger.heuristics.get(gtrid, {})
        if standing is Standing.COMMITTED or ledger.is_committed(gtrid):
            damage = damage_of(True, [note.heuristic for note in notes.values()])
            return Outcome(Status.COMMITTED, damage)
        if any(note.decided is Status.UNKNOWN for note in notes.values()):
            return Outcome(Status.UNKNOWN, damage_of(True, [n.heuristic for n in notes.values()]))
        if standing is Standing.FOREIGN:
            return Outcome(Status.UNKNOWN, reason="no transaction of this coordinator")
        if standing is Standing.LOST:
            return Outcome(Status.UNKNOWN, reason="its only participant may have committed it")
        if standing is Standing.OVER and ledger.is_too_old(gtrid):
            return Outcome(Status.UNKNOWN, reason="it ended too long ago to be remembered")
        damage = damage_of(False, [note.heuristic for note in notes.values()])
        return Outcome(Status.ROLLED_BACK, damage, "it was not decided to commit it")

    def at_work(self, gtrid: bytes) -> Live | None:
        """The transaction, if it is live; to ask does not make it so."""
        with self.lock:
            return self._live.get(gtrid)

    def revive(self, gtrid: bytes, owner: str) -> Live | None:
        """The transaction to be committed, though it counted as over: a mark says so.

        None where it was committed before, or where somebody is just ending it.
        """
        self._check_usable()
        with self.lock:
            live = self._live.get(gtrid)
            if live is not None:
                return live if live.state.status is Status.ACTIVE else None
            if self._log.ledger.is_committed(gtrid):
                return None
            return self._add(gtrid, owner, None, set(), _NO_KEY, _LEASED)

    def is_foreign(self, gtrid: bytes) -> bool:
        """Whether the name was not issued here, as far as this log knows."""
        with self.lock:
            return self.sessions.standing(gtrid) is Standing.FOREIGN

    def every(self) -> list[Live]:
        """All that are not over."""
        with self.lock:
            return list(self._live.values())

    # --- Beginning

    def begin(
        self,
        owner: str,
        timeout_s: float = 0.0,
        sessions: Iterable[int] = (),
        key: Key | None = None,
        parent: Live | None = None,
        is_shared: bool = False,
    ) -> Live:
        """A transaction of the coordinator's own naming; 0 is no limit of time.

        `is_shared`: clients know it by its name, and may ask for its outcome after a restart.
        """
        self._check_usable()
        with self.lock:
            longest = self.settings.timeout_s_max
            limit = min(timeout_s or longest, longest)
            key = key or Key()
            state = Transaction(
                is_nested=parent is not None, is_keyed=key.version > 0, is_leased=is_shared
            )
            gtrid = self.sessions.issue(is_shared)
            live = self._add(gtrid, owner, self.tasks.now() + limit, set(sessions), key, state)
            live.parent = parent
            return live

    def under(self, key: Key) -> Live | None:
        """The live transaction with this key."""
        with self.lock:
            return self._by_key.get(key)

    def version_of(self, application: str) -> int:
        """The highest version of the application whose commit is on disk."""
        return self._log.version_of(application)

    def _add(
        self,
        gtrid: bytes,
        owner: str,
        deadline: float | None,
        sessions: set[int],
        key: Key,
        state: Transaction,
    ) -> Live:
        owned, settings = self._owners.get(owner, 0), self.settings
        if (
            len(self._live) >= settings.transactions_max
            or owned >= settings.transactions_per_owner_max
        ) and state.status is Status.ACTIVE:
            # What was decided is carried out, however much there is.
            raise self._no_room(owner, owned)
        self._owners[owner] = owned + 1
        live = Live(gtrid, owner, self.tasks.now(), deadline, sessions, key, state)
        self._live[gtrid] = live
        if key.version:
            self._by_key[key] = live
        return live

    def _no_room(self, owner: str, owned: int) -> system.IMP_LIMIT:
        if len(self._live) >= self.settings.transactions_max:
            told = f"{len(self._live)} transactions are under way; try again later"
        else:
            told = f"{owned} transactions of {owner} are under way: end some of them"
        return system.IMP_LIMIT(told)

    def adopt(self, live: Live, session: int) -> None:
        """The transaction is rolled back when the session, and others it has, fall silent."""
        with self.lock:
            live.sessions.add(session)

    # --- What happens to one transaction

    def join(self, live: Live, member: Member, resource: Resource) -> int | None:
        """The participant's number; None when the transaction takes no more."""
        with self.lock:
            number = self._number(live)
            live.state, effects = step(live.state, Event(Kind.JOIN, number))
            if effects:
                return None
            live.enlist(number, Enlisted(member, resource, None))
            return number

    def _number(self, live: Live) -> int:
        if live.numbers_given >= self.settings.participants_max:
            raise system.IMP_LIMIT(f"a transaction has {live.numbers_given} participants at most")
        live.numbers_given += 1
        return live.numbers_given

    def mark(self, live: Live, reason: str) -> bool:
        """The transaction can only be rolled back; False when it is too late for that."""
        with self.lock:
            live.state, effects = step(live.state, Event(Kind.MARK, reason=reason))
            return effects == ()

    def commit(
        self,
        live: Live,
        prepared: Sequence[Enlisted] = (),
        foretell: Callable[[], object] | None = None,
    ) -> Outcome:
        """How it ended: committed if all agree. Asked again, the same answer.

        It may be foretold that it is committed, where this call is the one that decides.
        """
        with self.lock:
            reason = self._refusal(live, len(prepared))
            if reason:
                event = Event(Kind.ROLLBACK, reason=reason)
            else:
                event = Event(Kind.COMMIT, prepared=self._name(live, prepared))
            effects = self._step(live, event)
            if effects and effects[0].act is Act.FORCE_DECISION:
                # By this thread, so that only who serves the call writes to its caller.
                live.foretell = foretell
        self._carry_out(live, effects)
        return self.outcome(live)

    def _refusal(self, live: Live, arriving: int) -> str:
        """Why it cannot be committed, however everybody votes; empty when it can."""
        (application, version), parent = live.key, live.parent
        if version and version <= self._log.ledger.marks.get(application, 0):
            return f"version {version} or a later one has been committed"
        if parent is not None and parent.state.status is not Status.ACTIVE:
            return "its parent is being ended"
        heir, count = (live, arriving) if parent is None else (parent, len(live.members))
        if heir.numbers_given + count > self.settings.participants_max:
            return f"there would be more than {self.settings.participants_max} participants"
        return ""

    def _name(self, live: Live, prepared: Sequence[Enlisted]) -> tuple[int, ...]:
        """The numbers of those that have prepared already; none when it is being ended."""
        if live.state.status is not Status.ACTIVE:
            return ()
        live.digest = digest_of(tuple([enlisted.member.name for enlisted in prepared]))
        return live.enlist_all(prepared)

    def rollback(self, live: Live, reason: str) -> Outcome:
        """How it ended: rolled back, unless it was decided otherwise before."""
        self.feed(live, Event(Kind.ROLLBACK, reason=reason))
        return self.outcome(live)

    def outcome(self, live: Live) -> Outcome:
        """How it ended, once that is known. Raises TIMEOUT, and then it may be asked for again."""
        told = live.told or self._waited_for(live)
        if isinstance(told, Outcome):
            return told
        raise _unusable(told)

    def _waited_for(self, live: Live) -> Outcome | BaseException:
        # Whatever was asked for is under way, and asked for again it says the same.
        step_aside()
        with self.lock:
            if live.told is not None:
                return live.told
            done = live.done = live.done or self.tasks.promise()
        try:
            told: Outcome | BaseException = done.wait(self.settings.answer_s)
        except TimeoutError as late:
            reason = "the outcome is not known yet: ask for it again"
            raise system.TIMEOUT(reason, system.Completion.MAYBE) from late
        return told

    def feed(self, live: Live, event: Event) -> None:
        """The event has happened, and what follows from it is done."""
        with self.lock:
            effects = self._step(live, event)
        self._carry_out(live, effects)

    def feed_all(self, live: Live, events: Sequence[Event]) -> None:
        """All of these have happened, and then what follows from them is done."""
        if len(events) == 1:
            self.feed(live, events[0])
            return
        # So nobody is noted as done with whom the transaction is over.
        effects: list[Effect] = []
        count = 1 if events[0].others else FED_TOGETHER
        for start in range(0, len(events), count):
            with self.lock:
                for event in events[start : start + count]:
                    effects += self._step(live, event)
        self._carry_out(live, tuple(effects))

    def _step(self, live: Live, event: Event) -> Effects:
        if self._failure is not None:
            raise _unusable(self._failure)
        if event.reason and event.participant >= 0:
            live.troubles[event.participant] = event.reason
        live.state, effects = step(live.state, event)
        if effects and effects[0].act is Act.PASS_UP:
            # With the lock held, so that nobody can end the parent in between.
            self._pass_up(live)
            return effects[1:]
        return effects

    # --- Effects

    def _carry_out(self, live: Live, effects: Effects) -> None:
        if not effects:
            return
        sent: list[Effect] = []
        later: list[int] = []
        for effect in effects:
            act, number = effect
            if act in _SENDS:
                sent.append(effect)
            elif act in self._doings:
                self._doings[act](live, number)
            else:
                assert act is Act.SEND_COMMIT_LATER, f"{act.name}: who registers looks for itself"
                later.append(number)
        if later:
            self._delivery.commit_later(live, later)
        if sent:
            self._send(live, parcels(live, sent))

    def _send(self, live: Live, waiting: list[Parcel]) -> None:
        # A vote against decides at once, so nobody waits for one participant's vote alone.
        is_vote = waiting[0][0].act is Act.SEND_PREPARE
        turns = turns_here()
        if turns is not None and not is_vote:
            self._outbox.send(turns, live, waiting)
            return
        own = [] if is_vote else self._delivery.started(live, waiting)
        for parcel in waiting:
            self._spawn_sending(live, parcel)
        for finish in own:
            finish()

    def _spawn_sending(self, live: Live, parcel: Parcel) -> None:
        self.tasks.spawn(self._send_beside, live, parcel)

    def _send_beside(self, live: Live, parcel: Parcel) -> None:
        try:
            self._delivery.send(live, parcel)
        except system.INTERNAL:
            # The log has failed, which everybody was told; there is nothing left to do here.
            if self._failure is None:
                raise

    def _answer(self, live: Live, number: int) -> None:
        with self.lock:
            live.tell(outcome_of(live.state))

    def _note_done(self, live: Live, number: int) -> None:
        if live.state.status is Status.COMMITTING:
            self._note(self._log.note_done, live.gtrid, number)
            self._force_soon()

    def _force_decision(self, live: Live, number: int) -> None:
        with self.lock:
            participants, everybody = live.state.participants, live.members
            if participants.counts[Place.PREPARED] == len(everybody):
                members = {number: enlisted.member for number, enlisted in everybody.items()}
            else:
                named = participants.numbers_at(Place.PREPARED)
                members = {number: everybody[number].member for number in named}
        decision = Decision(live.gtrid, live.owner, live.key, members, live.digest)
        try:
            if live.is_marked:
                # It was committed before, by the mark, and who is in doubt will ask for that.
                self._log.note_marked(decision)
                self._force_soon()
            else:
                # After this line the transaction is committed, whatever happens.
                self._log.decide(decision)
        except StorageFull as full:
            self.feed(live, Event(Kind.NOT_FORCED, reason=f"the decision was not stored: {full}"))
            return
        except StorageError as failed:
            raise self._fail(failed) from failed
        foretell, live.foretell = live.foretell, None
        if foretell is not None:
            foretell()
        self.feed(live, _FORCED)

    def _force_soon(self) -> None:
        """What is written is on disk in a moment, also if nothing is decided for days.

        No mark outlives its use for long, and no start has anybody told what they did long ago, and
        have forgotten.
        """
        with self.lock:
            if self._is_forcing:
                return
            self._is_forcing = True
        self.tasks.after(self.settings.unforced_s, self._force_all)

    def _force_all(self) -> None:
        self._is_forcing = False
        try:
            self._log.force_all()
        except StorageError as failed:
            # Everybody was told, and nothing more is decided.
            self._fail(failed)

    def _force_heuristic(self, live: Live, number: int) -> None:
        found = live.state.participants.find(number)
        outcome = outcome_of(live.state)
        heuristic = (found and found.heuristic) or outcome.damage
        assert heuristic is not None
        enlisted = live.members[number]
        reason = live.troubles.get(number, "")
        decided_so = _ENDS.get(outcome.status, outcome.status)
        note = Note(number, heuristic, decided_so, live.owner, enlisted.member, reason)
        self._note(self._log.note_heuristic, live.gtrid, note)

    def _note(self, write: Callable[..., None], *arguments: object) -> None:
        try:
            write(*arguments)
        except StorageError as failed:
            raise self._fail(failed) from failed

    def _pass_up(self, live: Live) -> None:
        assert live.parent is not None
        for enlisted in live.let_go():
            joined = self.join(live.parent, enlisted.member, enlisted.resource)
            assert joined is not None, "a subtransaction is committed while its parent is at work"

    def _end(self, live: Live, number: int) -> None:
        status, gtrid, owner = live.state.status, live.gtrid, live.owner
        is_committed = status is Status.COMMITTED
        # What was committed without a decision must not pass for rolled back.
        if is_committed and (gtrid in self._log.ledger.decisions or self.sessions.is_own(gtrid)):
            self._note(self._log.end, gtrid)
            self._force_soon()
        with self.lock:
            if self._live.pop(gtrid, None) is not None:
                owned = self._owners[owner] = self._owners[owner] - 1
                if not owned:
                    del self._owners[owner]
            if live.key.version and self._by_key.get(live.key) is live:
                del self._by_key[live.key]
            if status is not Status.UNKNOWN:
                self.sessions.note(gtrid, is_committed)
        self._at_end(live)

    # --- Recovery and operators

    def resume(self, decision: Decision, enlist: Callable[[Member], Enlisted]) -> None:
        """A decision that was found on disk is carried out, as long as that takes."""
        # Who has told of a heuristic may have forgotten it since, and would know nothing now.
        finished = decision.done | self._log.ledger.heuristics.get(decision.gtrid, {}).keys()
        numbers = tuple(number for number in decision.members if number not in finished)
        if not numbers:
            self._note(self._log.end, decision.gtrid)
            self._force_soon()
            return
        with self.lock:
            state, effects = decided(numbers)
            live = self._add(decision.gtrid, decision.owner, None, set(), Key(), state)
            for number, member in decision.members.items():
                live.enlist(number, enlist(member))
            live.digest = decision.digest
            live.tell(Outcome(Status.COMMITTED))
        for parcel in parcels(live, effects):
            self._spawn_sending(live, parcel)

    def forget_heuristics(self, enlist: Callable[[Member], Enlisted]) -> None:
        """Participants whose heuristics are on disk here are told that they may forget them."""
        # What was decided is being carried out already, and there may be more of them.
        for notes in list(self._log.ledger.heuristics.values()):
            for note in list(notes.values()):
                self._delivery.forget_later(enlist(note.member))

    def notes_of(self, gtrid: bytes) -> list[Note]:
        """The heuristic outcomes of the transaction that nobody has dismissed."""
        return list(self._log.ledger.heuristics.get(gtrid, {}).values())

    def with_heuristics(self) -> list[bytes]:
        """The transactions that have heuristic outcomes which nobody has dismissed."""
        return list(self._log.ledger.heuristics)

    def dismiss(self, gtrid: bytes) -> None:
        """Nobody asks for the heuristic outcomes of the transaction any more."""
        self._note(self._log.dismiss, gtrid)

    def give_up(self, live: Live, number: int) -> None:
        """An operator does not wait for this participant any longer: whether it did is unknown."""
        told = "given up by an operator"
        self.feed(live, Event(Kind.GIVEN_UP, number, heuristic=Heuristic.HAZARD, reason=told))

    # --- Failure

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise _unusable(self._failure)

    def _fail(self, failed: StorageError) -> system.INTERNAL:
        """The log cannot be written: nothing more is decided, and whoever waits is told."""
        with self.lock:
            self._failure = self._failure or failed
            for live in self._live.values():
                live.tell(failed)
        self._on_failure(failed)
        return _unusable(failed)


_NO_KEY = Key()
_FORCED = Event(Kind.FORCED)
# What clients have begun by themselves, and ask for by its name.
_LEASED = Transaction(is_leased=True)
_ENDS = {Status.COMMITTING: Status.COMMITTED, Status.ROLLING_BACK: Status.ROLLED_BACK}
_SENDS = frozenset(
    (Act.SEND_PREPARE, Act.SEND_ONE_PHASE, Act.SEND_COMMIT, Act.SEND_ROLLBACK, Act.SEND_FORGET)
)


def _unusable(failed: BaseException) -> system.INTERNAL:
    told = f"the coordinator cannot write its log, and decides nothing any more: {failed}"
    return system.INTERNAL(told, system.Completion.MAYBE)
