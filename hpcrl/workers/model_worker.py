"""A model worker: one process, one host, one device. Executes what is acked, spills what it produced.

Owns the rows in its memory and the files that it writes; knows neither the graph nor the order of calls. Three kinds of
thread: this one executes, the courier talks, two writers put spills and checkpoints on disk behind the work.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hpcrl.config.experiment import from_dict
from hpcrl.data.datasets import open_datasets
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import read_spill, write_spill
from hpcrl.errors import ExitCode
from hpcrl.events import CallBegun, CallFailed, EventLog
from hpcrl.placement.plan import CallPlan, Plan
from hpcrl.wire.channel import RunKey
from hpcrl.wire.messages import (
    Begin,
    ExportWritten,
    Finish,
    Reply,
    Request,
    RowSource,
    Save,
    ShardWritten,
    Spilled,
    WorkerHello,
    WorkerReady,
)
from hpcrl.workers.hardware import hardware_of
from hpcrl.workers.host import Host, HostContext, Outcome, Work
from hpcrl.workers.sample_store import SampleStore
from hpcrl.workers.transport import Transport, to_wire


@dataclass(frozen=True)
class WorkerSeat:
    """Where a worker sits: all that its agent tells it."""

    run_dir: Path
    attempt: int
    rank: int
    master: str
    host: str
    plan: Plan
    device: str
    device_uuid: str
    pid: int


def load_host(plan: Plan, context: HostContext) -> Host:
    """The host class that the plan names as `module:Class`."""
    module, _, name = plan.host.partition(":")
    return getattr(importlib.import_module(module), name)(context)


class ModelWorker:
    """Runs from `run` until it is told to finish."""

    def __init__(self, seat: WorkerSeat, fault: Callable[[str], None]) -> None:
        self._seat = seat
        self._fault = fault
        self._run = RunDirectory(seat.run_dir, fault)
        self._files = self._run.files
        self._calls: dict[str, CallPlan] = {call.name: call for call in seat.plan.calls}
        experiment = from_dict(seat.plan.experiment)
        self._datasets = open_datasets(experiment)
        self._store = SampleStore()
        self._log = EventLog(self._run.worker_log(seat.attempt, f"worker-{seat.rank}"))
        self._host: Host
        key = self._run.read_key()
        self._courier = Transport(
            rank=seat.rank,
            name=f"worker-{seat.rank}.a{seat.attempt:03d}.{seat.pid}",
            master=seat.master,
            key=RunKey(key.public.encode(), key.secret.encode()),
            store=self._store,
            read_dataset=self._read_dataset,
            read_spill=self._read_spill,
            heartbeat_s=experiment.cluster.heartbeat_s,
            orphan_timeout_s=experiment.cluster.orphan_timeout_s,
            host=seat.host,
        )
        self._spiller = ThreadPoolExecutor(1, thread_name_prefix="spiller")
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="saver")

    def run(self) -> ExitCode:
        """Serve until told to finish. An exception, the host's making included, is told to the master, which ends the
        attempt."""
        prepared, software, failed = "", "", None
        try:
            self._fault("worker.start")
            self._host = self._make_host()
            prepared, software = self._host.prepare(), self._host.software
        except Exception as error:
            failed = error
        self._courier.start()
        at = self._seat
        hardware = hardware_of(at.device, at.device_uuid)
        address = self._courier.address
        self._courier.post(WorkerHello(at.attempt, at.rank, at.pid, address, prepared, hardware, software))
        if failed is not None:
            self._fail("starting", failed)
            return self._await_finish()
        self._courier.doing = "waiting for its peers"
        while True:
            job = self._courier.work.get()
            if isinstance(job, Finish):
                return self._leave(ExitCode(job.exit_code))
            what = "starting" if isinstance(job, Begin) else f"saving {job.role}" if isinstance(job, Save) else ""
            try:
                if isinstance(job, Begin):
                    self._begin(job)
                elif isinstance(job, Save):
                    self._save(job)
                else:
                    what = f"step {job[0].step} {job[0].call}, part {job[0].part}"
                    self._execute(*job)
            except Exception as error:
                self._fail(what, error)

    def _make_host(self) -> Host:
        seat = self._seat
        return load_host(
            seat.plan,
            HostContext(
                rank=seat.rank,
                plan=seat.plan,
                run_dir=seat.run_dir,
                device=seat.device,
                device_uuid=seat.device_uuid,
                host=seat.host,
            ),
        )

    def _await_finish(self) -> ExitCode:
        """Without a host there is nothing else to do."""
        while not isinstance(job := self._courier.work.get(), Finish):
            pass
        self._courier.stop()
        self._log.close()
        return ExitCode(job.exit_code)

    def _fail(self, what: str, error: Exception) -> None:
        self._courier.fail(what, error)
        self._log.write(CallFailed(self._seat.rank, what, repr(error)))

    def _begin(self, begin: Begin) -> None:
        started = time.monotonic()
        self._courier.doing = "loading models"
        checkpoint = {role: [self._run.root / path for path in paths] for role, paths in begin.checkpoint.items()}
        self._host.load(begin.prepared, checkpoint)
        self._courier.doing = "idle"
        self._courier.post(WorkerReady(self._seat.rank, time.monotonic() - started))

    def _execute(self, request: Request, inputs: SequenceSample) -> None:
        call = self._calls[request.call]
        work = Work(
            step=request.step,
            call=request.call,
            part=request.part,
            batch=inputs.remap({key: own for key, own in call.input_remap.items() if key in inputs.keys}),
            minibatches=request.minibatches,
            record=request.record,
        )
        replay = request.record is not None
        self._log.write(CallBegun(request.step, request.call, request.part, replay))
        self._courier.doing = f"{'replaying' if replay else 'running'} {request.call} of step {request.step}"
        self._fault("worker.call")
        started = time.monotonic()
        outcome = self._host.execute(work)
        seconds = time.monotonic() - started
        self._courier.doing = "idle"
        self._fault("worker.executed")
        self._answer(request, call, outcome, seconds)
        self._fault("worker.replied")

    def _answer(self, request: Request, call: CallPlan, outcome: Outcome, seconds: float) -> None:
        """Keep the outputs, reply, and spill them behind the work."""
        sample = None
        if outcome.sample is not None:
            sample = outcome.sample.remap(dict(call.output_remap))
            sample = sample.select_keys(call.outputs)
            self._store.put(request.step, sample)
        meta = None if sample is None else to_wire(sample)
        record = None if outcome.record is None else dict(outcome.record)
        self._courier.post(Reply(request.id, self._seat.rank, meta, dict(outcome.stats), record, seconds))
        if sample is not None:
            self._behind(self._spiller, f"spilling {request.call} of step {request.step}", self._spill, request, sample)

    def _spill(self, request: Request, sample: SequenceSample) -> None:
        started = time.monotonic()
        path = self._run.spill(request.step, request.call, request.part, self._seat.attempt)
        spill = write_spill(self._files, path, sample)
        self._courier.post(Spilled(request.id, self._seat.rank, spill, time.monotonic() - started))

    def _save(self, save: Save) -> None:
        """Copy now, write behind the work."""
        doing, self._courier.doing = self._courier.doing, f"copying {save.role} after step {save.step}"
        ranks = self._seat.plan.roles[save.role].ranks
        if save.checkpoint:
            snapshot = self._host.snapshot(save.role)
            folder = self._run.checkpoint(save.step, self._seat.attempt)
            rank = ranks.index(self._seat.rank)

            def write() -> None:
                started = time.monotonic()
                shard = write_shard(self._files, folder, save.role, rank, snapshot.arrays, snapshot.state)
                seconds = time.monotonic() - started
                self._courier.post(ShardWritten(save.step, save.role, self._seat.rank, shard, seconds))

            self._behind(self._saver, f"checkpointing {save.role} after step {save.step}", write)
        if save.export:
            exporter = self._host.exporter(save.role)
            self._behind(self._saver, f"exporting {save.role} after step {save.step}", self._export, save, exporter)
        self._courier.doing = doing

    def _export(self, save: Save, exporter: Callable[[Path], None] | None) -> None:
        path = None
        if exporter is not None and not self._run.superseded(self._seat.attempt):
            target = self._run.export(save.role, save.step)
            self._files.publish_folder(target, self._seat.attempt, exporter, "export")
            path = str(target.relative_to(self._run.root))
        self._courier.post(ExportWritten(save.step, save.role, self._seat.rank, path))

    def _behind(self, pool: ThreadPoolExecutor, what: str, action: Callable[..., None], *args: object) -> None:
        """Do it on a writer's thread; what it raises ends the attempt like an exception of a call."""

        def guarded() -> None:
            try:
                action(*args)
            except Exception as error:
                self._fail(what, error)

        pool.submit(guarded)

    def _read_dataset(self, source: str, ids: Sequence[str]) -> SequenceSample:
        return self._datasets[source].rows(ids)

    def _read_spill(self, source: RowSource) -> SequenceSample:
        if source.spill is None:
            raise ValueError("the source is not a spill")
        return read_spill(self._run.root / source.spill, source.group, source.keys, source.ids)

    def _leave(self, code: ExitCode) -> ExitCode:
        self._spiller.shutdown(wait=True)
        self._saver.shutdown(wait=True)
        self._host.close()
        self._courier.stop()
        self._log.close()
        return code
