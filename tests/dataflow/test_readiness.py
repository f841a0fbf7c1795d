from collections.abc import Mapping

import pytest
from support.graph_readiness import GraphReadiness
from support.imagined_run import Imagined
from support.recipes import LOOKS, PPO, Recipe, ppo
from support.scenes import Scene, lagging, random_scene

from hpcrl.dataflow.graph import MFC, build_graph
from hpcrl.dataflow.readiness import Offer, Readiness
from hpcrl.dataflow.tasks import Unit, Version

IDS = ["a", "b", "c", "d"]


def opened(
    lag: int = 0, window: int = 2, steps: int = 1, parts: list[list[str]] | None = None, first: int = 0
) -> GraphReadiness:
    """PPO without evaluation, with its first steps open."""
    calls = [lagging(mfc, lag) for mfc in ppo().calls]
    readiness = GraphReadiness(build_graph(calls, ppo().dataset_keys), window)
    for step in range(first, first + steps):
        readiness.enter(step, [mfc.name for mfc in ppo().calls], {mfc.name: parts or [IDS] for mfc in ppo().calls})
    return readiness


def offers(readiness: Readiness) -> list[tuple[int, str, int]]:
    return [(offer.unit.step, offer.unit.call, offer.unit.part) for offer in readiness.offer()]


def run(readiness: Readiness, step: int, *calls: str) -> None:
    for call in calls:
        readiness.executed(Unit(step, call, 0))


@pytest.mark.parametrize("block", [*range(4), *(pytest.param(block, marks=pytest.mark.slow) for block in range(4, 10))])
def test_no_rule_is_broken_in_hundreds_of_runs_of_random_graphs_with_random_delays_and_crashes(block: int) -> None:
    replays = moved = released = apart = 0
    for seed in range(40 * block, 40 * block + 40):
        scene = random_scene(seed, (PPO, LOOKS, None, None)[seed % 4])
        imagined = Imagined(scene, seed, crashes=seed % 3)
        imagined.run()
        apart += bool(scene.rounds) and scene.has_lags_apart
        replays += imagined.replays
        moved += imagined.moved
        released += imagined.released
    assert replays > 20 and moved > 20, "crashes came where they matter, and replicas were read"
    assert apart > 0, "steps chose where calls of a role are not equally far behind"
    assert released > 5, "what replicas had went"


def test_without_a_crash_every_unit_runs_exactly_once() -> None:
    for seed in range(30):
        scene = random_scene(seed)
        imagined = Imagined(scene, seed, crashes=0)
        imagined.run()
        expected = sorted(unit for step in range(len(scene.steps)) for unit in scene.units(step))
        assert sorted(imagined.executions) == expected


def test_the_three_inferences_of_ppo_overlap() -> None:
    readiness = opened()
    assert offers(readiness) == [(0, "actor_gen", 0)]
    run(readiness, 0, "actor_gen")
    assert offers(readiness) == [(0, "critic_inf", 0), (0, "ref_inf", 0), (0, "rew_inf", 0)]
    run(readiness, 0, "critic_inf", "ref_inf", "rew_inf")
    assert offers(readiness) == [(0, "actor_train", 0), (0, "critic_train", 0)]


def test_a_part_starts_when_the_parts_that_hold_its_samples_are_executed() -> None:
    readiness = GraphReadiness(ppo().graph())
    parts = {mfc.name: [["a", "b"], ["c", "d"]] for mfc in ppo().calls}
    parts["rew_inf"] = [["a"], ["b", "c"], ["d"]]
    readiness.enter(0, parts, parts)
    offers(readiness)
    readiness.executed(Unit(0, "actor_gen", 0))
    assert offers(readiness) == [(0, "critic_inf", 0), (0, "ref_inf", 0), (0, "rew_inf", 0)]
    readiness.executed(Unit(0, "actor_gen", 1))
    assert offers(readiness) == [(0, "critic_inf", 1), (0, "ref_inf", 1), (0, "rew_inf", 1), (0, "rew_inf", 2)]


