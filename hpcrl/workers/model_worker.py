"""A worker, of models or of what needs none: one process, one host, one device. Executes what is acked, and spills it.

Owns the rows in its memory and the files that it writes; knows neither the graph nor the order of calls. This thread
executes; the mailbox has one that talks and two that read; the writers put things on disk behind the work.
"""

import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.choice import Choice, FirstToEnd
from hpcrl.data.contents import Stamp, refuse_written, stamp_of
from hpcrl.data.datasets import open_datasets
from hpcrl.data.form import Form
from hpcrl.data.inputs import Share, input_files
from hpcrl.data.minibatches import held, with_places, without_places
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.indexes import RunIndexes
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import refuse_changed
from hpcrl.errors import ExitCode, InternalError, PeerLostError, nature_of
from hpcrl.events import CallFailed
from hpcrl.figures import Figures
from hpcrl.foreign import plain, users_frames
from hpcrl.member_events import RolesLoaded
from hpcrl.placement.plan import ModelName, Part, Plan
from hpcrl.plugins import load
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.whereabouts import Collective, Doing, Phase
from hpcrl.wire.channel import RunKey
from hpcrl.wire.messages import (
    Assemble,
    Begin,
    Finish,
    LetGo,
    Move,
    Moved,
    Reply,
    Request,
    Save,
    Verify,
    WorkerHello,
    WorkerReady,
)
from hpcrl.wire.zygote import WorkerArgs
from hpcrl.workers.hardware import hardware_of
from hpcrl.workers.host import Door, Host, HostContext, Outcome, Work
from hpcrl.workers.inputs import Gathered
from hpcrl.workers.mailbox import Job, Mailbox, code_of
from hpcrl.workers.meter import Meter
from hpcrl.workers.sample_store import SampleStore
from hpcrl.workers.transport import TransportArgs
from hpcrl.workers.worker_log import WorkerLog
from hpcrl.workers.writers import Writers

LEFT = (Exception, SystemExit)
"""What code that this worker runs may end by; `sys.exit` in a user's code is its error, no loss of this process."""
LONGEST_KEPT = 1 << 18
"""Characters of an error, and of its traceback, that the worker's own log keeps; others are told less."""


class _Makes(NamedTuple):
    """What an algorithm says of rows: the form of each key, and what steps choose by."""

    forms: Mapping[str, Form]
    choice: Choice | FirstToEnd | None


def load_host(plan: Plan, context: HostContext) -> Host:
    """The host class that the plan names for this worker as `module:Class`."""
    return load(plan.workers[context.rank].host)(context)


