"""Runs whose responses vLLM itself makes: its log-probabilities are hpcrl's, before and after updates, and a run is
made again to the bit. Skipped where `make vllm` has made no environment."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, finish, outputs
from support.serving import REAL, folders_of, served, servers_alive, talking, unmapped, write_served_task
from support.struck_layouts import Blow, check_struck

from hpcrl.config.model import LoraConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import merged_metrics
from hpcrl.recipes.ppo import PPOExperiment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(REAL is None, reason="vLLM is not here: make vllm"),
    pytest.mark.timeout(900),
]
MODELS: dict[str, dict[str, Any]] = {
    "qwen2 tied": {},
    "llama": {"family": "llama", "qkv_bias": False, "tied": False},
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Model → a task for it."""

    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp("task")
        write_served_task(folder, **MODELS[name])
        return folder

    return functools.cache(made)


def asked(task: Path, dtype: str = "fp32", layout: str = "d1", workers: int = 1) -> PPOExperiment:
    experiment = served(task, {"backend": "vllm", "python": REAL, "layout": layout}, f"d{workers}", workers)
    roles: dict[str, Any] = {"dtype": dtype}
    experiment = replace(
        experiment,
        cluster=replace(experiment.cluster, start_timeout_s=300.0, lost_after_s=20.0),
        actor=replace(experiment.actor, **roles),
        reference=replace(experiment.reference, **roles),
    )
    assert isinstance(experiment, PPOExperiment)
    return experiment


