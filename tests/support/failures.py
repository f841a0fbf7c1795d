"""Failures of real processes, each with what `why` is to say of it: the verdict, and who began it."""

import ctypes
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.allocations import EndsAt
from support.chaos import begin, create_run, outputs, patient_experiment, toy_experiment, wait_until
from support.cluster import Jobs, no_fault
from support.connections import cut
from support.faults import Ordering, Strike, Strikes
from support.hosts import write_task
from support.memory_group import TAKES_ALL, Hog, InGroup, memory_group
from support.tiny_ppo import tiny_ppo

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import PeerLostError
from hpcrl.inspect.verdicts import Kind
from hpcrl.inspect.views.why import Cause, causes_of
from hpcrl.master.allocation import EVERYTHING
from hpcrl.master.attempt import END_MARGIN_S

Fault = Callable[[str], None]
LIMIT_S = 90.0


@dataclass(frozen=True)
class Scene:
    """Where a failure is made."""

    folder: Path
    run: RunDirectory

    def strike(self, role: str, point: str, what: str, target: str = "self", nth: int = 1, **more: Any) -> Strike:
        return Strike(self.folder, "strike", role, point, what, target, nth, **more)


@dataclass(frozen=True)
class Failure:
    """`experiment` prepares the folder; `fault` is given to all processes; `meanwhile` acts from outside."""

    name: str
    kind: Kind
    who: str | None
    """None: anybody, as on a full disk."""
    fault: Callable[[Scene], Fault] = lambda _: no_fault
    experiment: Callable[[Path], ExperimentConfig] = lambda _: patient_experiment()
    meanwhile: Callable[[Scene, Jobs], None] = lambda scene, jobs: None
    spoil: Callable[[Path], None] = lambda _: None
    """After the run was made, before it begins."""
    around: Callable[[Path], Any] = lambda _: nullcontext()
    """What has to be there meanwhile: a group for the agents, perhaps."""
    allocation: Callable[[], Any] = lambda: None
    mentions: str = ""
    """What the cause's text has to have."""


def made(failure: Failure, folder: Path) -> tuple[Cause | None, str]:
    """Run into it; the cause of its first attempt's end, or of its start's, and a picture for a failed test."""
    with failure.around(folder) as group:
        run = create_run(folder / "run", failure.experiment(folder))
        failure.spoil(folder)
        scene = Scene(folder, run)
        fault = failure.fault(scene)
        if group is not None:
            fault = Strikes((InGroup(group), fault))
        jobs = begin(run, "first", fault, failure.allocation())
        try:
            failure.meanwhile(scene, jobs)
            jobs.wait_for("master", LIMIT_S)
        finally:
            for name in jobs.processes:
                if jobs.processes[name].exitcode is None:
                    os.kill(jobs.pid(name), signal.SIGCONT)
            jobs.kill_all()
        causes = causes_of(run)
        cause = causes[-1] if causes else None
        return cause, picture(failure, run, cause)


def is_right(failure: Failure, cause: Cause | None) -> bool:
    text = "" if cause is None else f"{cause.said}\n{cause.frames}\n{cause.where}"
    told = cause is not None and cause.kind == failure.kind and failure.who in (None, cause.who)
    return told and failure.mentions in text


def picture(failure: Failure, run: RunDirectory, cause: Cause | None) -> str:
    return f"{failure.name}: expected {failure.kind} by {failure.who!r}, got {cause}\n{outputs(run)}"


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass
class Raises(Strike):
    """Raises what a library might: gpu, memory, peer."""

    error: str = ""

    def _strike(self) -> None:
        if self.error == "gpu":
            import torch

            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if self.error == "memory":
            raise MemoryError
        raise PeerLostError((0, 1), "all_reduce", 1, 1, RuntimeError("Connection reset by peer"))


class Breaks(Strike):
    """Raises what nobody has foreseen."""

    def _strike(self) -> None:
        raise ZeroDivisionError("float division by zero")


class Crash(Strike):
    """Reads where nothing is."""

    def _strike(self) -> None:
        ctypes.string_at(0)


