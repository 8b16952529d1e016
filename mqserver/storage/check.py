"""`oncemq check`: is a store sound? Every checksum and every invariant is verified.

All damage is reported that can be found, with file and offset. In this order, each step as far as
those before it allow:

1. The control record, and the log block by block and record by record, stepping over what is
   damaged (`survey.py`).
2. A restart by the very code of one, as far as that goes without changing anything.
3. What that restart found: keys, holders, reservations, branches in doubt (`contents.py`).
4. Every page in use and every payload (`runs.py`); where the restart failed, those that the
   checkpoint names.

Nothing is changed. It takes as much memory as a restart does. The decisions of a coordinator are in
a log of the same format, without a data file; of these the log is examined, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mqserver.errors import MqError, StorageError, WrongFormat
from mqserver.storage.consumers import Consumers
from mqserver.storage.contents import LOG, ContentCheck, RecordCheck, branches_of, queues_of
from mqserver.storage.contract import BranchInfo, ConsumerInfo, QueueInfo
from mqserver.storage.disk import Disk, File
from mqserver.storage.file_manager import DATA_NAME, FileManager
from mqserver.storage.findings import STUMBLES, Finding, Notes, Severity, told
from mqserver.storage.format import (
    BLOCK_BYTES,
    FORMAT_VERSION,
    Control,
    is_segment_name,
    pages_needed,
)
from mqserver.storage.index import Index
from mqserver.storage.log_manager import (
    CONTROL_NAME,
    CONTROL_NEW_NAME,
    LogManager,
    refuse_lost_control,
)
from mqserver.storage.payloads import Payloads
from mqserver.storage.recovery import Recovery
from mqserver.storage.runs import Holding, RunCheck
from mqserver.storage.segments import NEW_NAME
from mqserver.storage.survey import LogSurvey, survey_slots


@dataclass(frozen=True)
class LogFacts:
    """The log: its files, where a restart begins, where it ends, how many records of each kind."""

    segments: int
    segment_bytes: int
    restart_lsn: int
    checkpoint_lsn: int
    end_lsn: int
    records: dict[str, int]


@dataclass(frozen=True)
class PageFacts:
    """The data file: how many pages it has, and how many are in use and free, where known."""

    page_bytes: int
    total: int
    used: int | None
    free: int | None


@dataclass
class Report:
    """What is known of a store. What could not be found out is None, or is not there."""

    directory: str
    findings: list[Finding]
    format_version: int = FORMAT_VERSION
    has_decisions: bool = False
    control: Control | None = None
    log: LogFacts | None = None
    pages: PageFacts | None = None
    queues: list[QueueInfo] = field(default_factory=list)
    branches: list[BranchInfo] = field(default_factory=list)
    consumers: list[ConsumerInfo] = field(default_factory=list)
    # What a server would say that was started now; empty when it would start.
    refusal: str = ""
    unexamined: list[str] = field(default_factory=list)

    @property
    def damage(self) -> list[Finding]:
        """The findings that are damage."""
        return [each for each in self.findings if each.severity is Severity.DAMAGE]

    @property
    def is_sound(self) -> bool:
        """Whether there is no damage."""
        return not self.damage


def check(disk: Disk) -> Report:
    """All that is to be said of the store on this disk.

    Raises `StorageLocked` while a process has it open, and `WrongFormat` where there is no store,
    or one of another version.
    """
    lock = disk.lock()
    try:
        require_store(disk)
        return _Check(disk).run()
    finally:
        lock.close()


def require_store(disk: Disk) -> None:
    """Raises `WrongFormat` where there is no store, nor what damage would leave of one."""
    names = disk.names()
    ours = (CONTROL_NAME, CONTROL_NEW_NAME, DATA_NAME, NEW_NAME)
    if not any(name in ours or is_segment_name(name) for name in names):
        raise WrongFormat(disk.description, "there is no store here")
    if CONTROL_NAME not in names and _is_unfinished(disk):
        what = "the making of a store was interrupted, and a server would begin anew"
        raise WrongFormat(disk.description, what)


def _is_unfinished(disk: Disk) -> bool:
    """Whether a server would make a store here; it is the server's code that says so."""
    try:
        refuse_lost_control(disk)
    except StorageError:
        return False
    return True


# --- The examination -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Restarted:
    """What a restart has found."""

    log: LogManager
    files: FileManager
    payloads: Payloads
    index: Index

    def close(self) -> None:
        """Lets go of the files, which are as they were."""
        self.files.close()
        self.log.close(clean=False)


def restart(disk: Disk) -> Restarted:
    """What the code of a restart makes of these files. Raises whatever that raises."""
    log = LogManager.examine(disk)
    try:
        control = log.control
        files = FileManager(disk, control.seed, control.page_bytes, control.pages)
        payloads = Payloads(log, files, cache_bytes=0)
        recovery = Recovery(log, files, payloads)
        recovery.run()
    except BaseException:
        log.close(clean=False)
        raise
    return Restarted(log, files, payloads, recovery.index)


