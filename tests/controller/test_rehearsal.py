"""The rehearsal as submit and plan have it: what it refuses, what it notes, and how it is left out."""

import re
import textwrap
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.experiments import load_config, write_config
from support.hosts import write_task
from support.tiny_ppo import tiny_ppo

from hpcrl.cli.main import main
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.experiment import to_dict
from hpcrl.config.kl import KLConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.controller import rehearsal
from hpcrl.controller.computations import Computations
from hpcrl.controller.rehearse import Order, rehearse
from hpcrl.controller.run import World, follow
from hpcrl.controller.stand_in import StandIn
from hpcrl.errors import ConfigurationError, ExitCode, UserCodeError
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.ppo import PPOConfig
from hpcrl.wire.script_messages import CallAsked, TurnBegun

SCRIPT = """
import os
import time
from dataclasses import replace

import numpy as np

from hpcrl.data.rows.vectors import VECTORS
from hpcrl.recipes import toy
from hpcrl.recipes.algorithm import computed, on_eval

CALLS = (
    *toy.CALLS,
    computed("doubled", ("y",), ("d",)),
    on_eval(computed("eval_doubled", ("y",), ("d",))),
)


def doubled(rows, by=2.0):
    return {"d": [by * row for row in rows["y"]]}


def loop(run, e):
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    run.state.setdefault("n", 0)
%s


TOY = replace(toy.ALGORITHM, script=loop, recipe=lambda e: CALLS, made={**toy.ALGORITHM.made, "d": VECTORS})
"""

FIRST = SCRIPT.partition("%s")[0].count("\n") + 1
"""The line of the body."""


def written(folder: Path, body: str) -> str:
    (folder / "loop.py").write_text(SCRIPT % textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 4))
    return f"{folder}/loop.py:TOY"


def experiment_of(folder: Path, body: str, steps: int = 8):
    name = written(folder, body)
    control = ControlConfig(steps=steps, evaluate=Frequency(steps=2))
    return algorithm_of(name).experiment(algorithm=name, control=control)


GOOD = """
for step in run.steps():
    batch = step.batch()
    batch = batch.union(actor.generate(batch))
    batch = batch.union(run.compute(doubled, batch, 3.0))
    np.testing.assert_array_equal(batch.fetch("d")["d"], 3 * np.array(batch.fetch("y")["y"]))
    run.state["n"] += batch.mean("d")
    step.log(n=run.state["n"])
    if step.evaluates:
        held_out = step.held_out()
        held_out = held_out.union(actor.generate(held_out))
        step.log(held_out=held_out.union(run.compute(doubled, held_out)).mean("d"))
"""


def test_a_script_that_keeps_its_state_passes_and_what_it_leaves_out_is_noted(tmp_path, monkeypatch):
    answered, numbers = rehearsal._answered, []
    monkeypatch.setattr(rehearsal, "_answered", lambda of, order: numbers.append(order.number) or answered(of, order))
    (note,) = rehearsal.rehearse(experiment_of(tmp_path, GOOD))
    assert "did not ask for actor_train, critic_inf, critic_train, eval_rew, ref_inf, rew_inf." in sorted_calls(note)
    assert numbers == [0, 1, 1], "who looks at no clock is rehearsed twice, and with no step left"


def sorted_calls(note: str) -> str:
    head, _, tail = note.partition("did not ask for ")
    calls, _, rest = tail.partition(". ")
    return f"{head}did not ask for {', '.join(sorted(calls.split(', ')))}. {rest}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True:\n    pass", "had not returned after 5 s"),
        ("os._exit(3)", f'failed in what comes before its loop.\n  File "{{folder}}/loop.py", line {FIRST}, in loop'),
        ("os.abort()", "its process ended with -6"),
        ("raise KeyboardInterrupt", "its process ended with 1"),
        ("import signal; signal.signal(2, print)", "ValueError: signal only works in main thread"),
        ("return", "it returned without a step. Loop over run.steps()."),
        ("yield 1", "The script has a yield"),
    ],
)
def test_a_script_that_gives_no_answer_is_told(tmp_path, body, said):
    with pytest.raises(ConfigurationError) as error:
        [*rehearsal.rehearse(experiment_of(tmp_path, body), limit_s=5.0 if "while" in body else 60.0)]
    assert said.replace("{folder}", str(tmp_path)) in str(error.value)
    if "while" in body:
        assert re.search(rf'loop\.py", line ({FIRST}|{FIRST + 1}) in loop', str(error.value))


