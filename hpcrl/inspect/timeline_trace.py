"""A timeline as a trace of Perfetto's, which ui.perfetto.dev opens. Needs the extra `perfetto`, and is imported only
where somebody asks for a trace.

Slices of a track may nest but not overlap: those that do are on several tracks of one name, which are shown as one.
Source: perfetto.dev/docs/reference/synthetic-track-event.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import IO, Any, NamedTuple

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from hpcrl.foreign import plain
from hpcrl.inspect.held import BytesHeld
from hpcrl.inspect.timeline_text import name_of
from hpcrl.inspect.views.timeline import TIE_S, AttemptTime, Beside, Lane, Segment, StepTime, Timeline

SEQUENCE = 1
"""All packets are of one writer."""
ROOT = 0
"""The track above all processes."""

Arrows = dict[tuple[int, Segment], list[int]]
"""The place of a lane, and a slice of it → ids."""


class Slice(NamedTuple):
    """Seconds since the attempt began."""

    begin_s: float
    end_s: float
    name: str
    category: str
    notes: Mapping[str, Any]
    within: Sequence["Slice"] = ()
    leaving: Sequence[int] = ()
    """Arrows that begin here."""
    arriving: Sequence[int] = ()


def write_trace(view: Timeline, file: IO[bytes]) -> None:
    """A process an attempt, a thread a worker, a slice a part; arrows follow each step's critical path. Times are
    nanoseconds since 1970, so that attempts lie one behind another. Packets are written as they are made."""
    builder = StreamingTraceProtoBuilder(file)
    ordered = protos.TrackDescriptor(uuid=ROOT, thread_ordering=protos.TrackDescriptor.THREAD_ORDERING_EXPLICIT)
    builder.write_packet(_packet(track_descriptor=ordered))
    for attempt in view.attempts:
        for packet in DrawnAttempt(attempt).packets():
            builder.write_packet(packet)


class DrawnAttempt:
    """Gives ids to the tracks and arrows of an attempt."""

    def __init__(self, view: AttemptTime) -> None:
        self._view = view
        self._began_ns = round(view.began * 1000) * 1_000_000
        self._pid = view.attempt + 1  # process 0 is the idle one
        self._ids = count(self._pid << 32)
        self._leaving: Arrows = defaultdict(list)
        self._arriving: Arrows = defaultdict(list)

    def packets(self) -> Iterator[Any]:
        yield self._clocks()
        attempt = next(self._ids)
        process = protos.ProcessDescriptor(pid=self._pid, process_name=f"attempt {self._view.attempt}")
        yield _track(attempt, process=process)
        yield from self._slices("steps", attempt, map(_of_step, self._view.steps))
        pauses = (Slice(begin_s, end_s, "paused", "pause", {}) for begin_s, end_s in self._view.pauses)
        yield from self._slices("pauses", attempt, pauses)
        self._draw_arrows()
        for place, lane in enumerate(self._view.lanes):
            yield from self._lane(place, lane)

    def _clocks(self) -> Any:
        """What a trace calls the time since boot is the time since 1970 here."""
        clocks = [
            protos.ClockSnapshot.Clock(clock_id=clock, timestamp=self._began_ns)
            for clock in (protos.BUILTIN_CLOCK_BOOTTIME, protos.BUILTIN_CLOCK_REALTIME)
        ]
        return _packet(timestamp=self._began_ns, clock_snapshot=protos.ClockSnapshot(clocks=clocks))

    def _draw_arrows(self) -> None:
        places = {
            (it.name, it.part, it.begin_s): (place, it)
            for place, lane in enumerate(self._view.lanes)
            for it in lane.segments
        }
        for step in self._view.steps:
            links = [places[link.name, link.part, link.begin_s] for link in step.critical]
            for before, after in pairwise(links):
                arrow = next(self._ids)
                self._leaving[before].append(arrow)
                self._arriving[after].append(arrow)

    def _lane(self, place: int, lane: Lane) -> Iterator[Any]:
        """What it let go of lies within its calls; spills and saves have tracks of their own."""
        host = f" on {plain(lane.host)}" if lane.host else ""
        name = f"{name_of(lane)}{host}"
        worker = next(self._ids)
        thread = protos.ThreadDescriptor(pid=self._pid, tid=self._pid << 16 | place + 1, thread_name=name)
        yield _track(worker, thread=thread, sibling_order_rank=place)
        released = {(it.name, it.end_s): it for it in lane.beside if it.kind == "release"}
        calls = []
        for it in (*lane.segments, *lane.unfinished):
            release = released.pop((it.name, it.end_s), None)
            within = [_of_beside(release)] if release else []
            arrows = (self._leaving.get((place, it), ()), self._arriving.get((place, it), ()))
            calls.append(_of_part(it, within, *arrows))
        yield from self._slices("calls at the same time", worker, calls, own=worker)
        left = [*released.values(), *(it for it in lane.beside if it.kind != "release")]
        for kind in ("release", "spill", "save"):
            yield from self._slices(f"{kind}s", worker, (_of_beside(it) for it in left if it.kind == kind))
        yield from self._counter("held by models", worker, lane.memory)
        yield from self._counter("resident memory", worker, lane.resident)
        yield from self._counter("in use on its GPU", worker, lane.gpu)

    def _slices(self, name: str, parent: int, slices: Iterable[Slice], own: int | None = None) -> Iterator[Any]:
        """Below another track, or as far as they do not overlap on one of their own."""
        for row in _rows(slices):
            track = next(self._ids) if own is None else own
            if own is None:
                yield _track(track, parent_uuid=parent, name=name)
            own = None
            ended_s = row[0].begin_s
            for it in row:
                begin_s, ended_s = max(it.begin_s, ended_s), max(it.end_s, ended_s)
                yield from self._slice(track, it, begin_s, ended_s)

    def _slice(self, track: int, it: Slice, begin_s: float, end_s: float) -> Iterator[Any]:
        yield self._event(
            begin_s,
            type=protos.TrackEvent.TYPE_SLICE_BEGIN,
            track_uuid=track,
            name=it.name,
            categories=[it.category],
            debug_annotations=[_note(name, value) for name, value in it.notes.items()],
            flow_ids=it.leaving,
            terminating_flow_ids=it.arriving,
        )
        for inner in it.within:
            inner_s = min(max(begin_s, inner.begin_s), end_s)
            yield from self._slice(track, inner, inner_s, min(max(inner_s, inner.end_s), end_s))
        yield self._event(end_s, type=protos.TrackEvent.TYPE_SLICE_END, track_uuid=track)

    def _counter(self, name: str, parent: int, marks: Sequence[BytesHeld]) -> Iterator[Any]:
        if not marks:
            return
        track = next(self._ids)
        unit = protos.CounterDescriptor(unit=protos.CounterDescriptor.UNIT_SIZE_BYTES)
        yield _track(track, parent_uuid=parent, name=name, counter=unit)
        for it in marks:
            yield self._event(it.at_s, type=protos.TrackEvent.TYPE_COUNTER, track_uuid=track, counter_value=it.bytes)

    def _event(self, at_s: float, **fields: Any) -> Any:
        at_ns = self._began_ns + round(1e9 * at_s)
        return _packet(timestamp=at_ns, track_event=protos.TrackEvent(**fields))


def _packet(**fields: Any) -> Any:
    return protos.TracePacket(trusted_packet_sequence_id=SEQUENCE, **fields)


def _track(uuid: int, **fields: Any) -> Any:
    return _packet(track_descriptor=protos.TrackDescriptor(uuid=uuid, **fields))


def _note(name: str, value: bool | int | float) -> Any:
    kind = {bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
    return protos.DebugAnnotation(name=name, **{kind: value})


def _rows(slices: Iterable[Slice]) -> list[list[Slice]]:
    """As few as have none that overlap; times are rounded."""
    rows: list[list[Slice]] = []
    for it in sorted(slices, key=lambda it: (it.begin_s, it.end_s)):
        free = next((row for row in rows if row[-1].end_s <= it.begin_s + TIE_S), None)
        if free is None:
            rows.append([it])
        else:
            free.append(it)
    return rows


def _of_step(step: StepTime) -> Slice:
    idle = {f"idle.worker-{worker}": share for worker, share in step.idle.items()}
    return Slice(step.open_s, step.close_s, f"step {step.step}", "step", idle)


def _of_part(it: Segment, within: Sequence[Slice], leaving: Sequence[int], arriving: Sequence[int]) -> Slice:
    notes = {"step": it.step, "part": it.part, "waited_s": round(it.begin_s - it.sent_s, 4), "replay": it.replay}
    return Slice(it.begin_s, it.end_s, plain(it.name), it.kind or "call", notes, within, leaving, arriving)


def _of_beside(it: Beside) -> Slice:
    name = {"release": "release after", "spill": "spill of", "save": "save of"}[it.kind]
    return Slice(it.begin_s, it.end_s, f"{name} {plain(it.name)}", it.kind, {"step": it.step})