def test_generation_of_the_next_step_waits_for_its_own_role_only() -> None:
    readiness = opened(steps=2)
    offers(readiness)
    run(readiness, 0, "actor_gen")
    offers(readiness)
    run(readiness, 0, "critic_inf", "ref_inf", "rew_inf")
    offers(readiness)
    run(readiness, 0, "actor_train")
    assert offers(readiness) == [(1, "actor_gen", 0)]
    run(readiness, 1, "actor_gen")
    assert offers(readiness) == [(1, "ref_inf", 0), (1, "rew_inf", 0)]
    run(readiness, 0, "critic_train")
    assert offers(readiness) == [(1, "critic_inf", 0)]


def test_with_a_lag_generation_runs_ahead_of_training_by_that_much() -> None:
    for lag in range(3):
        assert offers(opened(lag, steps=3, first=1)) == [(1 + ahead, "actor_gen", 0) for ahead in range(lag + 1)]


def test_only_the_call_that_has_a_lag_runs_ahead() -> None:
    calls = [lagging(mfc, 1) if mfc.name == "actor_gen" else mfc for mfc in ppo().calls]
    readiness = GraphReadiness(build_graph(calls, ppo().dataset_keys))
    for step in (1, 2):
        readiness.enter(step, [mfc.name for mfc in calls], {mfc.name: [IDS] for mfc in calls})
    assert offers(readiness) == [(1, "actor_gen", 0), (2, "actor_gen", 0)]
    run(readiness, 1, "actor_gen")
    run(readiness, 2, "actor_gen")
    assert offers(readiness) == [
        *[(1, call, 0) for call in ("critic_inf", "ref_inf", "rew_inf")],
        *[(2, call, 0) for call in ("ref_inf", "rew_inf")],
    ], "the critic is read for step 2 after it was trained in step 1"


def test_evaluation_reads_the_version_of_its_step_and_holds_back_the_next_train_step() -> None:
    recipe = Recipe(
        (MFC("train", "m", "train_step", ("x",)), MFC("check", "m", "generate", ("e",), ("y",), dataset="eval")),
        ("x",),
        ("e",),
    )
    readiness = GraphReadiness(recipe.graph())
    readiness.enter(0, ["train", "check"], {"train": [["a"]], "check": [["e1"], ["e2"]]})
    readiness.enter(1, ["train"], {"train": [["b"]]})
    assert offers(readiness) == [(0, "train", 0)]
    run(readiness, 0, "train")
    assert offers(readiness) == [(0, "check", 0), (0, "check", 1)]
    run(readiness, 0, "check")
    assert offers(readiness) == []
    readiness.executed(Unit(0, "check", 1))
    assert offers(readiness) == [(1, "train", 0)]


def behind(replicas: Mapping[str, int] = {}) -> GraphReadiness:
    """A call that is a version behind what is trained on its outputs."""
    gen = MFC("gen", "m", "generate", ("x",), ("y",), lag=1)
    graph = build_graph([gen, MFC("train", "m", "train_step", ("y",))], ["x"])
    return GraphReadiness(graph, replicas=replicas)


def enter(readiness: GraphReadiness, step: int) -> None:
    readiness.enter(step, ["gen", "train"], {"gen": [["a"]], "train": [["a"]]})


def test_a_train_step_waits_for_a_call_that_opens_late_and_reads_what_it_overwrites() -> None:
    readiness = behind()
    enter(readiness, 1)
    assert offers(readiness) == [(1, "gen", 0)]
    run(readiness, 1, "gen")
    assert offers(readiness) == [], "step 2 is to read what the train_step of step 1 overwrites"
    enter(readiness, 2)
    assert offers(readiness) == [(2, "gen", 0)]
    run(readiness, 2, "gen")
    assert offers(readiness) == [(1, "train", 0)]
    run(readiness, 1, "train")
    assert offers(readiness) == []
    readiness.end()
    assert offers(readiness) == [(2, "train", 0)]


def test_a_cut_is_supported_once_what_was_read_of_older_versions_is_recorded() -> None:
    readiness = behind()
    for step in (1, 2):
        enter(readiness, step)
    offers(readiness)
    run(readiness, 1, "gen")
    run(readiness, 2, "gen")
    offers(readiness)
    run(readiness, 1, "train")
    readiness.spilled(Unit(1, "gen", 0))
    assert not readiness.supports_cut(1), "generation of step 2 is not recorded, and read what step 1 has overwritten"
    readiness.spilled(Unit(2, "gen", 0))
    readiness.recorded(Unit(2, "gen", 0))
    assert readiness.supports_cut(1)


