"""What a paged storage is made to do while every write, sync and rename is recorded.

Each scenario is short and about one thing, since most mistakes need few operations; the random ones
mix everything. The module is long because there are many of them. A scenario is known by its name,
and with a seed it does the same again:

    work = traced("moving", seed=0)         the work, its disk and what it promised
    for state in crash_states(work.disk.trace): judge(state.disk(), work.history, state.events, 0)
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from mqserver.errors import StorageError
from mqserver.storage.contract import EVERYTHING, NewMessage, QueueSettings, Selection
from tests.crash.faults import Crash, Faults
from tests.crash.paged_random import do_anything
from tests.crash.paged_work import Stopped, Work, message
from tests.crash.recording_disk import RecordingDisk

PLAIN = QueueSettings()
URGENT = QueueSettings(prioritized=True)


def traced(
    name: str, seed: int = 0, faults: Faults | None = None, disk: RecordingDisk | None = None
) -> Work:
    """The work of a scenario that came to its end, or as far as its faults let it."""
    disk = disk or RecordingDisk(faults=faults)
    try:
        work = Work(disk, may_fail=disk.faults is not None)
    except (StorageError, Crash):
        if disk.faults is None:
            raise
        return _unborn(disk)
    # Faults may end the work early: by a crash, or where the storage was to be closed or opened.
    with contextlib.suppress(Stopped, Crash):
        run(work, name, seed)
    return work


def _unborn(disk: RecordingDisk) -> Work:
    """The work on a storage that could not even be made: nothing was promised of it."""
    work = Work(RecordingDisk())
    work.disk = disk
    work.is_over = True
    return work


def run(work: Work, name: str, seed: int) -> None:
    """Does the work of a scenario."""
    if name.startswith("random"):
        do_anything(work, random.Random(f"{name} {seed}"))
    else:
        SCENARIOS[name](work)


# --- Puts and gets -------------------------------------------------------------------------------


def _small_puts(work: Work) -> None:
    work.do("create_queue", "q", PLAIN)
    for number in range(4):
        work.put("q", message(f"small {number}", 40 + 200 * number))
    _put_into_the_log(work, "q", [message(f"batch {number}", 90) for number in range(12)])
    work.get("q", 2)
    work.put("q", message("empty"))


def _large_puts(work: Work) -> None:
    work.do("create_queue", "q", PLAIN)
    work.put("q", message("large 1", 700))
    work.put("q", message("large 2", 1520), message("small", 20), message("large 3", 650))
    work.get("q", 1)
    work.put("q", message("large 4", 720))
    left_out = work.branch()
    work.do("store", left_out, "q", [message("never", 1300)])
    work.do("rollback", left_out)
    work.put("q", message("large 5", 1100))
    work.get("q", 2)


def _parcels(work: Work) -> None:
    """Many messages that one call stores share a run from the beginning."""
    work.do("create_queue", "q", PLAIN)
    work.do("create_queue", "p", URGENT)
    work.put("q", *(message(f"parcel {number}", 90) for number in range(5)))
    mixed, doubtful, undone = work.branch(), work.branch(), work.branch()
    work.do("store", mixed, "q", [message("alone", 60)])
    work.do("store", mixed, "p", [message(f"p{n}", 80, priority=n) for n in range(4)])
    work.do("store", mixed, "q", [message(f"m{number}", 100) for number in range(4)])
    work.do("take", mixed, "q", EVERYTHING, 7)
    work.do("commit_one_phase", mixed)
    for branch in (doubtful, undone):
        work.do("store", branch, "q", [message(branch.decode(), 110)] * 4)
        work.do("store", branch, "q", [message("more", 150)] * 4)
        work.do("prepare", branch, b"r")
    work.do("rollback", undone)
    work.put("q", message("over it?", 900))
    work.do("checkpoint")
    work.do("commit", doubtful)
    work.get("q", 3)
    work.get("q", 12)
    # In the pages of what is gone, while the log still tells of that.
    work.put("q", *(message(f"again {number}", 130) for number in range(6)))
    work.put("q", message("large", 1000))
    never = work.branch()
    work.do("store", never, "q", [message("never", 200)] * 4)
    work.do("rollback", never)
    work.reopen()
    work.do("checkpoint")
    work.get("q", 2)


def _parcels_in_the_log(work: Work) -> None:
    """Fewer bytes that one call stores ride in the log, and move into pages as a whole."""
    work.do("create_queue", "q", PLAIN)
    work.do("create_queue", "p", URGENT)
    work.put("q", *(message(f"parcel {number}", 30) for number in range(5)))
    mixed, doubtful, undone, kept = (work.branch() for _ in range(4))
    work.do("store", mixed, "p", [message(f"p{n}", 20, priority=n) for n in range(4)])
    work.do("store", mixed, "q", [message(f"m{number}", 25) for number in range(4)])
    work.do("take", mixed, "q", EVERYTHING, 2)
    work.do("store", mixed, "q", [message("alone", 40)])
    work.do("commit_one_phase", mixed)
    for branch in (doubtful, undone, kept):
        work.do("store", branch, "q", [message(branch.decode(), 35)] * 4)
        work.do("store", branch, "q", [message("in pages", 150)] * 4)
        work.do("prepare", branch, b"r")
    work.do("commit", kept)
    work.put("q", *(message(f"stays {number}", 15) for number in range(6)))
    _fill_a_segment(work)
    work.do("checkpoint")
    work.do("rollback", undone)
    work.do("commit", doubtful)
    work.get("q", 5)
    _fill_a_segment(work)
    work.do("checkpoint")
    # In the pages of what is gone, while the log still tells of that.
    work.put("q", message("over it?", 900))
    work.get("q", 14)
    work.reopen()
    work.put("q", *(message(f"again {number}", 12) for number in range(4)))
    work.do("checkpoint")
    work.get("q", 3)


def _mixed_branches(work: Work) -> None:
    work.do("create_queue", "a", PLAIN)
    work.do("create_queue", "b", URGENT)
    work.put("a", message("a1", 30), message("a2", 800))
    one, two = work.branch(), work.branch()
    work.do("take", one, "a", EVERYTHING, 1)
    work.do("store", one, "b", [message("b1", 50, priority=1), message("b2", 50, priority=7)])
    work.do("store", two, "a", [message("own", 640), message("kept", 10)])
    work.do("take", two, "a", EVERYTHING, 2)
    work.do("raise_mark", one, "job", 3)
    work.do("commit_one_phase", one)
    work.do("raise_mark", two, "job", 2)
    work.do("commit_one_phase", two)
    work.put("b", message("b3", 900, priority=9))
    work.get("b", 2)


def _lazy_ends(work: Work) -> None:
    """Records that nobody forces share a write with the next one that somebody does."""
    work.do("create_queue", "q", PLAIN)
    work.do("create_queue", "other", PLAIN)
    work.put("q", message("first", 700), message("second", 30))
    branches = [work.branch() for _ in range(3)]
    for branch in branches:
        work.do("store", branch, "q", [message(branch.decode(), 300)])
        work.do("take", branch, "q", EVERYTHING, 1)
        work.do("prepare", branch, b"recovery " + branch)
    work.do("commit", branches[0], False)
    work.do("rollback", branches[1])
    work.do("commit", branches[2], False)
    work.put("q", message("large", 900))
    work.do("rollback", work.branch())
    work.do("force")
    # The same of branches that nobody has prepared: a crash may take them away.
    for size in (40, 300, 900):
        branch = work.branch()
        work.do("store", branch, "q", [message("lazy", size), message("too", 20)])
        work.do("store", branch, "other", [message("mark", 30)])
        work.do("commit_one_phase", branch, False)
        work.do("commit_one_phase", branch, False)
    taking = work.branch()
    work.do("take", taking, "other", EVERYTHING, 2)
    work.do("commit_one_phase", taking, False)
    work.get("q", 1)
    work.do("checkpoint")


# --- Branches in doubt ---------------------------------------------------------------------------


def _prepare_and_decide(work: Work) -> None:
    work.do("create_queue", "q", PLAIN)
    work.put("q", *(message(f"m{number}", 25) for number in range(6)))
    branches = [work.branch() for _ in range(5)]
    for branch in branches:
        work.do("take", branch, "q", EVERYTHING, 1)
        work.do("store", branch, "q", [message(f"by {branch.decode()}", 60)])
        work.do("raise_mark", branch, "job", 1 + branches.index(branch))
        work.do("prepare", branch, b"coordinator of " + branch)
    work.do("commit", branches[3])
    work.do("rollback", branches[0])
    work.do("resolve", branches[1], True)
    work.do("resolve", branches[2], False)
    work.do("forget", branches[1])
    work.do("commit", branches[4], False)
    work.do("commit", branches[4], True)
    work.do("rollback", branches[2])


def _doubt_across_checkpoints(work: Work) -> None:
    work.do("create_queue", "q", PLAIN)
    work.put("q", message("small", 40), message("large", 900))
    for number in range(3):
        branch = work.branch()
        work.do("take", branch, "q", EVERYTHING, 1)
        work.do("store", branch, "q", [message(f"s{number}", 70), message(f"l{number}", 800)])
        work.do("prepare", branch, b"r%d" % number)
        work.put("q", message("filler", 500))
    work.do("checkpoint")
    for _ in range(8):
        work.put("q", message("filler", 580))
    work.do("checkpoint")
    work.do("commit", b"branch 0002", True)
    work.do("rollback", b"branch 0004")
    work.do("checkpoint")


def _carried(work: Work) -> None:
    """Checkpoints carry branches whose record is gone, from one to the next, until they end."""
    work.do("create_queue", "q", PLAIN)
    work.put("q", message("small", 40), message("large", 900))
    branches = [work.branch() for _ in range(5)]
    for number, branch in enumerate(branches):
        work.do("store", branch, "q", [message(f"s{number}", 300), message(f"t{number}", 350)])
        work.do("prepare", branch, b"r%d" % number)
    mixed = work.branch()
    work.do("take", mixed, "q", EVERYTHING, 1)
    work.do("store", mixed, "q", [message("own", 50), message("l", 700), message("kept", 60)])
    work.do("take_keys", mixed, "q", [13], 0)
    work.do("raise_mark", mixed, "job", 4)
    work.do("prepare", mixed, b"mixed")
    _fill_a_segment(work)
    work.do("checkpoint")
    work.do("commit", branches[0], True)
    work.get("q", 3)
    # Not into the pages of what has just gone: the checkpoint on disk names them.
    work.put("q", message("over it?", 400), message("large", 800))
    work.do("rollback", branches[1])
    work.reopen()
    work.do("commit", branches[2], False)
    work.do("checkpoint")

    def meanwhile() -> None:
        with work.storage._lock:
            for _ in range(2):
                _fill_a_segment(work)
                work.storage.checkpoint()

    work.do_while(meanwhile, "commit", branches[3], True)
    work.do("resolve", branches[4], True)
    work.do("checkpoint")
    work.do("commit", mixed)
    work.get("q", 4)
    work.do("checkpoint")


def _fill_a_segment(work: Work) -> None:
    """By long names, so that the restart can come to lie behind what was there before."""
    for _ in range(8):
        work.do("rollback", work.branch() * 45)


def _in_flight(work: Work) -> None:
    """Checkpoints that are taken while the record of a branch is on its way to the disk."""
    work.do("create_queue", "q", PLAIN)
    work.put("q", message("small", 40), message("large", 900), message("third", 60))
    branches = [work.branch() for _ in range(4)]
    for branch in branches:
        work.do("take", branch, "q", EVERYTHING, 1)
        work.do("store", branch, "q", [message("s", 70), message("l", 700)])
    work.do("prepare", branches[1], b"r1")
    work.do("prepare", branches[2], b"r2")

    def meanwhile() -> None:
        _fill_a_segment(work)
        work.storage.checkpoint()

    work.do_while(meanwhile, "prepare", branches[0], b"r0")
    work.do_while(meanwhile, "commit", branches[1], True)
    work.do_while(meanwhile, "resolve", branches[2], True)
    work.do_while(meanwhile, "commit_one_phase", branches[3])


# --- The log and the data file -------------------------------------------------------------------


def _segments(work: Work) -> None:
    """Segments fill, are forgotten at checkpoints, and come back under new names."""
    work.do("create_queue", "q", PLAIN)
    for number in range(14):
        work.put("q", message(f"m{number}", 560))
        if number % 3 == 2:
            work.get("q", 3)
        if number % 6 == 5:
            work.do("checkpoint")
    long = [message(f"long {number}", 590) for number in range(8)]
    _put_into_the_log(work, "q", [message("m", 560), *long])


def _put_into_the_log(work: Work, queue: str, messages: list[NewMessage]) -> None:
    """In calls of so few messages that they are no parcel."""
    branch = work.branch()
    for start in range(0, len(messages), 2):
        work.do("store", branch, queue, messages[start : start + 2])
    work.do("commit_one_phase", branch)


def _moving(work: Work) -> None:
    """Small messages outlive their part of the log and move into pages, and again."""
    work.do("create_queue", "q", PLAIN)
    work.do("create_queue", "p", URGENT)
    for number in range(3):
        work.put("q", message(f"q{number}", 150), message(f"big {number}", 700))
        work.put("p", message(f"p{number}", 80, priority=number))
    work.do("checkpoint")
    work.get("q", 3)
    work.do("checkpoint")
    _put_into_the_log(work, "q", [message(f"again {number}", 300) for number in range(4)])
    work.get("p", 2)
    work.get("q", 2)
    work.do("checkpoint")


def _reading(work: Work) -> None:
    """Payloads are read from where they are: the log, bundles, runs of their own."""
    work.do("create_queue", "q", PLAIN)
    held = work.branch()
    for number in range(4):
        work.put("q", message(f"small {number}", 200), message(f"large {number}", 900))
        # One that is empty stands where the next record begins.
        work.put("q", message(f"with {number}", 90), NewMessage(b"", 0))
    work.do("store", held, "q", [message("in doubt", 250)])
    work.do("prepare", held, b"r")
    for _ in range(2):
        work.do("browse", "q", EVERYTHING, 0, 100)
        work.do("read", "q", 2)
        work.do("checkpoint")
    work.do("reserve", "etl", "q", EVERYTHING, 0, 3)
    work.reopen()
    work.do("fetch", "etl", 1, 0, 3)
    work.do("browse", "q", EVERYTHING, 0, 100)
    work.do("take_keys", work.branch(), "q", [4, 5], 0)
    work.do("finish", "etl", 1)
    work.do("commit", held)
    work.get("q", 4)
    work.do("checkpoint")
    work.do("browse", "q", EVERYTHING, 0, 100)


def _shrinking(work: Work) -> None:
    """A data file that is mostly gaps is put together and cut."""
    work.do("create_queue", "q", PLAIN)
    for number in range(6):
        work.put("q", message(f"huge {number}", 8000))
    kept = work.branch()
    work.do("store", kept, "q", [message("in doubt", 900)])
    work.do("prepare", kept, b"r")
    work.get("q", 5)
    work.do("checkpoint")
    work.do("rollback", kept)
    work.put("q", message("last", 3000))
    work.do("checkpoint")
    work.get("q", 2)
    work.do("checkpoint")


def _renewed_queue(work: Work) -> None:
    """A queue is made anew, and its message moved, all behind the restart of the checkpoint."""
    work.do("create_queue", "q", PLAIN)
    for number in range(6):
        work.put("q", message(f"huge {number}", 8000))
    work.do("create_queue", "p", PLAIN)
    work.do("delete_queue", "p")
    work.do("create_queue", "p", URGENT)
    work.put("p", message("to the front", 900))
    work.get("q", 5)
    work.do("checkpoint")
    work.put("q", message("over it", 900))


def _interleaved(work: Work) -> None:
    """Branches store in turn and commit in the opposite order: keys and places do not agree."""
    work.do("create_queue", "q", PLAIN)
    for _ in range(2):
        branches = [work.branch() for _ in range(4)]
        for size in (150, 230):
            for branch in branches:
                work.do("store", branch, "q", [message(branch.decode(), size)])
        for branch in reversed(branches):
            work.do("commit_one_phase", branch)


def _reused_pages(work: Work) -> None:
    """Pages that a checkpoint saw are not given out before the next one."""
    work.do("create_queue", "q", PLAIN)
    _put_into_the_log(work, "q", [message(f"bundled {number}", 200) for number in range(4)])
    for _ in range(8):
        work.put("q", message("filler", 560))
    work.do("checkpoint")
    work.get("q", 12)
    work.put("q", message("in the place of the bundle?", 900))
    work.get("q", 1)
    work.put("q", message("one", 900), message("two", 900))
    work.do("checkpoint")
    work.get("q", 1)
    work.put("q", message("three", 900))
    work.get("q", 1)
    work.put("q", message("four", 900))
    held = work.branch()
    work.do("take", held, "q", EVERYTHING, 1)
    work.do("prepare", held, b"r")
    work.do("commit", held, False)
    work.do("store", b"unforced", "q", [message("five", 900)])
    work.do("rollback", b"unforced")
    work.put("q", message("six", 900))
    work.do("checkpoint")
    work.put("q", message("seven", 900))


# --- Consumers, queues, the store itself ---------------------------------------------------------


def _reservations(work: Work) -> None:
    work.do("create_queue", "q", PLAIN)
    work.put("q", *(message(f"m{number}", 100) for number in range(8)), message("large", 700))
    work.do("reserve", "etl", "q", EVERYTHING, 0, 2)
    work.do("reserve", "etl", "q", EVERYTHING, 1, 2)
    work.do("reserve", "copy", "q", Selection(), 0, 3)
    work.do("finish", "etl", 1)
    work.do("checkpoint")
    work.do("reserve", "etl", "q", EVERYTHING, 2, 2)
    work.do("finish", "etl", 3)
    work.do("drop_consumer", "copy")
    work.do("reserve", "copy", "q", EVERYTHING, 0, 1)
    work.do("finish", "copy", 1)
    work.do("drop_consumer", "etl")


def _queues(work: Work) -> None:
    work.do("create_queue", "a", PLAIN)
    work.do("create_queue", "b", PLAIN)
    work.put("a", message("x", 30, priority=1), message("y", 30, priority=2))
    work.do("change_queue", "a", URGENT)
    work.do("delete_queue", "b")
    work.do("create_queue", "b", QueueSettings(messages_max=5))
    work.put("b", message("in the new one", 700))
    work.do("checkpoint")
    work.do("change_queue", "a", PLAIN)
    work.get("a", 2)
    work.do("delete_queue", "a")
    work.get("b", 1)
    work.do("delete_queue", "b")
    work.do("create_queue", "a", URGENT)
    work.do("checkpoint")


def _creation(work: Work) -> None:
    """The store comes into being; little else."""
    work.do("create_queue", "q", PLAIN)


def _closing(work: Work) -> None:
    work.do("create_queue", "q", PLAIN)
    work.put("q", message("kept", 30), message("large", 800))
    work.reopen()
    branches = [work.branch() for _ in range(3)]
    for branch in branches:
        work.do("store", branch, "q", [message(f"of {branch.decode()}", 650)])
    work.do("take", branches[0], "q", EVERYTHING, 1)
    work.do("prepare", branches[0], b"r")
    work.reopen()
    work.do("commit", branches[0], False)
    work.reopen()
    work.put("q", message("end", 90))
    work.reopen()


SCENARIOS: dict[str, Callable[[Work], None]] = {
    "creation": _creation,
    "small_puts": _small_puts,
    "large_puts": _large_puts,
    "parcels": _parcels,
    "parcels_in_the_log": _parcels_in_the_log,
    "mixed_branches": _mixed_branches,
    "lazy_ends": _lazy_ends,
    "prepare_and_decide": _prepare_and_decide,
    "doubt_across_checkpoints": _doubt_across_checkpoints,
    "carried": _carried,
    "in_flight": _in_flight,
    "segments": _segments,
    "moving": _moving,
    "reading": _reading,
    "shrinking": _shrinking,
    "renewed_queue": _renewed_queue,
    "interleaved": _interleaved,
    "reused_pages": _reused_pages,
    "reservations": _reservations,
    "queues": _queues,
    "closing": _closing,
}
