"""Puts spills, checkpoints and exports of one worker on disk, behind its work: each on a thread of its own."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import write_spill
from hpcrl.wire.messages import ExportWritten, Message, Request, Save, ShardWritten, Spilled
from hpcrl.workers.host import Snapshot


class Writers:
    """What is written is reported through `post`; what a writer raises goes to `fail`, like an exception of a call."""

    def __init__(
        self,
        run: RunDirectory,
        attempt: int,
        rank: int,
        post: Callable[[Message], None],
        fail: Callable[[str, Exception], None],
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._rank = rank
        self._post = post
        self._fail = fail
        self._spiller = ThreadPoolExecutor(1, thread_name_prefix="spiller")
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="saver")

    def spill(self, request: Request, sample: SequenceSample) -> None:
        """The outputs of a request."""

        def write() -> None:
            started = time.monotonic()
            path = self._run.spill(request.step, request.call, request.part, self._attempt)
            spill = write_spill(self._run.files, path, sample)
            self._post(Spilled(request.id, self._rank, spill, time.monotonic() - started))

        self._submit(self._spiller, f"spilling {request.call} of step {request.step}", write)

    def checkpoint(self, save: Save, index: int, snapshot: Snapshot) -> None:
        """Shard number `index` of a role."""

        def write() -> None:
            started = time.monotonic()
            folder = self._run.checkpoint(save.step, self._attempt)
            shard = write_shard(self._run.files, folder, save.role, index, snapshot.arrays, snapshot.state)
            self._post(ShardWritten(save.step, save.role, self._rank, shard, time.monotonic() - started))

        self._submit(self._saver, f"checkpointing {save.role} after step {save.step}", write)

    def export(self, save: Save, exporter: Callable[[Path], None] | None) -> None:
        """A role in Hugging Face format; None: this rank has nothing to write."""

        def write() -> None:
            path = None
            if exporter is not None and not self._run.superseded(self._attempt):
                target = self._run.export(save.role, save.step)
                self._run.files.publish_folder(target, self._attempt, exporter, "export")
                path = str(target.relative_to(self._run.root))
            self._post(ExportWritten(save.step, save.role, self._rank, path))

        self._submit(self._saver, f"exporting {save.role} after step {save.step}", write)

    def close(self) -> None:
        """Wait until everything is written."""
        self._spiller.shutdown(wait=True)
        self._saver.shutdown(wait=True)

    def _submit(self, writer: ThreadPoolExecutor, what: str, write: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                write()
            except Exception as error:
                self._fail(what, error)

        writer.submit(guarded)
