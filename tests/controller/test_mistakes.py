"""Forty scripts that would go another way after a kill, and others with a mistake: each is found before its run is
submitted, and told with its line. What only a resumed run can show is in tests/master/test_script.py."""

import re
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.controller import rehearsal
from hpcrl.controller.rehearse import Order, Trace
from hpcrl.controller.rehearse import rehearse as rehearsed_here
from hpcrl.errors import ConfigurationError
from hpcrl.recipes.algorithm import algorithm_of

HEAD = """
import datetime
import itertools
import os
import random
import secrets
import tempfile
import threading
import time
import uuid
from dataclasses import replace

import numpy as np

from hpcrl.recipes import toy

count = 0
seen = {}
began = time.time()
numbers = itertools.count(1)
drawing = (number for number in range(100))


class Counted:
    number = 0


def counter():
    number = 0

    def up():
        nonlocal number
        number += 1
        return number

    return up


def grown(number, to=[]):
    to.append(number)
    return to


up = counter()


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
    "a variable of the loop": (
        "last = locals().get('last', 0) + 1",
        "run.state['n'] = last",
        "run.state['n'] was 2, then 1",
    ),
    "the number of the step before": (
        "before, seen['before'] = seen.get('before', 0), step.number",
        "run.state['n'] = before",
        "run.state['n'] was 1, then 3",
    ),
    "rows of an older step": (
        "kept.append(float(drawn.mean('y')))",
        "step.log(n=sum(kept))",
        "step.log['n'] was",
    ),
    "a statistic of an older step": (
        "seen['t'] = 0.5 * seen.get('t', 0.0) + reward.score(drawn).mean('r')",
        "run.state['n'] = seen['t']",
        "run.state['n'] was",
    ),
    "an attribute of the run": (
        "run.count = getattr(run, 'count', 0) + 1",
        "run.state['n'] = run.count",
        "run.state['n'] was 2, then 1",
    ),
    "an attribute of another module": (
        "np.testing.count = getattr(np.testing, 'count', 0) + 1",
        "run.state['n'] = np.testing.count",
        "run.state['n'] was",
    ),
    "an attribute of a class": (
        "Counted.number += 1",
        "run.state['n'] = Counted.number",
        "run.state['n'] was 2, then 4",
    ),
    "a default argument": ("run.state['n'] = grown(step.number)", "", "run.state['n'] was [1, 2], then [1, 2, 3, 2]"),
    "a closure": ("run.state['n'] = up()", "", "run.state['n'] was 2, then 4"),
    "a counter": ("run.state['n'] = next(numbers)", "", "run.state['n'] was 2, then 4"),
    "where a generator is": ("run.state['n'] = next(drawing)", "", "run.state['n'] was 1, then 3"),
    "an environment that it sets": (
        "os.environ['HPCRL_TEST_TURNS'] = os.environ.get('HPCRL_TEST_TURNS', '') + 'x'",
        "run.state['n'] = len(os.environ['HPCRL_TEST_TURNS'])",
        "run.state['n'] was 2, then 4",
    ),
    "a file that it writes": (
        "open(f'{__file__}.count', 'a').write('x')",
        "run.state['n'] = os.path.getsize(f'{__file__}.count')",
        "run.state['n'] was 2, then 4",
    ),
    "the name of a temporary file": ("run.state['n'] = tempfile.mktemp()", "", "run.state['n'] was"),
    "an address": ("run.state['n'] = id(run)", "", "run.state['n'] was"),
    "an address in a text": ("run.state['n'] = str(object())", "", "run.state['n'] was '<object object at 0x"),
    "the number of a thread": ("run.state['n'] = threading.get_native_id()", "", "run.state['n'] was"),
    "the order of a dict that is made of a set": (
        "order = [*{name: 0 for name in set(batch.ids)}]",
        "critic.inference(drawn.reorder(order))",
        "as sample",
    ),
    "one of a set": ("run.state['n'] = set(batch.ids).pop()", "", "run.state['n'] was"),
    "the time of day": ("run.state['n'] = str(datetime.datetime.now())", "", "run.state['n'] was '20"),
    "the day": ("run.state['n'] = str(datetime.date.today())", "", "run.state['n'] was '20"),
    "a secret": ("run.state['n'] = secrets.token_hex()", "", "run.state['n'] was"),
    "the system's generator": ("run.state['n'] = random.SystemRandom().random()", "", "run.state['n'] was"),
    "bytes of the system's": ("run.state['n'] = os.urandom(8).hex()", "", "run.state['n'] was"),
    "a generator of random without a seed": ("run.state['n'] = random.Random().random()", "", "run.state['n'] was"),
    "a branch on what is lost": (
        "kept.append(1)",
        "actor.generate(batch) if len(kept) > 1 else critic.inference(drawn)",
        "asked for actor_gen_2",
    ),
}
"""What lives outside run.state: two lines, and what is said of the second rehearsal."""

BY_LUCK = {
    "an even second": "if int(time.time()) % 2: critic.inference(drawn)",
    "an even second of the day": "if datetime.datetime.now().second % 2: critic.inference(drawn)",
    "the hour": "if time.localtime().tm_hour < 12: critic.inference(drawn)",
    "how long it has lasted": "if time.time() - began > 3600: break",
    "how long a call took": (
        "start = time.perf_counter(); actor.generate(batch); "
        "critic.inference(drawn) if time.perf_counter() - start > 5 else None"
    ),
    "a number of the system's": "critic.inference(drawn[: 1 + secrets.randbelow(len(drawn))])",
}
"""A line that decides by chance, and mostly the same in two rehearsals."""

APART = {
    "an address",
    "an address in a text",
    "the number of a thread",
    "the order of a dict that is made of a set",
    "one of a set",
    "the day",
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
    "a state that is an array": ("run.state['n'] = np.zeros(2)", "run.state['n'] is of the type numpy.ndarray"),
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
    "an evaluation that is not due": ("step.held_out()", "step 2 does not evaluate"),
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
        "actor.generate: another thread than the script's own asks for it",
    ),
    "a computation that nobody declared": ("run.compute(len, drawn)", "the recipe declares no computation 'len'"),
    "no samples": ("actor.generate(batch[:0])", "actor.generate is asked for on a batch without samples"),
    "settings that it sets": ("e.seed = 2", "seed of the experiment cannot be set"),
    "settings that there are not": ("e.ppo", "has no attribute 'ppo'"),
    "a number that is none": ("step.log(n='many')", "this is not a number"),
    "a statistic that nobody reports": ("actor.generate(batch).stats['kl']", "actor_gen_2 has no statistic 'kl'"),
    "rows that it writes into": ("drawn.fetch('y')['y'][0][0] = 1", "read-only"),
    "an error of its own": ("1 / (step.number - 2)", "ZeroDivisionError"),
    "a number of numpy's in the state": (
        "run.state['n'] = np.bool_(True)",
        "run.state['n'] is of the type numpy.bool, which JSON does not have",
    ),
    "parts that are no whole number": ("batch.chunk(len(batch) / 2)", "chunk: 4.0 is not a whole number"),
    "sizes that are none": ("batch.split([2.0, 6.0])", "split: 2.0 is not a whole number"),
    "a flag as a size": ("batch.split(True)", "split: True is not a whole number"),
    "copies that are no whole number": ("batch.repeat(2.0)", "repeat: 2.0 is not a whole number"),
    "positions that are none": ("batch.reorder([1.0] * 8)", "reorder: 1.0 is not a whole number"),
    "no order": ("batch.reorder(None)", "reorder takes a list, and this is of the type NoneType"),
    "a function as a filter": (
        "batch.filter(lambda id: True)",
        "filter takes a list, and this is of the type function",
    ),
    "a key that is no name": ("drawn.fetch(3)", "fetch takes a list, and this is of the type int"),
    "an argument by name": (
        "actor.generate(batch=batch)",
        "actor.generate takes name= and blocking= by name, and got batch=",
    ),
    "a statistic of a future": (
        "actor.generate(batch, blocking=False).stats",
        "a future has no 'stats'. Wait for its result: future.result().stats",
    ),
    "what a function gives for a function": (
        "run.once(print('sent'))",
        "run.once takes a function, and this is of the type NoneType",
    ),
    "rows for a function": (
        "run.compute(drawn.fetch('y'), drawn)",
        "run.compute takes a function, and this is of the type dict",
    ),
    "a batch as an argument": ("run.once(print, batch)", "argument 1 of print is of the type DataProto"),
    "a step as an argument": ("run.once(print, step)", "argument 1 of print is of the type Step"),
    "a pool that asks": (
        "import concurrent.futures as cf; [*cf.ThreadPoolExecutor().map(actor.generate, [batch])]",
        "actor.generate: another thread than the script's own asks for it",
    ),
    "a second loop": ("[*run.steps()]", "run.steps() is called a second time, but a script has one loop"),
    "a list of the state of an older step": (
        "kept.append(run.state.setdefault('n2', [])); kept[0].append(step.number)",
        "the step has changed a list that was taken from run.state['n2'] before it began",
    ),
    "a thread that draws": (
        "worker = threading.Thread(target=lambda: run.rng('x')); worker.start(); worker.join(); run.state",
        "run.rng('x') is read by another thread than the script's own",
    ),
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
        monkeypatch.setenv("HPCRL_TEST_TURNS", "")
        monkeypatch.setattr(np.testing, "count", 0, raising=False)
        monkeypatch.setattr(rehearsal, "_answered", answered_here)
    with pytest.raises(ConfigurationError) as error:
        rehearse(experiment_of(tmp_path, one, two))
    assert said in str(error.value) and "loop.py:" in str(error.value)
    assert "Something lives outside run.state" in str(error.value)


@pytest.mark.parametrize("mistake", BY_LUCK)
def test_what_decides_by_chance_is_found_although_it_mostly_decides_the_same(tmp_path, mistake):
    with pytest.raises(ConfigurationError, match=r"loop\.py:\d+[\s\S]*or a clock or a set decides"):
        rehearse(experiment_of(tmp_path, BY_LUCK[mistake]))


PATIENT = """
print("at", time.time(), datetime.datetime.now())
start = time.monotonic()
time.sleep(0.01)
if time.monotonic() - start > 1.0: print("that took long")
limit = time.time() + 60
waits = threading.Event(); threading.Timer(0.02, waits.set).start()
while not waits.is_set() and time.time() < limit: waits.wait(0.01)
assert waits.wait(20)
child = subprocess.Popen(["true"])
while child.poll() is None:
    if time.time() > limit: raise TimeoutError
