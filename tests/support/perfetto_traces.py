"""Traces of Perfetto's, read back."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, Trace, TrackEvent


class Shown(NamedTuple):
    """A slice of a trace, under the names of its track and of those above it."""

    track: str
    name: str
    category: str
    begin_ns: int
    end_ns: int
    notes: dict[str, Any]
    depth: int
    leaving: list[int]
    arriving: list[int]


class Drawn:
    """What a trace says, by the rules of Perfetto: a slice ends with the last that began on its track."""

    def __init__(self, path: Path) -> None:
        trace = Trace()
        trace.ParseFromString(path.read_bytes())
        packets = sorted(trace.packet, key=lambda it: it.timestamp)  # stable, as Perfetto's
        assert {it.trusted_packet_sequence_id for it in packets} == {1}
        self._tracks = _told_before_use(trace.packet)
        self.slices: list[Shown] = []
        self.counters: dict[str, list[tuple[int, int]]] = {}
        open_slices: dict[int, list[Any]] = {}
        for packet in packets:
            if packet.HasField("track_event"):
                self._event(packet, packet.track_event, open_slices.setdefault(packet.track_event.track_uuid, []))
        self.unbalanced = [uuid for uuid, those in open_slices.items() if those]
        self.slices.sort(key=lambda it: (it.begin_ns, it.depth))
        assert all(it.begin_ns <= it.end_ns for it in self.slices)
        assert all(one.begin_ns <= other.begin_ns for one, other in self.arrows())
        leaving = [arrow for it in self.slices for arrow in it.leaving]
        arriving = [arrow for it in self.slices for arrow in it.arriving]
        assert sorted(leaving) == sorted(arriving) and len(set(leaving)) == len(leaving)
        for marks in self.counters.values():
            assert marks == sorted(marks, key=lambda it: it[0]) and all(size >= 0 for _, size in marks)

    def _event(self, packet: Any, event: Any, those: list[Any]) -> None:
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            those.append(packet)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            begun = those.pop()
            its = begun.track_event
            notes = {it.name: getattr(it, it.WhichOneof("value")) for it in its.debug_annotations}
            (category,), track = its.categories, self._path(event.track_uuid)
            arrows = (list(its.flow_ids), list(its.terminating_flow_ids))
            shown = (its.name, category, begun.timestamp, packet.timestamp, notes, len(those), *arrows)
            self.slices.append(Shown(track, *shown))
        else:
            assert self._tracks[event.track_uuid].counter.unit == CounterDescriptor.UNIT_SIZE_BYTES
            mark = (packet.timestamp, event.counter_value)
            self.counters.setdefault(self._path(event.track_uuid), []).append(mark)

    def children(self, uuid: int) -> list[str]:
        return [self._path(it.uuid) for it in self._tracks.values() if it.uuid and self._above(it) == uuid]

    def arrows(self) -> list[tuple[Shown, Shown]]:
        ends = {arrow: it for it in self.slices for arrow in it.arriving}
        assert len(ends) == sum(len(it.leaving) for it in self.slices)
        return [(it, ends[arrow]) for it in self.slices for arrow in it.leaving]

    def _path(self, uuid: int) -> str:
        track = self._tracks[uuid]
        above = self._above(track)
        own = track.process.process_name or track.thread.thread_name or track.name
        return f"{self._path(above)}/{own}" if above else own

    def _above(self, track: Any) -> int:
        if not track.HasField("thread"):
            return track.parent_uuid
        (process,) = (
            it for it in self._tracks.values() if it.HasField("process") and it.process.pid == track.thread.pid
        )
        return process.uuid


def _told_before_use(packets: Iterable[Any]) -> dict[int, Any]:
    """The tracks, by id: each is told of once, after that above it and before what happens on it."""
    tracks: dict[int, Any] = {}
    for packet in packets:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks and (not track.parent_uuid or track.parent_uuid in tracks), track
            tracks[track.uuid] = track
        elif packet.HasField("track_event"):
            track = tracks[packet.track_event.track_uuid]
            assert (packet.track_event.type == TrackEvent.TYPE_COUNTER) == track.HasField("counter"), track
    processes = [it.process.pid for it in tracks.values() if it.HasField("process")]
    threads = [(it.thread.pid, it.thread.tid) for it in tracks.values() if it.HasField("thread")]
    assert len(set(processes)) == len(processes) and len(set(threads)) == len(threads)
    assert {pid for pid, _ in threads} <= set(processes)
    return tracks