@pytest.mark.parametrize(
    ("computation", "said"),
    [
        ("lambda rows: 1 / 0", "ZeroDivisionError"),
        ("lambda rows: run.rng('x').random()", "run.rng('x') is read by the computation doubled"),
        ("lambda rows: run.state['n']", "run.state is read by the computation doubled"),
        ("lambda rows: e.seed", "e is read by the computation doubled"),
        (
            "lambda rows: None",
            "in step 1, gave a NoneType; it has to give a dict of lists, a row for each of its 8 samples",
        ),
        ("lambda rows: {}", "gave the keys none"),
        ("lambda rows: {'d': rows['y'][1:]}", "gave 7 rows of d"),
        ("lambda rows: {'d': 3}", "gave a int as d"),
        ("lambda rows: {'d': [0.0] * 8}", "gave a float as a row of d"),
        ("lambda rows: {'d': [row[0] for row in rows['y']]}", "gave a float64 as a row of d"),
        ("lambda rows: {'d': [row[None] for row in rows['y']]}", "gave a row of d of the shape [1, 4]"),
        ("lambda rows: {'d': [row.astype('float32') for row in rows['y']]}", "row.astype('float64') converts it"),
    ],
)
def test_a_computation_that_gives_no_declared_rows_is_told(tmp_path, computation, said):
    body = f"""
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        run.compute({computation}, batch, name="doubled")
    """
    found = rehearse(order_of(experiment_of(tmp_path, body)))
    assert said in found.error and "loop.py" in found.error


def order_of(experiment) -> Order:
    beside = experiment.algorithm.rpartition(":")[0]
    return Order(to_dict(experiment), 1, 1, 1, (), 0, 60.0, f"{beside}.npz")


POLICY = """
from dataclasses import replace

from hpcrl.recipes import {algorithm}


def loop(run, e):
    actor, reward = run.groups("actor", "reward")
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(reward.score(batch))
        {body}


SCRIPTED = replace({algorithm}.ALGORITHM, script=loop)
"""


def policy_of(folder: Path, algorithm: str, body: str, *settings: str):
    write_task(folder)
    (folder / "policy.py").write_text(POLICY.format(algorithm=algorithm, body=body))
    given = {
        **{"name": "x", "algorithm": f"{folder}/policy.py:SCRIPTED", "cluster": {"device": "cpu"}},
        "data": {"train": f"{folder}/rows.jsonl", "batch_size": 4, "samples_per_prompt": 2},
        **{"actor": {"path": f"{folder}/model"}, "reward": {"function": "exact"}, "control": {"steps": 2}},
    }
    return load_config(write_config(folder / "run.yaml", given), settings)


AGAIN = """actor.update(batch)
        more = step.batch()
        more = more.union(actor.generate(more))
        actor.update(more.union(reward.score(more)))"""
IN_PARTS = "[actor.update(part) for part in batch.chunk(4)]"
OWN = ("grpo.minibatches=1", "grpo.old_logprobs=recomputed")


def test_a_second_update_of_a_step_whose_ratio_is_1_is_refused(tmp_path):
    """As advised one update has several mini-batches, or the ratio is over the rollout's log-probabilities."""
    found = rehearse(order_of(policy_of(tmp_path, "grpo", IN_PARTS, *OWN)))
    assert "policy.py:13: actor.update is asked for again in step 1: with grpo.minibatches · grpo.epochs = 1 a" in (
        found.error
    )
    (advice,) = found.advice
    assert advice.startswith("Ask for one, and raise grpo.minibatches or grpo.epochs")
    assert advice.endswith("set grpo.old_logprobs to sampled.")
    advised = {
        "actor.update(batch)": OWN,
        "actor.update(batch.union(actor.logprobs(batch)))": (*OWN, "grpo.minibatches=4"),
        IN_PARTS: (*OWN, "grpo.old_logprobs=sampled"),
        AGAIN: OWN,  # of responses that the changed actor has drawn
    }
    for number, (body, settings) in enumerate(advised.items()):
        assert not rehearse(order_of(policy_of(made(tmp_path / f"{number}"), "grpo", body, *settings))).error


