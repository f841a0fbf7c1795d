"""A timeline in the trace-event format of Chrome, which ui.perfetto.dev and chrome://tracing open.

The protobuf format of Perfetto says nothing more of slices, tracks and flows, so that its package is not needed.
Source: Trace Event Format, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from hpcrl.foreign import plain
from hpcrl.inspect.views.timeline import AttemptTime, Lane, Segment, StepTime, Timeline

STEPS_TRACK = 1_000_000
"""The thread that shows when steps were open; steps that overlap are tracks of their own."""

Places = Mapping[tuple[str, int, float], tuple[int, Segment]]
"""Of a link of a critical path: a thread that has it, and its slice."""


def trace(view: Timeline) -> bytes:
    """JSON. A process an attempt, a thread a worker, a slice a part; arrows follow each step's critical path. Times
    are microseconds since 1970, so that attempts lie one behind another."""
    events = [event for attempt in view.attempts for event in _attempt(attempt)]
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})


def _attempt(view: AttemptTime) -> Iterator[dict[str, Any]]:
    yield _name(view, "process_name", 0, f"attempt {view.attempt}")
    for lane in view.lanes:
        host = f" on {plain(lane.host)}" if lane.host else ""
        name = "?" if lane.worker is None else f"worker-{lane.worker}{host}"
        yield _name(view, "thread_name", _thread(lane), name)
        yield from (_slice(view, lane, it) for it in lane.segments)
        yield from _beside(view, lane)
    places = {(it.name, it.part, it.begin_s): (_thread(lane), it) for lane in view.lanes for it in lane.segments}
    for number, step in enumerate(view.steps):
        yield from _step(view, step, number, places)
    for begin_s, end_s in view.pauses:
        yield _event(view, "X", STEPS_TRACK, "paused", begin_s) | {"dur": _us(end_s - begin_s), "cat": "pause"}


def _step(view: AttemptTime, step: StepTime, number: int, places: Places) -> Iterator[dict[str, Any]]:
    name = {"cat": "step", "id": number}
    args = {"idle": {f"worker-{worker}": share for worker, share in step.idle.items()}}
    yield _event(view, "b", STEPS_TRACK, f"step {step.step}", step.open_s) | name | {"args": args}
    yield _event(view, "e", STEPS_TRACK, f"step {step.step}", step.close_s) | name
    links = [places[link.name, link.part, link.begin_s] for link in step.critical]
    for place, ((tid, it), (after_tid, after)) in enumerate(pairwise(links)):
        flow = {"cat": "critical path", "id": view.attempt << 40 | number << 16 | place}
        yield _event(view, "s", tid, "critical path", (it.begin_s + it.end_s) / 2) | flow
        yield _event(view, "f", after_tid, "critical path", (after.begin_s + after.end_s) / 2) | flow | {"bp": "e"}


def _slice(view: AttemptTime, lane: Lane, it: Segment) -> dict[str, Any]:
    args = {"step": it.step, "part": it.part, "waited_s": round(it.begin_s - it.sent_s, 4), "replay": it.replay}
    length = {"dur": _us(it.end_s - it.begin_s), "cat": it.kind or "call", "args": args}
    return _event(view, "X", _thread(lane), plain(it.name), it.begin_s) | length


def _beside(view: AttemptTime, lane: Lane) -> Iterator[dict[str, Any]]:
    """What it let go of lies within its calls; spills and saves, which may overlap, have tracks of their own; a counter
    of what models held on its device."""
    worker = f"worker-{_thread(lane)}"
    for number, it in enumerate(lane.beside):
        args = {"cat": it.kind, "args": {"step": it.step}}
        if it.kind == "release":
            length = {"dur": _us(it.end_s - it.begin_s)}
            yield _event(view, "X", _thread(lane), f"release after {plain(it.name)}", it.begin_s) | length | args
        else:
            name = {"id": f"{worker}.{number}"} | args
            yield _event(view, "b", _thread(lane), f"{worker}: {it.kind} {plain(it.name)}", it.begin_s) | name
            yield _event(view, "e", _thread(lane), f"{worker}: {it.kind} {plain(it.name)}", it.end_s) | name
    for held in lane.memory:
        yield _event(view, "C", _thread(lane), f"{worker}: bytes of models", held.at_s) | {
            "args": {"bytes": held.bytes}
        }


def _event(view: AttemptTime, phase: str, tid: int, name: str, at_s: float) -> dict[str, Any]:
    return {"ph": phase, "pid": view.attempt, "tid": tid, "name": name, "ts": _us(view.began + at_s)}


def _name(view: AttemptTime, kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": view.attempt, "tid": tid, "name": kind, "args": {"name": name}}


def _thread(lane: Lane) -> int:
    return -1 if lane.worker is None else lane.worker


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 1)
