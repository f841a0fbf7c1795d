"""The course of a script: what it asks, in which order, and what it gets, beside a master that is a list."""

import json
import math
import random
import re
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from support.scripted import EVALUATING, FakeMaster, course, row, world_with

from hpcrl.controller.run import follow
from hpcrl.data.totals import total_of
from hpcrl.durable.made import Made
from hpcrl.errors import StoppedError, UserCodeError
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.wire.script_messages import (
    CallAsked,
    CallExecuted,
    NextTurn,
    OnceAsked,
    OnceDone,
    RowsAsked,
    ScriptEnded,
    TurnEnded,
)


def scale(rows, beta):
    return {"s": [beta * r for r in rows["r"]]}


def loop(run, e):
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    run.state.setdefault("beta", 0.5)
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(reward.score(batch))
        values = critic.inference(batch, blocking=False)
        ref = reference.inference(batch, blocking=False)
        batch = batch.union(values, ref)
        batch = batch.union(run.compute(scale, batch, run.state["beta"]))
        fitted = critic.update(batch, blocking=False)
        if step.number > 1:
            run.state["beta"] += actor.update(batch).stats["loss"]
        step.log(beta=run.state["beta"], loss=fitted.result().stats["loss"])
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            step.log(held_out=reward.score(held_out).mean("r"))


def test_the_order_of_what_a_script_says():
    said = course(loop)
    kinds = [type(it) for it in said.asked]
    turn_1 = [NextTurn, *[CallAsked] * 6, TurnEnded]
    assert kinds[: len(turn_1)] == turn_1
    assert [it.call for it in said.calls if it.step == 2] == [
        *("actor_gen", "rew_inf", "critic_inf", "ref_inf", "scale", "critic_train", "actor_train"),
        *("eval_gen", "eval_rew"),
    ]
    assert kinds[-2:] == [NextTurn, ScriptEnded]
    assert said.asked[-1].step == 3
    for step in (1, 2, 3):
        own = [it.number for it in said.asked if isinstance(it, CallAsked | TurnEnded) and it.step == step]
        assert own == list(range(1, len(own) + 1))


def test_inputs_name_who_made_them_by_the_graphs_keys():
    said = course(loop)
    by_call = {it.call: it for it in said.calls if it.step == 2}
    assert by_call["actor_gen"].inputs == {"x": (Made("", 4),)}
    assert by_call["actor_train"].inputs["v"] == (Made("critic_inf", 4),)
    assert by_call["eval_rew"].inputs == {"eval_x": (Made("", 2),), "eval_y": (Made("eval_gen", 2),)}
    assert by_call["scale"].arguments == "[0.5]"


def test_what_was_read_is_told_with_the_next_ask():
    said = course(loop)
    second = [it for it in said.asked if isinstance(it, CallAsked | TurnEnded) and it.step == 2]
    assert [it.read for it in second] == [(), (), (), (), (), (), (), (6, 7), (), (9,)]


def test_asks_tell_the_line_of_the_script():
    first = course(loop).calls[0]
    assert first.at == f"test_run.py:{loop.__code__.co_firstlineno + 5}"


def test_a_script_waits_where_it_reads_or_says_so_or_computes_itself():
    executed: list[int] = []
    seen: list[list[int]] = []

    class Telling(FakeMaster):
        def hear(self):
            message = super().hear()
            executed.extend([message.number] if isinstance(message, CallExecuted) else [])
            return message

    def script(run, e):
        actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
        for step in run.steps():
            batch = step.batch()
            batch = batch.union(actor.generate(batch))
            batch = batch.union(reward.score(batch), critic.inference(batch), reference.inference(batch))
            seen.append([*executed])
            batch = batch.union(run.compute(scale, batch, 0.5))
            seen.append([*executed])
            fitted, learnt = critic.update(batch), actor.update(batch)
            seen.append([*executed])
            assert fitted.stats["norm"] == 2.0
            seen.append([*executed])
            later = critic.inference(batch.select("x", "y"), blocking=False)
            critic.inference(batch.select("x", "y"), blocking=True)
            seen.append([*executed])
            assert [*later.result().stats] == ["loss", "norm"]
            assert learnt.stats["loss"] == 1.0

    world, master = world_with(script, None, turns=1)
    follow(script, Telling(master.computations, turns=1), world)
    assert seen == [[], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7, 8, 9]]