class ModelWorker:
    """Runs from `run` until it is told to finish."""

    def __init__(self, args: WorkerArgs, plan: Plan, fault: Callable[[str], None]) -> None:
        self._args = args
        self._plan = plan
        self._fault = fault
        self._run = RunDirectory(Path(args.run_dir), fault)
        self._experiment: ExperimentConfig = experiment_from(plan.experiment)
        self._earlier = {version: experiment_from(values) for version, values in plan.earlier.items()}
        algorithm = algorithm_of(self._experiment)
        self._makes = _Makes(algorithm.forms(self._experiment), algorithm.choice(self._experiment))
        self._datasets = open_datasets(
            self._experiment, algorithm.rows, RunIndexes(self._run, plan.inputs, makes=False)
        )
        self._store = SampleStore()
        self._meter = Meter()
        self._log = WorkerLog(self._run.worker_log(args.attempt, f"worker-{args.rank}"))
        self._host: Host
        self._failed = threading.Event()
        self._mailbox = Mailbox(args.rank, self._transport_args(), self._run.root, self._store, self._datasets)
        self._mailbox.fail = self._fail
        self._mailbox.script.fault = fault
        self._writers = Writers(self._run, self._experiment, args.attempt, args.rank, self._mailbox.post, self._fail)

    def run(self) -> ExitCode:
        """Serve until told to finish. An exception, the host's making included, is told to the master, which ends the
        attempt."""
        prepared, software, failed = "", "", None
        try:
            self._fault("worker.start")
            self._host = load_host(self._plan, self._host_context())
            prepared, software = self._host.prepare(), self._host.software
        except LEFT as error:
            failed = error
        self._mailbox.open()
        args = self._args
        hardware = hardware_of(args.device, args.device_uuid)
        address = self._mailbox.address
        told = address, prepared, hardware, software, failed is not None
        self._mailbox.post(WorkerHello(args.attempt, args.rank, os.getpid(), *told))
        if failed is not None:
            self._fail("starting", failed)
            return self._await_finish()
        self._mailbox.doing(Doing("start", "waiting for its peers"))
        while not isinstance(job := self._mailbox.jobs.get(), Finish):
            # After a failure its peers may wait in a collective: none of another call must meet them there.
            if not self._failed.is_set():
                self._do(job)
        return self._leave(ExitCode(job.exit_code))

    def _transport_args(self) -> TransportArgs:
        args, cluster = self._args, self._experiment.cluster
        return TransportArgs(
            name=f"worker-{args.rank}.a{args.attempt:03d}.{os.getpid()}",
            master=args.master,
            key=RunKey.of(self._run),
            heartbeat_s=cluster.heartbeat_s,
            orphan_timeout_s=cluster.orphan_timeout_s,
            network=args.network,
        )

    def _host_context(self) -> HostContext:
        args, patience_s = self._args, self._experiment.cluster.start_timeout_s / 2  # before the master's is at its end
        return HostContext(
            rank=args.rank,
            plan=self._plan,
            run_dir=self._run.root,
            datasets=self._datasets,
            device=args.device,
            device_uuid=args.device_uuid,
            network=args.network,
            attempt=args.attempt,
            servers={model: Door(Path(door), args.attempt, patience_s) for model, door in args.servers.items()},
            meter=self._meter,
            script=self._mailbox.script,
            told=lambda what: self._mailbox.starting(what, self._newest),
        )

    def _do(self, job: Job) -> None:
        """One job; what it raises ends the attempt, not this loop."""
        match job:
            case Begin():
                with self._telling("starting"):
                    self._begin(job)
            case Assemble():
                self._writers.assemble(job, self._index(job.role), len(self._plan.home(job.role).ranks))
            case Verify():
                self._writers.verify(job)
            case Save():
                with self._telling(f"saving {job.role}"):
                    self._save(job)
            case LetGo():
                with self._telling(f"letting go of {job.role}"):
                    self._host.let_go(ModelName(job.role, job.replica))
            case Move():
                with self._telling(f"moving {job.role} to {ModelName(job.role, job.replica)}"):
                    self._move(job)
            case Gathered(request, inputs, gather_s):
                when = f"step {request.step} {request.call}" if request.leaves != "memory" else str(request)
                with self._telling(f"{when}, part {request.part}"):
                    self._execute(request, inputs, gather_s)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except LEFT as error:
            self._fail(what, error)

    def _fail(self, what: str, error: BaseException) -> None:
        """Written down before anybody is told: who is told may end this process."""
        self._failed.set()
        whole = plain("".join(traceback.format_exception(error)), LONGEST_KEPT)
        said = plain(f"{type(error).__name__}: {error}", LONGEST_KEPT)
        of_peer, code = isinstance(error, PeerLostError), int(code_of(error))
        frames = plain(users_frames(error))
        self._log.write(CallFailed(self._args.rank, what, said, whole, of_peer, code, nature_of(error), frames))
        self._mailbox.failed(what, error)

    def _await_finish(self) -> ExitCode:
        """Without a host there is nothing else to do."""
        while not isinstance(job := self._mailbox.jobs.get(), Finish):
            pass
        self._mailbox.close()
        self._log.close()
        return ExitCode(job.exit_code)

    def _begin(self, begin: Begin) -> None:
        started = time.monotonic()
        inputs = self._compared()
        self._mailbox.doing(Doing("start", "joining its peers"), self._newest)
        peers = self._plan.peers(self._args.rank)
        self._host.load([begin.prepared[rank] for rank in peers], begin.checkpoint)
        for path, stamp in inputs.items():
            refuse_written(path, stamp)
        self._mailbox.idle()
        attention, seconds = dict(self._host.attention), time.monotonic() - started
        self._log.write(RolesLoaded(attention, seconds))
        self._mailbox.post(WorkerReady(self._args.rank, seconds, attention, dict(self._host.speeds)))

    def _compared(self) -> dict[Path, Stamp]:
        """What this node reads, as it is now: what it was submitted as. The workers of a node share the reading."""
        comparing = "comparing what is read with what was submitted"
        self._mailbox.starting(comparing)
        here = self._plan.ranks_on(self._plan.workers[self._args.rank].node)
        roles = {replica.role for replica in self._plan.replicas if not set(here).isdisjoint(replica.ranks)}
        inputs = input_files(self._experiment, algorithm_of(self._experiment).rows, roles)
        expected = self._plan.inputs
        stamps = {path: stamp_of(path) for setting in expected.keys() & inputs.keys() for path in inputs[setting]}
        refuse_changed(
            self._run,
            expected,
            inputs,
            Share(here.index(self._args.rank), len(here)),
            lambda read, of: self._mailbox.starting(f"{comparing}, {read / 2**30:.1f} of {of / 2**30:.1f} GiB"),
        )
        return stamps

    def _execute(self, request: Request, inputs: SequenceSample, gather_s: float) -> None:
        call, part, replay = self._plan.call(request.call), self._part(request), request.record is not None
        self._meter.begin()
        self._works("execute", f"{'replaying' if replay else 'running'} {request}", *request.told_as)
        if not inputs.ids:  # a train_step's share of a batch with fewer samples than parts, or one that only joins
            inputs = SequenceSample.empty({key: self._makes.forms[key] for key in call.inputs})
        inputs = with_places(inputs, request.ids, request.cut.places)
        if part is not None and len(part.ranks) > 1 and not call.blends:
            inputs = self._host.share(part, inputs)
        inputs, places = without_places(inputs)
        work = Work(
            step=request.step,
            call=request.call,
            part=request.part,
            batch=inputs.remap(call.input_remap),
            minibatches=held(inputs.ids, places, len(request.cut.sizes)),
            record=request.record,
            experiment=self._earlier.get(request.settings),
            version=request.version,
            shown=request.shown,
            arguments=tuple(json.loads(request.arguments)) if request.arguments else (),
            sizes=request.cut.sizes,
            groups=(request.cut.groups, tuple(number for number, *_ in places)),
        )
        self._fault("worker.call")
        started = time.monotonic()
        outcome = self._host.execute(work)
        seconds = time.monotonic() - started
        self._log.held(request.step, request.call, request.part, outcome.held, outcome.releasing_s)
        self._mailbox.idle()
        self._fault("worker.executed")
        if request.leaves == "nothing" or (part is not None and part.head != self._args.rank):
            outcome = replace(outcome, sample=None)  # the head's alone are held, spilled and told of
        self._answer(request, call, outcome, self._meter.taken(gather_s, seconds, outcome.releasing_s))
        self._fault("worker.replied")

    def _newest(self) -> Collective | None:
        """What it does together with others."""
        return self._meter.collective

    def _works(self, phase: Phase, what: str, step: int = 0, call: str = "", part: int = 0) -> None:
        """What beats say of it."""
        self._mailbox.doing(Doing(phase, what, step, call, part), self._newest)

    def _part(self, request: Request) -> Part | None:
        """The one of the call's parts that this rank works in; None where it only gives what a blend takes in."""
        parts = self._plan.working(request.call, request.part)
        return next((part for part in parts if self._args.rank in part.ranks), None)

    def _answer(self, request: Request, call: MFC, outcome: Outcome, figures: Figures) -> None:
        """Keep the outputs, reply, and spill them behind the work."""
        sample = None
        if outcome.sample is not None:
            sample = outcome.sample.remap(dict(call.output_remap)).select_keys(call.shown or call.outputs)
            if misfit := sample.meta.misfit(self._makes.forms):
                raise InternalError(f"step {request.step} {request.call}: {misfit}. Fix `made` of the algorithm.")
            if not call.changes:  # nobody reads what a change shows
                self._store.put(request.step, request.call, sample)
        meta = None if sample is None else sample.meta
        record = None if outcome.record is None else dict(outcome.record)
        self._mailbox.post(
            Reply(
                request=request.id,
                rank=self._args.rank,
                meta=meta,
                stats=dict(outcome.stats),
                record=record,
                seconds=figures.seconds.execute,
                inexact=outcome.inexact,
                scores=self._scores(request, sample),
                figures=figures,
                values=outcome.values,
            )
        )
        if sample is not None and call.changes:
            part = self._part(request)
            assert part is not None, "only who works in a part shows rows"
            self._writers.show(request, part.index, sample)
        elif sample is not None and request.leaves == "spill":
            self._writers.spill(request, sample)

    def _scores(self, request: Request, sample: SequenceSample | None) -> tuple[float, ...]:
        """What the step chooses by, where this call makes it, of each sample in the request's order."""
        choice = self._makes.choice
        if choice is None or sample is None or choice.key not in sample.keys:
            return ()
        rows = sample.select_keys([choice.key]).select(request.ids).rows(choice.key)
        return tuple(map(choice.score, rows))

    def _save(self, save: Save) -> None:
        """Copy now, write behind the work."""
        self._works("save", f"copying {save.role} after step {save.step}")
        if save.export:
            self._fault("export.begin")
        self._writers.save(save, self._index(save.role), self._host.snapshot(save.role))
        self._mailbox.idle()

    def _index(self, role: str) -> int:
        """The place of this worker among those of the role's home."""
        return self._plan.home(role).ranks.index(self._args.rank)

    def _move(self, move: Move) -> None:
        replica = ModelName(move.role, move.replica)
        what = f"moving version {move.version} of {move.role} to {replica}"
        self._works("move", what, move.version, str(replica))
        self._fault("move.begin")
        started = time.monotonic()
        arrived = self._host.move(replica, move.version)
        seconds = time.monotonic() - started
        self._mailbox.idle()
        self._fault("move.end")
        self._mailbox.post(Moved(move.id, self._args.rank, arrived.home, arrived.replica, seconds))

    def _leave(self, code: ExitCode) -> ExitCode:
        self._mailbox.script.close()
        self._writers.close()
        self._host.close()
        self._mailbox.close()
        self._log.close()
        return code