def test_a_second_update_that_is_recorded_is_let_through(tmp_path):
    """A run that has made it before goes on; what it asks for after that is refused."""
    of = policy_of(tmp_path, "grpo", IN_PARTS, *OWN)
    algorithm = algorithm_of(of)
    computations = Computations(algorithm.forms(of))

    class Recorded(StandIn):
        """The rollout and two updates."""

        def hear(self):
            message = super().hear()
            is_begun = isinstance(message, TurnBegun)
            return msgspec.structs.replace(message, recorded=(0,) * 4, parts=(1,) * 4) if is_begun else message

    line = Recorded(algorithm, of, computations, 1, 1, ())
    with pytest.raises(UserCodeError, match="asked for again in step 1"):
        follow(algorithm.script, line, World(algorithm, plan_for(of), {0: of}, computations, rehearses=True))
    assert [it.call for it in line.asked if isinstance(it, CallAsked)][-2:] == ["actor_train", "actor_train_2"]


ALONE = "actor.update(batch.filter([number % 2 == 0 for number in range(len(batch))]))"


@pytest.mark.parametrize(
    ("algorithm", "body", "noted"),
    [
        ("grpo", ALONE, True),
        ("rloo", ALONE, True),
        ("reinforce_plus_plus", ALONE, False),
        ("grpo", "actor.update(batch.filter(batch.ids[:2]))", False),
        ("grpo", "actor.update(batch)", False),
    ],
)
def test_an_update_on_one_response_of_each_prompt_is_noted(tmp_path, algorithm, body, noted):
    """By those that compare the responses to a prompt."""
    notes = [*rehearsal.rehearse(policy_of(tmp_path, algorithm, body))]
    told = "in step 1 the script asks (policy.py:13) for actor_train on 4 samples of as many prompts."
    assert [note for note in notes if "compares" in note] == [note for note in notes if note.startswith(told)]
    assert any(note.startswith(told) for note in notes) == noted


def test_a_loop_without_end_and_a_script_that_is_async_pass_once_they_do_as_advised(tmp_path):
    body = "for step in run.steps():\n    {}:\n        actor.generate(step.batch())"
    found = rehearse(order_of(experiment_of(tmp_path, body.format("while True"))))
    (advice,) = found.advice
    assert f"loop.py:{FIRST + 2}: step 1 has asked for 2000 calls" in found.error
    bounded = experiment_of(made(tmp_path / "bounded"), body.format(advice.rpartition(": ")[2].rstrip(".")))
    assert not rehearse(order_of(bounded)).error
    body = "{} loop():\n    for step in run.steps():\n        pass\nreturn loop()"
    found = rehearse(order_of(experiment_of(made(tmp_path / "async"), body.format("async def"))))
    assert "The script is an async def" in found.error and found.advice == ("Make it a def.",)
    assert not rehearse(order_of(experiment_of(made(tmp_path / "plain"), body.format("def")))).error


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_plan_refuses_with_the_users_own_file_and_runs_it_no_more_where_it_is_told(tmp_path, capsys):
    name = written(tmp_path, "for step in run.steps():\n    step.log(x=step.batch()[0])")
    (tmp_path / "run.yaml").write_text("name: x\ncontrol: {steps: 2}\n")
    words = ["plan", str(tmp_path / "run.yaml"), f"--algorithm={name}", f"--run_root={tmp_path}"]
    assert main(words) == ExitCode.CONFIGURATION
    told = capsys.readouterr().err
    assert f"algorithm = {name}" in told and f"loop.py:{FIRST + 1}: a batch has no element 0" in told
    assert "/hpcrl-" not in told
    assert main([*words, "--control.rehearse=false"]) == ExitCode.DONE


def test_a_computation_draws_from_a_generator_of_its_own(tmp_path):
    body = """
    def noisy(rows, seed=None):
        generator = np.random.default_rng(seed) if seed else np.random
        return {{"d": [row + generator.normal() for row in rows["y"]]}}

    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        run.compute(noisy, batch, {} name="doubled")
    """
    found = rehearse(order_of(experiment_of(tmp_path, body.format(""))))
    assert "doubled draws from the generators of random or numpy.random" in found.error and "loop.py:" in found.error
    (advice,) = found.advice
    seed = advice.partition(": ")[2].rstrip(".")
    (tmp_path / "advised").mkdir()
    assert not rehearse(order_of(experiment_of(tmp_path / "advised", body.format(f"{seed},")))).error


