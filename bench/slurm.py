"""What hpcrl costs on Slurm: a submit, a start, a killed worker, a preemption, a requeue. On the test cluster."""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo_runs import ROOT, last_demo, moment
from figures import Figure, median
from recovery import trained_in

sys.path.insert(0, str(ROOT / "tests"))

from support import slurm_cluster
from support.chaos import rows_of, started_twice
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl, toy_values

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader
from hpcrl.launch.slurm.commands import Slurm
from hpcrl.launch.slurm.launcher import SlurmLauncher
from hpcrl.launch.slurm.submission import read_intent

TIMES = 3
STEPS = 400


def slurm(work: Path, demos: Path) -> list[Figure]:
    """Raises NotHere where this machine cannot have the cluster."""
    slurm_cluster.up()
    with slurm_cluster.hold(work) as cluster:
        return [*_submit(cluster, work), *_life(cluster, work, demos)]


def _submit(cluster: SlurmCluster, work: Path) -> list[Figure]:
    """The client's side of `hpcrl submit`, and how often it asks Slurm."""
    costs = []
    for number in range(TIMES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        cluster.directory = work / f"submit-{time.time_ns()}-{number}"
        cluster.directory.mkdir()
        run = SlurmRun.submit(cluster, toy_values("low"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        hpcrl(cluster, "stop", str(run.run.root), "--now")
    commands = Slurm(cluster.env)
    launcher = SlurmLauncher(commands)
    submission = launcher.start(run.run, f"{time.time_ns():016x}")
    asked = dict(commands.calls)
    launcher.end(run.run, submission)
    detail = f"{TIMES} submits, {min(costs):.2f} … {max(costs):.2f} s; Python's own start included"
    calls = ", ".join(f"{name} {count}" for name, count in sorted(asked.items()))
    return [
        Figure("client cost of `hpcrl submit`", median(costs), "CPU s", "", detail),
        Figure("calls of Slurm in a submit", sum(asked.values()), "", "≤ 5", calls),
    ]


def _life(cluster: SlurmCluster, work: Path, demos: Path) -> list[Figure]:
    """One run of the demo's PPO on two nodes: its start, a killed worker, a preempted node, a requeued master."""
    demo = last_demo(demos).root.parent
    model = max((demo / "sft/export/actor").glob("step-*"))
    root = work / time.strftime("run-%Y%m%d-%H%M%S")
    settings = {
        "data.train": demo / "train.jsonl", "data.evaluate": demo / "test.jsonl", "actor.path": model,
        "critic.path": model, "reference.path": model, "control.steps": STEPS, "cluster.slurm.partition": "low",
        "cluster.workers_per_node": 1, "cluster.slurm.cpus_per_worker": 4, "cluster.topology": "array",
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    hpcrl(cluster, "submit", str(ROOT / "examples/addition/ppo.yaml"), "--nodes", "2", "--run-dir", str(root), *words)
    run = SlurmRun(cluster, RunDirectory.open(root))
    run.wait_steps(2)
    figures = _start(run)
    figures.append(_until_trained(run, "SIGKILL of a worker → next train step", 10.0, lambda: run.kill("worker-1")))
    figures += _preempted(cluster, run)
    figures += _requeued(run)
    hpcrl(cluster, "stop", str(root), "--now")
    again = started_twice(run.run)
    figures.append(Figure("finished calls that were made again", len(again), "", "≤ 0", "; ".join(again)))
    return figures


def _start(run: SlurmRun) -> list[Figure]:
    """From sbatch to the first train step, by what it went to."""
    sent = read_intent(run.run, run.run.submissions()[0].nonce).time
    events = rows_of(run.run.events(0))
    began, ready = moment(events, "attempt", min), moment(events, "ready", min)
    nodes = moment(events, "node", max)
    trained = min(at for at, _, _ in trained_in(run.run))
    parts = {
        "queue, srun and the master's import": began - sent,
        "the agents' import and rendezvous": nodes - began,
        "workers forked, models loaded": ready - nodes,
        "first evaluation, generation and inference": trained - ready,
    }
    detail = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())
    return [Figure("sbatch → first train step", trained - sent, "s", "", detail)]


def _until_trained(run: SlurmRun, what: str, target: float, disturb: Callable[[], Any]) -> Figure:
    found = []
    for _ in range(TIMES):
        begun = time.time()
        disturb()
        found.append(_next_train_step(run, begun) - begun)
        run.wait_steps(1)
    detail = f"{TIMES} times, {min(found):.1f} … {max(found):.1f} s"
    return Figure(what, median(found), "s", f"≤ {target:g}", detail)


def _preempted(cluster: SlurmCluster, run: SlurmRun) -> list[Figure]:
    begun = time.time()
    with cluster.preempt(run.element_away_from_master(2)):
        trained = _next_train_step(run, begun)
    agent = max(row["time"] for row in _events(run) if row["event"] == "node")
    detail = f"{agent - begun:.1f} s of it until Slurm had started the node's job again elsewhere"
    return [Figure("preemption of a node → next train step", trained - begun, "s", "", detail)]


def _requeued(run: SlurmRun) -> list[Figure]:
    """Our own part of a requeue: from the batch script's second start to the next train step."""
    (master,) = run.jobs("master")
    begun = time.time()
    run.cluster.requeue(master)
    trained = _next_train_step(run, begun)
    started = run.cluster.run(["squeue", "-h", "-j", master, "-o", "%S"]).stdout.strip()
    overhead = trained - time.mktime(time.strptime(started, "%Y-%m-%dT%H:%M:%S"))
    detail = f"{trained - begun:.1f} s in all, the rest is Slurm's hold of a requeued job"
    return [Figure("requeue of the master → next train step, without Slurm's hold", overhead, "s", "≤ 20", detail)]


def _next_train_step(run: SlurmRun, since: float, patience_s: float = 120.0) -> float:
    """When the actor's next train step that is no replay was executed in an attempt that began since."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        begun = [at for at in (it.activity.began for it in RunReader(run.run).attempts.values()) if at and at > since]
        trained = (at for at, _, replay in trained_in(run.run) if begun and not replay and at > min(begun))
        if (first := min(trained, default=None)) is not None:
            return first
        time.sleep(0.1)
    raise TimeoutError(f"no train step within {patience_s:g} s")


def _events(run: SlurmRun) -> list[dict[str, Any]]:
    """All events, with the number of their attempt and when it began."""
    found = []
    for number in run.run.numbers():
        rows = rows_of(run.run.events(number))
        began = min((row["time"] for row in rows if row["event"] == "attempt"), default=0.0)
        found += [row | {"attempt": number, "began": began} for row in rows]
    return found