def test_a_statistic_to_which_nothing_counted_is_not_a_number():
    """One that the algorithm declares; another is refused by name."""
    seen = []

    def script(run, e):
        actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
        for step in run.steps():
            batch = step.batch()
            drawn = actor.generate(batch)
            batch = batch.union(drawn)
            batch = batch.union(reward.score(batch), critic.inference(batch), reference.inference(batch))
            learnt = actor.update(batch.union(run.compute(scale, batch, 0.5)))
            step.log(loss=learnt.stats["loss"], norm=drawn.stats["norm"])
            with pytest.raises(UserCodeError, match=r"actor_train has no statistic 'los'; it has loss"):
                learnt.stats["los"]
            seen.append((dict(learnt.stats), learnt.stats.get("loss", 3.0)))

    said = course(script, turns=1, stats=lambda asked: {})
    assert seen == [({}, 3.0)]
    assert all(math.isnan(number) for number in said.ends[0].logged.values()) and len(said.ends[0].logged) == 2


def test_answers_in_any_order_give_one_course():
    expected = course(loop).asked
    for seed in range(20):
        assert course(loop, late=random.Random(seed)).asked == expected


def test_a_script_that_begins_anew_says_what_it_said():
    whole = course(loop)
    state = whole.ends[0].state
    again = course(loop, first=2, state=state)
    assert [it for it in whole.asked if it.step >= 2] == again.asked


def test_rows_and_means_are_those_of_the_master():
    seen = {}

    def script(run, e):
        (actor,) = run.groups("actor")
        for step in run.steps():
            batch = step.batch()
            batch = batch.union(actor.generate(batch))
            seen[step.number] = batch.fetch("x", "y"), batch.mean("y"), batch.ids
            assert not batch.fetch("y")["y"][0].flags.writeable

    said = course(script, turns=1)
    rows, mean, ids = seen[1]
    np.testing.assert_array_equal(rows["x"], [row("", "x", it) for it in ids])
    np.testing.assert_array_equal(rows["y"], [row("actor_gen", "y", it) for it in ids])
    assert mean == pytest.approx(np.mean(rows["y"]), abs=1e-15)
    assert said.ends[0].read == (1,)
    assert [set(it.inputs) for it in said.asked if isinstance(it, RowsAsked)] == [{"x", "y"}, {"y"}, {"y"}]


def test_a_mean_fetches_no_rows_and_is_told_as_read():
    seen = {}

    class Remote(FakeMaster):
        def rows(self, ids, sources):
            raise AssertionError("rows have come to the script")

        def totals(self, sources):
            return [total_of(FakeMaster.rows(self, source.ids, [source])) for source in sources]

    def script(run, e):
        (actor,) = run.groups("actor")
        for step in run.steps():
            batch = step.batch()
            batch = batch.union(actor.generate(batch))
            seen["mean"], seen["ids"], seen["none"] = batch.mean("y"), batch.ids, batch[:0].mean("y")

    world, _ = world_with(script, None)
    master = Remote(world.computations, turns=1)
    follow(script, master, world)
    numbers = [number for it in seen["ids"] for number in row("actor_gen", "y", it).tolist()]
    assert seen["mean"] == math.fsum(numbers) / len(numbers) and math.isnan(seen["none"])
    assert master.ends[0].read == (1,)


def test_a_computation_gets_its_inputs_and_gives_rows():
    seen = {}

    def script(run, e):
        reward, actor = run.groups("reward", "actor")
        for step in run.steps():
            batch = step.batch()
            batch = batch.union(actor.generate(batch))
            batch = batch.union(reward.score(batch))
            batch = batch.union(run.compute(scale, batch, 2.0))
            seen["r"], seen["s"] = batch.fetch("r")["r"], batch.fetch("s")["s"]

    course(script, turns=1)
    np.testing.assert_array_equal(np.array(seen["s"]), 2 * np.array(seen["r"]))