def holdings_of(restarted: Restarted) -> list[Holding]:
    """The runs that are in use, and those that only the last checkpoint still refers to."""
    payloads = restarted.payloads
    used = [
        Holding(first, run.size, run.queue, run.entry, run.dead, live=run.live)
        for first, run in payloads.runs.items()
    ]
    unneeded = [
        Holding(first, size, "", is_needed=False, live=0) for first, size in payloads.waiting
    ]
    return used + unneeded


class _Check:
    """One examination of a store."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._notes = Notes()
        self._report = Report(disk.description, self._notes.findings)

    def run(self) -> Report:
        slots = [slot for slot in survey_slots(self._disk, self._notes) if slot is not None]
        control = max(slots, key=lambda slot: slot.sequence, default=None)
        if control is None:
            self._report.refusal = f"{CONTROL_NAME} is missing, or neither of its slots is whole"
            self._report.unexamined.append("the log and the data file")
            return self._report
        self._report.control = control
        self._report.format_version = control.version
        records = self._survey_log(control)
        self._survey_names()
        if records.has_decisions:
            self._report.has_decisions = True
            self._try_log()
        else:
            self._examine_queues(control, records)
        self._explain_refusal()
        return self._report

    def _examine_queues(self, control: Control, records: RecordCheck) -> None:
        restarted = self._try_restart()
        holdings = records.holdings()
        with self._noting_nonsense():
            if restarted is not None:
                holdings = holdings_of(restarted)
                self._check_contents(control, restarted, records)
                restarted.close()
        with self._noting_nonsense():
            self._check_data(control, holdings)

    # --- Files

    def _survey_log(self, control: Control) -> RecordCheck:
        survey = LogSurvey(self._disk, control, self._notes)
        records = RecordCheck(control, self._notes)
        for record in survey.records():
            records.see(record)
        records.check_checkpoint()
        for name in survey.leftovers:
            self._notes.notice(name, "is an old segment, which a server removes when it starts")
        self._report.log = LogFacts(
            segments=len(survey.segments),
            segment_bytes=control.segment_blocks * BLOCK_BYTES,
            restart_lsn=control.restart_lsn,
            checkpoint_lsn=control.checkpoint_lsn,
            end_lsn=survey.end_lsn,
            records=dict(records.counts),
        )
        return records

    def _survey_names(self) -> None:
        for name in self._disk.names():
            if name in (NEW_NAME, CONTROL_NEW_NAME):
                self._notes.notice(name, "is of a server that stopped while it made a file")
            elif name not in (CONTROL_NAME, DATA_NAME) and not is_segment_name(name):
                self._notes.notice(name, "is none of the store's files")

    # --- The restart, and what it finds

    def _try_restart(self) -> Restarted | None:
        with self._noting_refusal():
            return restart(self._disk)
        self._report.unexamined.append("what the queues hold, and messages behind the checkpoint")
        return None

    def _try_log(self) -> None:
        with self._noting_refusal():
            LogManager.examine(self._disk).close(clean=False)

    @contextmanager
    def _noting_refusal(self) -> Iterator[None]:
        """What a server would say, that would not start."""
        try:
            yield
        except (MqError, *STUMBLES) as refused:
            self._report.refusal = told(refused)

    @contextmanager
    def _noting_nonsense(self) -> Iterator[None]:
        """Files may be whole and yet say what no server has written."""
        try:
            yield
        except STUMBLES as stumble:
            self._notes.damage(LOG, f"what it says makes no sense: {told(stumble)}")

    def _explain_refusal(self) -> None:
        """What nothing that was found explains is a finding itself."""
        if self._report.refusal and not self._notes.has_damage:
            self._notes.damage(LOG, f"a restart fails: {self._report.refusal}")

    def _check_contents(self, control: Control, restarted: Restarted, records: RecordCheck) -> None:
        index = restarted.index
        assert self._report.log is not None
        contents = ContentCheck(index, control, self._report.log.end_lsn, self._notes)
        contents.check_all(restarted.payloads, records.in_doubt)
        self._report.queues = queues_of(index)
        self._report.branches = branches_of(index)
        self._report.consumers = Consumers(index, restarted.log).infos()

    def _check_data(self, control: Control, holdings: list[Holding]) -> None:
        try:
            file = self._disk.open(DATA_NAME)
        except StorageError as refused:
            self._notes.damage(DATA_NAME, f"cannot be opened: {told(refused)}")
            return
        try:
            self._check_pages(control, holdings, file)
        finally:
            file.close()

    def _check_pages(self, control: Control, holdings: list[Holding], file: File) -> None:
        size = file.size()
        wanted = control.pages * control.page_bytes
        if size < wanted:
            what = f"has {size} bytes, and {wanted} were in use at the checkpoint"
            self._notes.damage(DATA_NAME, what, offset=size)
        assert self._report.log is not None
        runs = RunCheck(file, control, self._notes, self._report.log.end_lsn)
        runs.check_all(holdings)
        total = size // control.page_bytes
        used = sum(pages_needed(control.page_bytes, holding.size) for holding in holdings)
        if self._report.refusal:
            self._report.pages = PageFacts(control.page_bytes, total, None, None)
        else:
            self._report.pages = PageFacts(control.page_bytes, total, used, total - used)
