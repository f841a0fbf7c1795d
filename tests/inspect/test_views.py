"""Views as values, and as a terminal, JSON and CSV have them."""

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from support.made_run import MadeRun, ended_run, ppo_row

from hpcrl.cli import inspect
from hpcrl.config.cluster import ClusterConfig
from hpcrl.durable.resources import GpuUse, NodeUse, WorkerUse
from hpcrl.durable.resources import encode as encode_use
from hpcrl.errors import ConfigurationError
from hpcrl.events import AgentConnected, StepOpened, WorkersReady
from hpcrl.figures import Figures, Seconds
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import show
from hpcrl.inspect.utilisation import newest_peaks
from hpcrl.inspect.views.memory import CallMemory, Memory, memory
from hpcrl.inspect.views.resources import NodePeak, Resources, WorkerPeak, resources
from hpcrl.inspect.views.settings import Settings
from hpcrl.inspect.views.steps import Steps, steps
from hpcrl.inspect.views.stragglers import Stragglers, stragglers
from hpcrl.inspect.views.summary import Summary, summary
from hpcrl.inspect.views.timeline import Timeline
from hpcrl.inspect.views.why import Why
from hpcrl.progress import PartExecuted, PartSent


@pytest.mark.parametrize("columns", [30, 80])
def test_a_narrow_terminal_cuts_no_number(tmp_path: Path, columns: int) -> None:
    view = steps(RunReader(ended_run(tmp_path / "run").run))
    out = io.StringIO()
    show(view, Console(file=out, width=columns, force_terminal=True, color_system=None))
    said = out.getvalue()
    assert "…" not in said and all(f"{step.metrics['rew_inf/reward']:.3f}" in said for step in view.steps[1:])
    (head,) = (line for line in said.splitlines() if line.split()[:2] == ["step", "attempt"])
    assert said.count("actor_gen") == said.count("actor_train") == len(view.steps), head


def test_steps_have_their_calls_and_metrics(tmp_path: Path) -> None:
    view = steps(RunReader(ended_run(tmp_path / "run").run))
    assert [step.step for step in view.steps] == list(range(61)) and view.missing == []
    assert {step.attempt for step in view.steps[:26]} == {0} and {step.attempt for step in view.steps[26:]} == {1}
    step = view.steps[10]
    assert (step.samples, step.tokens, step.seconds) == (32, 200, 0.5) and step.metrics == ppo_row(10)
    assert {call.name: (call.parts, call.tokens, call.replays) for call in step.calls} == {
        "actor_gen": (2, 200, 0),
        "actor_train": (1, 0, 0),
    }


def test_a_step_has_the_tokens_that_an_earlier_attempt_had_generated_for_it(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 4)
    made.write(StepOpened(5, 0, 32))
    made.execute(5, "actor_gen", 0, [0], tokens=300)
    made.begin()
    made.write(StepOpened(5, 0, 32))
    made.execute(5, "actor_gen", 1, [1], tokens=100)
    made.close(5, ppo_row(5))
    assert steps(RunReader(made.run)).steps[5].tokens == 400


def test_a_step_whose_row_a_kill_has_taken_is_said_to_be_missing(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 4)
    lines = made.run.costs(0).read_bytes().splitlines(keepends=True)
    made.run.costs(0).write_bytes(b"".join(lines[:3] + lines[4:]))
    view = steps(RunReader(made.run))
    assert view.missing == [3] and [step.step for step in view.steps] == [0, 1, 2, 4]


def use_of(made: MadeRun, *looks: NodeUse) -> None:
    """What the agent of node 0 has written."""
    path = made.run.node_resources(made.attempt, 0)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(encode_use(look) for look in looks))


def slow_run(root: Path, nodes: int = 4) -> MadeRun:
    """Worker 2, on node n002, takes three times as long to generate as the others."""
    made = MadeRun(root)
    made.begin(ready=False)
    workers = [{"node": rank, "devices": ["cpu"]} for rank in range(nodes)]
    calls = [{"name": "actor_gen", "role": "actor"}]
    made.run.plan(0).write_bytes(msgspec.json.encode({"workers": workers, "calls": calls}))
    for node in range(nodes):
        made.write(AgentConnected(node, f"n{node:03d}", 1, welcome=True))
    use_of(made, NodeUse(made.time, "n000", (WorkerUse(0, 77, 5 * 2**30, 9.0),)))
    made.write(WorkersReady(nodes, {"Some CPU": nodes}, {"fp32": 1e9}, {"actor_gen": 3.0 * 2**30}))
    for step in range(1, 11):
        made.write(StepOpened(step, 0, 32))
        for rank in range(nodes):
            made.follow(PartSent(step, "actor_gen", rank, (rank,)))
        for rank in range(nodes):
            seconds = 3.0 if rank == 2 else 1.0 + 0.01 * (rank == step % nodes)
            figures = Figures(Seconds(execute=seconds), flops=1e8, peak=2**30 + rank)
            told = (seconds, seconds, False, 9, rank, seconds, {rank: figures})
            made.follow(PartExecuted(step, "actor_gen", rank, (rank,), *told))
        made.close(step, ppo_row(step))
    return made