def test_what_was_overwritten_is_not_read() -> None:
    readiness = behind()
    enter(readiness, 1)
    offers(readiness)
    run(readiness, 1, "gen")
    readiness.end()
    offers(readiness)
    with pytest.raises(ValueError, match="step 2 gen, part 0 reads version 0 of m, which is overwritten"):
        enter(readiness, 2)


def trained_once(recorded: bool) -> GraphReadiness:
    """Generation is at replica 1 of what step 1 has trained."""
    readiness = GraphReadiness(build_graph([GEN, TRAIN], ["x"]), replicas={"gen": 1})
    for step in (1, 2):
        enter(readiness, step)
    assert [offer.unit for offer in readiness.offer()] == [Unit(0, "m@1", 0)]
    readiness.executed(Unit(0, "m@1", 0))
    assert offers(readiness) == [(1, "gen", 0)]
    run(readiness, 1, "gen")
    assert offers(readiness) == [(1, "train", 0)]
    run(readiness, 1, "train")
    if recorded:
        readiness.spilled(Unit(1, "gen", 0))
        while lines := readiness.recordable():
            readiness.recorded(lines[0])
    return readiness


GEN, TRAIN = MFC("gen", "m", "generate", ("x",), ("y",)), MFC("train", "m", "train_step", ("y",))


def test_a_replica_is_given_a_version_once_the_line_that_made_it_is_written() -> None:
    assert offers(trained_once(recorded=False)) == []
    readiness = trained_once(recorded=True)
    assert readiness.offer() == [Offer(Unit(1, "m@1", 0), False, Version("m", 1, 1))]
    readiness.executed(Unit(1, "m@1", 0))
    assert offers(readiness) == [(2, "gen", 0)]


def test_moves_may_be_held_back_while_all_else_goes() -> None:
    readiness = trained_once(recorded=True)
    enter(readiness, 3)
    assert readiness.offer(moves=False) == []
    assert offers(readiness) == [(1, "m@1", 0)]
    readiness.executed(Unit(1, "m@1", 0))
    assert [offer.unit for offer in readiness.offer(moves=False)] == [Unit(2, "gen", 0)]


def test_home_is_not_trained_again_before_its_replica_has_what_is_to_be_read_there() -> None:
    readiness = behind({"gen": 1})
    for step in (1, 2):
        enter(readiness, step)
    assert offers(readiness) == [(0, "m@1", 0)]
    readiness.executed(Unit(0, "m@1", 0))
    assert offers(readiness) == [(1, "gen", 0), (2, "gen", 0)]
    run(readiness, 1, "gen")
    assert offers(readiness) == [(1, "train", 0)], "while the replica is read, home is trained"


def test_a_new_attempt_moves_where_something_unrecorded_reads_and_nowhere_else() -> None:
    for recorded in (False, True):
        readiness = GraphReadiness(build_graph([GEN, TRAIN], ["x"]), replicas={"gen": 1})
        enter(readiness, 2)
        readiness.restore([Unit(2, "gen", 0)] if recorded else [], [])
        assert offers(readiness) == [(2, "train", 0) if recorded else (1, "m@1", 0)]


def test_what_nothing_changes_is_moved_once() -> None:
    readiness = GraphReadiness(ppo().graph(), replicas={"ref_inf": 2})
    moved = []
    for step in (1, 2):
        readiness.enter(step, ["actor_gen", "ref_inf"], {"actor_gen": [IDS], "ref_inf": [IDS]})
        while ready := readiness.offer():
            moved += [offer.moves for offer in ready if offer.moves is not None]
            for offer in ready:
                readiness.executed(offer.unit)
    assert moved == [Version("reference", 0, 2)]


def test_a_line_waits_for_the_lines_of_what_its_unit_consumed_parameters_included() -> None:
    recipe = Recipe((MFC("gen", "m", "generate", ("x",), ("y",)), MFC("train", "m", "train_step", ("y",))), ("x",))
    readiness = GraphReadiness(recipe.graph())
    for step in range(2):
        readiness.enter(step, ["gen", "train"], {"gen": [["a"]], "train": [["a"]]})
    for step in range(2):
        for call in ("gen", "train"):
            offers(readiness)
            run(readiness, step, call)
    assert readiness.recordable() == []
    readiness.spilled(Unit(1, "gen", 0))
    assert readiness.recordable() == []
    readiness.spilled(Unit(0, "gen", 0))
    order = []
    while lines := readiness.recordable():
        order += lines
        readiness.recorded(lines[0])
    assert order == [Unit(0, "gen", 0), Unit(0, "train", 0), Unit(1, "gen", 0), Unit(1, "train", 0)]