@pytest.mark.parametrize("asks", ["actor.generate(batch)", "run.once(print)", "batch.fetch('y')"])
def test_a_computation_that_asks_is_told(tmp_path, asks):
    """Its rows are what it reads; the same line in the loop is as good as any."""
    body = """
    def asking(rows):
        {}
        return doubled(rows)

    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        {}
        run.compute(asking, batch, name="doubled")
    """
    found = rehearse(order_of(experiment_of(tmp_path, body.format(asks, "pass"))))
    assert f"loop.py:{FIRST + 1}: doubled is a computation, and asks for something itself." in found.error
    (advice,) = found.advice
    assert advice.startswith("Ask in the loop")
    (tmp_path / "advised").mkdir()
    assert not rehearse(order_of(experiment_of(tmp_path / "advised", body.format("pass", asks)))).error


@pytest.mark.parametrize("number", ["float('nan')", "float('inf')", "batch[:0].mean('x')"])
def test_a_number_that_is_none_may_be_logged(tmp_path, number):
    body = f"""
    for step in run.steps():
        batch = step.batch()
        actor.generate(batch)
        step.log(n={number})
    """
    assert [*rehearsal.rehearse(experiment_of(tmp_path, body))]


def test_what_libraries_draw_while_they_are_imported_decides_nothing(tmp_path, monkeypatch):
    """multiprocessing, which torch imports, draws a key then."""
    answered, numbers = rehearsal._answered, []
    monkeypatch.setattr(rehearsal, "_answered", lambda of, order: numbers.append(order.number) or answered(of, order))
    body = """
    {}
    for step in run.steps():
        actor.generate(step.batch())
    """
    assert [*rehearsal.rehearse(experiment_of(tmp_path, body.format("import multiprocessing.pool")))]
    assert numbers == [0, 1, 1]
    made(tmp_path / "drawn")
    assert [*rehearsal.rehearse(experiment_of(tmp_path / "drawn", body.format("import uuid; uuid.uuid4()")))]
    assert numbers[3:] == [0, 1, *rehearsal.JUMPING, 1]


def test_a_script_may_close_what_it_prints_to(tmp_path):
    body = """
    import sys
    for step in run.steps():
        actor.generate(step.batch())
    sys.stdout.close()
    """
    assert [*rehearsal.rehearse(experiment_of(tmp_path, body))]


def test_who_takes_what_run_once_gives_is_told_that_it_was_not_called(tmp_path):
    body = """
    for step in run.steps():
        actor.generate(step.batch())
        run.once(print{})["more"]
    """
    with pytest.raises(ConfigurationError, match=r"run\.once called nothing, and gave what rehearsed= says of print\."):
        [*rehearsal.rehearse(experiment_of(tmp_path, body.format("")))]
    made(tmp_path / "right")
    assert [*rehearsal.rehearse(experiment_of(tmp_path / "right", body.format(", rehearsed={'more': 1}")))]


def test_a_loop_that_is_left_in_its_first_step_is_told_how_loops_end(tmp_path):
    body = "for step in run.steps():\n    actor.generate(step.batch())\n    if {}:\n        break"
    with pytest.raises(ConfigurationError, match=r"First the script had returned.*A loop ends early by run\.state"):
        [*rehearsal.rehearse(experiment_of(tmp_path, body.format("True")))]
    made(tmp_path / "right")
    assert [*rehearsal.rehearse(experiment_of(tmp_path / "right", body.format("step.number >= 2")))]


def test_what_a_computation_leaves_besides_its_rows_is_found(tmp_path):
    body = """
    counted = []

    def counting(rows):
        counted.append(1)
        return doubled(rows)

    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(run.compute(counting, batch, name="doubled"))
        batch.mean("d")
        run.state["n"] = len(counted)
    """
    with pytest.raises(
        ConfigurationError, match=r"run\.state\['n'\] was 2, then 0\. Something lives outside run\.state"
    ):
        [*rehearsal.rehearse(experiment_of(tmp_path, body))]


COMPUTING = """
seen = {{"sum": 0.0, "n": 0, "rng": np.random.default_rng(7)}}

def own(rows, by=0.0):
    mean = np.mean([row.mean() for row in rows["y"]])
    seen["sum"], seen["n"] = seen["sum"] + mean, seen["n"] + 1
    return {{"d": [row + {} for row in rows["y"]]}}

for step in run.steps():
    batch = step.batch()
    batch = batch.union(actor.generate(batch))
    batch = batch.union(run.compute(own, batch, {} name="doubled"))
    run.state["n"] = batch.mean("y")
"""


