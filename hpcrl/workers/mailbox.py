"""What a model worker hears and says: jobs in the order of the acks, rows for its peers, reports to the master.

Brings transport, inputs and row server together. Knows neither the host nor what a job does.
"""

import os
import queue
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from hpcrl.data.rows.kind import Dataset
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import DamagedCheckpointError
from hpcrl.durable.spills import read_spill
from hpcrl.errors import ExitCode, HpcrlError, PeerLostError, nature_of
from hpcrl.foreign import plain
from hpcrl.processes import work_done
from hpcrl.whereabouts import Collective, Doing, inside
from hpcrl.wire.holders import InSpill
from hpcrl.wire.messages import (
    Ack,
    AreYouThere,
    Assemble,
    Beat,
    Begin,
    BrokenOperation,
    Failed,
    Finish,
    Here,
    LetGo,
    Message,
    Move,
    Request,
    Save,
    Syn,
    Verify,
)
from hpcrl.wire.peer_messages import Fetch, Raw, Rows
from hpcrl.wire.script_messages import ToScript
from hpcrl.workers.inputs import Gathered, Inputs, Peripherals, without_inputs
from hpcrl.workers.row_server import RowServer
from hpcrl.workers.sample_store import SampleStore
from hpcrl.workers.script_line import WorkerScriptLine
from hpcrl.workers.transport import Transport, TransportArgs

Job = Begin | Save | Verify | Assemble | Finish | Move | LetGo | Gathered
READERS = 2
USERS = (ExitCode.CONFIGURATION, ExitCode.DATA, ExitCode.USER_CODE)


class Mailbox:
    """Open from `open` to `close`. Fulfils `transport.Listener`, whose methods run on the talking thread."""

    def __init__(
        self, rank: int, talk: TransportArgs, root: Path, store: SampleStore, datasets: Mapping[str, Dataset]
    ) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._rank = rank
        self._root = root
        self._store = store
        self._datasets = datasets
        self._transport = Transport(talk)
        self._rows = RowServer(store)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        through = Peripherals(
            fetch=self._transport.fetch,
            read_rows=self._read_rows,
            read_spill=self._read_spill,
            in_background=self._readers.submit,
            later=self._transport.later,
            ready=self._ready,
            fail=lambda what, error: self.fail(what, error),
        )
        self._inputs = Inputs(rank, store, through)
        self.script = WorkerScriptLine(self.post, self._gather_later, lambda what, error: self.fail(what, error))
        """Used where this worker runs a script."""
        self.fail: Callable[[str, BaseException], None] = self.failed
        """What is done about inputs that cannot be had."""

    @property
    def address(self) -> str:
        """Where peers ask for rows."""
        return self._transport.address

    def open(self) -> None:
        self._transport.start(self)

    def post(self, message: Message) -> None:
        """Send to the master, from any thread."""
        self._transport.post(message)

    def doing(self, what: Doing, newest: Callable[[], Collective | None] = lambda: None) -> None:
        """What this worker's beats say that it does, and the `newest` of what it does together with others."""
        self._transport.beat = lambda: Beat(msgspec.structs.replace(what, collective=newest()))

    def idle(self) -> None:
        """It has nothing to execute: beats say what it waits for."""
        self._transport.beat = lambda: Beat(self._inputs.doing())

    def starting(self, what: str, newest: Callable[[], Collective | None] = lambda: None) -> None:
        """The same of what it does before it is ready, and how far it comes with that: no further while it waits for
        others, though a library may spin."""

        def beat() -> Beat:
            doing = Doing("start", what, collective=newest())
            return Beat(doing, 0 if inside(doing) else work_done(os.getpid()))

        self._transport.beat = beat

    def _ready(self, request: int) -> None:
        """All rows of a request are here: the master's waits for its go, the script's own is taken."""
        if request >= 0:
            self._transport.send(Syn(request, self._rank))
        elif (gathered := self._inputs.take(request)) is not None:
            self.script.arrived(request, gathered)

    def _gather_later(self, request: Request, sums: bool) -> None:
        self._transport.later(lambda: self._inputs.gather(request, sums))

    def close(self) -> None:
        """Send what was posted, and hear no more."""
        self._transport.stop()

    def failed(self, what: str, error: BaseException) -> None:
        """Tell the master that code on this worker raised; from any thread."""
        text = "" if is_users(error) else "".join(traceback.format_exception(error))
        said = plain(f"{type(error).__name__}: {error}")
        damaged = error.damage if isinstance(error, DamagedCheckpointError) else ""
        at = int(code_of(error)), time.time(), _broken(error), damaged, nature_of(error)
        self.post(Failed(self._rank, what, said, plain(text), *at))

    # ── on the talking thread ─────────────────────────────────────────────────────────────────────────────────────────
    def from_master(self, body: Message) -> None:
        match body:
            case Request():
                self._store.forget(body.oldest)
                if body.sources:
                    self._inputs.gather(body)
                else:
                    self.jobs.put(without_inputs(body))
            case Ack():
                gathered = self._inputs.take(body.request)
                if gathered is not None:
                    self.jobs.put(gathered)
            case AreYouThere():
                self._transport.send(Here(body.attempt))
            case Begin():
                self._inputs.meet(body.addresses)
                self.jobs.put(body)
            case Move() | LetGo() | Save() | Verify() | Assemble() | Finish():
                self.jobs.put(body)
            case _ if isinstance(body, ToScript):
                self.script.answered(body)

    def serve(self, fetch: Fetch) -> tuple[Rows, list[memoryview]]:
        return self._rows.serve(fetch)

    def fetched(self, rows: Rows, frames: Sequence[Raw]) -> None:
        self._inputs.fetched(rows, frames)

    # ── on a reader's thread ──────────────────────────────────────────────────────────────────────────────────────────
    def _read_rows(self, dataset: str, ids: Sequence[str], keys: Sequence[str]) -> SequenceSample:
        return self._datasets[dataset].rows(ids).select_keys(keys)

    def _read_spill(self, spill: InSpill, ids: Sequence[str], keys: Sequence[str]) -> SequenceSample:
        return read_spill(self._root / spill.file, spill.group, keys, ids)


def is_users(error: BaseException) -> bool:
    """Whether its message says all: where in hpcrl it was noticed helps nobody."""
    return isinstance(error, HpcrlError) and error.exit_code in USERS


def code_of(error: BaseException) -> ExitCode:
    """With which an attempt ends that an error on a worker has ended."""
    return error.exit_code if isinstance(error, HpcrlError) else ExitCode.INTERNAL


def _broken(error: BaseException) -> BrokenOperation | None:
    if not isinstance(error, PeerLostError):
        return None
    return BrokenOperation(error.group, error.operation, error.number, error.rank)
