"""What a step opens with, and what another number of workers makes of it."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
from support.chaos import toy_experiment

from hpcrl.config.model import PlacementConfig
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.durable.journal import Opened
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.schedule import RunSchedule
from hpcrl.master.stepping import StepSource, open_data
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.toy import ToyExperiment


def at_once(work: Callable[[], None]) -> Future[None]:
    """In place of a thread."""
    done: Future[None] = Future()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done


def source_of(experiment: ToyExperiment, in_background: Callable[..., Future[None]] = at_once) -> StepSource:
    plan = plan_for(experiment)
    schedule = RunSchedule(experiment.control, algorithm_of(experiment).evaluates(experiment))
    return StepSource(plan, experiment, open_data(experiment, ScratchIndexes()), schedule, in_background, {})


def on(workers: int) -> ToyExperiment:
    """Actor and reference on all, critic and reward on the first."""
    one = PlacementConfig(mesh="0", layout="d1")
    return dataclasses.replace(toy_experiment(workers_per_node=workers), critic=one, reward=one)


def steps(source: StepSource, last: int = 3) -> list[Opened]:
    found: list[Opened] = []
    while len(found) <= last:
        opened = source.open(len(found), StepLines(found[-1]) if found else None)
        assert opened is not None
        found.append(opened)
    return found


def test_a_step_says_in_how_many_parts_its_calls_are_made() -> None:
    opened = steps(source_of(on(3)))[1]
    assert opened.calls == {
        "actor_gen": 3, "rew_inf": 1, "ref_inf": 3, "critic_inf": 1, "actor_train": 1, "critic_train": 1
    }  # fmt: skip


def test_a_train_step_is_shared_out_among_as_many_parts_as_there_are_by_what_its_samples_have_become() -> None:
    few, many = source_of(on(2)), source_of(on(4))
    opened = steps(few)[1]
    made = [1 + (7 * place) % 60 for place in range(len(opened.ids))]
    assert "4" not in opened.partitions
    shares = many.shares(StepLines(opened), "actor_train", made, 4)
    assert (
        shares
        == few.shares(StepLines(opened), "actor_train", made, 4)
        != few.shares(StepLines(opened), "actor_train", [0] * len(made), 4)
    )
    assert sorted(sum(shares, ())) == sorted(opened.ids)
    assert few.parts(StepLines(opened), "actor_train") == [opened.ids]


def test_parts_that_the_step_was_opened_with_are_kept_word_for_word() -> None:
    source = source_of(on(2))
    opened = steps(source)[1]
    uneven = msgspec.structs.replace(opened, partitions={"2": ((0,), tuple(range(1, len(opened.ids))))})
    assert source.parts(StepLines(uneven), "actor_gen") == [opened.ids[:1], opened.ids[1:]]
    assert source.parts(StepLines(opened), "actor_gen") != [opened.ids[:1], opened.ids[1:]]
