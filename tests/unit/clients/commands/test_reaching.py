"""What was said about a server, and what is answered when something goes wrong there."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients import errors
from clients.admin import NotOne
from clients.commands.reaching import Reach, answered, node_address, settled
from clients.commands.terminal import ExitCode
from idl import mq, system
from idl.access import UnsafeSetting
from idl.cos import HeuristicMixed
from idl.mapping import InvalidValue
from idl.toml_files import BadFile


def test_what_the_command_says_goes_before_what_was_said_before_it() -> None:
    before = Reach(url="mq://a:1", timeout_s=3.0)
    assert Reach(url="mq://b:2").over(before) == Reach(url="mq://b:2", timeout_s=3.0)


def test_what_nobody_said_comes_from_the_environment_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "oncemq.toml"
    file.write_text('[client]\nurl = "mq://file:1"\ntimeout_s = 7\n')
    file.chmod(0o600)
    monkeypatch.setenv("ONCEMQ_URL", "mq://environment:1")
    found = settled(Reach(config=file))
    assert (found["client.url"], found["client.timeout_s"]) == ("mq://environment:1", 7.0)
    assert settled(Reach(url="mq://flag:1", config=file))["client.url"] == "mq://flag:1"


def test_a_port_need_not_be_said_and_a_wrong_url_says_how_to_write_one() -> None:
    assert str(node_address(settled(Reach(url="mq://db.example")))) == "db.example:7411"
    assert str(node_address(settled(Reach(url="mq://[::1]/")))) == "[::1]:7411"
    with pytest.raises(InvalidValue, match="write mq://HOST:PORT"):
        node_address(settled(Reach(url="mq://a:b")))


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (InvalidValue("wrong"), ExitCode.USAGE),
        (UnsafeSetting("unsafe"), ExitCode.USAGE),
        (BadFile("oncemq.toml:3: strange"), ExitCode.USAGE),
        (NotOne("nothing"), ExitCode.NOT_FOUND),
        (errors.NotFound(), ExitCode.NOT_FOUND),
        (errors.ConnectionLost(), ExitCode.UNREACHABLE),
        (errors.Timeout(), ExitCode.UNREACHABLE),
        (system.TRANSIENT("away"), ExitCode.UNREACHABLE),
        (system.NO_PERMISSION("no"), ExitCode.REFUSED),
        (errors.QueueFull(), ExitCode.REFUSED),
        (errors.NotAllowed(), ExitCode.REFUSED),
        (errors.RolledBack("why"), ExitCode.ROLLED_BACK),
        (errors.OutcomeUnknown(b"", "lost"), ExitCode.OUTCOME_UNKNOWN),
        (HeuristicMixed(), ExitCode.OUTCOME_UNKNOWN),
        (errors.Damaged(), ExitCode.DAMAGED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_is_a_sentence_and_a_code(
    raised: Exception, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise raised

    assert answered(fail) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"oncemq: {raised}\n")


def test_what_is_wrong_with_a_queue_begins_with_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> int:
        raise mq.QueueNotFound("jobs")

    assert answered(fail) == ExitCode.NOT_FOUND
    assert capsys.readouterr().err.startswith("oncemq: jobs: There is no such queue; ")


def test_a_fault_of_ours_is_not_taken_for_an_answer() -> None:
    def fail() -> int:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        answered(fail)
