from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import begin, checkpointed, done, journals, opened, trained
from support.miniature import make_run

from hpcrl.durable.history import (
    History,
    Line,
    accepted_inputs,
    believed_count,
    has_grown,
    has_new_attempt,
    read_history,
    supports_cut,
)
from hpcrl.durable.journal import (
    Accepted,
    Adopted,
    Checkpointed,
    Closed,
    Compacted,
    Event,
    Opened,
    encode_line,
    open_journal,
)


def events(history: History) -> list[Event | None]:
    return [line.event for line in history.lines if not isinstance(line.event, Adopted)]


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def test_first_attempt_believes_nothing(root: Path) -> None:
    run = make_run(root / "run")
    assert read_history(run) == History()
    run.claim_attempt("s")
    assert read_history(run, before=0) == History()


def test_attempts_are_read_one_after_another(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1), done(1, "gen", 0)])
    begin(run, read_history(run)).append([done(1, "gen", 1)])
    begin(run, read_history(run)).append([trained(1, "actor_train")])
    assert events(read_history(run)) == [opened(1), done(1, "gen", 0), done(1, "gen", 1), trained(1, "actor_train")]
    assert events(read_history(run, before=1)) == [opened(1), done(1, "gen", 0)]


def test_attempt_without_adopted_json_counts_for_nothing(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1)])
    stray = run.claim_attempt("s")
    open_journal(run.files, run.journal(stray)).append([done(1, "gen", 0)])
    history = read_history(run)
    assert history.newest == 0 and events(history) == [opened(1)]


def test_attempt_killed_between_adopted_json_and_journal_counts_with_an_empty_one(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1)])
    attempt = run.claim_attempt("s")
    run.files.publish(run.adopted(attempt), encode_line(Adopted(read_history(run).prefixes(2), {})), "adopted")
    history = read_history(run)
    assert history.newest == attempt and events(history) == [opened(1)]


def test_late_lines_of_an_older_attempt_change_nothing(root: Path) -> None:
    run = make_run(root / "run")
    old = begin(run)
    old.append([opened(1)])
    begin(run, read_history(run)).append([done(1, "gen", 0, attempt=1)])
    before = read_history(run)
    old.append([done(1, "gen", 0), done(1, "gen", 1), Closed(1, {})])
    assert read_history(run) == before
    begin(run, before)
    assert events(read_history(run)) == [opened(1), done(1, "gen", 0, attempt=1)]


def test_of_two_attempts_that_adopted_side_by_side_the_higher_wins(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1)])
    seen = read_history(run)
    lower, higher = begin(run, seen), begin(run, seen)
    lower.append([done(1, "gen", 0, attempt=1)])
    higher.append([done(1, "gen", 1, attempt=2)])
    assert events(read_history(run)) == [opened(1), done(1, "gen", 1, attempt=2)]
    assert run.superseded(1) and not run.superseded(2)


def test_newcomers_and_growth_are_noticed(root: Path) -> None:
    run = make_run(root / "run")
    journal = begin(run)
    history = read_history(run)
    assert not has_grown(run, history) and not has_new_attempt(run, history, before=5)
    journal.append([opened(1)])
    assert has_grown(run, history) and not has_new_attempt(run, history, before=5)
    begin(run, history)
    assert has_new_attempt(run, history, before=5) and not has_new_attempt(run, history, before=1)


def test_torn_last_line_is_ignored_and_is_no_damage(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1), done(1, "gen", 0)])
    path = run.journal(0)
    path.write_bytes(path.read_bytes()[:-3])
    history = read_history(run)
    assert events(history) == [opened(1)] and history.damage == ()
    begin(run, history)
    with path.open("ab") as file:
        file.write(b"xxx\n")
    assert events(read_history(run)) == [opened(1)] and read_history(run).damage == ()


def test_damaged_line_is_named_and_marked(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1), done(1, "gen", 0), done(1, "gen", 1)])
    first, second, third, _ = (line.end for line in read_history(run).lines)
    flip(run.journal(0), second + 20)
    history = read_history(run)
    assert events(history) == [opened(1), None, done(1, "gen", 1)]
    assert history.damage == ("attempts/000/journal.jsonl: line 3 is damaged or lost",)
    assert first < second < third
    assert [prefix.size for prefix in history.prefixes(believed_count(history.lines, None))] == [second]


