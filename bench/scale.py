"""What a master of 128 nodes costs. `make scale` prints it, beside what recovery of a long run does.

The master is the real one, in a process of its own, with its sockets, keys, journal and disk. Its 128 agents and 1,024
workers are emulated (`emulated.py`).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from children import PATHS
from emulated import BEAT_S
from figures import Figure
from long_runs import long_runs

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.experiment import to_dict
from hpcrl.config.model import PlacementConfig
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.master.reactor import EARLY
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.toy import ToyConfig, ToyExperiment
from hpcrl.wire.channel import RunKey

STEPS, CHECKPOINT_EVERY = 5, 2
LOSES_IN = 4
"""The step in which a node is lost, the last one."""
LIMIT_S = 240.0
PROCESSES = 2
POLL_S = 0.02
MASTER = """
import sys
from pathlib import Path
from hpcrl.config.cluster import Abilities
from hpcrl.master.master import run_master
from hpcrl.wire.address import LOOPBACK_ONLY
sys.exit(run_master(Path(sys.argv[1]), "first", lambda point: None, LOOPBACK_ONLY, Abilities(replaces_nodes=True)))
"""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Size:
    """Of what is emulated: every role is on all workers, tensor parallel within a node."""

    nodes: int = 128
    workers: int = 8
    rows: int = 4096
    """Of a step."""

    @property
    def experiment(self) -> ToyExperiment:
        everywhere = PlacementConfig(layout=f"d{self.nodes}t{self.workers}")
        cluster = ClusterConfig(
            device="cpu", nodes=self.nodes, workers_per_node=self.workers, heartbeat_s=BEAT_S, lost_after_s=30.0
        )
        return ToyExperiment(
            control=ControlConfig(steps=STEPS, checkpoint=Frequency(steps=CHECKPOINT_EVERY)),
            cluster=cluster,
            toy=ToyConfig(rows=self.rows * STEPS, batch_size=self.rows),
            actor=everywhere,
            critic=everywhere,
            reference=everywhere,
            reward=everywhere,
        )


FULL = Size()


def scale(work: Path, size: Size = FULL) -> list[Figure]:
    """A run of five steps that loses a node in the fourth: `work/run`."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    run, begun = _created(work / "run", size.experiment), time.monotonic()
    with _processes(run, work, size.nodes) as master:
        seen = _watched(run, work, master)
    gaps = [json.loads(told.read_text()) for told in work.glob("gap-*")]
    return [*_figures(seen, gaps), Figure("all of it", time.monotonic() - begun, "s")]


def _created(root: Path, wanted: ToyExperiment) -> RunDirectory:
    key = RunKey.generate()
    return RunDirectory.create(
        root,
        experiment=to_dict(wanted),
        host=algorithm_of(wanted).host,
        key=KeyPair(key.public.decode(), key.secret.decode()),
        inputs={},
    )


@contextmanager
def _processes(run: RunDirectory, work: Path, nodes: int) -> Iterator[subprocess.Popen[bytes]]:
    """The master and those who emulate its members."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    commands = [[sys.executable, "-c", MASTER, str(run.root)]]
    emulated, each = str(Path(__file__).parent / "emulated.py"), -(-nodes // PROCESSES)
    for first in range(0, nodes, each):
        which = [str(first), str(min(first + each, nodes)), str(work / f"gap-{first}"), str(nodes - 1), str(LOSES_IN)]
        commands.append([sys.executable, emulated, str(run.root), *which])
    with (work / "said.log").open("wb") as log:
        started = [subprocess.Popen(command, env=environment, stdout=log, stderr=log) for command in commands]
        try:
            yield started[0]
            for process in started:
                process.wait(30)
        finally:
            for process in started:
                process.send_signal(signal.SIGKILL)
                process.wait()


class Seen:
    """What happened when, and what the master's process had used by then."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.cpu_s: list[float] = []
        self.lost_at = 0.0
        self.peak_mib = 0.0

    def of(self, name: str) -> list[tuple[dict[str, Any], float]]:
        return [(row, cpu) for row, cpu in zip(self.events, self.cpu_s, strict=True) if row["event"] == name]


def _watched(run: RunDirectory, work: Path, master: subprocess.Popen[bytes]) -> Seen:
    """Follow the events."""
    seen, read, deadline = Seen(), dict[int, int](), time.monotonic() + LIMIT_S
    while master.poll() is None and time.monotonic() < deadline:
        used = _used(master.pid)
        seen.peak_mib = max(seen.peak_mib, _peak_mib(master.pid))
        for number in run.numbers():
            path = run.events(number)
            whole = path.read_bytes() if path.exists() else b""
            fresh = whole[read.get(number, 0) : whole.rfind(b"\n") + 1]
            read[number] = read.get(number, 0) + len(fresh)
            for line in fresh.splitlines():
                seen.events.append(json.loads(line))
                seen.cpu_s.append(used)
        time.sleep(POLL_S)
    if master.poll() != 0:
        raise RuntimeError(f"the master did not end well: {master.poll()}; see {work / 'said.log'}")
    seen.lost_at = float((work / "lost").read_text())
    return seen


def _figures(seen: Seen, gaps: list[float]) -> list[Figure]:
    closed = {row["step"]: cpu for row, cpu in seen.of("closed")}
    at = {row["step"]: row["time"] for row, _ in seen.of("closed")}
    whole = [step for step in closed if step - 1 in closed and step != LOSES_IN]
    saved = [step for step in whole if (step - 1) % CHECKPOINT_EVERY == 0]
    alone = [step for step in whole if step not in saved]
    [first, second, *_] = seen.of("ready")
    due_s = EARLY * BEAT_S

    def used(step: int) -> float:
        return closed[step] - closed[step - 1]

    def took(step: int) -> float:
        return float(at[step] - at[step - 1])

    lost = next(row for row, _ in seen.of("ending") if row["time"] > seen.lost_at)
    return [
        Figure(
            "the master's CPU a PPO step",
            max(used(step) for step in alone),
            "s",
            "≤ 0.5",
            f"it took {_listed(took(step) for step in alone)} s with all that is emulated",
        ),
        Figure(
            "the same where a checkpoint is written beside it",
            max(used(step) for step in saved),
            "s",
            "",
            f"{_listed(used(step) for step in saved)} s, in {_listed(took(step) for step in saved)} s; a shard of both "
            "trained roles by each worker",
        ),
        Figure("its CPU from its start until all were ready", first[1], "s"),
        Figure("the longest gap between its beats", max(gaps), "s", "≤ 1", f"by its own clock; due every {due_s:g} s"),
        Figure(
            "from a node's loss until all are ready",
            second[0]["time"] - seen.lost_at,
            "s",
            "≤ 3",
            f"noticed after {lost['time'] - seen.lost_at:.1f} s",
        ),
        Figure("the master's memory", seen.peak_mib, "MiB"),
    ]


def _listed(seconds: Iterable[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)


def _used(pid: int) -> float:
    """CPU seconds of a process, all threads."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _peak_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


if __name__ == "__main__":
    folder = Path(__file__).parent.parent / "runs" / "scale"
    for figure in (*scale(folder / "members"), *long_runs(folder / "long")):
        value = "–" if figure.value is None else f"{figure.value:.3g} {figure.unit}"
        print(f"{figure.what}: {value} {figure.target and f'({figure.target}: {figure.verdict})'} {figure.detail}")
    shutil.rmtree(folder)
