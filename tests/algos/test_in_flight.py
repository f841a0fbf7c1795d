"""Responses in flight: drawn over rounds and steps by whichever actor is the newest, killed or not the same bits."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.archives import archives
from support.chaos import remains, whole_run
from support.choosing import events_of
from support.hosts import write_task
from support.struck_layouts import Blow, check_struck
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data
from transformers import AutoModelForCausalLM

from hpcrl.config.control import Frequency
from hpcrl.config.generation import GenerationConfig
from hpcrl.durable.archives import read_archive
from hpcrl.durable.journal import Done
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import StepLines, steps_in
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.policy import section_of

STEPS, SEGMENT, LONGEST = 5, 3, 8
CASES: dict[str, dict[str, Any]] = {
    "ppo": {"algorithm": "ppo", "actor": {"layout": "d2"}, "critic": {"layout": "d2"}},
    "ppo, on one worker": {"algorithm": "ppo", "actor": {"layout": "d1"}, "critic": {"layout": "d1"}},
    "drawn ahead by another worker": {
        "algorithm": "ppo", "lag": 1, "actor": {"mesh": "1", "layout": "d1"}, "critic": {"mesh": "1", "layout": "d1"},
        "calls": {"actor_gen": {"mesh": "0", "layout": "d1"}},
    },
    "drawn ahead, on one worker": {
        "algorithm": "ppo", "lag": 1, "actor": {"layout": "d1"}, "critic": {"layout": "d1"},
    },
    "tensor ranks": {"algorithm": "grpo", "actor": {"layout": "t2"}},
    "stages": {"algorithm": "rloo", "actor": {"layout": "p2"}},
    "sharded": {"algorithm": "reinforce_plus_plus", "actor": {"layout": "d2", "backend": "fsdp"}},
    "a greedy baseline": {"algorithm": "remax", "actor": {"layout": "d2"}, "max_age": 1},
}  # fmt: skip
CUT = ("tensor ranks", "stages", "sharded")
"""As models are cut makes no difference to what is chosen and carried: these run with the slow ones."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, rows=24)
    return folder


def experiment_of(task: Path, case: str, segment: int = SEGMENT, lr: float = 3e-3) -> Any:
    """Two responses to each of four prompts, of six in flight; in float64."""
    own = CASES[case]
    model = {"path": str(task / "model"), "dtype": "fp64"}
    values = {
        "algorithm": own["algorithm"],
        "data": {**vars(tiny_data(task)), "samples_per_prompt": 2},
        "actor": {**model, "optimizer": {"lr": lr}, **own["actor"]},
        "reference": model,
        "reward": {"function": f"{task / 'reward.py'}:ones"},
        "generation": {
            "max_new_tokens": LONGEST, "slots": 6, "segment": segment, "in_flight": 6, "max_age": own.get("max_age"),
            "stop": ("3", "7"),
        },
        "calls": own.get("calls", {}),
        **({"lag": own["lag"]} if "lag" in own else {}),
        **({"critic": {**model, **own["critic"]}} if "critic" in own else {}),
    }  # fmt: skip
    made = experiment_from(values)
    name, section = section_of(made)
    control = replace(tiny_control(STEPS), export=Frequency(steps=1))
    workers = 1 if case.endswith("one worker") else 2
    section = replace(section, minibatches=2)
    return replace(made, control=control, cluster=tiny_cluster(workers=workers), **{name: section})


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDirectory]:
    """Runs by case, each made when it is first asked for."""
    return cache(lambda *of: whole_run(tmp_path_factory.mktemp("whole"), experiment_of(task, *of)))


def steps_of(run: RunDirectory) -> dict[int, StepLines]:
    return {step: lines for step, lines in steps_in(events_of(run)).items() if step}


def trained(run: RunDirectory, step: int) -> dict[str, dict[str, np.ndarray]]:
    """Sample → key → row, of what a step has trained on."""
    [path] = (path for path in run.samples.rglob("*.h5") if f"step-{step:08d}" in str(path))
    sample = read_archive(path)[1]["train"]
    columns = {key: sample.rows(key) for key in sample.keys}
    return {name: {key: rows[i] for key, rows in columns.items()} for i, name in enumerate(sample.ids)}