def test_a_spill_may_be_reported_before_all_ranks_have_replied() -> None:
    readiness = opened()
    offers(readiness)
    readiness.spilled(Unit(0, "actor_gen", 0))
    assert readiness.recordable() == []
    run(readiness, 0, "actor_gen")
    assert readiness.recordable() == [Unit(0, "actor_gen", 0)]


def test_a_part_without_samples_is_no_unit() -> None:
    readiness = opened(parts=[["a"], [], ["b"]])
    assert offers(readiness) == [(0, "actor_gen", 0), (0, "actor_gen", 2)]


def test_what_is_recorded_is_never_offered_and_train_steps_are_replayed_in_version_order() -> None:
    readiness = opened(steps=3, window=1)
    calls = [mfc.name for mfc in ppo().calls if mfc.kind != "train_step"]
    recorded = [Unit(step, call, 0) for step in (0, 1) for call in calls] + [Unit(2, "actor_gen", 0)]
    replay = [Unit(1, "actor_train", 0), Unit(0, "critic_train", 0), Unit(0, "actor_train", 0)]
    readiness.restore(recorded, replay)
    assert readiness.offer() == [
        Offer(Unit(0, "actor_train", 0), True),
        Offer(Unit(0, "critic_train", 0), True),
        Offer(Unit(2, "ref_inf", 0), False),
        Offer(Unit(2, "rew_inf", 0), False),
    ]
    run(readiness, 0, "actor_train", "critic_train")
    assert readiness.offer() == [Offer(Unit(1, "actor_train", 0), True), Offer(Unit(1, "critic_train", 0), False)]
    run(readiness, 1, "actor_train", "critic_train")
    assert readiness.offer() == [Offer(Unit(2, "critic_inf", 0), False)]
    assert readiness.recordable() == [Unit(1, "critic_train", 0)]
    assert readiness.closable() == [0]


def test_a_step_that_was_closed_before_takes_no_room_and_is_not_closed_again() -> None:
    readiness = opened(steps=2, window=1)
    calls = [mfc.name for mfc in ppo().calls]
    trains = [Unit(step, call, 0) for step in (0, 1) for call in ("actor_train", "critic_train")]
    readiness.restore([Unit(step, call, 0) for step in (0, 1) for call in calls if "train" not in call], trains)
    readiness.was_closed(0)
    readiness.was_closed(1)
    assert readiness.can_open(2) and not readiness.can_open(3)
    for step in (0, 1):
        assert [offer.replay for offer in readiness.offer()] == [True, True]
        run(readiness, step, "actor_train", "critic_train")
    assert readiness.closable() == [] and readiness.all_finished and readiness.recordable() == []


def test_steps_open_within_the_window_and_one_after_another() -> None:
    readiness = opened(window=2, lag=1, steps=2)
    assert readiness.can_open(2) and not readiness.can_open(3) and not readiness.can_open(1)
    assert not opened(window=2, lag=0, steps=2).can_open(2)
    assert GraphReadiness(ppo().graph()).can_open(17)


def wrong_calls(readiness: Readiness) -> list[tuple[str, object]]:
    calls = [mfc.name for mfc in ppo().calls]
    parts = {call: [IDS] for call in calls}
    return [
        ("steps open one after another", lambda: readiness.enter(5, calls, parts)),
        ("not in the graph", lambda: readiness.enter(1, [*calls, "nap"], parts)),
        ("no partition", lambda: readiness.enter(1, calls, {})),
        ("which has no such samples", lambda: readiness.enter(1, calls[1:], parts)),
        ("which has no such samples", lambda: readiness.enter(1, calls, {**parts, "rew_inf": [["z"]]})),
        ("in two parts", lambda: readiness.enter(1, calls, {**parts, "rew_inf": [["a"], ["a"]]})),
        ("without having been offered", lambda: readiness.executed(Unit(0, "rew_inf", 0))),
        ("twice", lambda: readiness.executed(Unit(0, "actor_gen", 0))),
        ("not among the units", lambda: readiness.executed(Unit(9, "actor_gen", 0))),
        ("may not be written", lambda: readiness.recorded(Unit(0, "actor_gen", 0))),
        ("nothing to spill", lambda: readiness.spilled(Unit(0, "actor_train", 0))),
        ("cannot close", lambda: readiness.closed(0)),
        ("changes nothing", lambda: readiness.restore([], [Unit(0, "actor_gen", 0)])),
    ]


