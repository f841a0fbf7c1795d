"""Runs that are disturbed and resumed until they are done, and what is left of them to compare."""

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from support.archives import archives, kept_files
from support.cluster import Jobs, alive_of, no_fault, start
from support.faults import Strike, Strikes
from support.made_parts import made_in, under_way_in

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.model import PlacementConfig
from hpcrl.data.user_code import NO_CODE, UserCode
from hpcrl.durable.checkpoints import read_shard
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Adopted, Done, Trained, decode_line, parse
from hpcrl.durable.records import KeyPair
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import steps_in
from hpcrl.inspect.lines import parse as parse_row
from hpcrl.inspect.reader import merged_metrics
from hpcrl.master.allocation import Allocation
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.recipes.toy import ToyConfig, ToyExperiment
from hpcrl.wire.channel import RunKey

K = TypeVar("K")
MOST_RESUMES = 8


def toy_experiment(steps: int = 5, delay_s: float = 0.0, **cluster: Any) -> ToyExperiment:
    """Two workers; actor and reference on both, critic on one, reward on the other: calls overlap."""
    fast = {"heartbeat_s": 0.1, "lost_after_s": 0.8, "orphan_timeout_s": 1.0, "replace_timeout_s": 0.2, "grace_s": 5.0}
    fast["start_timeout_s"] = 3.0
    return ToyExperiment(
        control=ControlConfig(steps=steps, checkpoint=Frequency(steps=2), evaluate=Frequency(steps=3)),
        cluster=ClusterConfig(device="cpu", **(fast | cluster)),
        toy=ToyConfig(rows=20, batch_size=8, delay_s=delay_s),
        critic=PlacementConfig(mesh="1", layout="d1"),
        reward=PlacementConfig(mesh="0", layout="d1"),
    )


def patient_experiment(steps: int = 5, delay_s: float = 0.0, **cluster: Any) -> ToyExperiment:
    """One whose attempts are counted: nobody is missed only because the machine has much to do."""
    return toy_experiment(steps, delay_s, **({"lost_after_s": 60.0, "start_timeout_s": 60.0} | cluster))


def create_run(root: Path, experiment: ExperimentConfig, code: UserCode = NO_CODE) -> RunDirectory:
    key = RunKey.generate()
    return RunDirectory.create(
        root,
        experiment=to_dict(experiment),
        host=algorithm_of(experiment).host,
        key=KeyPair(key.public.decode(), key.secret.decode()),
        inputs={},
        code=code,
    )


def whole_run(folder: Path, experiment: ExperimentConfig) -> RunDirectory:
    """A run that nothing has disturbed: nobody is missed in it only because the machine has much to do."""
    cluster = experiment.cluster
    lost_after_s, start_timeout_s = max(cluster.lost_after_s, 10.0), max(cluster.start_timeout_s, 60.0)
    patient = replace(cluster, lost_after_s=lost_after_s, start_timeout_s=start_timeout_s)
    run = create_run(folder / "run", replace(experiment, cluster=patient))
    assert finish(run) == [0], outputs(run)
    return run


def whole_runs(
    factory: pytest.TempPathFactory, experiment_of: Callable[[K], ExperimentConfig]
) -> Callable[[K], RunDirectory]:
    """Such runs by what their experiments are made of; each runs when it is first asked for."""
    return functools.cache(lambda of: whole_run(factory.mktemp("whole"), experiment_of(of)))


@dataclass(frozen=True)
class Remains:
    """What has to be the same however often a run was disturbed."""

    parameters: dict[str, bytes]
    state: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    ids: dict[int, tuple[str, ...]]
    """Step → the samples that it drew."""
    trained: dict[int, tuple[str, ...]]
    """Step → those that it trained on."""
    archives: dict[int, bytes] = field(default_factory=dict, compare=False)
    """Step → its archive. Compared on their own: what was made elsewhere may differ in last bits."""


def finish(
    run: RunDirectory, fault: Callable[[str], None] = no_fault, timeout_s: float = 120.0, nodes: int = 1
) -> list[int]:
    """Start the run and resume it until it is done; returns the exit codes of its masters.

    As `hpcrl resume` does, what is left of the jobs before is killed before the next are started.
    """
    codes = []
    for attempt in range(MOST_RESUMES):
        jobs = begin(run, f"s{attempt}", fault, nodes=nodes)
        codes.append(jobs.wait_for("master", timeout_s))
        if codes[-1] == 0:
            jobs.wait(timeout_s)
            return codes
        jobs.kill_all()
    raise AssertionError(f"not done after {MOST_RESUMES} submissions: {codes}\n{outputs(run)}")


def ends_alike(
    run: RunDirectory,
    undisturbed: "Remains",
    *strikes: Strike,
    told: Callable[[Callable[[str], None]], Callable[[str], None]] = lambda strikes: strikes,
    timeout_s: float = 90.0,
) -> None:
    """The last of the strikes came, and the run that was resumed left the same bits, no part made twice, and nobody.

    `told` has the strikes told of more points than there are (`Phased`)."""
    finish(run, told(Strikes(strikes)), timeout_s)
    assert strikes[-1].marker.exists(), "the strike never came: the test tests nothing"
    assert remains(run) == undisturbed, outputs(run)
    assert archives(run) == undisturbed.archives, outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []


