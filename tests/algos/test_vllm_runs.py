"""Runs whose responses a server beside the workers makes, on real processes: the bits of one without it, also after
kills. The server's vLLM is a stand-in with hpcrl's own sampler, so that bits can be compared; test_vllm_real.py has
vLLM itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, finish, outputs, remains, whole_run, whole_runs
from support.hosts import write_task
from support.serving import served, servers_alive, shared, stand_in_python, talking
from support.struck_layouts import Blow, check_struck

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.placement.plan import read_plan
from hpcrl.recipes.ppo import PPOExperiment

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], RunDirectory]:
    """On so many workers, which generate by themselves."""
    return whole_runs(tmp_path_factory, lambda workers: served(task, {"backend": "native"}, f"d{workers}", workers))


@pytest.mark.slow
def test_a_run_has_the_bits_of_one_that_generates_itself(
    undisturbed: Callable[[int], RunDirectory], task: Path, tmp_path: Path
) -> None:
    python = stand_in_python(tmp_path)
    run = whole_run(tmp_path, served(task, {"backend": "vllm", "python": python, "layout": "d2"}, "d2", 2))
    assert remains(run) == remains(undisturbed(2))
    assert run.numbers() == [0]
    assert servers_alive() == []


@pytest.mark.slow
def test_a_server_makes_all_turns_of_a_response(task: Path, tmp_path: Path) -> None:
    """Whoever places the first turn has placed the others, and so in evaluations; none is longer than it may be."""
    for name in ("without", "with"):
        (tmp_path / name).mkdir()
    whole = whole_run(tmp_path / "without", talking(served(task, {"backend": "native"}), task, least=3))
    entry = {"backend": "vllm", "python": stand_in_python(tmp_path)}
    run = whole_run(tmp_path / "with", talking(served(task, entry), task, least=3))
    assert remains(run) == remains(whole)
    plan = read_plan(run, 0)
    assert {call: at.replica for call, at in plan.at.items() if call.endswith("_gen")} == dict.fromkeys(
        ("actor_gen", "actor_turn2_gen", "actor_turn3_gen", "eval_gen", "eval_turn2_gen", "eval_turn3_gen"), 1
    )
    rows = [row for row in remains(run).metrics if row["step"]]
    key = "actor_turn3_gen/response_length"
    lengths = [float(row[key]) for row in rows if key in row]
    assert lengths and all(0 < length < 20 for length in lengths)


def cut(made: PPOExperiment, **generation: Any) -> PPOExperiment:
    """With responses that are drawn three tokens at a time."""
    return replace(made, generation=replace(made.generation, segment=3, max_new_tokens=8, slots=6, **generation))


PIECES: dict[str, tuple[int, dict[str, Any]]] = {
    "in flight": (0, {"in_flight": 6}),
    "by newer actors": (1, {"refresh": 1}),
}


@pytest.mark.parametrize("how", ["in flight", pytest.param("by newer actors", marks=SLOW)])
def test_the_likeliest_tokens_are_those_of_a_run_that_generates_itself_a_segment_at_a_time(
    task: Path, tmp_path: Path, how: str
) -> None:
    """Also where a text ends with a string over a cut. A draw would have another seed after each cut."""
    lag, generation = PIECES[how]
    entry = {"backend": "vllm", "python": stand_in_python(tmp_path)}
    found = []
    for name, given in (("without", {"backend": "native"}), ("with", entry)):
        (tmp_path / name).mkdir()
        made = cut(served(task, given), greedy=True, stop=("3", "7"), min_new_tokens=2, **generation)
        found.append(remains(whole_run(tmp_path / name, replace(made, lag=lag))))
    assert found[0] == found[1]


def test_segments_of_responses_in_flight_are_drawn_by_a_server_that_is_killed_with_the_same_bits(
    task: Path, tmp_path: Path
) -> None:
    """When two of the responses of its third round have come."""
    (tmp_path / "whole").mkdir()
    experiment = cut(served(task, {"backend": "vllm", "python": stand_in_python(tmp_path)}), in_flight=6)
    whole = whole_run(tmp_path / "whole", experiment)
    blow = Blow("worker-0", "hear.end", 2, "server", after=("worker-0", "ask.begin", 3))
    check_struck(tmp_path, experiment, blow, whole)
    assert "generating with vLLM" in RunDirectory(tmp_path / "run").events(0).read_text()
    rows = [row for row in remains(whole).metrics if row["step"]]
    assert rows[0]["rounds"] == 3 and max(row["carried"] for row in rows) > 0
    assert servers_alive() == []


def pids(run: RunDirectory) -> list[set[int]]:
    """Of the servers of each attempt, as its agent tells."""
    logs = run.root.glob("attempts/*/logs/agent-0.jsonl")
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    forked = [line for line in lines if line["event"] == "forked" and line["ranks"]]
    told = {line["attempt"]: set(line["servers"].values()) for line in forked}
    return [told[attempt] for attempt in run.numbers()]


def test_a_server_that_is_killed_begins_another_attempt_with_the_same_bits(
    undisturbed: Callable[[int], RunDirectory], task: Path, tmp_path: Path
) -> None:
    """First while it reads weights, then while it generates."""
    faults = tmp_path / "faults"
    faults.mkdir()
    for point in ("load", "generate"):
        (faults / point).write_text("SIGKILL")
    python = stand_in_python(tmp_path, faults)
    run = create_run(tmp_path / "run", served(task, {"backend": "vllm", "python": python}))
    assert finish(run) == [ExitCode.DONE], outputs(run)
    assert sorted(path.name for path in faults.iterdir()) == ["generate.done", "load.done"]
    assert remains(run) == remains(undisturbed(1)), outputs(run)
    told = [run.events(attempt).read_text() for attempt in run.numbers()]
    assert "giving vLLM new weights" in told[0] and "generating with vLLM" in told[1] and len(told) == 3
    assert not set.intersection(*pids(run)[:2]) and servers_alive() == []
    assert not [pid for told in pids(run) for pid in told if shared(pid).exists()]


@SLOW
def test_a_server_that_does_nothing_is_as_one_that_is_gone(
    undisturbed: Callable[[int], RunDirectory], task: Path, tmp_path: Path
) -> None:
    """Stopped while it generates: for as long as workers may make no progress in starting, halved."""
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / "generate").write_text("SIGSTOP")
    experiment = served(task, {"backend": "vllm", "python": stand_in_python(tmp_path, faults)})
    patient = replace(experiment, cluster=replace(experiment.cluster, start_timeout_s=30.0))
    run = create_run(tmp_path / "run", patient)
    assert finish(run) == [ExitCode.DONE], outputs(run)
    assert remains(run) == remains(undisturbed(1)), outputs(run)
    first, second = pids(run)
    assert not first & second and servers_alive() == []
    assert "it has done nothing for 15 s" in run.events(0).read_text()


@pytest.mark.slow
def test_a_server_outlives_the_worker_that_it_serves(
    undisturbed: Callable[[int], RunDirectory], task: Path, tmp_path: Path
) -> None:
    python = stand_in_python(tmp_path)
    experiment = served(task, {"backend": "vllm", "python": python})
    check_struck(tmp_path, experiment, Blow("worker-0", "worker.executed", 3), undisturbed(1))
    first, second = pids(RunDirectory(tmp_path / "run"))
    assert first == second and len(first) == 1


BLOWS = {
    "while weights are written": Blow("worker-0", "give.begin", 15),
    "while weights are moved": Blow("worker-0", "move.begin", 2),
    "in a backward pass": Blow("worker-0", "backward.begin", 5),
    "the agent": Blow("worker-0", "worker.executed", 7, "agent-0"),
    "all": Blow("master", "journal.after", 14, "all"),
}


@SLOW
@pytest.mark.parametrize("name", BLOWS)
def test_a_run_that_is_struck_ends_with_the_same_bits(
    undisturbed: Callable[[int], RunDirectory], task: Path, tmp_path: Path, name: str
) -> None:
    python = stand_in_python(tmp_path)
    check_struck(tmp_path, served(task, {"backend": "vllm", "python": python}), BLOWS[name], undisturbed(1))
    assert servers_alive() == []