def test_a_call_asked_for_again_is_numbered():
    def script(run, e):
        (actor,) = run.groups("actor")
        for step in run.steps():
            first, rest = step.batch().split([1, 3])
            both = [part.union(actor.generate(part)) for part in (first, rest)]
            whole = both[0].concat(both)
            assert whole.columns["y"] == (Made("actor_gen", 1), Made("actor_gen_2", 3))

    assert [it.call for it in course(script, turns=2).calls] == ["actor_gen", "actor_gen_2"] * 2


def test_state_is_what_json_reads_again_killed_or_not():
    seen = []

    def script(run, e):
        run.state["pair"] = (1, 2)
        for step in run.steps():
            seen.append(dict(run.state))
            run.state["pair"] = (step.number, 2)

    said = course(script, turns=2)
    assert seen == [{"pair": [1, 2]}, {"pair": [1, 2]}]
    assert [json.loads(it.state) for it in said.ends] == [{"pair": [1, 2]}, {"pair": [2, 2]}]


def test_what_a_changed_script_sets_above_its_loop_is_there_where_the_record_has_it_not():
    seen, prepared = [], []

    def rollout(run, e, step):
        prepared.append((step.number, run.state["new"], run.state["old"]))
        return step.batch()

    def script(run, e):
        run.state |= {"old": 0, "new": [7]}
        for step in run.steps(prepare=rollout, lag=1):
            seen.append((step.number, [*run.state["new"]], run.state["old"]))
            run.state["new"].append(step.number)

    said = course(script, turns=4, first=3, state='{"old":2}', earlier=('{"old":1}',))
    assert seen == [(3, [7], 2), (4, [7, 3], 2)]
    assert prepared == [(3, [7], 1), (4, [7], 2)]
    assert [json.loads(it.state) for it in said.ends] == [{"old": 2, "new": [7, 3]}, {"old": 2, "new": [7, 3, 4]}]


def test_what_is_set_above_the_loop_stays_as_it_would_be_there_again():
    def script(run, e):
        run.state.setdefault("beta", 0.1)
        for _ in run.steps():
            del run.state["beta"]

    with pytest.raises(UserCodeError, match=r"run.state\['beta'\], set above the loop, is gone in the step") as error:
        course(script)
    assert error.value.advice == ("Set it to None instead: run.state['beta'] = None.",)


@pytest.mark.parametrize("leaves", ["break", "return"])
def test_a_loop_that_is_left_ends_its_turn(leaves):
    def script(run, e):
        for step in run.steps():
            step.log(number=step.number)
            if step.number == 2:
                if leaves == "return":
                    return
                break

    said = course(script)
    assert [(it.step, it.logged) for it in said.ends] == [(1, {"number": 1.0}), (2, {"number": 2.0})]
    assert said.asked[-1] == ScriptEnded(2)


def test_the_view_shows_the_version_of_each_ask():
    experiments = {version: replace(EVALUATING, name=f"v{version}") for version in (0, 1, 2)}
    seen = []

    def script(run, e):
        seen.append(e.name)
        (actor,) = run.groups("actor")
        for step in run.steps():
            for _ in range(3):
                seen.append(e.name)
                actor.generate(step.batch())

    course(script, experiments, first=2, turns=3, recorded={2: (0, 1)}, settings=2)
    assert seen == ["v2", "v0", "v1", "v2", "v2", "v2", "v2"]


def test_random_numbers_follow_from_seed_step_and_name():
    seen = []

    def script(run, e):
        for step in run.steps():
            numbers = random.random(), np.random.random(), run.rng("a").random(), run.rng("b").random()
            seen.append((step.number, *numbers, run.rng("a").random()))

    course(script)
    course(script, first=2)
    assert seen[1:3] == seen[3:]
    assert seen[0][3] == seen[0][5]
    assert len({number for it in seen[:3] for number in it[1:5]}) == 12


READ_BESIDE = {
    "run.rng('noise')": lambda run, e: run.rng("noise").random(),
    "run.state": lambda run, e: run.state["n"],
    "e": lambda run, e: e.name,
}


