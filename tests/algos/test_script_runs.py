"""PPO as a script, on real processes with models: what the graph computes, to the bit, also when it is killed."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import advantages_script, ppo_script, repeated_script, surprise_script
from support.archives import archives, kept_rows
from support.chaos import remains, whole_run
from support.covering import covering
from support.hosts import write_task
from support.struck_layouts import Blow, check_struck, exported
from support.tiny_ppo import tiny_ppo

from hpcrl.config.control import Frequency
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.rundir import RunDirectory

ALGORITHM = f"{Path(ppo_script.__file__)}:ALGORITHM"
LAYOUTS: dict[str, dict[str, Any]] = {
    "one worker": {"nodes": 1, "workers": 1},
    "d2": {"nodes": 1, "workers": 2},
    "t2 and a copy": {
        "nodes": 1,
        "workers": 2,
        "actor": {"layout": "t2"},
        "calls": {"actor_gen": {"layout": "d2"}},
    },
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def experiment(task: Path, layout: str) -> Any:
    own = dict(LAYOUTS[layout])
    made = tiny_ppo(task, nodes=own.pop("nodes"), workers=own.pop("workers"))
    places = {role: replace(getattr(made, role), **section) for role, section in own.items() if role != "calls"}
    return replace(made, **places, calls=own.get("calls", {}))


def scripted(of: ExperimentConfig) -> Any:
    return replace(of, algorithm=ALGORITHM)


@pytest.fixture(scope="module")
def whole(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """The script's run in a layout that nothing has disturbed; made when it is first asked for."""
    return cache(lambda layout: whole_run(tmp_path_factory.mktemp("whole"), scripted(experiment(task, layout))))


@pytest.mark.parametrize("layout", [pytest.param(it, marks=() if it == "d2" else pytest.mark.slow) for it in LAYOUTS])
def test_a_script_computes_what_the_graph_does(
    task: Path, tmp_path: Path, whole: Callable[[str], RunDirectory], layout: str
) -> None:
    graph, script = whole_run(tmp_path, experiment(task, layout)), whole(layout)
    theirs, ours = remains(graph), remains(script)
    assert ours.parameters == theirs.parameters and ours.state == theirs.state
    assert ours.metrics == tuple(row for row in theirs.metrics if row["step"])
    assert ours.ids == {step: ids for step, ids in theirs.ids.items() if step}
    assert exported(script) == exported(graph)
    assert archives(script) == {step: found for step, found in archives(graph).items() if step}


BLOWS = [
    Blow("worker-2", "script.ask", 9),
    Blow("worker-0", "worker.call", 9),
    Blow("master", "master.turn", 3),
    Blow("master", "master.ask", 11, "all"),
]


@pytest.mark.parametrize("blow", covering(BLOWS, lambda blow: blow.target), ids=lambda blow: f"{blow.who}-{blow.point}")
def test_a_script_of_models_that_is_killed_ends_with_the_same_bits(
    task: Path, tmp_path: Path, whole: Callable[[str], RunDirectory], blow: Blow
) -> None:
    check_struck(tmp_path, scripted(experiment(task, "d2")), blow, whole("d2"))


SURPRISE = f"{Path(surprise_script.__file__)}:ALGORITHM"


def asking(task: Path, layout: str) -> Any:
    made = experiment(task, layout)
    control = replace(made.control, steps=2, evaluate=Frequency(), check_digests=True)
    return replace(made, algorithm=SURPRISE, control=control)


def logged(run: RunDirectory, name: str) -> list[float]:
    return [row[f"script/{name}"] for row in remains(run).metrics]


def test_a_registered_method_of_a_model_gives_in_each_layout_what_one_worker_does_killed_or_not(
    task: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("one", "d2", "t2")]
    for folder in folders:
        folder.mkdir()
    one, d2, t2 = (whole_run(folder, asking(task, layout)) for folder, layout in zip(folders, LAYOUTS, strict=True))
    for run, workers in ((one, 1), (d2, 2), (t2, 2)):
        assert max(logged(run, "gap")) < 1e-4 and logged(run, "betas") == [0, 0]
        assert logged(run, "begun") == [workers, workers]
        assert logged(run, "surprise") == pytest.approx(logged(one, "surprise"), rel=1e-4)
        assert logged(run, "beta") == pytest.approx(logged(one, "beta"), rel=1e-4)
    check_struck(tmp_path, asking(task, "d2"), Blow("worker-1", "worker.executed", 4), d2)


ADVANTAGES = f"{Path(advantages_script.__file__)}:ALGORITHM"


@pytest.mark.parametrize(
    ("layout", "whitens"),
    [*(pytest.param(*it, marks=pytest.mark.slow) for it in [("one worker", True), ("d2", False)]), ("d2", True)],
)
def test_advantages_that_a_script_computes_are_the_roles_own(
    task: Path, tmp_path: Path, layout: str, whitens: bool
) -> None:
    """To the bit, but where whitening is over several parts, whose sums the graph adds up; there in float64. The weight
    of the KL follows the samples that count: those that were cut do not."""
    of = experiment(task, layout)
    if apart := layout != "one worker" and whitens:
        sections = {role: replace(getattr(of, role), dtype="fp64") for role in ("actor", "critic", "reference")}
        of = replace(of, **sections)
    section = replace(of.ppo, whiten_advantages=whitens, cut="mask")
    of = replace(of, ppo=section, control=replace(of.control, steps=3))
    graph, script = (tmp_path / name for name in ("graph", "script"))
    graph.mkdir()
    script.mkdir()
    theirs = remains(whole_run(graph, of))
    ours = remains(whole_run(script, replace(of, algorithm=ADVANTAGES)))
    own = [{name: value for name, value in row.items() if name != "script/apart"} for row in ours.metrics]
    assert any(0 < row["actor_train/counted"] < 1 for row in own)
    assert max(abs(row["script/apart"]) for row in ours.metrics) < 1e-9
    if not apart:
        assert {row["script/apart"] for row in ours.metrics} == {0.0}
        assert ours.parameters == theirs.parameters and ours.state == theirs.state
        assert own == [row for row in theirs.metrics if row["step"]]
    for row, expected in zip(own, (row for row in theirs.metrics if row["step"]), strict=True):
        assert row == pytest.approx(expected, rel=1e-9, abs=1e-12)


REPEATED = f"{Path(repeated_script.__file__)}:ALGORITHM"


@pytest.mark.slow
def test_prompts_that_a_script_repeats_are_those_of_several_samples_killed_or_not(task: Path, tmp_path: Path) -> None:
    """To the bit; the rewards that it has renamed too."""
    of = experiment(task, "d2")
    of = replace(of, control=replace(of.control, steps=3))
    graph, script = (tmp_path / name for name in ("graph", "script"))
    graph.mkdir()
    script.mkdir()
    theirs = whole_run(graph, replace(of, data=replace(of.data, samples_per_prompt=2)))
    repeating = replace(of, algorithm=REPEATED)
    ours = whole_run(script, repeating)
    assert remains(ours).parameters == remains(theirs).parameters and remains(ours).state == remains(theirs).state
    assert exported(ours) == exported(theirs)
    kept = [{(step, name): rows for step, name, rows in kept_rows(run) if step} for run in (ours, theirs)]
    assert kept[0].keys() == kept[1].keys() and len(kept[0]) == 40
    for name, rows in kept[1].items():
        assert {key: kept[0][name][key] for key in ("responses", "advantages", "logprobs")} == {
            key: rows[key] for key in ("responses", "advantages", "logprobs")
        }
    check_struck(tmp_path, repeating, Blow("worker-0", "worker.call", 9), ours)
