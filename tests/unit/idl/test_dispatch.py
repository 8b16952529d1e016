"""Which operations of published objects are tried where calls take turns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from idl.call import Call, Principal
from idl.cos import Status, Synchronization
from idl.dispatch import Answer, ObjectTable
from idl.local import LocalOrb
from idl.turns import SteppedAside, Turns, prompt

CALL = Call(bytes(16), Principal("ann"), "127.0.0.1")
ARGUMENTS = {"before_completion": (), "after_completion": ("COMMITTED",)}


class Servant:
    """One of its two operations is prompt. Notes which of them were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    @prompt
    def before_completion(self) -> None:
        self.called.append("before_completion")

    def after_completion(self, status: Status) -> None:
        self.called.append("after_completion")


@pytest.fixture(params=["object", "family/member"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _serve(servant: Servant, name: str, operation: str, in_turns: bool) -> Answer:
    objects = ObjectTable()
    if name == "object":
        objects.publish(name, servant, Synchronization)
    else:
        objects.publish_family("family", lambda rest: servant, Synchronization)

    def serve() -> Answer:
        if in_turns:
            Turns(lambda *told: None).begin()
        return objects.serve(CALL, name, operation, ARGUMENTS[operation], LocalOrb())

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(serve).result()


def test_in_turns_only_prompt_operations_are_tried(name: str) -> None:
    servant = Servant()
    _serve(servant, name, "before_completion", in_turns=True)
    with pytest.raises(SteppedAside):
        _serve(servant, name, "after_completion", in_turns=True)
    assert servant.called == ["before_completion"]


@pytest.mark.parametrize("operation", ARGUMENTS)
def test_on_an_ordinary_thread_all_are_carried_out(name: str, operation: str) -> None:
    servant = Servant()
    assert _serve(servant, name, operation, in_turns=False) == Answer((), is_exception=False)
    assert servant.called == [operation]
