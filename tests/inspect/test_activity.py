from hpcrl.inspect.activity import Activity, Pace, fold

START = [
    {"time": 10.0, "event": "attempt", "number": 3, "recovered": "nothing"},
    {"time": 11.0, "event": "node", "node": 0, "host": "n0", "pid": 7},
    {"time": 12.0, "event": "ready", "workers": 2},
]


def sent(step: int, call: str, part: int, ranks: list[int], replay: bool = False) -> dict:
    return {"time": 13.0, "event": "sent", "step": step, "call": call, "part": part, "ranks": ranks, "replay": replay}


def executed(step: int, call: str, part: int, ranks: list[int], tokens: int = 0) -> dict:
    row = sent(step, call, part, ranks) | {"event": "executed", "time": 14.0}
    return row | {"seconds": 0.5, "tokens": tokens}


def test_workers_start_then_idle_then_do_what_they_were_sent_first() -> None:
    activity = fold(START[:2])
    assert activity.phase == "starting"
    assert activity.nodes == {0: "n0"}
    activity.feed(START[2])
    assert (activity.phase, activity.attempt) == ("running", 3)
    assert [activity.doing(rank) for rank in activity.ranks] == ["idle", "idle"]
    for row in [sent(1, "ref_inf", 0, [0]), sent(1, "critic_inf", 0, [0]), sent(1, "actor_train", 0, [1], replay=True)]:
        activity.feed(row)
    assert activity.doing(0) == "ref_inf, step 1"
    assert activity.doing(1) == "replays actor_train, step 1"
    activity.feed(executed(1, "ref_inf", 0, [0]))
    assert activity.doing(0) == "critic_inf, step 1"


def test_a_worker_that_ended_says_how() -> None:
    activity = fold([*START, {"time": 15.0, "event": "worker ended", "rank": 1, "how": "killed by SIGKILL"}])
    assert activity.doing(1) == "ended: killed by SIGKILL"


def test_costs_count_the_seconds_of_all_workers_of_a_part() -> None:
    activity = fold([*START, executed(1, "actor_train", 0, [0, 1]), executed(1, "ref_inf", 0, [0])])
    assert activity.costs["actor_train"].seconds == 1.0
    assert activity.costs["ref_inf"].seconds == 0.5


def test_pace_counts_generated_tokens_once_and_evaluations_not_at_all() -> None:
    rows = list(START)
    for step in range(1, 5):
        rows += [
            {"time": 20.0 + step, "event": "opened", "step": step, "samples": 8},
            executed(step, "actor_gen", 0, [0], tokens=50),
            executed(step, "actor_gen", 1, [1], tokens=50),
            executed(step, "critic_inf", 0, [0], tokens=100),
            executed(step, "eval_gen", 0, [0], tokens=1000),
            {"time": 20.0 + 2 * step, "event": "closed", "step": step},
        ]
    assert fold(rows).pace() == Pace(seconds_per_step=2.0, samples_per_s=4.0, tokens_per_s=50.0)
    assert fold(rows).pace(over=1) == Pace(seconds_per_step=2.0, samples_per_s=4.0, tokens_per_s=50.0)
    assert fold(START).pace() is None


def test_phases_follow_orders_and_the_ending() -> None:
    activity = fold([*START, {"time": 1, "event": "command", "command": "pause", "file": "x"}])
    assert activity.paused
    activity.feed({"time": 2, "event": "command", "command": "continue", "file": "y"})
    assert not activity.paused
    activity.feed({"time": 3, "event": "draining", "in_flight": []})
    assert activity.phase == "draining"
    activity.feed({"time": 4, "event": "ending", "state": "stopped", "reason": "asked to"})
    assert (activity.phase, activity.ending) == ("ended", "stopped: asked to")


def test_unknown_and_incomplete_events_change_nothing_but_the_time() -> None:
    activity = fold([{"time": 5.0, "event": "brand new", "x": 1}, {"time": 6.0, "event": "sent"}, {"time": 7.0}])
    assert activity == Activity(began=5.0, last=7.0)