@pytest.mark.parametrize("lost", ["everything", "last line", "the file", "middle line"])
def test_what_is_lost_of_an_older_journal_is_marked_again_and_again(root: Path, lost: str) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1), done(1, "gen", 0)])
    begin(run, read_history(run)).append([done(1, "gen", 1)])
    path = run.journal(0)
    data = path.read_bytes()
    ends = [line.end for line in read_history(run).lines if line.attempt == 0]
    if lost == "the file":
        path.unlink()
    elif lost == "middle line":
        flip(path, ends[0] + 20)
    else:
        path.write_bytes(b"" if lost == "everything" else data[: ends[1]])
    for _ in range(3):
        history = read_history(run)
        assert None in events(history)
        assert any("attempts/000/journal.jsonl" in text for text in history.damage)
        assert events(history)[-1] == done(1, "gen", 1)
        begin(run, history)


def test_damaged_adopted_json_is_read_from_the_journal_instead(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1)])
    begin(run, read_history(run)).append([done(1, "gen", 0)])
    flip(run.adopted(1), 30)
    history = read_history(run)
    assert events(history) == [opened(1), done(1, "gen", 0)]
    assert history.damage == ("attempts/001/adopted.json is damaged",)


def test_attempt_whose_beliefs_are_lost_twice_does_not_count(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1)])
    begin(run, read_history(run)).append([done(1, "gen", 0)])
    flip(run.adopted(1), 30)
    flip(run.journal(1), 30)
    history = read_history(run)
    assert (history.newest, history.published) == (0, 1)
    assert events(history) == [opened(1)] and history.damage == ("attempts/001/adopted.json is damaged",)


def lines_of(written: Sequence[Event], damaged: set[int]) -> list[Line]:
    return [Line(0, i, None if i in damaged else event) for i, event in enumerate(written)]


def step_of(event: Event) -> int:
    assert isinstance(event, Opened | Compacted | Checkpointed | Closed) or hasattr(event, "step")
    return event.step  # type: ignore[union-attr]


damages = st.sets(st.integers(0, 40), max_size=3)


def test_damage_before_the_next_step_opened_does_not_shorten_what_is_believed() -> None:
    written = [opened(1), done(1, "gen", 0), Closed(1, {}), checkpointed(1), opened(2), done(2, "gen", 0)]
    assert supports_cut(lines_of(written, {1}), 1)
    assert believed_count(lines_of(written, {1}), 1) == 6
    assert believed_count(lines_of(written, {1}), None) == 1
    for needed in (0, 2, 3):
        assert not supports_cut(lines_of(written, {needed}), 1)


def test_lost_opening_of_a_step_makes_older_cuts_count() -> None:
    written = [opened(1), Closed(1, {}), opened(2), checkpointed(1), done(2, "gen", 0), opened(3)]
    assert supports_cut(lines_of(written, set()), 1)
    assert not supports_cut(lines_of(written, {2}), 1)


@settings(max_examples=80)
@given(journals(), damages)
def test_what_is_believed_of_later_steps_is_a_prefix_of_what_was_written(
    written: list[Event], damaged: set[int]
) -> None:
    lines = lines_of(written, damaged)
    for cut in [None, *(step for step in range(1, 6) if supports_cut(lines, step))]:
        believed = [line.event for line in lines[: believed_count(lines, cut)] if line.event is not None]
        later = [event for event in written if step_of(event) > (cut or 0)]
        known: set[int] = set()
        kept = []
        for event in believed:
            if isinstance(event, Opened):
                known.add(event.step)
            if step_of(event) > (cut or 0) and step_of(event) in known:
                kept.append(event)
        assert kept == later[: len(kept)]


@settings(max_examples=80)
@given(journals(), damages)
def test_cut_is_supported_unless_damage_can_have_hit_what_it_needs(written: list[Event], damaged: set[int]) -> None:
    lines = lines_of(written, damaged)
    for cut in range(1, 6):
        needed = [opened(cut), Closed(cut, {"step": cut}), checkpointed(cut)]
        if not all(event in written for event in needed):
            assert not supports_cut(lines, cut)
            continue
        next_opens = written.index(opened(cut + 1)) if opened(cut + 1) in written else len(written)
        hit = {i for i in damaged if i < len(written)}
        if hit.isdisjoint(map(written.index, needed)) and all(i < next_opens for i in hit):
            assert supports_cut(lines, cut)
            assert believed_count(lines, cut) == len(lines)


def test_accepted_inputs_are_those_of_the_latest_lines(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([Accepted("data.train", "1")])
    begin(run, read_history(run)).append([Accepted("data.train", "2"), Accepted("reward.function", "3")])
    assert accepted_inputs(read_history(run)) == {"data.train": "2", "reward.function": "3"}