def test_who_is_waited_for_is_named_with_the_node(tmp_path: Path) -> None:
    view = stragglers(RunReader(slow_run(tmp_path / "run").run))
    (slow,) = view.workers
    assert (slow.worker, slow.node, slow.slowest, slow.calls, slow.attempts) == (2, "n002", 10, 10, [0])
    assert slow.waited_s == pytest.approx(20, abs=0.1) and view.exclude == "n002"


def test_of_two_nodes_none_is_to_be_excluded(tmp_path: Path) -> None:
    """Which of them is the odd one, nobody can say."""
    assert stragglers(RunReader(slow_run(tmp_path / "three", nodes=3).run)).exclude == "n002"
    made = MadeRun(tmp_path / "even")
    made.begin()
    made.steps(0, 3)
    assert stragglers(RunReader(made.run)) == Stragglers([], "")


def test_utilisation_is_that_of_the_time_of_a_call_and_of_a_step(tmp_path: Path) -> None:
    """In a step four workers do 4e8 operations in 6 s of their own; each could do 1e9 a second."""
    reader = RunReader(slow_run(tmp_path / "run").run)
    view = steps(reader)
    (call,) = view.steps[3].calls
    assert call.figures is not None and call.of_slowest is not None and call.of_slowest.seconds.execute == 3.0
    assert call.mfu == pytest.approx(4e8 / (6.01 * 1e9)) and view.steps[3].mfu == pytest.approx(4e8 / (0.5 * 4 * 1e9))
    assert view.peak == "0.001 TFLOP/s, what a worker's CPU (Some CPU) did in a trial in fp32"
    whole = summary(reader)
    assert whole.calls[0].mfu == pytest.approx(4e9 / (60.1 * 1e9), rel=1e-3)
    assert whole.speed.mfu == pytest.approx(4e9 / (4 * whole.speed.seconds * 1e9)) and whole.speed.peak == view.peak


@pytest.mark.parametrize(
    ("hardware", "cluster", "peak", "said"),
    [
        ("NVIDIA H100 80GB HBM3", {}, 66.9, "66.9 TFLOP/s, dense fp32 of NVIDIA H100 80GB HBM3"),
        ("Tesla V100-SXM2-32GB", {}, 15.7, "15.7 TFLOP/s, dense fp32 of Tesla V100-SXM2-32GB"),
        ("Vendor X1", {}, None, "the peak of Vendor X1 in fp32 is not known: set cluster.peak_tflops"),
        ("Vendor X1", {"peak_tflops": 400.0}, 400.0, "400 TFLOP/s, as cluster.peak_tflops says"),
    ],
)
def test_a_peak_is_the_makers_or_the_settings(
    tmp_path: Path, hardware: str, cluster: dict[str, float], peak: float | None, said: str
) -> None:
    made = MadeRun(tmp_path / "run", cluster=ClusterConfig(type="local", **cluster))
    made.begin(ready=False)
    made.run.plan(0).write_bytes(msgspec.json.encode({"workers": [], "calls": [{"name": "train", "role": "actor"}]}))
    made.write(WorkersReady(8, {hardware: 8}))
    peaks = newest_peaks(RunReader(made.run))
    assert peaks.by_call == ({} if peak is None else {"train": peak * 1e12}) and peaks.said.startswith(said)
    assert peaks.whole({"train": 8e12}, 10.0) == (None if peak is None else pytest.approx(1 / peak / 10))


def test_a_run_that_measured_nothing_has_no_utilisation(tmp_path: Path) -> None:
    view = summary(RunReader(ended_run(tmp_path / "run").run))
    assert view.speed.mfu is None and view.speed.peak == "" and {call.mfu for call in view.calls} == {None}


