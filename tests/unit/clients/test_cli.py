"""The command as people run it: in a process of its own, into a pipe or on a terminal."""

import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from clients import cli
from clients.commands import machine
from clients.commands.terminal import ExitCode

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "guide" / "command.md"
COMMANDS: list[list[str]] = [[], ["queue", "create"]]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")
QUIET = {"NO_COLOR": "", "FORCE_COLOR": "", "COLUMNS": "", "JAVA_HOME": "", "PYTHONOPTIMIZE": ""}


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    merged = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "TERM": "xterm", **more}
    return {name: value for name, value in merged.items() if value}


def _run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clients.cli", *arguments],
        env=_environment(more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def _on_terminal(columns: int, *arguments: str, **more: str) -> str:
    """What the command writes on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "clients.cli", *arguments]
    process = subprocess.Popen(
        command, env=_environment(more), stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    written = b""
    # Reading from a terminal that was closed at the other end is an error, and the end.
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 65536):
            written += chunk
    os.close(ours)
    process.wait(timeout=60)
    return written.decode().replace("\r\n", "\n")


@pytest.fixture
def free_port() -> str:
    """The number of a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def test_the_version_is_one_plain_line() -> None:
    answer = _run("--version")
    assert answer.returncode == ExitCode.OK
    assert re.fullmatch(r"oncemq \d\S*\n", answer.stdout)
    assert answer.stderr == ""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_has_examples_and_fits_eighty_columns(command: list[str], option: str) -> None:
    answer = _run(*command, option)
    assert answer.returncode == ExitCode.OK
    assert "\nExamples:\n  " in answer.stdout
    assert "\x1b" not in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80


def _paths() -> dict[str, Callable[..., int]]:
    """Every command there is, as it is typed."""
    found: dict[str, Callable[..., int]] = {"completion": cli.completion}
    for name, entry in cli.ENTRIES.items():
        commands = entry.load().COMMANDS
        if entry.is_group:
            found |= {f"{name} {each}": function for each, function in commands.items()}
        else:
            found[name] = commands[name]
    return found


def _helped() -> list[str]:
    return [*_paths(), *(name for name, entry in cli.ENTRIES.items() if entry.is_group)]


@pytest.mark.parametrize("path", _helped())
def test_the_help_of_every_command_has_examples_and_fits(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*path.split(), "--help"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: oncemq {path} ")
    assert "\nExamples:\n  " in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_examples_name_only_commands_that_exist() -> None:
    names = {*cli.ENTRIES, "completion"}
    modules = [entry.load().EXAMPLES for entry in cli.ENTRIES.values()]
    for examples in [cli.EXAMPLES, *modules]:
        for example in itertools.chain.from_iterable(examples.values()):
            for word in re.findall(r"\boncemq (\S+)", example):
                assert word in names


@pytest.mark.parametrize("name", [n for n, entry in cli.ENTRIES.items() if not entry.is_group])
def test_the_list_of_commands_says_what_the_command_says_itself(name: str) -> None:
    entry = cli.ENTRIES[name]
    assert (entry.load().COMMANDS[name].__doc__ or "").startswith(entry.summary.rstrip("."))


def test_help_loads_no_command_and_no_server() -> None:
    script = """
import sys
from clients import cli
cli.main(["--help"])
shared = {"clients.commands." + name for name in ("options", "reaching", "terminal")}
commands = {name for name in sys.modules if name.startswith("clients.commands.")} - shared
loaded = [*commands, *(name for name in sys.modules if "mqserver" in name)]
sys.stderr.write(" ".join(loaded))
"""
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env=_environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer.stderr == ""


def test_no_command_at_all_shows_help_and_is_wrong_usage() -> None:
    answer = _run()
    assert answer.returncode == ExitCode.USAGE
    assert answer.stdout.startswith("Usage: oncemq")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["docter"], "oncemq: No such command 'docter'. Did you mean 'doctor'?"),
        (["doctor", "--jsno"], "oncemq: No such option: --jsno. Did you mean '--json'?"),
        (["--verison"], "oncemq: No such option: --verison. Did you mean '--version'?"),
        (["check"], "oncemq: Missing argument 'DIR'"),
        (["completion"], "oncemq: Missing argument 'shell'. Choose from: bash, zsh, fish"),
        (["doctor", "--port", "0"], "oncemq: Invalid value for '--port'"),
        (["doctor", "--data", __file__], "oncemq: Invalid value for '--data'"),
        (["doctor", "postgresql://me:tops3cret@db/shop"], "(postgresql://me:***@db/shop)"),
        (["queue", "craete"], "oncemq: No such command 'craete'. Did you mean 'create'"),
        (["queue", "create"], "oncemq: Missing argument 'QUEUE'"),
        (["put", "orders", "--priority", "70000"], "oncemq: Invalid value for '--priority'"),
    ],
)
def test_wrong_usage_is_explained_in_two_lines(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == ExitCode.USAGE
    output, complaint = capsys.readouterr()
    assert output == ""
    assert message in complaint
    assert "tops3cret" not in complaint
    assert re.search(r"\nSee 'oncemq( \w+)* --help'\.\n\Z", complaint)
    assert len(complaint.splitlines()) == 2


def test_doctor_prints_one_documented_object(tmp_path: Path, free_port: str) -> None:
    answer = _run("doctor", "--json", "--data", str(tmp_path), "--port", free_port)
    found = json.loads(answer.stdout)
    assert list(found) == ["format", "oncemq", "ready", "verdict", "checks", "measured"]
    assert found["ready"] is (answer.returncode == ExitCode.OK)
    for check in found["checks"]:
        assert list(check) == ["name", "status", "found", "advice", "commands"]
    assert found["measured"]["sync_median_s"] > 0
    assert answer.stdout.isascii()
    assert list(tmp_path.iterdir()) == []


def test_doctor_writes_plain_unwrapped_lines_into_a_pipe(tmp_path: Path, free_port: str) -> None:
    answer = _run("doctor", "--data", str(tmp_path / ("long" * 40)), "--port", free_port)
    assert "\x1b" not in answer.stdout
    assert answer.stderr == ""
    lines = answer.stdout.splitlines()
    assert any(line.split() == ["ok", "ports", free_port, "free"] for line in lines)
    assert any("long" * 40 in line for line in lines)


def test_a_problem_makes_the_exit_code_one_and_keeps_the_password(tmp_path: Path) -> None:
    answer = _run(
        "doctor", "--data", str(tmp_path), "--postgres", "postgresql://me:to/ps3cret@db/shop"
    )
    assert answer.returncode == ExitCode.PROBLEM
    assert re.search(r"^problem +postgresql ", answer.stdout, re.MULTILINE)
    assert "ps3cret" not in answer.stdout + answer.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal(columns: int, tmp_path: Path) -> None:
    shown = _on_terminal(columns, "doctor", "--data", str(tmp_path), "--postgres", "a@b")
    assert COLOUR.search(shown)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "problem" in plain
    assert max(map(len, plain.splitlines())) <= columns


def test_no_color_is_respected_on_a_terminal(tmp_path: Path) -> None:
    assert not COLOUR.search(_on_terminal(80, "doctor", "--data", str(tmp_path), NO_COLOR="1"))
    assert not COLOUR.search(_on_terminal(80, "--help", NO_COLOR="1"))
    assert COLOUR.search(_on_terminal(80, "--help"))


@pytest.mark.parametrize("shell", list(cli.Shell))
def test_completion_prints_a_script_for_each_shell(shell: cli.Shell) -> None:
    answer = _run("completion", shell)
    assert answer.returncode == ExitCode.OK
    assert f"_ONCEMQ_COMPLETE=complete_{shell}" in answer.stdout


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    command = tmp_path / "oncemq"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clients.cli "$@"\n')
    command.chmod(0o755)
    script = """
        eval "$(oncemq completion bash)"
        COMP_WORDS=(oncemq do); COMP_CWORD=1; _oncemq_completion oncemq
        echo "${COMPREPLY[*]}"
        COMP_WORDS=(oncemq doctor --p); COMP_CWORD=2; _oncemq_completion oncemq
        echo "${COMPREPLY[*]}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=_environment({"PATH": path}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer.stdout.split() == ["doctor", "--postgres", "--port"]


def test_a_reader_that_goes_away_is_not_a_problem_found(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "clients.cli", "doctor", "--data", str(tmp_path)],
        env=_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == ExitCode.PIPE_CLOSED
    assert complaint == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_told_without_a_traceback(tmp_path: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "clients.cli", "--help"],
            env=_environment({}),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert answer.returncode == ExitCode.SYSTEM
    assert answer.stderr == f"oncemq: {os.strerror(28)}\n"


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f'#!/bin/sh\ntouch "{tmp_path}/started"\nexec sleep 60\n')
    java.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "clients.cli", "doctor", "--data", str(tmp_path / "bin")],
        env=_environment({"JAVA_HOME": str(tmp_path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline_s = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, complaint = process.communicate(timeout=60)
    assert (process.returncode, output, complaint) == (ExitCode.INTERRUPTED, b"", b"")


def test_a_fault_of_ours_is_owned_without_traceback_or_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("tops3cret")

    monkeypatch.setattr(machine, "examine", fail)
    monkeypatch.delenv(cli.TRACEBACK_VARIABLE, raising=False)
    with pytest.raises(SystemExit) as leaving:
        cli.main(["doctor"])
    assert leaving.value.code == ExitCode.FAULT
    complaint = capsys.readouterr().err
    assert "a fault in OnceMQ itself (RuntimeError)" in complaint
    assert "Traceback" not in complaint
    assert "tops3cret" not in complaint


def test_a_traceback_is_shown_to_those_who_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "examine", None)
    monkeypatch.setenv(cli.TRACEBACK_VARIABLE, "1")
    with pytest.raises(SystemExit):
        cli.main(["doctor"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_the_guide_lists_exactly_the_exit_codes_there_are() -> None:
    section = GUIDE.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \|", section, re.MULTILINE)
    assert [int(row) for row in rows] == [code.value for code in ExitCode]


def test_the_guide_has_every_command_and_no_other() -> None:
    table = GUIDE.read_text(encoding="utf-8").partition("| command |")[2].partition("\n\n")[0]
    listed = set()
    for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE):
        first, *others = re.findall(r"`(?:oncemq )?([^`]+)`", row)
        words = [word for word in first.split() if word.islower() and word[0].isalpha()]
        listed.add(" ".join(words))
        listed |= {" ".join([*words[:-1], other.split()[0]]) for other in others}
    assert listed - {""} == set(_paths())


def test_the_guide_names_every_option() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    for name in cli.ENTRIES:
        command = cli.load_command(name)
        for each in getattr(command, "commands", {name: command}).values():
            for option in each.params:
                for flag in option.opts:
                    assert not flag.startswith("--") or f"{flag}" in guide, f"{name} {flag}"


def test_the_guide_names_every_field_of_the_object() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    fields = "format oncemq ready verdict checks name status found advice commands measured"
    numbers = "sync_median_s sync_p99_s free_bytes total_bytes open_files_limit"
    for name in f"{fields} {numbers}".split():
        assert f"`{name}`" in guide
