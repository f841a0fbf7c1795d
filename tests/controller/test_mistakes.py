"""Forty scripts with a mistake: each is found before its run is submitted, and told with its line."""

import re
import textwrap
from pathlib import Path

import pytest

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.controller import rehearsal
from hpcrl.controller.rehearse import Order, Trace
from hpcrl.controller.rehearse import rehearse as rehearsed_here
from hpcrl.errors import ConfigurationError
from hpcrl.recipes.algorithm import algorithm_of

HEAD = """
import os
import random
import threading
import time
import uuid
from dataclasses import replace

import numpy as np

from hpcrl.recipes import toy

count = 0
seen = {}
began = time.time()


def loop(run, e):
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    run.state["n"] = 0
    kept = []
    for step in run.steps():
        batch = step.batch()
        drawn = batch.union(actor.generate(batch))
"""
FIRST = len(HEAD.splitlines()) + 1
"""The line of the mistake."""

FOOT = """


TOY = replace(toy.ALGORITHM, script=loop)
"""

OUTSIDE = {
    "a module's number": ("global count; count += 1", "run.state['n'] = count", "was 2, then 1"),
    "a module's dict": ("seen[step.number] = 1", "actor.generate(batch[:len(seen)])", "on 2 samples, then on 3"),
    "a local list": ("kept.append(step.number)", "critic.inference(drawn[:len(kept)])", "on 2 samples, then on 1"),
    "an attribute of a function": (
        "loop.calls = getattr(loop, 'calls', 0) + 1",
        "step.log(calls=loop.calls)",
        "['calls'] was 2.0, then 4.0",
    ),
    "a batch of an older step kept by its ids": (
        "kept += batch.ids[:1]",
        "critic.inference(drawn[:len(kept)])",
        "on 2 samples, then on 1",
    ),
    "a clock": ("run.state['n'] = time.time()", "", "run.state['n'] was"),
    "a clock's seconds": ("run.state['n'] = int(time.time()) // 60", "", "run.state['n'] was"),
    "how long it took": ("step.log(took=time.monotonic())", "", "step.log['took'] was"),
    "when it was imported": ("step.log(began=began)", "", "step.log['began'] was"),
    "a clock outside": ("run.once(print, time.time())", "", "with the arguments ["),
    "the order of a set": (
        "order = [*set(batch.ids)]",
        "critic.inference(drawn.reorder(order))",
        "as sample",
    ),
    "a hash": ("run.state['n'] = hash(batch.ids[0]) % 1000", "", "run.state['n'] was"),
    "its process": ("run.state['n'] = os.getpid()", "", "run.state['n'] was"),
    "a random id": ("run.state['n'] = str(uuid.uuid4())", "", "run.state['n'] was"),
    "a generator of its own": (
        "own = seen.setdefault('own', np.random.default_rng())",
        "run.state['n'] = own.random()",
        "run.state['n'] was",
    ),
    "a branch on what is lost": (
        "kept.append(1)",
        "actor.generate(batch) if len(kept) > 1 else critic.inference(drawn)",
        "asked for actor_gen_2",
    ),
}
"""What lives outside run.state: two lines, and what is said of the second rehearsal."""

APART = {
    "a module's number",
    "a clock's seconds",
    "when it was imported",
    "the order of a set",
    "a hash",
    "its process",
}
"""Of these, what only another process shows; the others are rehearsed in this one, where modules stay as they are."""