@pytest.fixture(scope="module")
def undisturbed(tasks: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole(tmp_path_factory.mktemp("whole"), asked(tasks("qwen2 tied")))


def whole(folder: Path, experiment: PPOExperiment) -> RunDirectory:
    run = create_run(folder / "run", experiment)
    assert finish(run, timeout_s=400) == [0], outputs(run)
    return run


def gaps(run: RunDirectory) -> list[float]:
    """Of each step: the mean distance of vLLM's log-probabilities from hpcrl's."""
    rows = [row for row in merged_metrics(run) if row["step"]]
    assert len(rows) == 4
    return [float(row["actor_train/logprob_gap"]) for row in rows]


def test_its_log_probabilities_are_ours_whatever_was_learnt(undisturbed: RunDirectory) -> None:
    assert max(gaps(undisturbed)) < 2e-6
    assert servers_alive() == []


def test_all_turns_of_a_response_are_of_it_and_none_is_too_long(tasks: Callable[[str], Path], tmp_path: Path) -> None:
    task = tasks("qwen2 tied")
    run = whole(tmp_path, talking(asked(task), task))
    assert max(gaps(run)) < 2e-6
    rows = [row for row in merged_metrics(run) if row["step"]]
    key = "actor_turn2_gen/response_length"
    lengths = [float(row[key]) for row in rows if key in row]
    assert lengths and all(0 < length < 20 for length in lengths)
    assert servers_alive() == []


def test_log_probabilities_of_segments_are_ours_too(tasks: Callable[[str], Path], tmp_path: Path) -> None:
    run = whole(tmp_path, cut(asked(tasks("qwen2 tied"))))
    assert max(gaps(run)) < 2e-6
    rows = [row for row in merged_metrics(run) if row["step"]]
    assert all(float(row["actor_gen_s02/open"]) > 0 for row in rows)


def cut(experiment: PPOExperiment, **generation: Any) -> PPOExperiment:
    """With responses that are drawn three tokens at a time."""
    own = replace(experiment.generation, segment=3, max_new_tokens=8, stop=("3", "7"), **generation)
    return replace(experiment, generation=own)


def test_responses_in_flight_are_the_same_where_their_server_is_killed(
    tasks: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    experiment = cut(asked(tasks("qwen2 tied")), in_flight=6)
    undisturbed = whole(tmp_path / "whole", experiment)
    assert max(int(row.get("carried", 0)) for row in merged_metrics(undisturbed)) > 0
    blow = Blow("worker-0", "hear.end", 2, "server", after=("worker-0", "ask.begin", 3))
    check(tmp_path, experiment, blow, undisturbed)


@pytest.mark.parametrize(("model", "dtype", "most"), [("llama", "fp32", 2e-6), ("qwen2 tied", "bf16", 0.05)])
def test_another_model_and_type(
    tasks: Callable[[str], Path], tmp_path: Path, model: str, dtype: str, most: float
) -> None:
    """An output matrix of its own, and bf16."""
    assert max(gaps(whole(tmp_path, asked(tasks(model), dtype)))) < most


TRAINED: dict[str, tuple[int, dict[str, Any]]] = {
    "adapters": (1, {"lora": LoraConfig(rank=4)}),
    "transformers": (1, {"model": "transformers"}),
    "fsdp": (2, {"backend": "fsdp"}),
}


@pytest.mark.parametrize("how", TRAINED)
def test_whoever_has_trained_the_model(tasks: Callable[[str], Path], tmp_path: Path, how: str) -> None:
    workers, values = TRAINED[how]
    experiment = asked(tasks("qwen2 tied"), layout=f"d{workers}", workers=workers)
    computed = {"model": values.get("model", "auto")}
    roles = {"actor": replace(experiment.actor, **values), "reference": replace(experiment.reference, **computed)}
    assert max(gaps(whole(tmp_path, replace(experiment, **roles)))) < 2e-6


def on_two(tasks: Callable[[str], Path]) -> PPOExperiment:
    """vLLM has a process for each worker of a part, beside its own."""
    return asked(tasks("llama"), layout="t2", workers=2)


@pytest.fixture(scope="module")
def undisturbed_on_two(tasks: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder, before = tmp_path_factory.mktemp("two"), unmapped()
    run = whole(folder, on_two(tasks))
    assert unmapped() - before == set() and folders_of(folder) == []
    return run


def test_two_workers_of_a_part_have_one_model(undisturbed_on_two: RunDirectory) -> None:
    assert max(gaps(undisturbed_on_two)) < 2e-6
    assert servers_alive() == []


def loading(target: str, what: str = "KILL") -> Blow:
    """When half of the files of weights, of which it reads one after another, have come."""
    return Blow("worker-0", "give.end", 8, target, what=what)


def generating(target: str, what: str = "KILL") -> Blow:
    """When two responses of its second generation have come."""
    return Blow("worker-0", "hear.end", 2, target, after=("worker-0", "ask.begin", 2), what=what)


BLOWS = {
    "while weights are written": Blow("worker-0", "give.begin", 15),
    "a worker": Blow("worker-0", "worker.executed", 3),
    "the agent": Blow("worker-0", "worker.executed", 7, "agent-0"),
    "the server as it loads": loading("server"),
    "the server as it generates": generating("server"),
    "a server that hangs": generating("server", "STOP"),
}


@pytest.mark.parametrize("name", BLOWS)
def test_a_run_that_is_struck_ends_with_the_same_bits(
    undisturbed: RunDirectory, tasks: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    check(tmp_path, asked(tasks("qwen2 tied")), BLOWS[name], undisturbed)


CHILDREN = {
    "as it loads": loading("server's child"),
    "as it generates": generating("server's child"),
    "hangs as it loads": loading("server's child", "STOP"),
    "hangs as it generates": generating("server's child", "STOP"),
    "its parent": generating("server"),
}


@pytest.mark.parametrize("name", CHILDREN)
def test_a_process_below_the_server_is_struck(
    undisturbed_on_two: RunDirectory, tasks: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    check(tmp_path, on_two(tasks), CHILDREN[name], undisturbed_on_two)


def check(folder: Path, experiment: PPOExperiment, blow: Blow, undisturbed: RunDirectory) -> None:
    """Also that nothing of vLLM is left, but by an agent that was killed: the next to start removes it."""
    before, cluster = unmapped(), experiment.cluster
    if blow.what == "STOP":
        experiment = replace(experiment, cluster=replace(cluster, start_timeout_s=60.0))
    check_struck(folder, experiment, blow, undisturbed, timeout_s=800.0)  # vLLM gives a step of its processes 300 s
    if blow.target.startswith("server"):
        loads, generates = "giving vLLM new weights", "generating with vLLM"
        told = RunDirectory(folder / "run").events(0).read_text()
        if blow.point.startswith("give"):
            assert loads in told
        else:  # what is stopped once all responses are made is missed when the server is asked next
            assert generates in told or (blow.what == "STOP" and loads in told)
    assert servers_alive() == []
    assert blow.target.startswith("agent") or (unmapped() - before == set() and folders_of(folder) == [])
