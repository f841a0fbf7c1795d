"""Rows of costs: what is added up from events, and what of metrics."""

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.cost_fold import CostFold, SeenFold
from hpcrl.costs import (
    MOVES,
    Beside,
    CallCost,
    Live,
    Seen,
    Span,
    Total,
    UnderWay,
    decode,
    decode_live,
    encode,
    encode_live,
    generated,
)
from hpcrl.event_log import Entry
from hpcrl.events import CommandHeard, Event, StepClosed, StepExtended, StepOpened, WorkersReady
from hpcrl.figures import Figures, Seconds, packed, unpacked
from hpcrl.progress import JournalWritten, PartExecuted, PartSent, PartSpilled, Progress, ShardSaved
from hpcrl.whereabouts import BEFORE_LOOP, Doing


class Clock:
    """Feeds a fold with events, one a second; the clock that people read jumps back in between."""

    def __init__(self) -> None:
        self.fold, self.mono = CostFold(), 99.0

    def __call__(self, *said: Event | Progress) -> Entry:
        for it in said:
            self.mono += 1.0
            entry = Entry(5000.0 - self.mono, it, self.mono)
            if isinstance(it, Progress):
                self.fold.follow(it, entry.time, entry.mono)
            else:
                self.fold.feed(entry)
        return entry

    def live(self, doing: dict[int, Doing] | None = None) -> Live:
        live = self.fold.live(5000.0 - self.mono, self.mono, doing or {})
        assert decode_live(encode_live(live)) == live
        return live


def executed(step: int, call: str, part: int, seconds: float, slowest: int, tokens: int = 0) -> PartExecuted:
    return PartExecuted(step, call, part, (0, 1), seconds, 1.0, False, tokens, slowest, 1.5 * seconds)


def measured(step: int, call: str, *figures: Figures) -> PartExecuted:
    return PartExecuted(step, call, 0, (0, 1), 1.0, 1.0, figures=dict(enumerate(figures)))


def test_a_row_has_what_each_call_of_its_step_cost_and_what_is_under_way() -> None:
    clock = Clock()
    clock(WorkersReady(2), StepOpened(1, 0, 8), StepOpened(2, 0, 6), StepExtended(1, 1, 4))
    clock(PartSent(1, "actor_gen", 0, (0,)), PartSent(1, "actor_gen", 1, (1,), True))
    clock(executed(1, "actor_gen", 1, 0.5, 1, tokens=30), executed(1, "actor_gen", 0, 2.0, 0, tokens=70))
    clock(PartSpilled(1, "actor_gen", 0, 1000, 0.25, 0), PartSpilled(1, "actor_gen", 1, 500, 0.5, 1))
    clock(PartSent(2, "ref_inf", 0, (1,)))
    row = clock.fold.row(clock(StepClosed(1, 12.5, 12)), 4321, Seen())
    assert row.calls == {
        "actor_gen": CallCost(
            (Span(1, 5.0, 6.0, 0.5, 1, True), Span(0, 4.0, 7.0, 2.0, 0)), workers_s=3.75, tokens=100, bytes=1500
        )
    }
    assert Total() + row.calls["actor_gen"] == Total(2, 3.75, 100, 1500)
    assert row.beside == (
        Beside("spill", "actor_gen", 1, 0, 7.75, 8.0),
        Beside("spill", "actor_gen", 1, 1, 8.5, 9.0),
    )
    assert row.ranks == {"actor_gen": {0: (0, 1), 1: (0, 1)}}
    assert (row.step, row.samples, row.seconds, row.at_s, row.events, row.tokens) == (1, 12, 12.5, 11.0, 4321, 100)
    assert row.phase == "running" and decode(encode(row)) == row
    assert clock.live() == Live(
        attempt=0,
        began=4900.0,
        time=4889.0,
        at_s=11.0,
        under_way=(UnderWay(2, "ref_inf", 0, (1,), 5000.0 - 110.0),),
    )


def test_a_move_is_a_cost_of_the_step_that_closes_next() -> None:
    clock = Clock()
    clock(StepOpened(1, 0, 8))
    clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen())
    clock(PartSent(1, "actor@1", 0, (0, 1)), executed(1, "actor@1", 0, 0.5, 1))
    assert list(clock.live().open) == [MOVES]
    clock(StepOpened(2, 0, 8), CommandHeard("pause", "000000"))
    row = clock.fold.row(clock(StepClosed(2, 1.0)), 0, Seen())
    assert row.calls == {"actor@1": CallCost((Span(0, 2.0, 3.0, 0.5, 1),), 0.75)} and row.paused
    assert row.tokens == 0 and clock.live().open == {}


def test_what_comes_before_a_scripts_loop_is_a_cost_of_the_step_that_closes_next() -> None:
    """Beside what the step's own call of that name costs, and though it goes by the step before."""
    clock = Clock()
    before = f"actor_told{BEFORE_LOOP}"
    clock(WorkersReady(2), PartSent(3, before, 0, (0, 1)), PartSent(3, before, 1, (1,)))
    clock(executed(3, before, 0, 0.5, 1))
    assert list(clock.live().open) == [MOVES]
    clock(executed(3, before, 1, 0.5, 1), StepOpened(4, 0, 8), executed(4, "actor_told", 0, 2.0, 0))
    live = clock.live()
    row = clock.fold.row(clock(StepClosed(4, 1.0)), 0, Seen())
    assert {call: len(cost.spans) for call, cost in row.calls.items()} == {"actor_told": 1, before: 2}
    assert row.again == {} and live.after(row).open == {} and live.after(row).under_way == ()