@pytest.mark.parametrize("case", range(13))
def test_misuse_is_refused_and_changes_nothing(case: int) -> None:
    readiness = opened()
    offers(readiness)
    run(readiness, 0, "actor_gen")
    says, wrong = wrong_calls(readiness)[case]
    with pytest.raises(ValueError, match=says):
        wrong()
    assert len(offers(readiness)) == 3 and readiness.can_open(1)


def test_a_step_of_hundreds_of_parts_and_dozens_of_calls_is_run_in_seconds() -> None:
    parts = [[f"s{i}"] for i in range(256)]
    chain = [MFC(f"c{i:02d}", f"role{i % 5}", "inference", (f"k{i}",), (f"k{i + 1}",)) for i in range(24)]
    recipe = Recipe((*chain, MFC("train", "role0", "train_step", ("k24",))), ("k0",))
    scene = Scene(recipe, 2, [{mfc.name: parts for mfc in recipe.calls}])
    readiness = GraphReadiness(build_graph(recipe.calls, recipe.dataset_keys))
    readiness.enter(0, list(scene.steps[0]), scene.steps[0])
    executed = 0
    while batch := readiness.offer():
        for offer in batch:
            readiness.executed(offer.unit)
            executed += 1
            if offer.unit.call != "train":
                readiness.spilled(offer.unit)
        for unit in readiness.recordable():
            readiness.recorded(unit)
    assert executed == 24 * 256 + 1
    assert readiness.closable() == [0]


def test_a_step_of_which_more_follows_neither_closes_nor_lets_the_next_one_open() -> None:
    calls = [mfc.name for mfc in ppo().calls if mfc.kind != "train_step"]
    parts = {mfc.name: [IDS[:2]] for mfc in ppo().calls}
    readiness = GraphReadiness(ppo().graph())
    readiness.enter(1, calls, parts, more=True)
    for call in ("actor_gen", "critic_inf", "ref_inf", "rew_inf"):
        readiness.offer()
        run(readiness, 1, call)
        readiness.spilled(Unit(1, call, 0))
        readiness.recorded(Unit(1, call, 0))
    assert readiness.all_finished and not readiness.closable() and not readiness.can_open(2)
    readiness.follow(1, calls, {call: [IDS[:2], IDS[2:]] for call in calls}, more=True)
    assert offers(readiness) == [(1, "actor_gen", 1)]
    every = [*calls, "actor_train", "critic_train"]
    parts = {call: [IDS[:2], IDS[2:]] for call in calls} | {call: [IDS[1:3]] for call in every[-2:]}
    readiness.follow(1, every, parts)
    assert readiness.can_open(2)
    with pytest.raises(ValueError, match="step 1 has no more units"):
        readiness.follow(1, every, parts)


def test_chosen_rows_wait_for_the_parts_of_all_rounds_that_hold_them() -> None:
    readiness = GraphReadiness(ppo().graph())
    readiness.enter(1, ["actor_gen"], {"actor_gen": [["a", "b"]]}, more=True)
    readiness.follow(1, ["actor_gen"], {"actor_gen": [["a", "b"], ["c"], ["d"]]}, more=True)
    chosen = {"actor_gen": [["a", "b"], ["c"], ["d"]], "rew_inf": [["b", "c"]]}
    readiness.follow(1, list(chosen), chosen)
    assert offers(readiness) == [(1, "actor_gen", 0), (1, "actor_gen", 1), (1, "actor_gen", 2)]
    run(readiness, 1, "actor_gen")
    assert offers(readiness) == []
    readiness.executed(Unit(1, "actor_gen", 1))
    assert offers(readiness) == [(1, "rew_inf", 0)]
