from hpcrl.cost_fold import CostFold
from hpcrl.costs import Live, Seen, UnderWay
from hpcrl.event_log import Entry
from hpcrl.events import (
    AgentConnected,
    AttemptBegun,
    AttemptEnded,
    CommandHeard,
    DrainBegun,
    NodesMissing,
    StepClosed,
    StepOpened,
    WorkerEnded,
    WorkersReady,
)
from hpcrl.inspect.activity import Activity, Pace, fold
from hpcrl.phases import Phases
from hpcrl.progress import PartExecuted

START = [
    Entry(10.0, AttemptBegun(3, "nothing", paused=False, steps=9)),
    Entry(11.0, AgentConnected(0, "n0", 7, welcome=True)),
    Entry(12.0, WorkersReady(2)),
]


def live(*under_way: UnderWay) -> Live:
    return Live(3, 10.0, 13.0, 3.0, under_way)


def test_workers_start_then_idle_then_do_what_they_were_sent_first() -> None:
    activity = fold(START[:2])
    assert activity.phase == "starting"
    assert activity.nodes == {0: "n0"}
    activity.feed(START[2])
    assert (activity.phase, activity.attempt) == ("running", 3)
    assert [activity.doing(rank) for rank in activity.ranks] == ["idle", "idle"]
    first, second = UnderWay(1, "ref_inf", 0, (0,), 13.0), UnderWay(1, "critic_inf", 0, (0,), 13.0)
    activity.show(live(first, second, UnderWay(1, "actor_train", 0, (1,), 13.0, True)))
    assert activity.doing(0) == "ref_inf, step 1" and activity.last == 13.0
    assert activity.doing(1) == "replays actor_train, step 1"
    activity.show(live(first, UnderWay(1, "critic_inf", 0, (0,), 13.0, False, (0,))))
    assert activity.doing(0) == "critic_inf, step 1", "it says so itself"
    activity.show(live(second))
    assert activity.doing(0) == "critic_inf, step 1"


def test_a_worker_that_ended_says_how() -> None:
    activity = fold([*START, Entry(15.0, WorkerEnded(1, 3, "killed by SIGKILL"))])
    assert activity.doing(1) == "ended: killed by SIGKILL"


def test_pace_counts_generated_tokens_once_and_evaluations_not_at_all() -> None:
    costs, rows = CostFold(), []
    for entry in START:
        costs.feed(entry)

    def executed(step: int, call: str, part: int, tokens: int) -> None:
        costs.follow(PartExecuted(step, call, part, (part,), 0.5, 0.6, tokens=tokens), 14.0, 14.0)

    for step in range(1, 5):
        costs.feed(Entry(0.0, StepOpened(step, 0, 8), 20.0 + step))
        executed(step, "actor_gen", 0, 50)
        executed(step, "actor_gen", 1, 50)
        executed(step, "critic_inf", 0, 100)
        executed(step, "eval_gen", 0, 1000)
        costs.feed(closed := Entry(0.0, StepClosed(step, 1.0, 8), 20.0 + 2 * step))
        rows.append(costs.row(closed, 0, Seen()))
    activity = fold(START)
    assert activity.pace() is None
    activity.close(rows)
    assert activity.pace() == Pace(seconds_per_step=2.0, samples_per_s=4.0, tokens_per_s=50.0)


def test_phases_follow_orders_and_the_ending() -> None:
    activity = fold([*START, Entry(1.0, CommandHeard("pause", "x"))])
    assert activity.paused
    activity.feed(Entry(2.0, CommandHeard("continue", "y")))
    assert not activity.paused
    activity.feed(Entry(3.0, DrainBegun([])))
    assert activity.phase == "draining"
    activity.feed(Entry(4.0, AttemptEnded("stopped", "asked to")))
    assert (activity.phase, activity.ending) == ("ended", "stopped: asked to")


def test_an_event_of_no_use_changes_nothing_but_the_time() -> None:
    missing = NodesMissing({0: "queued"})
    found = fold([Entry(5.0, missing), Entry(7.0, missing)])
    assert found == Activity(began=5.0, last=7.0, phases=Phases(began=0.0))