@pytest.mark.parametrize("what", READ_BESIDE)
@pytest.mark.parametrize("ahead", [False, True])
def test_what_depends_on_the_step_is_not_read_beside_it(what, ahead):
    """By a computation, which a run executes on its worker's thread, whatever it does with what is raised there."""
    read = []

    def looks(rows):
        with suppress(UserCodeError):
            read.append(READ_BESIDE[what](*given[-1]))
        return {"s": rows["r"]}

    class Beside(FakeMaster):
        def _execute(self, asked):
            executes = threading.Thread(target=super()._execute, args=(asked,))
            executes.start()
            executes.join()

    def prepare(run, e, step):
        given.append((run, e))
        actor, reward = run.groups("actor", "reward")
        batch = step.batch().union(actor.generate(step.batch()))
        return run.compute(looks, batch.union(reward.score(batch)), name="scale")

    def script(run, e):
        run.state["n"] = 1
        for step in run.steps(prepare=prepare, lag=1) if ahead else run.steps():
            step.prepared or prepare(run, e, step)

    given = []
    world, _ = world_with(script, None)
    with pytest.raises(UserCodeError, match=re.escape(f"{what} is read by the computation scale")) as error:
        follow(script, Beside(world.computations, turns=2), world)
    assert re.match(r"test_run\.py:\d+: ", str(error.value)) and not read


@pytest.mark.parametrize("what", READ_BESIDE)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_the_scripts_own_reads_nothing_of_the_step(what):
    def script(run, e):
        for step in run.steps():
            reads = threading.Thread(target=READ_BESIDE[what], args=(run, e))
            reads.start()
            reads.join()
            run.group("actor").generate(step.batch())

    with pytest.raises(UserCodeError, match=re.escape(f"{what} is read by another thread than the script's own")):
        course(script)


def twice_called(run):
    for step in run.steps():
        if step.number == 1:
            break
    for _ in run.steps():
        pass


def twice_looped(run):
    steps = run.steps()
    next(steps)
    for _ in steps:
        pass


@pytest.mark.parametrize("script", [twice_called, twice_looped])
def test_a_script_has_one_loop(script):
    with pytest.raises(UserCodeError, match=r"test_run.py:\d+: run.steps\(\) is .* a second time") as error:
        course(lambda run, e: script(run))
    assert error.value.advice == ("Loop once, and decide by step.number or run.state what a step does.",)
    assert course(lambda run, e: [*zip(iter(run.steps()), "abc", strict=True)]).ended


def test_a_list_from_above_the_loop_is_kept_where_it_is_assigned():
    def script(run, e):
        many, few = run.state.setdefault("many", []), run.state.setdefault("few", {"of": []})
        for step in run.steps():
            many.append(step.number)
            run.state["many"] = many
            if step.number == last:
                few["of"].append(step.number)

    last = 9
    assert [json.loads(it.state)["many"] for it in course(script).ends] == [[1], [1, 2], [1, 2, 3]]
    last = 2
    with pytest.raises(UserCodeError, match=r"a dict that was taken from run.state\['few'\] before it began"):
        course(script)


def test_a_list_that_follows_the_state_may_change_with_it():
    def script(run, e):
        mirror = run.state.setdefault("seen", [])
        for step in run.steps():
            mirror.append(step.number)
            run.state["seen"][:] = mirror

    assert [json.loads(it.state)["seen"] for it in course(script).ends] == [[1], [1, 2], [1, 2, 3]]


def test_groups_tell_their_layout():
    def script(run, e):
        group = run.group("actor")
        assert (group.world_size, group.layout, group.ranks) == (2, "d2t1p1", (0, 1))
        assert (group.info(1).dp_rank, group.info(1).dp_size, group.info(1).tp_size, group.info(1).node) == (1, 2, 1, 0)
        assert group.info(1).device == "cuda:1"

    assert course(script).asked == [ScriptEnded(0)]


def test_what_breaks_the_line_is_raised_whatever_the_script_catches():
    def script(run, e):
        (actor,) = run.groups("actor")
        for step in run.steps():
            with suppress(Exception):
                actor.generate(step.batch())

    world, master = world_with(
        script, None, fails=lambda it: StoppedError("lost") if isinstance(it, CallAsked) else None
    )
    with pytest.raises(StoppedError, match="lost"):
        follow(script, master, world)
    assert not master.ends


