"""The rule of repetition: what never left may go again, what may have arrived only if it may."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from idl import system
from idl.dispatch import Answer
from idl.marshal import read_exception, write_exception
from idl.orb.endpoint import Endpoint, Heard, Request, Started
from idl.process import here

# None: the answer is foretold.
Event = Answer | system.SystemException | None
ANSWER = Answer("done")
LOST = system.COMM_FAILURE("lost", system.Completion.MAYBE)
NEVER_LEFT = system.COMM_FAILURE("lost", system.Completion.NO)
LATE = system.TIMEOUT("late", system.Completion.MAYBE)


class NoReferences:
    """For answers that name no object."""

    def export(self, target: object, interface: type) -> str:
        raise AssertionError

    def resolve(self, name: str, interface: type) -> object:
        raise AssertionError


NO_REFERENCES = NoReferences()


class ScriptedLink:
    """A link that does what the script says, call by call."""

    def __init__(self, script: list[Event], sent: list[bytes]) -> None:
        self.script = script
        self.sent = sent
        self.is_open = True
        self.is_stale = False

    def exchange(self, request: Request, deadline: float) -> Answer:
        self.send_request(request, deadline)
        return self.receive_answer(request, deadline)

    def send_request(self, request: Request, deadline: float) -> None:
        assert self.is_open
        self.sent.append(request.request_id)
        if self.script[:1] == [NEVER_LEFT]:
            raise self.script.pop(0)  # type: ignore[misc]

    def receive_answer(self, request: Request, deadline: float) -> Answer:
        answer = self.hear(request, deadline)
        return self.receive_answer(request, deadline) if answer is None else answer

    def hear(self, request: Request, deadline: float) -> Answer | None:
        event = self.script.pop(0)
        if isinstance(event, system.SystemException):
            raise event
        return event

    def is_usable(self) -> bool:
        return not self.is_stale

    def close(self) -> None:
        self.is_open = False


class Server:
    """Makes scripted links, and remembers all of them."""

    def __init__(self, *script: Event) -> None:
        self.script = list(script)
        self.links: list[ScriptedLink] = []
        self.sent: list[bytes] = []

    def __call__(self, deadline: float) -> ScriptedLink:
        self.links.append(ScriptedLink(self.script, self.sent))
        return self.links[-1]


def endpoint(server: Callable[[float], ScriptedLink]) -> Endpoint:
    return Endpoint(server, clock=lambda: 0.0, links_max=2)


def request(idempotent: bool) -> Request:
    return Request(b"", b"k" * 16, b"", idempotent, "object.operation")


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_call_that_never_left_is_made_again_on_a_new_connection(idempotent: bool) -> None:
    server = Server(NEVER_LEFT, ANSWER)
    assert endpoint(server).call(request(idempotent), 1.0) is ANSWER
    assert len(server.links) == 2


def test_an_idempotent_call_whose_answer_was_lost_is_repeated_under_the_same_key() -> None:
    server = Server(LOST, ANSWER)
    assert endpoint(server).call(request(idempotent=True), 1.0) is ANSWER
    assert server.sent == [b"k" * 16] * 2


def test_any_other_call_whose_answer_was_lost_is_never_silently_repeated() -> None:
    server = Server(LOST, ANSWER)
    with pytest.raises(system.COMM_FAILURE) as told:
        endpoint(server).call(request(idempotent=False), 1.0)
    assert told.value.completed is system.Completion.MAYBE
    assert len(server.sent) == 1


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_call_that_took_too_long_is_not_repeated(idempotent: bool) -> None:
    server = Server(LATE, ANSWER)
    with pytest.raises(system.TIMEOUT):
        endpoint(server).call(request(idempotent), 1.0)
    assert len(server.sent) == 1


def test_a_second_loss_is_told() -> None:
    server = Server(LOST, LOST, ANSWER)
    with pytest.raises(system.COMM_FAILURE):
        endpoint(server).call(request(idempotent=True), 1.0)
    assert len(server.sent) == 2


@pytest.mark.parametrize(
    ("first", "completed"),
    [(LOST, system.Completion.MAYBE), (NEVER_LEFT, system.Completion.NO)],
    ids=["whose answer was lost", "that never left"],
)
def test_a_repeat_that_is_refused_says_nothing_about_a_first_attempt(
    first: system.COMM_FAILURE, completed: system.Completion
) -> None:
    busy = system.TRANSIENT("about to stop", system.Completion.NO)
    server = Server(first, Answer(write_exception(busy, NO_REFERENCES), is_exception=True))
    answer = endpoint(server).call(request(idempotent=True), 1.0)
    told = read_exception(answer.plain, {}, NO_REFERENCES)
    assert isinstance(told, system.TRANSIENT)
    assert told.completed is completed


def test_a_repeat_that_finds_nobody_does_not_hide_what_the_first_attempt_may_have_done() -> None:
    server = Server(LOST)

    def gone_the_second_time(deadline: float) -> ScriptedLink:
        if server.links:
            raise system.TRANSIENT("nobody there")
        return server(deadline)

    with pytest.raises(system.TRANSIENT, match="nobody there") as told:
        endpoint(gone_the_second_time).call(request(idempotent=True), 1.0)
    assert told.value.completed is system.Completion.MAYBE


def test_a_connection_is_used_again_after_an_answer_and_never_after_a_failure() -> None:
    server = Server(ANSWER, ANSWER, LATE, ANSWER)
    way = endpoint(server)
    way.call(request(True), 1.0)
    way.call(request(True), 1.0)
    assert len(server.links) == 1
    with pytest.raises(system.TIMEOUT):
        way.call(request(True), 1.0)
    assert not server.links[0].is_open
    way.call(request(True), 1.0)
    assert len(server.links) == 2


def test_a_stale_connection_is_replaced_before_anything_is_sent() -> None:
    server = Server(ANSWER, ANSWER)
    way = endpoint(server)
    way.call(request(False), 1.0)
    server.links[0].is_stale = True
    way.call(request(False), 1.0)
    assert not server.links[0].is_open
    assert len(server.links) == 2


def test_an_interrupted_call_takes_its_connection_with_it() -> None:
    class Interrupted(ScriptedLink):
        def exchange(self, request: Request, deadline: float) -> Answer:
            raise KeyboardInterrupt

    link = Interrupted([], [])
    way = Endpoint(lambda deadline: link, clock=lambda: 0.0, links_max=1)
    with pytest.raises(KeyboardInterrupt):
        way.call(request(True), 1.0)
    assert not link.is_open


def test_more_calls_at_once_than_connections_wait_and_then_say_so() -> None:
    class Nested(ScriptedLink):
        def exchange(self, request: Request, deadline: float) -> Answer:
            return way.call(request, 0.01)

    way = Endpoint(lambda deadline: Nested([], []), clock=lambda: 0.0, links_max=2)
    with pytest.raises(system.TRANSIENT, match="all 2 connections stayed busy"):
        way.call(request(False), 0.01)


def test_whoever_waits_gets_the_connection_that_another_call_gives_back() -> None:
    server = Server(*[ANSWER] * 400)
    way = Endpoint(server, clock=lambda: 0.0, links_max=1)
    meeting, failures = threading.Barrier(4), []

    def call_often() -> None:
        meeting.wait(20.0)
        try:
            for _ in range(100):
                assert way.call(request(False), 20.0) is ANSWER
        except system.SystemException as failed:
            failures.append(failed)

    threads = [threading.Thread(target=call_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert failures == []
    assert len(server.links) == 1
    way.close()
    assert not server.links[0].is_open


def test_a_closed_endpoint_lets_go_and_refuses() -> None:
    server = Server(ANSWER)
    way = endpoint(server)
    way.call(request(True), 1.0)
    way.close()
    assert not server.links[0].is_open
    with pytest.raises(system.TRANSIENT, match="closed by this client"):
        way.call(request(True), 1.0)


# --- Calls that are under way while others are sent ----------------------------------------------


def test_a_call_is_started_only_where_a_connection_stands_ready() -> None:
    server = Server(ANSWER, ANSWER)
    way = endpoint(server)
    assert way.start(request(True), 1.0) is None
    way.call(request(True), 1.0)
    started = way.start(request(True), 1.0)
    assert started is not None
    assert way.finish(started) is ANSWER
    assert len(server.links) == 1


def test_a_started_call_has_its_connection_to_itself_until_it_is_finished() -> None:
    server = Server(ANSWER, ANSWER, ANSWER, ANSWER)
    way = endpoint(server)
    way.call(request(True), 1.0)
    started = way.start(request(True), 1.0)
    assert started is not None
    assert way.start(request(True), 1.0) is None
    way.call(request(True), 1.0)
    assert len(server.links) == 2
    assert way.finish(started) is ANSWER
    assert way.start(request(True), 1.0) is not None


def test_what_could_not_be_sent_was_not_started_and_takes_no_place() -> None:
    server = Server(ANSWER, NEVER_LEFT, ANSWER, ANSWER)
    way = endpoint(server)
    way.call(request(True), 1.0)
    assert way.start(request(False), 1.0) is None
    assert not server.links[0].is_open
    for _ in range(2):
        assert way.call(request(True), 1.0) is ANSWER


def test_a_started_call_whose_answer_was_lost_is_repeated_only_if_it_may_be() -> None:
    for idempotent in (True, False):
        server = Server(ANSWER, LOST, ANSWER)
        way = endpoint(server)
        way.call(request(True), 1.0)
        started = way.start(request(idempotent), 1.0)
        assert started is not None
        if idempotent:
            assert way.finish(started) is ANSWER
        else:
            with pytest.raises(system.COMM_FAILURE):
                way.finish(started)
        assert not server.links[0].is_open


def test_a_stale_connection_starts_nothing() -> None:
    server = Server(ANSWER)
    way = endpoint(server)
    way.call(request(True), 1.0)
    server.links[0].is_stale = True
    assert way.start(request(True), 1.0) is None
    way.close()
    assert way.start(request(True), 1.0) is None


# --- Answers that are foretold -------------------------------------------------------------------


def started_at(server: Server) -> tuple[Endpoint, Started]:
    way = endpoint(server)
    way.call(request(True), 1.0)
    started = way.start(request(True), 1.0)
    assert started is not None
    return way, started


def test_an_answer_may_be_foretold_and_the_connection_stays_with_its_call() -> None:
    way, started = started_at(Server(ANSWER, None, ANSWER, ANSWER))
    assert way.hear(started) is None
    assert way.start(request(True), 1.0) is None
    assert way.finish(started) is ANSWER
    assert way.start(request(True), 1.0) is not None


def test_an_answer_that_was_not_foretold_is_heard_at_once() -> None:
    way, started = started_at(Server(ANSWER, ANSWER, ANSWER))
    assert way.hear(started) is ANSWER
    assert way.start(request(True), 1.0) is not None


@pytest.mark.parametrize("script", [[LOST, ANSWER], [LOST, None, ANSWER]])
def test_a_call_that_was_lost_before_a_word_came_is_repeated(script: list[Event]) -> None:
    server = Server(ANSWER, *script)
    way, started = started_at(server)
    assert way.hear(started) is ANSWER
    assert server.sent == [b"k" * 16] * 3


def test_a_call_that_was_lost_after_a_word_is_repeated_too() -> None:
    server = Server(ANSWER, None, LOST, None, ANSWER)
    way, started = started_at(server)
    assert way.hear(started) is None
    assert way.finish(started) is ANSWER
    assert not server.links[0].is_open


def test_whoever_is_interrupted_while_it_listens_leaves_no_connection_behind() -> None:
    server = Server(ANSWER, LATE)
    way, started = started_at(server)
    with pytest.raises(system.TIMEOUT):
        way.hear(started)
    assert not server.links[0].is_open


# --- Answers that nobody waits for ---------------------------------------------------------------


def left_at(server: Server, note: Callable[[Heard], None]) -> Endpoint:
    way, started = started_at(server)
    way.leave(started, note)
    return way


def test_an_answer_that_was_left_is_heard_before_the_next_call_and_over_the_same_connection() -> (
    None
):
    left = Answer("left")
    server = Server(ANSWER, left, ANSWER, ANSWER)
    heard: list[Heard] = []
    way = left_at(server, heard.append)
    assert heard == []
    assert way.call(request(True), 1.0) is ANSWER
    assert heard == [left]
    started = way.start(request(True), 1.0)
    assert started is not None
    assert len(server.links) == 1


def test_a_call_that_is_started_comes_after_what_was_left_too() -> None:
    left = Answer("left")
    heard: list[Heard] = []
    way = left_at(Server(ANSWER, left, ANSWER), heard.append)
    started = way.start(request(True), 1.0)
    assert started is not None
    assert heard == [left]
    assert way.finish(started) is ANSWER


def test_what_was_left_and_lost_is_repeated_if_it_may_be() -> None:
    left = Answer("left")
    heard: list[Heard] = []
    server = Server(ANSWER, LOST, left, ANSWER)
    assert left_at(server, heard.append).call(request(True), 1.0) is ANSWER
    assert heard == [left]
    assert [link.is_open for link in server.links] == [False, True]


@pytest.mark.parametrize("failures", [[LATE], [LOST, LOST]], ids=["late", "lost twice"])
def test_what_becomes_of_what_was_left_is_noted_and_fails_no_other_call(
    failures: list[Event],
) -> None:
    heard: list[Heard] = []
    server = Server(ANSWER, *failures, ANSWER)
    assert left_at(server, heard.append).call(request(True), 1.0) is ANSWER
    assert heard == failures[-1:]


def test_closing_hears_what_was_left_first() -> None:
    left = Answer("left")
    heard: list[Heard] = []
    server = Server(ANSWER, left)
    way = left_at(server, heard.append)
    way.close()
    assert heard == [left]
    assert not server.links[0].is_open


def test_no_thread_overtakes_what_was_left() -> None:
    is_heard, may_answer, order = threading.Event(), threading.Event(), list[str]()

    class Slow(ScriptedLink):
        def receive_answer(self, request: Request, deadline: float) -> Answer:
            is_heard.set()
            assert may_answer.wait(20.0)
            return super().receive_answer(request, deadline)

        def exchange(self, request: Request, deadline: float) -> Answer:
            order.append("asked")
            return ANSWER

    way = Endpoint(lambda deadline: Slow([ANSWER], []), clock=lambda: 0.0, links_max=3)
    way.call(request(True), 1.0)
    started = way.start(request(True), 1.0)
    assert started is not None
    way.leave(started, lambda heard: order.append("heard"))
    order.clear()
    threads = [threading.Thread(target=way.call, args=(request(True), 1.0)) for _ in range(3)]
    threads[0].start()
    assert is_heard.wait(20.0)
    for thread in threads[1:]:
        thread.start()
    may_answer.set()
    for thread in threads:
        thread.join(20.0)
    assert order == ["heard", "asked", "asked", "asked"]


def test_a_forked_child_neither_hears_nor_keeps_what_its_parent_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Heard] = []
    server = Server(ANSWER, ANSWER)
    way = left_at(server, heard.append)
    monkeypatch.setattr(here, "pid", here.pid + 1)
    assert way.call(request(True), 1.0) is ANSWER
    assert heard == []
    assert [link.is_open for link in server.links] == [False, True]
