"""The rehearsal as submit and plan have it: what it refuses, what it notes, and how it is left out."""

import re
import textwrap
from pathlib import Path

import pytest

from hpcrl.cli.main import main
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.experiment import to_dict
from hpcrl.controller import rehearsal
from hpcrl.controller.rehearse import Order, rehearse
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.recipes.algorithm import algorithm_of

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
    assert numbers == [0, 1], "who looks at no clock is rehearsed twice"


def sorted_calls(note: str) -> str:
    head, _, tail = note.partition("did not ask for ")
    calls, _, rest = tail.partition(". ")
    return f"{head}did not ask for {', '.join(sorted(calls.split(', ')))}. {rest}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True:\n    pass", "had not returned after 2 s"),
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
        [*rehearsal.rehearse(experiment_of(tmp_path, body), limit_s=2.0)]
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
    return Order(to_dict(experiment), 1, 1, 1, "", 0, 60.0, f"{beside}.npz")


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
    assert numbers == [0, 1]
    made(tmp_path / "drawn")
    assert [*rehearsal.rehearse(experiment_of(tmp_path / "drawn", body.format("import uuid; uuid.uuid4()")))]
    assert numbers[2:] == [0, 1, *rehearsal.JUMPING]


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