def test_a_script_that_raises_is_told_with_its_own_frames_and_ends_no_turn():
    def script(run, e):
        for _ in run.steps():
            raise ValueError("no luck")

    world, master = world_with(script, None)
    with pytest.raises(UserCodeError, match=r"(?s)failed in step 1.*test_run\.py.*ValueError: no luck") as told:
        follow(script, master, world)
    assert "hpcrl/controller" not in str(told.value)
    assert not master.ends


def test_a_declaration_in_a_file_is_followed_as_it_is_written(tmp_path):
    """With a decorator of the user's own, and with errors of its own."""
    (tmp_path / "loop.py").write_text(DECORATED)
    script = algorithm_of(f"{tmp_path}/loop.py:TOY").script
    assert script is not None
    world, master = world_with(script, None)
    with pytest.raises(UserCodeError, match=r"(?s)step 2.*loop\.py\", line 18.*KeyError: 'no'"):
        follow(script, master, world)
    assert [it.logged for it in master.ends] == [{"n": 1.0}]


DECORATED = """
import functools
from dataclasses import replace
from hpcrl.recipes import toy

def starting(script):
    @functools.wraps(script)
    def started(run, e):
        run.state["n"] = 1
        return script(run, e)
    return started

@starting
def loop(run, e):
    for step in run.steps():
        step.log(n=run.state["n"])
        if step.number == 2:
            {}["no"]

TOY = replace(toy.ALGORITHM, script=loop)
"""


def test_a_turn_that_the_script_leaves_by_its_end_is_told_where_it_asked_last():
    """As in a run, where a thread follows the script: no line of its own is left then."""
    world, master = world_with(loop_once, None)
    thread = threading.Thread(target=follow, args=(loop_once, master, world))
    thread.start()
    thread.join()
    (asked,), (ended,) = master.calls, master.ends
    assert asked.at == ended.at == f"test_run.py:{loop_once.__code__.co_firstlineno + 2}"


def loop_once(run, e):
    for step in run.steps():
        run.group("actor").generate(step.batch())
        break


def test_what_is_done_outside_is_told_before_and_after_and_is_not_done_where_it_is_recorded():
    done = []

    def send(key, number, pair):
        done.append((key, number, pair, random.random()))
        return {"number": number, "pair": (1, 2)}

    def script(run, e):
        (actor,) = run.groups("actor")
        for step in run.steps():
            drawn = actor.generate(step.batch())
            before = random.random()
            random.seed(step.number)
            found = run.once(send, step.number, (drawn.stats["loss"], 2))
            again = run.once(send, step.number, None)
            assert found == again == {"number": step.number, "pair": [1, 2]}
            run.state["drawn"] = [before, random.random()]

    said = course(script, turns=2)
    assert [it for it in said.asked if it.step == 1 and isinstance(it, OnceAsked | OnceDone)] == [
        OnceAsked(1, 2, "send", "[1,[1.0,2]]", (1,), f"test_run.py:{script.__code__.co_firstlineno + 6}"),
        OnceDone(1, 2, '{"number":1,"pair":[1,2]}'),
        OnceAsked(1, 3, "send_2", "[1,null]", (), f"test_run.py:{script.__code__.co_firstlineno + 7}"),
        OnceDone(1, 3, '{"number":1,"pair":[1,2]}'),
    ]
    assert said.ends[0].number == 4
    assert [it[:3] for it in done] == [
        ("/1/send", 1, [1.0, 2]),
        ("/1/send_2", 1, None),
        ("/2/send", 2, [2.0, 2]),
        ("/2/send_2", 2, None),
    ]
    recorded = {(1, number): '{"number":1,"pair":[1,2]}' for number in (2, 3)}
    again = course(script, turns=2, done=recorded)
    assert again.ends == said.ends
    assert [it[0] for it in done[4:]] == ["/2/send", "/2/send_2"]


def test_what_raises_outside_ends_the_script_however_it_is_caught():
    def send(key):
        raise OSError("no route")

    def script(run, e):
        for _ in run.steps():
            with suppress(Exception):
                run.once(send)

    with pytest.raises(UserCodeError, match=r"send \(test_run.py:\d+\) failed in step 1.\n(.|\n)*OSError: no route"):
        course(script)
