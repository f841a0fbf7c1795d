import json
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import NUMERICS

from hpcrl.durable.files import FileRef, Files
from hpcrl.durable.journal import (
    Accepted,
    Adopted,
    Archived,
    Checkpointed,
    Closed,
    Compacted,
    Done,
    Event,
    Exported,
    Opened,
    Prefix,
    Pruned,
    Stopped,
    Trained,
    decode_line,
    encode_line,
    open_journal,
    parse,
)

REF = FileRef("spills/step-00000001/gen.dp00.a000.h5", 12, 0xFFFFFFFF)
ONE_OF_EACH: tuple[Event, ...] = (
    Adopted((Prefix(0, 10, 3), Prefix(2, 0, 0)), {"old": "new"}),
    Opened(1, ("a@0", "ü@0"), 2, {"gen": 2}, {"2": ((0,), (1,))}, 0, ((0, 1),), 2**63, True, False),
    Done(1, "gen", 0, REF, None, {"length": (3.5, 2.0), "bad": (math.inf, -math.inf)}),
    Trained(1, "actor_train", {"digest": "ab", "steps": [1, 2], "nested": {"x": None}}, {}, "cd", NUMERICS),
    Closed(1, {"loss": 0.1 + 0.2, "tiny": 5e-324}),
    Archived(1, REF),
    Archived(2, None, "a spill: not whole"),
    Compacted(1, REF),
    Checkpointed(1, REF),
    Exported(1, "actor", "export/actor/step-00000001"),
    Pruned(1),
    Accepted("data", "123"),
    Stopped("line\nbreak"),
)

text = st.text(max_size=8).filter(lambda string: string.encode("utf-8", "ignore").decode() == string)
floats = st.floats(allow_nan=False)
steps = st.integers(0, 10**9)
events = st.one_of(
    st.sampled_from(ONE_OF_EACH),
    st.builds(Closed, steps, st.dictionaries(text, floats, max_size=3)),
    st.builds(
        Trained,
        steps,
        text,
        st.dictionaries(text, st.one_of(floats, text, st.booleans())),
        st.just({}),
        text,
        st.just(NUMERICS),
    ),
    st.builds(Done, steps, text, steps, st.just(REF), st.none(), st.dictionaries(text, st.tuples(floats, floats))),
)


def parsed(data: bytes) -> list[Event | None]:
    return [event for _, event in parse(data)]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_every_event_is_read_back_as_it_was_written(event: Event) -> None:
    line = encode_line(event)
    assert decode_line(line) == event
    assert line.count(b"\n") == 1
    assert json.loads(line)["event"]["type"] == type(event).__name__.lower()


def test_whole_numbers_stay_whole_and_others_do_not() -> None:
    event = decode_line(encode_line(Closed(1, {"step": 3, "loss": 3.0})))
    assert isinstance(event, Closed) and [type(value) for value in event.metrics.values()] == [int, float]


def test_not_a_number_is_read_back() -> None:
    event = decode_line(encode_line(Closed(1, {"loss": math.nan})))
    assert isinstance(event, Closed) and math.isnan(event.metrics["loss"])


def test_event_that_could_not_be_read_back_is_not_written(root: Path) -> None:
    journal = open_journal(Files(root), root / "journal.jsonl")
    for bad in (Closed("one", {}), Done(1, "gen", 0, None, None, {}), Closed(1, {"loss": None})):  # type: ignore[arg-type]
        with pytest.raises((TypeError, msgspec.ValidationError)):
            journal.append([Closed(0, {}), bad])
    with pytest.raises(TypeError):
        journal.append([Trained(1, "t", {"x": object()}, {}, "", NUMERICS)])
    with pytest.raises(UnicodeEncodeError):
        journal.append([Stopped("\ud800")])
    journal.append([Closed(5, {})])
    journal.close()
    assert parsed((root / "journal.jsonl").read_bytes()) == [Closed(5, {})]


def test_lines_end_where_they_say() -> None:
    lines = [encode_line(event) for event in ONE_OF_EACH]
    ends = [end for end, _ in parse(b"".join(lines))]
    assert ends == [sum(map(len, lines[: i + 1])) for i in range(len(lines))]


@settings(max_examples=60)
@given(st.lists(events, max_size=5), st.data())
def test_journal_cut_anywhere_gives_the_lines_before_the_cut(written: Sequence[Event], data: st.DataObject) -> None:
    lines = [encode_line(event) for event in written]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    complete = sum(1 for i in range(len(lines)) if len(b"".join(lines[: i + 1])) <= cut)
    assert parsed(whole[:cut]) == list(written[:complete])


@settings(max_examples=120)
@given(st.lists(events, min_size=1, max_size=5), st.data())
def test_flipped_bit_damages_its_line_and_no_earlier_one(written: Sequence[Event], data: st.DataObject) -> None:
    lines = [encode_line(event) for event in written]
    whole = bytearray(b"".join(lines))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    hit = next(i for i in range(len(lines)) if bit // 8 < len(b"".join(lines[: i + 1])))
    found = parsed(bytes(whole))
    assert found[:hit] == list(written[:hit])
    lost_last_newline = hit == len(lines) - 1 and not whole.endswith(b"\n")
    assert lost_last_newline or None in found[hit:]
    intact_behind = [event for event in found[hit:] if event is not None]
    merged = bit // 8 == len(b"".join(lines[: hit + 1])) - 1
    assert intact_behind == list(written[hit + 1 + merged :])


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_garbage_is_never_an_event(garbage: bytes) -> None:
    assert all(event is None for event in parsed(garbage))
    good = encode_line(Closed(1, {}))
    assert parsed(good + garbage)[0] == Closed(1, {})
