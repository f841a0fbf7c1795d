"""Calls whose parts compute in step: they go at once, in one order everywhere; who has nothing joins with nothing."""

from collections.abc import Sequence

import pytest
from support.dispatching import Stage

from hpcrl.data.samples import KeyMeta, SampleMeta
from hpcrl.dataflow.tasks import Task, Unit
from hpcrl.durable.files import FileRef
from hpcrl.master.jobs import Job
from hpcrl.master.row_table import Key
from hpcrl.placement.plan import Part
from hpcrl.wire.holders import FROM_DATA, InSpill
from hpcrl.wire.messages import Ack, Reply, Request, Spilled, Syn

PARTS = (Part(0, (0,), 0), Part(1, (1,), 1))


def of_call(call: str, units: int = 2, consumes: Sequence[str] = (), in_step: bool = True) -> list[Job]:
    """A unit for each sample, on worker 0 and worker 1 by turns. It reads a row of the data set."""
    return [
        Job(
            Task(Unit(1, call, i), consumes=tuple(Unit(1, other, i) for other in consumes), in_step=in_step),
            (((Key(FROM_DATA, "x"),), (f"{call}{i}",)),),
            ("y",),
            PARTS[i % 2].ranks,
            (PARTS[i % 2].head,),
            (f"{call}{i}",),
            in_step=PARTS if in_step else (),
        )
        for i in range(units)
    ]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def opened(stage: Stage, *jobs: list[Job]) -> None:
    for job in (every := [job for of in jobs for job in of]):
        stage.dispatcher.rows.put(1, FROM_DATA, ["x"], job.ids, InSpill("x"))
    stage.dispatcher.open(1, every)


def sent(stage: Stage) -> list[tuple[int, str, int, bool]]:
    """Rank, call, part, and whether it only joins, of what was sent since the last look."""
    return [(rank, it.call, it.part, it.leaves == "nothing") for rank, it in requests(stage)]


def requests(stage: Stage) -> list[tuple[int, Request]]:
    stage.dispatcher.send_ready()
    return stage.requests()


def acks(stage: Stage) -> list[tuple[int, int]]:
    found = [(rank, body.request) for rank, body in stage.sent if isinstance(body, Ack)]
    stage.sent.clear()
    return found


def answer(stage: Stage, rank: int, request: Request) -> None:
    meta = None if request.leaves == "nothing" else SampleMeta(request.ids, {"y": KeyMeta("int64", ((3,),))})
    stage.dispatcher.hear(Reply(request.id, rank, meta, {"n": (1.0, 1.0)}, None, 0.1))
    if request.leaves == "spill":
        name = f"{request.call}.{request.part}.h5"
        stage.dispatcher.hear(Spilled(request.id, rank, FileRef(name, 1, 2), 0.1))


def test_parts_go_once_all_of_them_are_ready(stage: Stage) -> None:
    opened(stage, of_call("one", in_step=False), of_call("two", consumes=["one"]))
    (_, first), (_, second) = requests(stage)
    for request, rank in ((first, 0), (second, 1)):
        assert sent(stage) == [], "a part whose inputs are there waits for the other one's"
        stage.dispatcher.hear(Syn(request.id, rank))
        answer(stage, rank, request)
    assert sent(stage) == [(0, "two", 0, False), (1, "two", 1, False)]


def test_all_parts_begin_when_the_last_of_them_has_its_inputs(stage: Stage) -> None:
    opened(stage, of_call("one"))
    (_, first), (_, second) = requests(stage)
    stage.dispatcher.hear(Syn(first.id, 0))
    assert acks(stage) == []
    stage.dispatcher.hear(Syn(second.id, 1))
    assert acks(stage) == [(0, first.id), (1, second.id)]


def test_two_calls_whose_inputs_come_in_opposite_order_begin_in_one_order_on_all_ranks(stage: Stage) -> None:
    opened(stage, of_call("one"), of_call("two"))
    of = {(rank, it.call): it.id for rank, it in requests(stage)}
    for rank, call in ((0, "one"), (1, "two"), (0, "two"), (1, "one")):
        stage.dispatcher.hear(Syn(of[rank, call], rank))
    begun = acks(stage)
    order = {rank: [request for to, request in begun if to == rank] for rank in (0, 1)}
    assert order == {0: [of[0, "two"], of[0, "one"]], 1: [of[1, "two"], of[1, "one"]]}


def test_after_a_recovery_a_part_that_is_recorded_joins_with_nothing_and_leaves_no_line(stage: Stage) -> None:
    opened(stage, of_call("one"))
    stage.dispatcher.restore({Unit(1, "one", 0): InSpill("old.h5")}, [])
    ((other, own),) = requests(stage)
    assert (other, own.part, own.leaves, own.ids) == (1, 1, "spill", ("one1",))
    stage.dispatcher.hear(Syn(own.id, 1))
    assert (1, Ack(own.id)) in stage.sent
    ((rank, joins),) = stage.requests()
    assert (rank, joins.part, joins.leaves, joins.ids) == (0, 0, "nothing", ())
    answer(stage, 1, own)
    assert [line.part for line in stage.dispatcher.lines()] == [1]
    assert not stage.dispatcher.idle, "who joined still computes"
    answer(stage, 0, joins)
    assert stage.dispatcher.idle and stage.dispatcher.lines() == []


def test_more_units_than_parts_go_in_rounds(stage: Stage) -> None:
    """Of a step that was opened on more workers."""
    opened(stage, of_call("one", units=3))
    first, second, third = requests(stage)
    assert [(rank, it.part, it.leaves == "nothing") for rank, it in (first, second, third)] == [
        (0, 0, False),
        (1, 1, False),
        (0, 2, False),
    ]
    for rank, request in (first, second):
        stage.dispatcher.hear(Syn(request.id, rank))
    assert stage.requests() == []
    stage.dispatcher.hear(Syn(third[1].id, 0))
    assert sent(stage) == [(1, "one", 1, True)], "who has nothing is told once the other may begin"


def test_calls_that_are_not_in_step_go_by_themselves(stage: Stage) -> None:
    opened(stage, of_call("one", units=1, in_step=False))
    assert sent(stage) == [(0, "one", 0, False)]