def logprobs_of(model: Any, prompt: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Of each token of the response, by transformers."""
    tokens = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
    with torch.no_grad():
        every = model(tokens).logits[0].double().log_softmax(-1)
    places = range(len(prompt) - 1, len(prompt) + len(response) - 1)
    return np.array([float(every[at, token]) for at, token in zip(places, response.tolist(), strict=True)])


@pytest.mark.parametrize(
    "case",
    [
        "ppo",
        *(pytest.param(it, marks=pytest.mark.slow) for it in ("drawn ahead by another worker", "a greedy baseline")),
    ],
)
def test_each_token_is_by_the_actor_that_its_version_says(
    case: str, task: Path, undisturbed: Callable[..., RunDirectory]
) -> None:
    """Against the exports of each step: behind a token there may be a newer actor's, never an older one's."""
    run, lag = undisturbed(case), CASES[case].get("lag", 0)
    paths = {0: task / "model", **{step: run.export("actor", step) for step in range(1, STEPS)}}
    models = {step: AutoModelForCausalLM.from_pretrained(path) for step, path in paths.items()}
    several = 0
    for step, lines in steps_of(run).items():
        for sample, row in trained(run, step).items():
            versions, begun = row["versions"], lines.opened.begun.get(sample, step)
            assert list(versions) == sorted(versions) and len(versions) == len(row["responses"]) <= LONGEST
            assert versions[0] == max(0, begun - 1 - lag) and versions[-1] <= max(0, step - 1 - lag)
            assert row["finished"][0] or len(versions) == LONGEST
            several += len(set(versions.tolist())) > 1
            for version in set(versions.tolist()):
                own = versions == version
                expected = logprobs_of(models[version], row["prompts"], row["responses"])
                np.testing.assert_allclose(row["logprobs"][own], expected[own], atol=2e-5)
                if version == step - 1:
                    np.testing.assert_allclose(row["logprobs"][own], row["old_logprobs"][own], atol=1e-9)
    assert several, "no response is of two actors: the test tests nothing"


@pytest.mark.slow
def test_a_response_depends_on_no_round_and_no_step(undisturbed: Callable[..., RunDirectory]) -> None:
    """By an actor that hardly learns they are those that are drawn at once."""
    pieces, whole = undisturbed("ppo", SEGMENT, 1e-12), undisturbed("ppo", LONGEST, 1e-12)
    found = [
        {sample: row["responses"].tolist() for step in steps_of(run) for sample, row in trained(run, step).items()}
        for run in (pieces, whole)
    ]
    both = found[0].keys() & found[1].keys()
    assert len(both) > 20 and all(found[0][sample] == found[1][sample] for sample in both)
    assert any(len(lines.extended) for lines in steps_of(pieces).values())


@pytest.mark.parametrize("case", [pytest.param(it, marks=pytest.mark.slow if it in CUT else ()) for it in CASES])
def test_steps_train_on_the_first_prompts_to_end_and_carry_the_others(
    case: str, undisturbed: Callable[..., RunDirectory]
) -> None:
    run = undisturbed(case)
    lines, rows = steps_of(run), {row["step"]: row for row in remains(run).metrics}
    every = [sample for of_step in lines.values() for sample in of_step.trained]
    assert len(every) == len(set(every)) == STEPS * 8
    for step, of_step in lines.items():
        carried = {sample for each in of_step.carried for sample in each.ids}
        assert carried == set(of_step.ids) - set(of_step.trained)
        assert rows[step]["carried"] == len(carried) and rows[step]["rounds"] == len(of_step.rounds)
        assert 0 < rows[step]["actor_gen/open"] <= 1
    age = CASES[case].get("max_age")
    assert age is None or all(step - age <= since for step, of in lines.items() for since in of.opened.begun.values())


ALIKE = {"ppo": "ppo, on one worker", "drawn ahead by another worker": "drawn ahead, on one worker"}


@pytest.mark.parametrize("case", ALIKE)
def test_on_one_worker_it_is_the_same(case: str, undisturbed: Callable[..., RunDirectory]) -> None:
    ours, theirs = remains(undisturbed(case)), remains(undisturbed(ALIKE[case]))
    assert (ours.ids, ours.trained) == (theirs.ids, theirs.trained)
    for row, expected in zip(ours.metrics, theirs.metrics, strict=True):
        assert row == pytest.approx(expected, rel=1e-8, abs=1e-10)


AHEAD = "drawn ahead by another worker"
BLOWS = {
    "in a round": ("ppo", Blow("worker-0", "generate.end", 4)),
    "at the spill of one": ("ppo", Blow("worker-1", "spill.published", 6, "all")),
    "where rows are carried": (AHEAD, Blow("worker-0", "generate.end", 6)),
    "all of them, at the master's choice": (AHEAD, Blow("master", "master.choose", 8, "all")),
    "in the second step's training": ("ppo", Blow("worker-1", "minibatch.end", 4)),
    "at a checkpoint": (AHEAD, Blow("master", "manifest.published", 1, "all")),
}  # fmt: skip
FAST = ("where rows are carried",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in BLOWS])
def test_killed_it_ends_with_the_same_bits(
    name: str, task: Path, tmp_path: Path, undisturbed: Callable[..., RunDirectory]
) -> None:
    case, blow = BLOWS[name]
    check_struck(tmp_path, experiment_of(task, case), blow, undisturbed(case))


def test_what_is_in_flight_is_in_no_archive_before_it_is_trained_on(undisturbed: Callable[..., RunDirectory]) -> None:
    run = undisturbed("ppo")
    assert len(archives(run)) == STEPS + 1
    for step, lines in steps_of(run).items():
        assert set(trained(run, step)) == set(lines.trained)
    made = [event.call for event in events_of(run) if isinstance(event, Done) and event.step]
    assert "actor_gen_2" in made and "rew_inf_2" not in made


def test_generation_says_when_nothing_is_in_flight() -> None:
    assert GenerationConfig().in_flight is None and GenerationConfig().max_age is None
