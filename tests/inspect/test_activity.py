from hpcrl.costs import CostFold, Seen, Total
from hpcrl.event_log import Entry
from hpcrl.events import (
    AgentConnected,
    AttemptBegun,
    AttemptEnded,
    CommandHeard,
    DrainBegun,
    JournalWritten,
    PartExecuted,
    PartSent,
    StepClosed,
    StepOpened,
    WorkerEnded,
    WorkersReady,
)
from hpcrl.inspect.activity import Activity, Pace, fold

START = [
    Entry(10.0, AttemptBegun(3, "nothing", paused=False, steps=9)),
    Entry(11.0, AgentConnected(0, "n0", 7, welcome=True)),
    Entry(12.0, WorkersReady(2)),
]


def sent(step: int, call: str, part: int, ranks: tuple[int, ...], replay: bool = False) -> Entry:
    return Entry(13.0, PartSent(step, call, part, ranks, replay))


def executed(step: int, call: str, part: int, ranks: tuple[int, ...], tokens: int = 0) -> Entry:
    return Entry(14.0, PartExecuted(step, call, part, ranks, replay=False, seconds=0.5, waited_s=0.6, tokens=tokens))


def test_workers_start_then_idle_then_do_what_they_were_sent_first() -> None:
    activity = fold(START[:2])
    assert activity.phase == "starting"
    assert activity.nodes == {0: "n0"}
    activity.feed(START[2])
    assert (activity.phase, activity.attempt) == ("running", 3)
    assert [activity.doing(rank) for rank in activity.ranks] == ["idle", "idle"]
    for entry in (
        sent(1, "ref_inf", 0, (0,)),
        sent(1, "critic_inf", 0, (0,)),
        sent(1, "actor_train", 0, (1,), replay=True),
    ):
        activity.feed(entry)
    assert activity.doing(0) == "ref_inf, step 1"
    assert activity.doing(1) == "replays actor_train, step 1"
    activity.feed(executed(1, "ref_inf", 0, (0,)))
    assert activity.doing(0) == "critic_inf, step 1"


def test_a_worker_that_ended_says_how() -> None:
    activity = fold([*START, Entry(15.0, WorkerEnded(1, 3, "killed by SIGKILL"))])
    assert activity.doing(1) == "ended: killed by SIGKILL"


def test_costs_count_the_seconds_of_all_workers_of_a_part() -> None:
    activity = fold([*START, executed(1, "actor_train", 0, (0, 1)), executed(1, "ref_inf", 0, (0,), tokens=7)])
    assert activity.totals == {"actor_train": Total(1, 1.0), "ref_inf": Total(1, 0.5, 7)}


def test_pace_counts_generated_tokens_once_and_evaluations_not_at_all() -> None:
    costs, rows = CostFold(), []
    for entry in START:
        costs.feed(entry)
    for step in range(1, 5):
        for entry in (
            Entry(0.0, StepOpened(step, 0, 8), 20.0 + step),
            executed(step, "actor_gen", 0, (0,), tokens=50),
            executed(step, "actor_gen", 1, (1,), tokens=50),
            executed(step, "critic_inf", 0, (0,), tokens=100),
            executed(step, "eval_gen", 0, (0,), tokens=1000),
            closed := Entry(0.0, StepClosed(step, 1.0), 20.0 + 2 * step),
        ):
            costs.feed(entry)
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
    written = JournalWritten(lines=1, seconds=0.1)
    found = fold([Entry(5.0, written), Entry(7.0, written)])
    assert found == Activity(began=5.0, last=7.0, costs=CostFold(began=0.0))