@pytest.mark.parametrize("kept", ['seen["sum"] / seen["n"]', 'seen["rng"].normal()', "time.time()"])
def test_a_computation_that_makes_other_rows_of_the_same_is_found(tmp_path, monkeypatch, kept):
    """And passes once it is given what it needs, as it is advised."""
    monkeypatch.setattr(rehearsal, "_answered", lambda experiment, order: rehearse(order))
    with pytest.raises(
        ConfigurationError,
        match=rf"In step 3, loop\.py:{FIRST + 10}, doubled made other rows of d[\s\S]*given: rows, and arguments",
    ):
        [*rehearsal.rehearse(experiment_of(tmp_path, COMPUTING.format(kept, "")))]
    made(tmp_path / "right")
    assert [*rehearsal.rehearse(experiment_of(tmp_path / "right", COMPUTING.format("by", 'run.state["n"],')))]


STOPPING = """
{}
for step in run.steps():
    batch = step.batch()
    batch = batch.union(actor.generate(batch))
    if step.evaluates:
        held_out = step.held_out()
        score = reward.score(held_out.union(actor.generate(held_out))).mean("r")
        kept.update({{"best": score, "bad": 0}} if score > kept["best"] else {{"bad": kept["bad"] + 1}})
        {}step.log(**kept)
    if kept["bad"] > 4:
        break
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("indent", ["", "pass\n    "])
def test_what_early_stopping_keeps_beside_the_state_is_found(tmp_path, monkeypatch, indent, seed):
    monkeypatch.setattr(rehearsal, "_answered", lambda experiment, order: rehearse(order))
    body = STOPPING.format('kept = {"best": -1.0, "bad": 0}', indent)
    with pytest.raises(ConfigurationError, match=r"step\.log\['(bad|best)'\] was"):
        [*rehearsal.rehearse(replace(experiment_of(tmp_path, body), seed=seed))]
    made(tmp_path / "right")
    body = STOPPING.format('run.state.setdefault("best", -1.0); run.state.setdefault("bad", 0)', indent)
    body = body.replace("**kept", "bad=run.state['bad']").replace("kept", "run.state")
    assert [*rehearsal.rehearse(replace(experiment_of(tmp_path / "right", body), seed=seed))]


@pytest.mark.parametrize("lag", [0, 2])
def test_what_follows_the_loop_is_rehearsed_without_a_step_too(tmp_path, monkeypatch, lag):
    """As in a run that is killed after its last step."""
    monkeypatch.setattr(rehearsal, "_answered", lambda experiment, order: rehearse(order))
    body = f"""
    def prepare(run, e, step):
        (actor,) = run.groups("actor")
        return actor.generate(step.batch())
    for step in run.steps(prepare=prepare, lag={lag}):
        run.state["n"] = step.number
    print({{}})
    """
    with pytest.raises(ConfigurationError, match=r"(?s)failed in what follows step 3\..*UnboundLocalError") as error:
        [*rehearsal.rehearse(experiment_of(tmp_path, body.format("step.number")))]
    assert f'loop.py", line {FIRST + 5}' in str(error.value)
    assert "after the loop, use run.state" in str(error.value)
    made(tmp_path / "right")
    assert [*rehearsal.rehearse(experiment_of(tmp_path / "right", body.format("run.state['n']")))]


OF_TEXTS = """
from dataclasses import replace

import numpy as np

from hpcrl.recipes import ppo


def loop(run, e):
    actor, critic, reward = run.groups("actor", "critic", "reward")
    for step in run.steps():
        batch = step.batch().repeat(2)
        batch = batch.union(actor.generate(batch))
        batch = batch.union(critic.values(batch), reward.score(batch))
        learnt = actor.update(batch)
        rows = batch.fetch("responses", "logprobs", "values", "token_rewards", "reward_components", "rewards")
        {}


