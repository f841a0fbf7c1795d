"""Requests and their rows, without sockets, threads or files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from workers.test_sample_store import sample

from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import Total
from hpcrl.wire.channel import Incoming
from hpcrl.wire.envelope import Envelope, encode
from hpcrl.wire.holders import Holder, InDataset, InMemory, InSpill, RowSource
from hpcrl.wire.messages import Request
from hpcrl.wire.peer_messages import Fetch, Rows
from hpcrl.workers.inputs import Inputs, Peripherals, assemble, unpack
from hpcrl.workers.row_server import RowServer
from hpcrl.workers.sample_store import SampleStore

IDS = ("a", "b")


@dataclass
class World:
    """Rank 0's surroundings: what it asks for is noted, what is read in the background waits until it is run."""

    store: SampleStore = field(default_factory=SampleStore)
    asked: list[tuple[str, Fetch]] = field(default_factory=list)
    background: list[Callable[[], None]] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    spills: dict[str, SequenceSample] = field(default_factory=dict)

    def inputs(self) -> Inputs:
        through = Peripherals(
            fetch=lambda address, fetch: self.asked.append((address, fetch)),
            read_rows=lambda name, ids, keys: sample("abc", "x", 9).select(ids).select_keys(keys),
            read_spill=self.read_spill,
            in_background=self.background.append,
            later=lambda action: action(),
            ready=self.ready.append,
            fail=lambda what, error: self.failed.append((what, repr(error))),
        )
        made = Inputs(0, self.store, through)
        made.meet(["tcp://zero", "tcp://one"])
        return made

    def read_spill(self, spill: InSpill, ids: Sequence[str], keys: Sequence[str]) -> SequenceSample:
        return self.spills[spill.file].select(ids).select_keys(keys)

    def run_background(self) -> None:
        while self.background:
            self.background.pop(0)()


def source(key: str, *holders: Holder, ids: tuple[str, ...] = IDS) -> RowSource:
    return RowSource(1, "" if key == "x" else "gen", (key,), ids, holders)


def request(*sources: RowSource) -> Request:
    return Request(7, step=1, call="train", part=0, ids=IDS, sources=sources, record=None)


def test_a_request_is_ready_when_the_rows_of_all_holders_are_here() -> None:
    world = World()
    world.store.put(1, "gen", sample("ab", "y", 1))
    world.spills["s.h5"] = sample("ab", "r", 3)
    inputs = world.inputs()
    inputs.gather(
        request(
            source("y", InMemory(0)),
            source("z", InMemory(1)),
            source("r", InSpill("s.h5")),
            source("x", InDataset("train")),
        )
    )
    [(address, fetch)] = world.asked
    assert (address, fetch.call, fetch.keys) == ("tcp://one", "gen", ("z",)) and world.ready == []
    world.run_background()
    assert world.ready == []
    rows = sample("ab", "z", 2)
    inputs.fetched(Rows(fetch.token, rows.meta), [rows.data["z"].tobytes()])
    assert world.ready == [7]
    taken = inputs.take(7)
    assert taken is not None and inputs.take(7) is None and taken.gather_s > 0
    assert {key: [row.tolist() for row in taken[1].rows(key)] for key in taken[1].keys} == {
        "y": [[1], [1, 1]],
        "z": [[2], [2, 2]],
        "r": [[3], [3, 3]],
        "x": [[9], [9, 9]],
    }


def test_sums_are_those_of_the_rows_of_each_source_wherever_they_lie() -> None:
    """A peer is asked for its total, and sends no rows."""
    world = World()
    world.store.put(1, "gen", sample("ab", "y", 1))
    world.spills["s.h5"] = sample("ab", "r", 3)
    peer = SampleStore()
    peer.put(1, "gen", sample("ab", "z", 2))
    inputs = world.inputs()
    holders = {"y": InMemory(0), "z": InMemory(1), "r": InSpill("s.h5"), "x": InDataset("train")}
    inputs.gather(request(*(source(key, holder) for key, holder in holders.items())), sums=True)
    [(_, fetch)] = world.asked
    answer, frames = RowServer(peer).serve(fetch)
    assert fetch.sum and answer.meta is None and frames == []
    inputs.fetched(answer, frames)
    assert world.ready == []
    world.run_background()
    taken = inputs.take(7)
    assert world.ready == [7] and taken is not None and taken.inputs.keys == ()
    assert taken.totals == tuple(Total((3.0 * value,), 3) for value in (1, 2, 3, 9))


@pytest.mark.parametrize("nearest", [InMemory(0), InMemory(1), InSpill("gone.h5")])
def test_where_the_nearest_holder_has_nothing_to_add_up_the_next_one_does(nearest: Holder) -> None:
    world = World(spills={"s.h5": sample("ab", "y", 4)})
    inputs = world.inputs()
    inputs.gather(request(source("y", nearest, InSpill("s.h5"))), sums=True)
    for _, fetch in world.asked:
        inputs.fetched(*RowServer(SampleStore()).serve(fetch))
    world.run_background()
    taken = inputs.take(7)
    assert not world.failed and taken is not None and taken.totals == (Total((12.0,), 3),)


