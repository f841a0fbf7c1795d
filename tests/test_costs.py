"""Rows of costs: what is added up from events, and what of metrics."""

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.costs import CallCost, CostFold, Figures, Seconds, Seen, SeenFold, Span, Total, UnderWay, decode, encode
from hpcrl.event_log import Entry
from hpcrl.events import (
    CommandHeard,
    Event,
    ParametersMoved,
    PartExecuted,
    PartSent,
    PartSpilled,
    StepClosed,
    StepExtended,
    StepOpened,
    WorkersReady,
)


class Clock:
    """Feeds a fold with events, one a second; the clock that people read jumps back in between."""

    def __init__(self) -> None:
        self.fold, self.mono = CostFold(), 99.0

    def __call__(self, *events: Event) -> Entry:
        for event in events:
            self.mono += 1.0
            entry = Entry(5000.0 - self.mono, event, self.mono)
            self.fold.feed(entry)
        return entry


def executed(step: int, call: str, part: int, seconds: float, slowest: int, tokens: int = 0) -> PartExecuted:
    return PartExecuted(step, call, part, (0, 1), False, seconds, 1.0, tokens, slowest, 1.5 * seconds)


def test_a_row_has_what_each_call_of_its_step_cost_and_what_is_under_way() -> None:
    clock = Clock()
    clock(WorkersReady(2), StepOpened(1, 0, 8), StepOpened(2, 0, 6), StepExtended(1, 1, 4))
    clock(PartSent(1, "actor_gen", 0, (0,), False), PartSent(1, "actor_gen", 1, (1,), True))
    clock(executed(1, "actor_gen", 1, 0.5, 1, tokens=30), executed(1, "actor_gen", 0, 2.0, 0, tokens=70))
    clock(PartSpilled(1, "actor_gen", 0, 1000, 0.1), PartSpilled(1, "actor_gen", 1, 500, 0.1))
    clock(PartSent(2, "ref_inf", 0, (1,), False))
    row = clock.fold.row(clock(StepClosed(1, 12.5)), 4321, Seen())
    assert row.calls == {
        "actor_gen": CallCost(
            (Span(1, 5.0, 6.0, 0.5, 1, True), Span(0, 4.0, 7.0, 2.0, 0)), workers_s=3.75, tokens=100, bytes=1500
        )
    }
    assert row.totals == {"actor_gen": Total(2, 3.75, 100, 1500)}
    assert (row.step, row.samples, row.seconds, row.at_s, row.events, row.tokens) == (1, 12, 12.5, 11.0, 4321, 100)
    assert row.under_way == (UnderWay(2, "ref_inf", 0, (1,), 5000.0 - 110.0),) and row.phase == "running"
    assert decode(encode(row)) == row


def test_a_move_is_a_cost_of_the_step_that_closes_next() -> None:
    clock = Clock()
    clock(StepOpened(1, 0, 8))
    clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen())
    clock(PartSent(1, "actor@1", 0, (0, 1), False), ParametersMoved(1, "actor", 1, (0, 1), "d", 0.5, 1.0, 1, 0.75))
    clock(StepOpened(2, 0, 8), CommandHeard("pause", "000000"))
    row = clock.fold.row(clock(StepClosed(2, 1.0)), 0, Seen())
    assert row.calls == {"actor@1": CallCost((Span(0, 2.0, 3.0, 0.5, 1),), 0.75)} and row.paused
    assert row.tokens == 0 and row.totals == {"actor@1": Total(1, 0.75)}


def test_a_row_has_what_the_workers_of_a_call_measured_and_the_slowest_of_them() -> None:
    clock = Clock()
    clock(StepOpened(1, 0, 8))
    quick = Figures(Seconds(execute=1.0), flops=5e9, longest=7, peak=100)
    slow = Figures(Seconds(0.5, 3.0), flops=7e9, longest=4, peak=9)
    clock.fold.measured(1, "actor_train", [quick, slow])
    clock.fold.measured(1, "actor_train", [Figures(Seconds(execute=0.123456789), flops=1.0, tokens=3)])
    row = clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen())
    [cost] = row.calls.values()
    whole = Figures(Seconds(gather=0.5, execute=4.1235), flops=1.2e10, longest=7, peak=100, tokens=3)
    assert (cost.figures, cost.slowest) == (whole, slow)
    assert row.totals == {"actor_train": Total(flops=1.2e10, peak=100)}
    assert decode(encode(row)) == row


def test_figures_grow_a_row_by_little() -> None:
    """All of them, of a call of a long model's train step."""
    figures = Figures(
        Seconds(0.12, 61.5123, 0.0, 0.0, 17.12345, 33.98765, 8.76543, 2.34567),
        *(1_234_567, 8192, 64, 0, 98_765_432_100, 1.23456789e16, 76_543_210_000, 65_432_100_000),
    )
    clock = Clock()
    clock(StepOpened(1, 0, 8))
    clock.fold.measured(1, "actor_train", [figures, figures])
    assert len(encode(clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen()))) < 1000


def test_a_row_says_nothing_of_what_there_was_nothing() -> None:
    clock = Clock()
    clock(StepOpened(1, 0, 8))
    forward = Figures(Seconds(execute=0.25, forward=0.125), tokens=9)
    clock.fold.measured(1, "ref_inf", [forward, forward])
    row = encode(clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen()))
    assert b'"slowest":{"seconds":{"execute":0.25,"forward":0.125},"tokens":9}' in row
    assert b'"figures":{"seconds":{"execute":0.5,"forward":0.25},"tokens":18}' in row


def test_evaluations_generate_nothing_for_training() -> None:
    clock = Clock()
    clock(StepOpened(1, 0, 8), executed(1, "eval_gen", 0, 1.0, 0, tokens=500), executed(1, "actor_gen", 0, 1.0, 0, 20))
    assert clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen()).tokens == 20


ROWS = st.lists(
    st.fixed_dictionaries(
        {"samples": st.integers(0, 2)},
        optional={
            "drawn": st.just(4),
            "settings": st.integers(0, 2),
            "actor_train/skipped": st.integers(0, 2),
            "eval_rew/reward": st.floats(0, 1),
        },
    ),
    max_size=12,
).map(lambda rows: [{"step": step, **row} for step, row in enumerate(rows)])


@given(ROWS)
def test_what_is_seen_is_what_all_rows_say(rows: list[dict]) -> None:
    fold, seen = SeenFold(), Seen()
    for row in rows:
        seen = fold.feed(row)
    last = rows[-1] if rows else {}
    newest: dict = {}
    for row in rows:
        newest |= row
    assert seen.newest | last == newest and not seen.newest.keys() & last.keys()
    skipped = sum(row.get("actor_train/skipped", 0) for row in rows)
    assert seen.skipped == ({"actor_train": skipped} if skipped else {})
    assert seen.empty == sum("drawn" in row and row["samples"] == 0 for row in rows)
    versions = [(row["step"], row["settings"]) for row in rows if "settings" in row]
    before = [0, *(version for _, version in versions)]
    assert list(seen.settings) == [it for it, last_one in zip(versions, before, strict=False) if it[1] != last_one]
