"""Puts spills, checkpoints and exports of one worker on disk, behind its work: each on a thread of its own."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.append_log import naming_full_disk
from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import write_spill
from hpcrl.placement.exporting import export_of
from hpcrl.wire.messages import (
    Assemble,
    ExportWritten,
    Message,
    Request,
    Save,
    ShardsVerified,
    ShardWritten,
    Spilled,
    Verify,
)
from hpcrl.workers.host import Snapshot


class Writers:
    """What is written is reported through `post`; what a writer raises goes to `fail`, like an exception of a call."""

    def __init__(
        self,
        run: RunDirectory,
        experiment: ExperimentConfig,
        attempt: int,
        rank: int,
        post: Callable[[Message], None],
        fail: Callable[[str, Exception], None],
    ) -> None:
        self._run = run
        self._experiment = experiment
        self._attempt = attempt
        self._rank = rank
        self._post = post
        self._fail = fail
        self._spiller = ThreadPoolExecutor(1, thread_name_prefix="spiller")
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="saver")

    def spill(self, request: Request, sample: SequenceSample) -> None:
        """The outputs of a request."""
        self._spill(request, self._run.spill(request.step, request.call, request.part, self._attempt), sample, "spill")

    def show(self, request: Request, part: int, sample: SequenceSample) -> None:
        """What part `part` of a train_step shows; a replay writes what older attempts have no file of."""
        call = request.call if request.record is None else f"{request.call}-again{self._attempt}"
        self._spill(request, self._run.spill(request.step, call, part, self._attempt), sample, "shown")

    def _spill(self, request: Request, path: Path, sample: SequenceSample, point: str) -> None:
        def write() -> None:
            started = time.monotonic()
            spill = write_spill(self._run.files, path, sample, point)
            self._post(Spilled(request.id, self._rank, spill, time.monotonic() - started))

        self._submit(self._spiller, f"spilling {request.call} of step {request.step}", write)

    def save(self, save: Save, index: int, snapshot: Snapshot) -> None:
        """Shard number `index` of a role: for a checkpoint, for an export, or one file for both."""

        def write() -> None:
            started, files = time.monotonic(), self._run.files
            of_export = self._run.export_shards(save.role, save.step, self._attempt)
            if save.checkpoint:
                folder, arrays = self._run.checkpoint(save.step, self._attempt), snapshot.arrays
            else:
                needed = export_of(self._experiment, save.role).arrays
                folder, arrays = of_export, {name: snapshot.arrays[name] for name in needed}
            shard = write_shard(files, folder, save.role, index, arrays, snapshot.state)
            if save.checkpoint and save.export:
                files.link(shard, of_export / Path(shard.name).name, "export")
            seconds = time.monotonic() - started
            self._post(ShardWritten(save.step, save.role, self._rank, shard, seconds, save.checkpoint, save.export))

        self._submit(self._saver, f"saving {save.role} after step {save.step}", write)

    def verify(self, order: Verify) -> None:
        """Read shards back, from the disk as far as the system lets one."""

        def read() -> None:
            files, damage = self._run.files, []
            files.fault("verify.begin")
            for shard in order.shards:
                files.drop_cached(shard)
                damage.append(files.damage(shard))
            files.fault("verify.read")
            self._post(ShardsVerified(order.step, self._rank, "; ".join(filter(None, damage))))

        self._submit(self._saver, f"reading back the checkpoint of step {order.step}", read)

    def assemble(self, order: Assemble, index: int, of: int) -> None:
        """Of the files of an export those that fall to number `index` of its role's workers."""

        def write() -> None:
            folder = self._run.export_shards(order.role, order.step, self._attempt)
            shards = [folder / name for name in self._run.files.listing(folder)]
            export = export_of(self._experiment, order.role)
            for file in export.files[index::of]:
                with naming_full_disk(folder.parent / file, None):
                    self._run.files.fault("export.write")
                    export.write_file(folder.parent, file, shards)
            self._post(ExportWritten(order.step, order.role, self._rank))

        self._submit(self._saver, f"exporting {order.role} after step {order.step}", write)

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