def test_a_request_without_inputs_is_ready_at_once() -> None:
    world = World()
    world.inputs().gather(request())
    assert world.ready == [7]


@pytest.mark.parametrize("nearest", [InMemory(0), InMemory(1), InSpill("gone.h5")])
def test_where_the_nearest_holder_has_no_rows_the_next_one_gives_them(nearest: Holder) -> None:
    world = World(spills={"s.h5": sample("ab", "y", 4)})
    inputs = world.inputs()
    inputs.gather(request(source("y", nearest, InSpill("s.h5"))))
    for _, fetch in world.asked:
        inputs.fetched(Rows(fetch.token, None, "y of a"), [])
    world.run_background()
    assert world.ready == [7] and not world.failed


@pytest.mark.parametrize(
    ("holder", "error"), [(InMemory(0), "KeyError"), (InMemory(1), "InternalError"), (InSpill("gone.h5"), "KeyError")]
)
def test_rows_that_no_holder_gives_are_a_failure_that_names_the_call(holder: Holder, error: str) -> None:
    world = World()
    inputs = world.inputs()
    inputs.gather(request(source("y", holder)))
    for _, fetch in world.asked:
        inputs.fetched(Rows(fetch.token, None, "y of a"), [])
    world.run_background()
    [(what, told)] = world.failed
    assert what == "inputs of step 1 train" and error in told and world.ready == []


def test_rows_of_a_data_set_are_read_in_the_background() -> None:
    """Tokenising must not hold up the thread that sends beats."""
    world = World()
    world.inputs().gather(request(source("x", InDataset("train"))))
    assert len(world.background) == 1 and world.ready == []


def test_a_server_answers_with_rows_or_with_what_is_missing() -> None:
    store = SampleStore()
    store.put(1, "gen", sample("ab", "y", 1))
    server = RowServer(store)
    rows, frames = server.serve(Fetch(3, 1, "gen", ("y",), ("b",)))
    assert rows.token == 3 and rows.meta is not None
    assert unpack(rows.meta, frames).rows("y")[0].tolist() == [1, 1]
    rows, frames = server.serve(Fetch(4, 1, "other", ("y",), ("b",)))
    assert (rows.token, rows.meta, frames) == (4, None, []) and "y of b" in rows.missing


def test_a_sample_survives_the_wire_bit_for_bit() -> None:
    before = SequenceSample.from_rows(
        ("a", "b"), {"v": [np.array([[1.5, np.nan]]), np.zeros((0, 2))], "f": [np.array([True]), np.array([False])]}
    )
    envelope = Incoming().accept(encode(Envelope("worker-0", 1, Rows(1, before.meta))))
    assert envelope is not None and isinstance(envelope.body, Rows) and envelope.body.meta is not None
    after = unpack(envelope.body.meta, [before.data[key].tobytes() for key in before.keys])
    assert after.meta == before.meta
    assert all(after.data[key].tobytes() == before.data[key].tobytes() for key in before.keys)


def test_metadata_that_does_not_fit_together_is_refused_on_the_wire() -> None:
    meta = sample("ab", "y", 1).meta
    frame = encode(Envelope("worker-0", 1, Rows(1, meta))).replace(b"\xa1a\xa1b", b"\xa1a\xa1a")
    incoming = Incoming()
    assert incoming.accept(frame) is None and incoming.refused == 1


def test_a_late_error_of_a_reader_names_itself() -> None:
    world = World()
    world.inputs().gather(request(source("y", InSpill("gone.h5"))))
    world.run_background()
    assert "gone.h5" in world.failed[0][1]


def test_pieces_with_some_rows_of_some_keys_become_one_sample() -> None:
    pieces = [sample("ca", "y", 1), sample("abc", "z", 2), sample("b", "y", 3)]
    whole = assemble(("a", "b", "c"), pieces)
    assert whole.ids == ("a", "b", "c")
    assert [row.tolist() for row in whole.rows("y")] == [[1], [3, 3], [1, 1, 1]]
    assert [len(row) for row in whole.rows("z")] == [1, 2, 3]


def test_rows_of_a_key_may_come_with_other_keys_from_one_holder_and_alone_from_another() -> None:
    both = sample("b", "y", 1).merge(sample("b", "z", 2))
    whole = assemble(("a", "b"), [sample("a", "y", 3), both, sample("a", "z", 4)])
    assert [row.tolist() for row in whole.rows("y")] == [[3], [1, 1]]
    assert [row.tolist() for row in whole.rows("z")] == [[4], [2, 2]]


def test_no_pieces_give_a_sample_without_keys() -> None:
    assert assemble((), []).keys == ()