assert asyncio.run(asyncio.wait_for(asyncio.sleep(0.01, 7), 20)) == 7
assert pickle.loads(pickle.dumps(datetime.datetime.now())) < datetime.datetime.max
run.state["n"] += random.Random(step.number).random()
"""


def test_who_looks_at_a_clock_and_decides_nothing_by_it_is_not_refused(tmp_path, monkeypatch):
    experiment = experiment_of(tmp_path, "import asyncio, pickle, subprocess", *PATIENT.strip().splitlines())
    numbers = []
    monkeypatch.setattr(rehearsal, "_answered", partial(noted, rehearsal._answered, numbers))
    (note,) = rehearse(experiment)
    assert "did not ask for" in note
    assert numbers == [0, 1, *rehearsal.JUMPING, 1]


def noted(answered, numbers: list[int], experiment, order: Order) -> Trace:
    numbers.append(order.number)
    return answered(experiment, order)


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


def test_a_process_that_is_forked_may_not_ask(tmp_path):
    line = "with multiprocessing.get_context('fork').Pool(1) as pool: pool.map(Asks(), [1])"
    body = HEAD + textwrap.indent(f"Asks.of = actor, batch\nimport multiprocessing\n{line}", " " * 8) + FOOT
    asks = (
        "class Asks:\n    def __call__(self, it):\n        actor, batch = self.of\n        actor.generate(batch)\n\n\n"
    )
    (tmp_path / "loop.py").write_text(body.replace("def loop(", f"{asks}def loop("))
    name = f"{tmp_path}/loop.py:TOY"
    with pytest.raises(ConfigurationError, match=r"actor\.generate: another process than the script's own asks for it"):
        rehearse(algorithm_of(name).experiment(algorithm=name, control=ControlConfig(steps=2)))


def test_numbers_of_numpys_count_as_pythons(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "_answered", answered_here)
    lines = [
        "two = np.int64(2)",
        "assert [len(it) for it in (*batch.chunk(two), *batch.split(two), *batch.split(np.array([2, 6])))] "
        "== [4, 4, 2, 2, 2, 2, 2, 6]",
        "assert batch.repeat(two).ids == batch.repeat(2).ids",
        "assert batch.reorder(np.argsort(batch.ids)).ids == tuple(sorted(batch.ids))",
        "import copy; assert copy.deepcopy(batch) is batch",
    ]
    assert rehearse(experiment_of(tmp_path, *lines))


def answered_here(experiment, order: Order) -> Trace:
    """In this process: what raises at once needs none of its own."""
    return rehearsed_here(order)


def test_there_are_forty_mistakes():
    assert len(OUTSIDE) + len(BY_LUCK) >= 40
