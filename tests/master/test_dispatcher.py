"""A script drives `Readiness` and `Dispatcher` without a graph, workers or files."""

import msgspec
import pytest
from msgspec.structs import replace
from support.dispatching import IDS, Stage

from hpcrl.data.samples import KeyMeta, SampleMeta
from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Done, Trained
from hpcrl.errors import InternalError
from hpcrl.figures import Figures
from hpcrl.master.jobs import Job
from hpcrl.master.row_table import Key
from hpcrl.master.shown import ToShow
from hpcrl.progress import PartExecuted
from hpcrl.wire.holders import FROM_DATA, InMemory, InSpill, RowSource
from hpcrl.wire.messages import Ack, LetGo, Move, Moved, Reply, Request, Share, Spilled, Syn

ONE, TWO, TRAIN = (Unit(1, call, 0) for call in ("one", "two", "train"))


def script() -> list[Job]:
    """Two calls that make the same key, each on a worker of its own, and one on both that consumes both."""
    reads = Version("actor", 0)
    return [
        Job(Task(ONE, reads=reads), [((Key(FROM_DATA, "x"),), IDS)], ("y",), (0,), (0,), IDS),
        Job(Task(TWO, reads=reads), [((Key(FROM_DATA, "x"),), IDS)], ("y",), (1,), (1,), IDS),
        Job(
            Task(TRAIN, consumes=(ONE, TWO), changes="actor"),
            [((Key("one", "y"), Key("two", "y")), IDS)],
            (),
            (0, 1),
            (0, 1),
            IDS,
            lambda made: [IDS[:1], IDS[1:]] if made == [3, 4] else [IDS, ()],
            minibatches=(IDS,),
        ),
    ]


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.dispatcher.open(1, script())
    return made


def run_both(stage: Stage) -> tuple[Request, Request]:
    stage.dispatcher.send_ready()
    (rank_one, one), (rank_two, two) = stage.requests()
    assert (rank_one, one.call, rank_two, two.call) == (0, "one", 1, "two")
    stage.reply(one, 0)
    stage.reply(two, 1)
    stage.sent.clear()
    return one, two


def test_a_unit_that_leaves_no_line_is_finished_once_it_is_executed_and_its_rows_stay_in_memory() -> None:
    stage = Stage()
    told, change = Task(ONE, reads=Version("actor", 0), leaves_line=False), Task(TRAIN, changes="actor")
    stage.dispatcher.open(1, [Job(told, (), ("y",), (0, 1), (0,), IDS), Job(change, (), (), (0, 1), (0,), ())])
    stage.dispatcher.send_ready()
    (_, request), (_, beside) = stage.requests()
    assert (request.call, request.leaves) == ("one", "memory")
    assert request.ids == IDS and not beside.ids, "where nothing is to be got all begin at once"
    stage.reply(request, 0)
    assert [it.call for it in stage.progress] == ["one before the loop"]
    stage.dispatcher.send_ready()
    assert not [it for _, it in stage.requests() if it.ids], "what it reads is not changed meanwhile"
    stage.reply(request, 1)
    assert [it.call for it in stage.progress] == ["one before the loop"] * 2
    assert stage.dispatcher.lines() == [] and stage.dispatcher.idle
    assert stage.dispatcher.rows.sources(1, [Key("one", "y")], IDS, 2) == (
        RowSource(1, "one", ("y",), IDS, (InMemory(0),)),
    )
    stage.dispatcher.send_ready()
    assert {it.call for _, it in stage.requests()} == {"train"}