@contextlib.contextmanager
def waking(run: RunDirectory, stopped: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Whoever was stopped continues once that was noticed: an attempt has ended for it, or its master is missed."""
    over = threading.Event()

    def watch() -> None:
        while not stopped():
            if over.wait(0.05):
                return
        before = run.newest_attempt()
        while not _has_missed_somebody(run, before) and not over.wait(0.05):
            pass
        for pid in stopped():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _has_missed_somebody(run: RunDirectory, attempt: int | None) -> bool:
    """Whether the attempt is over, or an agent has given up its master."""
    if attempt is None or run.newest_attempt() != attempt or run.read_verdict(attempt) is not None:
        return True
    logs = run.logs(attempt).glob("agent-*.jsonl")
    return any(row["event"] == "master lost" for path in logs for row in rows_of(path))


def remains(run: RunDirectory, damaged: bool = False) -> Remains:
    """Read offline, as anybody could. Only where a test has damaged files may some be damaged."""
    experiment = experiment_from(run.configuration())
    recovery = plan_next_attempt(run, plan_for(experiment).changes)
    assert recovery.checkpoint is not None, recovery.describe()
    assert damaged or not recovery.damage, recovery.damage
    parameters: dict[str, bytes] = {}
    state: dict[str, Any] = {}
    for role, shards in recovery.checkpoint.roles.items():
        for rank, shard in enumerate(shards):
            arrays, state[f"{role}.{rank}"] = read_shard(run.root / shard.name)
            parameters |= {f"{role}.{rank}.{name}": array.tobytes() for name, array in arrays.items()}
    events = [line.event for line in read_history(run).lines]
    steps = steps_in(event for event in events if event is not None)
    ids = {step: lines.ids for step, lines in steps.items()}
    trained = {step: lines.trained for step, lines in steps.items()}
    return Remains(parameters, state, tuple(merged_metrics(run)), ids, trained, kept_files(run))


def started_twice(run: RunDirectory) -> list[str]:
    """Units that an attempt started although it had adopted their lines, replays of train steps apart."""
    found = []
    for attempt in run.numbers():
        if not run.has_adopted(attempt):
            continue
        adopted = decode_line(run.files.read(run.adopted(attempt)))
        assert isinstance(adopted, Adopted)
        finished = set()
        for prefix in adopted.prefixes:
            data = run.files.read(run.journal(prefix.attempt))[: prefix.size]
            for _, event in parse(data):
                if isinstance(event, Done):
                    finished.add((event.step, event.call, event.part))
                elif isinstance(event, Trained):
                    finished.add((event.step, event.call, 0))
        made = {(it.step, it.call, it.span.part) for it in made_in(run, attempt) if not it.span.replay}
        made |= {(it.step, it.call, it.part) for it in under_way_in(run, attempt) if not it.replay}
        found += [f"attempt {attempt}: {unit}" for unit in sorted(made & finished)]
    return found


def outputs(run: RunDirectory) -> str:
    """All that the processes of a run have said, for a failed test's message."""
    texts = [f"── {path.name}\n{path.read_text()}" for path in sorted(run.root.parent.glob("*.log"))]
    for attempt in run.numbers():
        verdict = run.read_verdict(attempt)
        texts.append(f"── attempt {attempt}: {msgspec.to_builtins(verdict) if verdict else 'no verdict'}")
        texts += [f"── {path.name}\n{path.read_text()}" for path in sorted(run.logs(attempt).glob("*.err"))]
    return "\n".join(text for text in texts if text.strip())


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The events of a log."""
    if not path.exists():
        return []
    return [row for line in path.read_text().splitlines() if (row := parse_row(line)) is not None]


def wait_until(look: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """What `look` gives as soon as it is true. Looking takes a tenth of a core: the rest is for what is waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = _processor_s()
        if found := look():
            return found
        time.sleep(min(max(0.01, 9 * (_processor_s() - before)), 1.0))
    raise AssertionError(f"{what} did not come within {timeout_s:g} s")


def _processor_s() -> float:
    """What this thread has taken, and children that have ended. Time without a processor counts for nothing: who then
    waits nine times as long misses what is there for a moment."""
    times = os.times()
    return time.thread_time() + times.children_user + times.children_system


def workers_of(run: RunDirectory) -> list[int]:
    """Process ids of the workers that are alive: who has a worker's output file open."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/1")
            if target.startswith(str(run.attempts)) and "/worker-" in target:
                found.add(int(pid))
    return sorted(found)


@contextlib.contextmanager
def held(run: RunDirectory) -> Iterator[None]:
    """The run gets no further meanwhile: its workers are stopped. Its `lost_after_s` must be longer than that."""
    stopped = workers_of(run)
    assert stopped, "the run has ended: it lasts too short to be held"
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def process_of(run: RunDirectory, job: str) -> int:
    """The process below submitit's that runs hpcrl."""
    controller = int(run.submissions()[-1].jobs[job])
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(controller)], capture_output=True, text=True).stdout
    return int(children.split()[0])


def begin(
    run: RunDirectory,
    submission: str,
    fault: Callable[[str], None] = no_fault,
    allocation: Allocation | None = None,
    nodes: int = 1,
) -> Jobs:
    """Start a submission whose process ids strikes can find."""
    (run.root.parent / "pids").unlink(missing_ok=True)
    jobs = start(run.root, submission, fault, nodes, allocation)
    jobs.write_pids(run.root.parent / "pids")
    return jobs


def kill_once(run: RunDirectory, role: str, point: str, nth: int) -> None:
    """Start a run, kill all of it where one of its processes comes to a point for the nth time."""
    strike = Strike(run.root.parent, "kill", role, point, "KILL", "all", nth)
    jobs = begin(run, "first", strike)
    jobs.wait_for("master", 90)
    jobs.kill_all()
    assert strike.marker.exists(), "the strike never came: the test tests nothing"