FAILING = {
    "a state that is a set": ("run.state['n'] = {1}", "run.state['n'] is of the type set"),
    "a state that is an array": ("run.state['n'] = np.zeros(2)", "run.state['n'] is of the type ndarray"),
    "a state that is NaN": ("run.state['n'] = float('nan')", "run.state['n'] is nan"),
    "a state with numbers for keys": ("run.state['n'] = {1: 2}", "run.state['n'] has the key 1"),
    "a state within itself": ("run.state['n'] = run.state", "within itself"),
    "a state that is too large": ("run.state['n'] = 'x' * (1 << 20)", "run.state['n'] is the largest"),
    "a batch in the state": ("run.state['n'] = batch", "run.state['n'] is of the type DataProto"),
    "an unknown call": ("actor.score(drawn)", "actor has no call 'score'"),
    "an unknown role": ("run.group('judge')", "run.group('judge'): the recipe has no call of this role"),
    "a method of another role": ("critic.generate(batch)", "critic has no call 'generate'"),
    "an unknown name": ("actor.generate(batch, name='gen')", "means no call"),
    "keys that are missing": ("critic.update(batch)", "critic.update reads y, r, z, v, which the batch has not"),
    "keys that nobody makes": ("drawn.fetch('rewards')", "fetch: the batch has no 'rewards'"),
    "other samples": ("batch.union(drawn[:4])", "union: batch 1 has other samples"),
    "a key twice": ("drawn.union(actor.generate(batch))", "both batches have 'y'"),
    "a change in a union": (
        "whole = drawn.union(reward.score(drawn), reference.score(drawn), critic.score(drawn)); "
        "whole.union(critic.update(whole, blocking=False))",
        "critic_train changes parameters and makes no rows",
    ),
    "evaluation with training": (
        "drawn.union(actor.generate(step.held_out())) if step.evaluates else None",
        "is of the evaluation data, this one of the training data",
    ),
    "an evaluation that is not due": ("step.held_out()", "step 1 does not evaluate"),
    "a batch of an older step": (
        "kept.append(drawn); critic.inference(kept[0])",
        "it is of step 1, and step 2 has begun",
    ),
    "an older step": ("kept.append(step); kept[0].batch()", "step.batch(): it is of step 1, and step 2 has begun"),
    "an older future": (
        "kept.append(actor.generate(batch, blocking=False)); kept[0].result()",
        "actor_gen_2's result: it is of step 1, and step 2 has begun",
    ),
    "a thread that asks": (
        "worker = threading.Thread(target=lambda: actor.generate(batch)); worker.start(); worker.join()",
        "another thread than the script's own asks for something",
    ),
    "a computation that nobody declared": ("run.compute(len, drawn)", "the recipe declares no computation 'len'"),
    "no samples": ("actor.generate(batch[:0])", "actor.generate is asked for on a batch without samples"),
    "settings that it sets": ("e.seed = 2", "seed of the experiment cannot be set"),
    "settings that there are not": ("e.ppo", "has no attribute 'ppo'"),
    "a number that is none": ("step.log(n='many')", "this is not a number"),
    "a statistic that nobody reports": ("actor.generate(batch).stats['kl']", "actor_gen_2 has no statistic 'kl'"),
    "rows that it writes into": ("drawn.fetch('y')['y'][0][0] = 1", "read-only"),
    "an error of its own": ("1 / (step.number - 2)", "ZeroDivisionError"),
    "a bare index": ("batch[0]", "a batch has no element 0"),
}
"""A line, and what is said of it."""


def experiment_of(folder: Path, *lines: str):
    """The toy, by a script that has these lines in its loop; they are the last."""
    body = HEAD + textwrap.indent("\n".join(filter(None, lines)), " " * 8) + FOOT
    (folder / "loop.py").write_text(body)
    name = f"{folder}/loop.py:TOY"
    control = ControlConfig(steps=8, evaluate=Frequency(steps=2))
    return algorithm_of(name).experiment(algorithm=name, control=control)


def rehearse(experiment) -> list[str]:
    return [*rehearsal.rehearse(experiment)]


@pytest.mark.parametrize("mistake", OUTSIDE)
def test_what_lives_outside_the_state_is_found(tmp_path, mistake, monkeypatch):
    one, two, said = OUTSIDE[mistake]
    if mistake not in APART:
        monkeypatch.setattr(rehearsal, "_answered", answered_here)
    with pytest.raises(ConfigurationError) as error:
        rehearse(experiment_of(tmp_path, one, two))
    assert said in str(error.value) and "loop.py:" in str(error.value)
    assert "Something lives outside run.state" in str(error.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("mistake", FAILING)
def test_what_a_script_must_not_do_is_told_with_its_line(tmp_path, mistake, monkeypatch):
    line, said = FAILING[mistake]
    monkeypatch.setattr(rehearsal, "_answered", answered_here)
    with pytest.raises(ConfigurationError) as error:
        rehearse(experiment_of(tmp_path, line))
    assert said in str(error.value) and "control.rehearse" in str(error.value)
    # A state is recorded where the next step begins.
    line = FIRST - 3 if "the state" in mistake or "a state" in mistake else FIRST
    assert re.search(rf'loop\.py(:|", line ){line}\b', str(error.value))


def answered_here(experiment, order: Order) -> Trace:
    """In this process: what raises at once needs none of its own."""
    return rehearsed_here(order)


def test_there_are_forty_mistakes():
    assert len(OUTSIDE) + len(FAILING) >= 40