PPO = replace(ppo.ALGORITHM, script=loop)
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("learnt.stats['kl']", "actor_train has no statistic 'kl'"),
        ("learnt.stats['entropy']", "actor_train has no statistic 'entropy'"),
        ("np.array(rows['responses'])", "inhomogeneous"),
        ("[row[-1] for row in rows['token_rewards']]", "IndexError"),
        ("assert learnt.stats['loss'] < 1 and all(len(row) == 1 for row in rows['rewards'])", ""),
        ("assert all(len(row) == 1 for row in batch.fetch('values_after')['values_after'])", ""),
        ("assert all(len(row) == 3 for row in rows['reward_components'])", ""),
        ("assert [*map(len, rows['logprobs'])] == [*map(len, rows['responses'])] == [*map(len, rows['values'])]", ""),
        ("assert {*map(len, rows['responses'])} == {1, 2, 3, 4}", ""),
        (
            "assert {len(t) - len(r) for t, r in zip(rows['token_rewards'], rows['responses'])} > {0, -1}",
            "",
        ),
        ("assert 0 < np.isnan(rows['rewards']).sum() < 32", ""),
        ("assert not any(len(t) for t, r in zip(rows['token_rewards'], rows['rewards']) if np.isnan(r[0]))", ""),
    ],
)
def test_rows_are_made_up_as_a_run_with_these_settings_would_have_them(task, tmp_path, line, said):
    """Of texts: with lengths of their own, and no number that nothing computes."""
    (tmp_path / "loop.py").write_text(OF_TEXTS.format(line))
    made = tiny_ppo(task, nodes=1, workers=1)
    length = {"function": "length"}
    experiment = replace(
        made,
        algorithm=f"{tmp_path}/loop.py:PPO",
        reward=RewardConfig(components={"a": length, "b": length, "c": length}, on_error="drop"),
        data=replace(made.data, batch_size=16),
        ppo=PPOConfig(kl=KLConfig(mode="none"), cut="bootstrap"),
    )
    found = rehearse(order_of(experiment))
    assert said in found.error and bool(said) == bool(found.error), found.error


PREPARED = """
    count = []
    def prepare(run, e, step):
        actor, reward = run.groups("actor", "reward")
        batch = step.batch()
        batch = batch.union(actor.generate(batch[: 4 + {}]))
        return batch.union(reward.inference(batch))
    for step in run.steps(prepare=prepare, lag={}):
        batch = step.prepared
        batch = batch.union(critic.inference(batch), run.compute(doubled, batch, 1.5))
        run.state["n"] += 1
"""


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_what_is_prepared_is_rehearsed_too(tmp_path: Path, lag: int) -> None:
    """And what lives outside the state there is found."""
    body = PREPARED.replace("step.batch()", "step.batch()[:4]")
    (said,) = rehearsal.rehearse(experiment_of(tmp_path, body.format("0", lag)))
    assert "the script did not ask for ref_inf, actor_train, critic_train" in said
    with pytest.raises(ConfigurationError) as error:
        [*rehearsal.rehearse(experiment_of(tmp_path, PREPARED.format("len(count) - (count.append(1) or 0) - 1", lag)))]
    assert "loop.py:" in str(error.value)


REPEATING = """
for step in run.steps():
    batch = step.batch().repeat(3)
    batch = batch.union(actor.generate(batch))
    batch = batch.union(run.compute(doubled, batch, 3.0))
    other = batch.pop("y")[1].rename({"d": "y"}).repeat(2)
    other = other.union(reward.score(other))
    np.testing.assert_array_equal(other.fetch("y")["y"], 3 * np.repeat(np.array(batch.fetch("y")["y"]), 2, axis=0))
    assert len({row.tobytes() for row in batch.fetch("y")["y"]}) == len(batch) == 3 * len(step.batch())
    run.state["n"] += float(other.fetch("r")["r"][5][0])
"""


def test_repeated_and_renamed_samples_have_made_up_rows(tmp_path):
    assert [*rehearsal.rehearse(experiment_of(tmp_path, REPEATING))]


def test_a_renamed_key_of_another_type_is_refused(tmp_path):
    body = """
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(run.compute(doubled, batch))
        reward.score(batch.pop("y")[1].rename({"d": "y"}))
    """
    experiment = experiment_of(tmp_path, body)
    script = tmp_path / "loop.py"
    of_one_type = script.read_text()
    other = of_one_type.replace('"d": VECTORS', '"d": VECTORS._replace(dtype="float32")')
    script.write_text(other.replace("by * row for", "np.float32(by * row) for"))
    said = f"loop.py:{FIRST + 4}: reward.score reads y of float64, but in the batch that is the renamed d, of float32."
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        [*rehearsal.rehearse(experiment)]
    script.write_text(of_one_type)
    assert [*rehearsal.rehearse(experiment)]