@dataclass
class AtOneself(Strike):
    """Sends itself a signal that Strike has no name for."""

    number: int = 0

    def _strike(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(60)


@dataclass
class CutsOff(Strike):
    """All TCP connections between the workers are cut, though each of them lives."""

    def _strike(self) -> None:
        pids = [self._worker(path.stem) for path in self.folder.glob("worker-*.pid")]
        assert len(pids) > 1 and cut(pids), pids


def raises(error: str) -> Callable[[Scene], Fault]:
    return lambda scene: Raises(scene.folder, "strike", "worker-1", "worker.call", "", nth=5, error=error)


def cuts_off(scene: Scene) -> Fault:
    return CutsOff(scene.folder, "strike", W1, "worker.call", "", nth=3)


def struck(role: str, point: str, what: str, target: str = "self", nth: int = 1) -> Callable[[Scene], Fault]:
    return lambda scene: scene.strike(role, point, what, target, nth)


def ordered(command: Any) -> Callable[[Scene], Fault]:
    return lambda scene: Ordering(
        scene.run, scene.strike("master", "journal.after", "ORDER", nth=4), Command(command, "first")
    )


@contextmanager
def small_disk(where: Path) -> Iterator[None]:
    """A disk of its own for a run, which is soon full. Skips the test where none can be made."""
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(where)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def hog(scene: Scene) -> Fault:
    return Hog(scene.folder, "hog", "worker-1", "worker.call", "KILL", nth=5)


def signalled(name: str, number: signal.Signals) -> Callable[[Scene, Jobs], None]:
    def send(scene: Scene, jobs: Jobs) -> None:
        wait_until(lambda: scene.run.journal(0).exists(), 60, "the first attempt")
        time.sleep(1.0)
        os.kill(jobs.pid(name), number)

    return send


# ── what is run ───────────────────────────────────────────────────────────────────────────────────────────────────────
def toy(**cluster: Any) -> Callable[[Path], ExperimentConfig]:
    return lambda _: toy_experiment(**cluster)


def two_workers(folder: Path) -> ExperimentConfig:
    write_task(folder)
    limits = {"lost_after_s": 30.0, "start_timeout_s": 60.0, "orphan_timeout_s": 30.0}
    return tiny_ppo(folder, steps=1, nodes=1, workers=2, **limits)


def no_gpu(_folder: Path) -> ExperimentConfig:
    made = patient_experiment()
    return dataclasses.replace(made, cluster=dataclasses.replace(made.cluster, device="cuda"))


def slow_toy(**cluster: Any) -> Callable[[Path], ExperimentConfig]:
    return lambda _: patient_experiment(steps=200, delay_s=0.05, **cluster)


def tiny(reward: str = "", timeout_s: float = 60.0, **more: Any) -> Callable[[Path], ExperimentConfig]:
    """PPO on a worker of models, with this reward function."""

    def write(folder: Path) -> ExperimentConfig:
        write_task(folder)
        if reward:
            (folder / "reward.py").write_text(reward)
        limits = {"lost_after_s": 30.0, "start_timeout_s": 60.0, "orphan_timeout_s": 30.0} | more
        made = tiny_ppo(folder, steps=1, nodes=1, workers=1, **limits)
        return dataclasses.replace(made, reward=dataclasses.replace(made.reward, timeout_s=timeout_s))

    return write


def scoring(body: str) -> Callable[[Path], ExperimentConfig]:
    return tiny(f"import os, sys, time\n\ndef ones(prompt, response, row):\n    {body}\n")


def cut_short(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def bad_line(folder: Path) -> None:
    path = folder / "rows.jsonl"
    path.write_text(path.read_text().replace('{"prompt"', '{"prompt', 1))


W1 = "worker-1"
QUICK = [
    Failure("a worker is killed", "node failure", W1, struck(W1, "worker.call", "KILL", nth=5)),
    Failure("the master is killed", "node failure", "master", struck("master", "journal.after", "KILL", nth=9)),
    Failure("code raises", "user's code", W1, struck(W1, "worker.call", "RAISE", nth=6), mentions="divided by zero"),
    Failure("no room for a spill", "disk", "worker-0", struck("worker-0", "spill.write", "FULL", nth=3)),
    Failure("hpcrl stop", "cancelled", "", ordered("stop")),
    Failure(
        "a reward raises", "user's code", "worker-0", experiment=scoring("return row['label']"), mentions="'label'"
    ),
]  # fmt: skip
SLOW = [
    Failure("an agent is killed", "node failure", "agent-0", struck("master", "journal.after", "KILL", "agent-0", 9),
            toy(start_timeout_s=60.0, steps=500)),
    Failure("an agent is stopped", "node failure", "agent-0", struck("master", "journal.after", "STOP", "agent-0", 9),
            toy(start_timeout_s=60.0, steps=500)),
    Failure("a worker is stopped", "hang", W1, struck(W1, "worker.call", "STOP", nth=9), toy(lost_after_s=3.0)),
    Failure("a worker crashes in the user's code", "user's code", W1,
            lambda scene: Crash(scene.folder, "strike", W1, "worker.call", "", nth=5), mentions="failures.py"),
    Failure("a worker aborts", "user's code", W1, lambda scene: AtOneself(
        scene.folder, "strike", W1, "worker.call", "", nth=5, number=signal.SIGABRT)),
    Failure("code exits", "user's code", W1, struck(W1, "worker.call", "EXIT", nth=6), mentions="SystemExit"),
    Failure("a worker finds no room as it starts", "disk", "worker-0", struck("worker-0", "worker.start", "FULL")),
    Failure("no room for a shard", "disk", "worker-0", struck("worker-0", "shard.write", "FULL")),
    Failure("no room for the journal", "disk", "master", struck("master", "journal.before", "FULL", nth=7)),
    Failure("no room for a manifest", "disk", "master", struck("master", "manifest.write", "FULL")),
    Failure("the disk is full", "disk", None, experiment=slow_toy(), around=lambda folder: small_disk(folder / "run")),
    Failure("a GPU is full", "GPU memory", W1, raises("gpu")),
    Failure("an allocation fails", "host memory", W1, raises("memory")),
    Failure("the kernel kills a worker for memory", "host memory", W1, hog,
            toy(lost_after_s=20.0, start_timeout_s=60.0, orphan_timeout_s=20.0),
            around=lambda _: memory_group(512 << 20)),
    Failure("the kernel kills a reward for memory", "host memory", "worker-0",
            experiment=tiny("def ones(prompt, response, row):\n" + TAKES_ALL), around=lambda _: memory_group(1 << 30)),
    Failure("a connection breaks", "communication", W1, raises("peer")),
    Failure("connections between workers of models break", "communication", None, cuts_off, two_workers,
            mentions="Connection"),
    Failure("SIGTERM to the master", "preempted", "", experiment=slow_toy(),
            meanwhile=signalled("master", signal.SIGTERM)),
    Failure("SIGUSR1 to an agent", "preempted", "", experiment=slow_toy(),
            meanwhile=signalled("agent-0", signal.SIGUSR1)),
    Failure("the allocation ends", "time limit", "", experiment=slow_toy(),
            allocation=lambda: EndsAt(EVERYTHING, time.time() + END_MARGIN_S + 3.0)),
    Failure("every attempt is killed", "node failure", "worker-0", lambda scene: scene.strike(
        "worker-0", "worker.call", "KILL", always=True), mentions="SIGKILL"),
    Failure("hpcrl stop --drain", "cancelled", "", ordered("drain")),
    Failure("hpcrl stop --finish", "cancelled", "", ordered("finish")),
    Failure("a worker does not start", "hang", "", struck("worker-0", "worker.start", "SLEEP"), toy(lost_after_s=60.0)),
    Failure("a node does not come", "node failure", "", experiment=toy(nodes=2)),
    Failure("no GPU is there", "configuration", "", experiment=no_gpu),
    Failure("a reward returns no number", "user's code", "worker-0", experiment=scoring("return 'one'")),
    Failure("a reward returns NaN", "user's code", "worker-0", experiment=scoring("return float('nan')")),
    Failure("a reward hangs", "user's code", "worker-0", mentions="took longer than 2 s", experiment=tiny(
        "import time\n\ndef ones(prompt, response, row):\n    time.sleep(60)\n", timeout_s=2.0)),
    Failure("a reward ends its process", "user's code", "worker-0", experiment=scoring("os._exit(3)")),
    Failure("a reward cannot be imported", "user's code", "worker-0", experiment=tiny("import no_such_module\n"),
            mentions="no_such_module"),
    Failure("a reward runs out of memory", "host memory", "worker-0", experiment=scoring("raise MemoryError")),
    Failure("the data vanishes", "data", "master", experiment=tiny(),
            spoil=lambda folder: (folder / "rows.jsonl").unlink(), mentions="rows.jsonl"),
    Failure("a line of the data is bad", "data", "master", experiment=tiny(), spoil=bad_line, mentions="rows.jsonl"),
    Failure("a model is cut short", "data", "worker-0", experiment=tiny(), spoil=cut_short("model/model.safetensors"),
            mentions="model"),
    Failure("a tokenizer is damaged", "data", "master", experiment=tiny(), spoil=cut_short("model/tokenizer.json")),
]  # fmt: skip