def test_a_row_has_what_the_workers_of_a_call_measured_and_the_slowest_of_them() -> None:
    clock = Clock()
    clock(StepOpened(1, 0, 8))
    quick = Figures(Seconds(execute=1.0), flops=5e9, longest=7, peak=100)
    slow = Figures(Seconds(0.5, 3.0), flops=7e9, longest=4, peak=9)
    clock(measured(1, "actor_train", quick, slow))
    clock(measured(1, "actor_train", Figures(Seconds(execute=0.123456789), flops=1.0, tokens=3)))
    row = clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen())
    [cost] = row.calls.values()
    whole = Figures(Seconds(gather=0.5, execute=4.1235), flops=1.2e10, longest=7, peak=100, tokens=3)
    assert (cost.figures, cost.slowest) == (whole, slow)
    assert Total() + cost == Total(2, 4.0, flops=1.2e10, peak=100)
    assert decode(encode(row)) == row


def test_figures_grow_a_row_by_little() -> None:
    """All of them, of a call of a long model's train step."""
    figures = Figures(
        Seconds(0.12, 61.5123, 0.0, 0.0, 17.12345, 33.98765, 8.76543, 2.34567),
        *(1_234_567, 8192, 64, 0, 98_765_432_100, 1.23456789e16, 76_543_210_000, 65_432_100_000),
    )
    clock = Clock()
    clock(StepOpened(1, 0, 8))
    clock(measured(1, "actor_train", figures, figures))
    assert len(encode(clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen()))) < 550


@given(
    st.builds(
        Figures,
        st.builds(Seconds, *[st.integers(0, 10**6).map(lambda it: it / 10**4)] * len(Seconds.__struct_fields__)),
        *[st.integers(0, 2**50)] * 5,
        flops=st.integers(0, 99_999).map(lambda it: it * 1e12),
        peak=st.integers(0, 2**50),
        held=st.integers(0, 2**50),
    )
)
def test_figures_are_packed_without_loss(figures: Figures) -> None:
    numbers = packed(figures)
    assert (unpacked(numbers) or Figures()) == figures and (not numbers or numbers[-1])


def test_a_row_tells_whose_a_part_was_once_until_others_have_it() -> None:
    clock = Clock()
    rows = []
    for step, ranks in ((1, (0, 1)), (2, (0, 1)), (3, (1, 2))):
        clock(StepOpened(step, 0, 8), PartExecuted(step, "actor_train", 0, ranks, 1.0, 1.0))
        rows.append(clock.fold.row(clock(StepClosed(step, 1.0)), 0, Seen()))
    assert [row.ranks for row in rows] == [{"actor_train": {0: (0, 1)}}, {}, {"actor_train": {0: (1, 2)}}]


def test_what_an_older_attempt_has_closed_is_told_with_the_row_that_comes_next() -> None:
    clock = Clock()
    clock(WorkersReady(2), PartSent(1, "actor_train", 0, (0, 1), True), executed(1, "actor_train", 0, 2.0, 1))
    clock(StepOpened(2, 0, 8), JournalWritten(1, 0.25), JournalWritten(3, 0.5))
    clock(ShardSaved(1, "actor", 0, 0.5), ShardSaved(1, "actor", 1, 0.75))
    clock(measured(2, "actor_gen", Figures(), Figures(Seconds(execute=1.0, release=0.25))))
    row = clock.fold.row(clock(StepClosed(2, 1.0)), 0, Seen())
    assert row.again == {1: {"actor_train": CallCost((Span(0, 1.0, 2.0, 2.0, 1, True),), 3.0)}}
    assert [*row.calls] == ["actor_gen"] and row.appends == (2, 0.75)
    assert [(it.kind, it.name, it.step, it.rank, it.end_s - it.begin_s) for it in row.beside] == [
        ("save", "actor", 1, 0, 0.5),
        ("save", "actor", 1, 1, 0.75),
        ("release", "actor_gen", 2, 1, 0.25),
    ]


def test_a_row_that_is_newer_than_what_was_under_way_tells_more() -> None:
    clock = Clock()
    clock(StepOpened(1, 0, 8), PartSent(1, "actor_gen", 0, (0,)), PartSent(2, "actor_gen", 0, (1,)))
    clock(PartSent(0, "actor@1", 0, (0, 1)), PartSent(2, "ref_inf", 0, (1,)), executed(2, "ref_inf", 0, 1.0, 1))
    before = clock.live({1: Doing("execute", "running", 2, "actor_gen", 0), 0: Doing("idle")})
    clock(executed(1, "actor_gen", 0, 1.0, 0), executed(0, "actor@1", 0, 1.0, 0))
    row = clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen())
    [left] = before.after(row).under_way
    assert (left.step, left.call, left.executing) == (2, "actor_gen", (1,))
    assert list(before.after(row).open) == [2]
    later = clock.live()
    assert later.after(row) == later


def test_evaluations_generate_nothing_for_training() -> None:
    clock = Clock()
    clock(StepOpened(1, 0, 8), executed(1, "eval_gen", 0, 1.0, 0, tokens=500), executed(1, "actor_gen", 0, 1.0, 0, 20))
    assert clock.fold.row(clock(StepClosed(1, 1.0)), 0, Seen()).tokens == 20


def test_only_calls_that_decoded_have_generated_tokens() -> None:
    """A reward's longest key may be a text, whose characters are counted."""

    def cost(rounds: int, tokens: int) -> CallCost:
        return CallCost((), 1.0, tokens, 0, packed(Figures(Seconds(execute=1.0), rounds=rounds)))

    calls = {"actor_gen": cost(12, 171), "rew_inf": cost(0, 971), "eval_gen": cost(12, 2000)}
    assert generated(calls) == 171 and (Total() + calls["rew_inf"]).tokens == 0


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