def test_requests_grow_with_the_rows_of_their_part_alone() -> None:
    heads, ranks = (0, 2, 4, 6), tuple(range(8))

    def sent(samples: int) -> dict[int, bytes]:
        """The first part has four, whatever the others have."""
        ids = tuple(f"r{i:02}@0" for i in range(samples))
        shares, halves = [ids[:4], *([ids[4:]] + [()] * 2)], (ids[: samples // 2], ids[samples // 2 :])
        stage = Stage()
        stage.dispatcher.open(
            1, [Job(Task(TRAIN, changes="actor"), (), (), ranks, heads, ids, lambda _: shares, halves)]
        )
        stage.dispatcher.send_ready()
        found = stage.requests()
        assert [rank for rank, request in found if request.ids] == [0, 2]
        return {rank: msgspec.msgpack.encode(request) for rank, request in found}

    few, many = sent(8), sent(96)
    assert [len(few[rank]) for rank in ranks if rank != 2] == [len(many[rank]) for rank in ranks if rank != 2]
    assert len(many[2]) > len(few[2])


def test_who_consumes_gets_each_key_from_the_call_that_made_it(stage: Stage) -> None:
    run_both(stage)
    stage.dispatcher.send_ready()
    requests = dict(stage.requests())
    assert requests[0].sources == (
        RowSource(1, "one", ("y",), ("a",), (InMemory(0),)),
        RowSource(1, "two", ("y",), ("a",), (InMemory(1),)),
    )
    assert requests[1].ids == ("b",) and requests[1].cut == Share((2,), 2, ((1, 0, 1),))


def test_samples_are_shared_out_by_the_longest_rows_that_were_made_of_them(stage: Stage) -> None:
    run_both(stage)
    stage.dispatcher.rows.measured(1, "two", SampleMeta(IDS, {"y": KeyMeta("int64", ((1, 4), (2,)))}))
    stage.dispatcher.send_ready()
    ((rank, request),) = stage.requests()
    assert (rank, request.ids) == (0, IDS), "5 and 4 tokens are not 3 and 4"
    stage.dispatcher.hear(Syn(request.id, 0))
    assert stage.sent == [(0, Ack(request.id)), (1, replace(request, ids=(), sources=(), cut=Share((2,), 2)))]


def test_what_all_workers_of_a_part_measured_is_told_once_all_have_replied(stage: Stage) -> None:
    run_both(stage)
    told = [(it.step, it.call, it.figures) for it in stage.progress if isinstance(it, PartExecuted)]
    assert told == [(1, "one", {0: Figures(tokens=1)}), (1, "two", {1: Figures(tokens=2)})]


def test_rows_that_are_spilled_have_two_holders(stage: Stage) -> None:
    one, _ = run_both(stage)
    stage.spill(one, 0)
    stage.dispatcher.send_ready()
    source = dict(stage.requests())[0].sources[0]
    assert source.holders == (InMemory(0), InSpill("one.h5"))


def test_lines_are_written_when_spilled_and_after_those_of_what_was_consumed(stage: Stage) -> None:
    one, two = run_both(stage)
    stage.dispatcher.send_ready()
    for rank, request in stage.requests():
        stage.reply(request, rank, {"digest": "d"})
    assert stage.dispatcher.lines() == [] and not stage.dispatcher.idle
    stage.spill(two, 1)
    assert [(type(line), line.call) for line in stage.dispatcher.lines()] == [(Done, "two")]
    stage.spill(one, 0)
    assert [(type(line), line.call) for line in stage.dispatcher.lines()] == [(Done, "one"), (Trained, "train")]
    assert stage.dispatcher.idle and stage.readiness.closable() == [1]


def test_all_workers_are_told_to_execute_once_all_have_their_inputs(stage: Stage) -> None:
    run_both(stage)
    stage.dispatcher.send_ready()
    (_, request), _ = stage.requests()
    stage.dispatcher.hear(Syn(request.id, 1))
    assert stage.sent == []
    stage.dispatcher.hear(Syn(request.id, 0))
    assert stage.sent == [(0, Ack(request.id)), (1, Ack(request.id))]


def test_the_spill_may_be_told_before_the_last_reply(stage: Stage) -> None:
    stage.dispatcher.send_ready()
    (_, one), _ = stage.requests()
    stage.spill(one, 0)
    stage.reply(one, 0)
    assert [line.call for line in stage.dispatcher.lines()] == ["one"]


def test_ranks_that_hold_different_parameters_are_an_error(stage: Stage) -> None:
    run_both(stage)
    stage.dispatcher.send_ready()
    (_, request), _ = stage.requests()
    stage.reply(request, 0, {"digest": "d"})
    with pytest.raises(InternalError, match="different parameters"):
        stage.reply(request, 1, {"digest": "e"})


def test_a_call_that_takes_too_long_waits_for_an_allocation_in_which_it_fits(stage: Stage) -> None:
    stage.pace.took("two", 100.0)
    stage.pace.time_left_s = 50.0
    stage.dispatcher.send_ready()
    assert [request.call for _, request in stage.requests()] == ["one"]
    assert stage.pace.held_back == "two takes 100 s"
    stage.pace.time_left_s = 500.0
    stage.dispatcher.send_ready()
    assert [request.call for _, request in stage.requests()] == ["two"]


def test_a_drain_lasts_from_when_it_was_first_asked_for_until_nothing_is_under_way_or_its_time_is_over(
    stage: Stage,
) -> None:
    run_both(stage)
    stage.dispatcher.send_ready()
    assert not stage.dispatcher.has_drained(0.0)
    stage.dispatcher.drain()
    stage.now = 7.0
    stage.dispatcher.drain()
    assert not stage.dispatcher.sends
    assert stage.dispatcher.has_drained(6.9) and not stage.dispatcher.has_drained(7.0)


def test_a_drain_is_over_at_once_where_nothing_is_under_way(stage: Stage) -> None:
    assert not stage.dispatcher.has_drained(5.0)
    stage.dispatcher.drain()
    assert stage.dispatcher.has_drained(5.0)


READS = Unit(2, "reads", 0)


@pytest.fixture
def elsewhere(stage: Stage) -> Stage:
    """The train_step of step 1 is executed; in step 2 a call reads what it made at replica 1."""
    ones = run_both(stage)
    job = Job(Task(READS, reads=Version("actor", 1, 1)), (), ("y",), (1,), (1,), IDS)
    stage.dispatcher.open(2, [job])
    stage.dispatcher.send_ready()
    for rank, request in stage.requests():
        assert request.version == 1, "of its role, with the change that it makes"
        stage.reply(request, rank, {"digest": "d", "parameters": "p"})
    for rank, request in enumerate(ones):
        stage.spill(request, rank)
    stage.sent.clear()
    stage.dispatcher.send_ready()
    assert stage.sent == [], "the line of the train_step is not written"
    assert [line.version for line in stage.dispatcher.lines()] == [0, 0, 1]
    return stage


def moved(stage: Stage, home: str, replica: str) -> None:
    """The move to replica 1 is sent, and executed with these digests."""
    stage.dispatcher.send_ready()
    assert [(rank, body) for rank, body in stage.sent if isinstance(body, Move)] == [
        (rank, Move(4, "actor", 1, 1)) for rank in (1, 0)
    ]
    stage.dispatcher.hear(Moved(4, 0, home, "", 0.1))
    stage.dispatcher.send_ready()
    assert stage.requests() == []
    stage.dispatcher.hear(Moved(4, 1, home, replica, 0.1))


def test_a_replica_is_read_once_it_has_the_parameters_whose_line_is_written(elsewhere: Stage) -> None:
    moved(elsewhere, "p", "p")
    elsewhere.dispatcher.send_ready()
    ((rank, request),) = elsewhere.requests()
    assert (rank, request.call, request.version) == (1, "reads", 1)
    assert any(isinstance(it, PartExecuted) and "@1" in it.call for it in elsewhere.progress)
    assert elsewhere.dispatcher.lines() == [], "a move has none"
    elsewhere.dispatcher.metrics.opened(2)
    elsewhere.reply(request, 1)
    assert elsewhere.sent[-1] == (1, LetGo("actor", 1)), "nobody who was told is still to read it"


@pytest.mark.parametrize(("home", "replica"), [("p", "q"), ("q", "q")])
def test_other_parameters_than_those_at_home_are_an_error(elsewhere: Stage, home: str, replica: str) -> None:
    says = (
        f"version 1 of actor was moved to actor@1, which now has the parameters {replica} on ranks \\[1\\], "
        f"but home has {home} on ranks \\[0, 1\\], and its last change made p"
    )
    with pytest.raises(InternalError, match=says):
        moved(elsewhere, home, replica)


def shown_by(request: Request) -> SampleMeta | None:
    return SampleMeta(request.shown, {"t": KeyMeta("float32", ((3,),) * len(request.shown))}) if request.shown else None


def trains(stage: Stage, shown: ToShow) -> list[tuple[int, Request]]:
    """The requests of a train step that shows these, whose inputs have their lines; both workers have replied."""
    *calls, train = script()
    task = replace(train.task, shows=bool(shown.ids) and shown.had is None)
    stage.dispatcher.open(1, [*calls, replace(train, shown=shown, task=task)])
    for request, rank in zip(run_both(stage), (0, 1), strict=True):
        stage.spill(request, rank)
    assert len(stage.dispatcher.lines()) == 2
    stage.dispatcher.send_ready()
    found = stage.requests()
    for rank, request in found:
        stage.dispatcher.hear(Syn(request.id, rank))
        meta = shown_by(request)
        stage.dispatcher.hear(Reply(request.id, rank, meta, {"n": (2.0, 2.0)}, {"digest": "d"}, 0.1))
    return found


@pytest.mark.parametrize("first", [0, 1])
def test_a_line_waits_for_all_that_its_train_step_shows_and_the_next_call_does_not(first: int) -> None:
    stage = Stage()
    sent = trains(stage, ToShow(IDS))
    assert [request.shown for _, request in sent] == [("a",), ("b",)]
    stage.dispatcher.open(2, [Job(Task(Unit(2, "one", 0), reads=Version("actor", 1)), (), ("y",), (0,), (0,), IDS)])
    stage.dispatcher.send_ready()
    assert [request.call for _, request in stage.requests()] == ["one"], "on the same parameters"
    assert stage.dispatcher.lines() == []
    for rank, request in sent[::-1] if first else sent:
        assert stage.dispatcher.lines() == []
        stage.dispatcher.hear(Spilled(request.id, rank, FileRef(f"shown.dp0{rank}", 1, 2), 0.1))
    (line,) = stage.dispatcher.lines()
    assert isinstance(line, Trained) and [file.name for file in line.shown] == ["shown.dp00", "shown.dp01"]


def test_who_shows_nothing_is_not_waited_for() -> None:
    stage = Stage()
    (one, _), (two, request) = trains(stage, ToShow(("b",)))
    assert (one, two) == (0, 1) and stage.dispatcher.lines() == []
    stage.dispatcher.hear(Spilled(request.id, 1, FileRef("shown.dp01", 1, 2), 0.1))
    (line,) = stage.dispatcher.lines()
    assert isinstance(line, Trained) and len(line.shown) == 1
    plain = Stage()
    trains(plain, ToShow())
    (line,) = plain.dispatcher.lines()
    assert isinstance(line, Trained) and line.shown == ()