def test_memory_is_what_was_expected_and_what_was_in_use(tmp_path: Path) -> None:
    view = memory(RunReader(slow_run(tmp_path / "run").run))
    assert view.calls == [CallMemory("actor_gen", 3.0 * 2**30, 2**30 + 3)] and "process" in view.counted


def test_resources_are_peaks_with_what_was_left(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    gib = 2**30

    def gpu(used: int, busy: int) -> tuple[GpuUse]:
        return (GpuUse("GPU-1", used * gib, 80 * gib, busy),)

    def worker(rss: int, cpu_s: float) -> tuple[WorkerUse]:
        return (WorkerUse(0, 7, rss * gib, cpu_s),)

    use_of(
        made,
        NodeUse(10.0, "n0", worker(2, 1.0), gpu(9, 40), 3 * gib, 8 * gib, 90),
        NodeUse(20.0, "n0", worker(5, 16.0), gpu(1, 80), 6 * gib, 8 * gib, 70, 0.5),
        NodeUse(30.0, "n0", worker(1, 31.0), (), 2 * gib, 8 * gib, 80, 0.1),
    )
    with open(made.run.node_resources(0, 0), "a") as file:
        file.write('{"time": 40.0, "ho')
    view = resources(RunReader(made.run))
    assert view.nodes == [NodePeak(0, 0, "n0", 3, 6 * gib, 8 * gib, 0.25, 70, 0.5)]
    assert view.workers == [WorkerPeak(0, 0, 0, "n0", 5 * gib, 1.5, 9 * gib, 80 * gib, pytest.approx(0.6))]


def test_what_the_kernel_does_not_say_is_left_out(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    assert resources(RunReader(made.run)) == Resources([], [])
    use_of(made, NodeUse(10.0, "n0", (WorkerUse(1, 7, 100, 1.0),)))
    view = resources(RunReader(made.run))
    assert view.nodes == [NodePeak(0, 0, "n0", 1, None, None, None, None, 0.0)]
    assert view.workers == [WorkerPeak(0, 1, 0, "n0", 100, None, None, None, None)]


VIEWS: dict[str, Any] = {
    "summary": Summary,
    "steps": Steps,
    "timeline": Timeline,
    "memory": Memory,
    "why": Why,
    "resources": Resources,
    "settings": Settings,
    "stragglers": Stragglers,
}

ELSEWHERE = ("diff", "audit", "report")
"""Views that need another run, journals or a file, with tests of their own."""

SHOWN = {
    "summary": "actor_gen",
    "steps": "actor_gen 100%",
    "timeline": "actor_gen",
    "memory": "3.00 GiB",
    "why": "No attempt ended early",
    "resources": "5.00 GiB",
    "settings": "data.batch_size",
    "stragglers": "--cluster.slurm.exclude n002",
}


@pytest.mark.parametrize("name", VIEWS)
def test_each_view_is_json_of_its_type_and_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = slow_run(tmp_path / "run").run.root
    assert inspect.run([str(root), name, "--json"]) == 0
    view = msgspec.json.decode(capsys.readouterr().out, type=VIEWS[name])
    assert inspect.run([str(root), name]) == 0
    text = capsys.readouterr().out
    assert SHOWN[name] in text
    if name in ("summary", "timeline", "why", "settings"):
        with pytest.raises(ConfigurationError, match=f"The view {name} is no table"):
            inspect.run([str(root), name, "--csv"])
        return
    assert inspect.run([str(root), name, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    table, column, first = {
        "steps": ("steps", "step", "1"),
        "memory": ("calls", "name", "actor_gen"),
        "resources": ("workers", "rss", str(5 * 2**30)),
        "stragglers": ("workers", "node", "n002"),
    }[name]
    assert len(rows) == len(getattr(view, table)) and rows[0][column] == first


def test_a_view_that_there_is_not_names_those_that_there_are(tmp_path: Path) -> None:
    root = str(slow_run(tmp_path / "run").run.root)
    with pytest.raises(ConfigurationError, match="stepz is no view") as error:
        inspect.run([root, "stepz"])
    names = str(error.value).partition("There are: ")[2].rstrip(".\n").split(", ")
    assert names == [*VIEWS, *ELSEWHERE] and {inspect.run([root, name]) for name in VIEWS} == {0}


def test_looking_writes_nothing(tmp_path: Path) -> None:
    root = ended_run(tmp_path / "run").run.root
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for view in VIEWS:
        inspect.run([str(root), view])
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
