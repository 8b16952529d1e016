"""The servers under attack, and those of the attackers.

Each worker starts a victim once and attacks it again and again: one that an attack has weakened is
found out by the next. Attacks that fill the audit's lines of a second have a victim of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.authority import Authority
from tests.security.watched import Setup, Watched


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for everything that a session of tests writes."""
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="session")
def authority(folder: Path) -> Authority:
    """The authority that victims and honest clients trust."""
    return Authority(folder / "authority", "ours")


@pytest.fixture(scope="session")
def stranger(folder: Path) -> Authority:
    """An authority that nobody trusts."""
    return Authority(folder / "stranger", "foreign")


@pytest.fixture(scope="session", params=["in turns", "by threads"])
def victim(folder: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A server without TLS whose clients have tokens, as a node or as a coordinator serves."""
    log = folder / f"victim {request.param}.log"
    setup = Setup(log, takes_turns=request.param == "in turns")
    with contextlib.closing(Watched(setup)) as watched:
        yield watched


@pytest.fixture(scope="session")
def calm(folder: Path) -> Iterator[Watched]:
    """A server like `victim`, attacked so seldom that its audit never leaves a line out."""
    with contextlib.closing(Watched(Setup(folder / "calm.log"))) as watched:
        yield watched


@pytest.fixture(scope="module")
def crowded(folder: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A server like `victim`, for the crowds of one module."""
    log = folder / f"{Path(request.path).stem}.log"
    with contextlib.closing(Watched(Setup(log))) as watched:
        yield watched


@pytest.fixture(scope="module")
def threaded(folder: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """The same, with a thread for each peer."""
    log = folder / f"{Path(request.path).stem}-threaded.log"
    with contextlib.closing(Watched(Setup(log, takes_turns=False))) as watched:
        yield watched


@pytest.fixture(scope="session")
def tls_victim(folder: Path, authority: Authority) -> Iterator[Watched]:
    """A server with TLS whose clients have tokens or certificates."""
    setup = Setup(folder / "tls-victim.log", tls=authority.tls(authority.server()))
    with contextlib.closing(Watched(setup, client_tls=authority.tls())) as watched:
        yield watched
