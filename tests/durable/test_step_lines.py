"""Steps that choose: their lines taken together, lines of theirs that are lost, and where an attempt goes on in one."""

from collections.abc import Sequence

import msgspec
import pytest
from support import events
from support.events import CALLS, TRAINED_BY, checkpointed, done, trained

from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.history import Gaps, Line, believed_count, supports_cut
from hpcrl.durable.journal import Chosen, Closed, Event, Extended, Opened
from hpcrl.durable.recovery import UnitKey, plan_recovery
from hpcrl.durable.step_lines import StepLines, steps_in

HALVES = {"2": ((0,), (1,))}


def opened(step: int) -> Opened:
    line = events.opened(step)
    return msgspec.structs.replace(
        line, calls=CALLS, partitions={**HALVES, "1": ((0, 1),)}, minibatches=(), chooses=True
    )


def extended(step: int, turn: int) -> Extended:
    ids = (f"c{turn}@{step}", f"d{turn}@{step}")
    return Extended(step, ids, 2 * step + 2 * turn, CALLS, {**HALVES, "1": ((0, 1),)}, turn)


def chosen(step: int, rounds: int = 2) -> Chosen:
    ids = (f"b@{step}", f"c1@{step}")
    calls = {"ref": 2} | dict.fromkeys(TRAINED_BY, 1)
    return Chosen(step, ids, 2 * step + 2 * rounds, calls, HALVES, ((0, 1),), (f"a@{step}",))


def work(step: int, turn: int) -> list[Event]:
    return [done(step, call, turn * parts + part) for call, parts in CALLS.items() for part in range(parts)]


def step(number: int) -> list[Event]:
    """All lines of a step of three rounds."""
    return [
        opened(number), *work(number, 0), extended(number, 1), *work(number, 1), extended(number, 2), *work(number, 2),
        chosen(number), done(number, "ref", 0), done(number, "ref", 1),
        *(trained(number, call) for call in TRAINED_BY), Closed(number, {"step": number}),
    ]  # fmt: skip


def of(number: int) -> StepLines:
    return StepLines(opened(number), (extended(number, 1), extended(number, 2)), chosen(number))


def test_a_step_is_made_of_all_of_its_lines() -> None:
    lines = steps_in([*step(1), *step(2)])
    assert lines == {1: of(1), 2: of(2)}
    whole = lines[1]
    assert whole.is_whole and not StepLines(opened(1)).is_whole and StepLines(events.opened(1)).is_whole
    assert whole.ids == ("a@1", "b@1", "c1@1", "d1@1", "c2@1", "d2@1") and whole.trained == ("b@1", "c1@1")
    assert whole.cursor == 6 and whole.minibatches == ((0, 1),)
    assert whole.calls == {"gen": 6, "rew": 3, "ref": 2, "actor_train": 1, "critic_train": 1}
    parts = [(ids, count) for ids, _, count in whole.cuttings("gen", evaluates=False)]
    assert parts == [(("a@1", "b@1"), 2), (("c1@1", "d1@1"), 2), (("c2@1", "d2@1"), 2)]
    assert [ids for ids, _, _ in whole.cuttings("ref", evaluates=False)] == [("b@1", "c1@1")]


def gaps(written: Sequence[Event]) -> list[int]:
    """Before which of these events a line is missed."""
    shown = list(Gaps().shown(0, enumerate(written)))
    return [shown[i + 1].end for i, line in enumerate(shown) if line.event is None]


LINES = [*step(1), *step(2)]
LOST = {"round 1": extended(2, 1), "round 2": extended(2, 2), "chosen": chosen(2), "opened": opened(2)}


def test_nothing_is_missed_where_nothing_is_lost() -> None:
    assert gaps(LINES) == []


@pytest.mark.parametrize("lost", LOST)
def test_a_line_of_a_step_that_is_gone_is_missed_by_the_first_that_presupposes_it(lost: str) -> None:
    where = LINES.index(LOST[lost])
    assert gaps([*LINES[:where], *LINES[where + 1 :]]) == [where]


def test_a_choice_that_is_gone_at_the_end_of_a_step_is_missed_by_the_next_one() -> None:
    assert gaps([opened(1), *work(1, 0), opened(2)]) == [1 + len(work(1, 0))]


@pytest.mark.parametrize("lost", ["round 1", "chosen"])
def test_a_checkpoint_counts_only_with_the_choice_behind_it(lost: str) -> None:
    written = [*LINES, checkpointed(2)]
    lines = [Line(0, i, None if event == LOST[lost] else event) for i, event in enumerate(written)]
    assert supports_cut(lines, 2) == (lost != "chosen")
    assert believed_count(lines, None) == written.index(LOST[lost])


def test_an_attempt_goes_on_in_the_middle_of_the_rounds() -> None:
    written = [*step(1), opened(2), *work(2, 0), extended(2, 1), *work(2, 1)[:2]]
    spills = {event.spill.name: event.spill for event in written if hasattr(event, "spill")}
    manifest = Manifest(1, 0, {}, 0, 6, {})
    plan = plan_recovery(written, [manifest], spills, TRAINED_BY)
    assert plan.opened == (StepLines(opened(2), (extended(2, 1),)),) and plan.last_opened == plan.opened[0]
    assert [key for key in plan.recorded if key.part > 1] == [UnitKey(2, "gen", 2), UnitKey(2, "gen", 3)]
    assert "continues with step 2 (which has not chosen yet among 4 samples of 2 rounds), step 3" in plan.describe()


def test_the_cursor_of_a_run_that_is_extended_stands_behind_all_rounds_of_its_last_step() -> None:
    plan = plan_recovery(LINES, [Manifest(2, 0, {}, 0, 8, {})], {}, TRAINED_BY)
    assert plan.opened == () and plan.last_opened == of(2) and of(2).cursor == 8
