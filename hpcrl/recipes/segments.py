"""Which calls draw responses a segment at a time, as the settings ask, and the calls that they become.

The n-th reads what the ones before have drawn, and draws up to n segments of each response that has not ended. The last
has the call's name and keys, and makes whole responses. So a segment is spilled and recorded as any call is.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.judge import JudgeConfig, drawing_of
from hpcrl.dataflow.graph import MFC
from hpcrl.dataflow.segment import Segment, segment_name
from hpcrl.errors import Problem

MOST_SEGMENTS = 64
"""Of a response. Each reads what all before it have drawn."""
SEGMENT = "generation.segment"
REFRESH = "generation.refresh"


def segmented(calls: Iterable[MFC], experiment: Any) -> tuple[MFC, ...]:
    """The calls that are made, each after those whose rows it reads."""
    return tuple(each for call in calls for each in segments_of(call, experiment))


def segments_of(call: MFC, experiment: Any) -> tuple[MFC, ...]:
    """Those that a call of the recipe is made in; itself where it draws responses at once, or none."""
    if call.segment is not None or call.kind != "generate" or call.method or call.in_rounds:
        return (call,)
    drawing = drawing_of(experiment, call.role)
    if drawing is None or drawing.generation.segments == 1 or section(experiment, call.role, JudgeConfig) is not None:
        return (call,)
    count, newer = drawing.generation.segments, drawing.generation.newer
    return tuple(_segment(call, number, number == count, newer(number)) for number in range(1, count + 1))


def _segment(call: MFC, number: int, last: bool, newer: int) -> MFC:
    own = {graph: role for role, graph in call.output_remap.items()}
    outputs = {key: own.get(key, key) for key in call.outputs}
    reads: dict[str, str] = {}
    for before in range(1, number):
        for key, of_role in outputs.items():
            if of_role == "responses" or before == number - 1 or (last and of_role == "logprobs"):
                reads[segment_name(key, before)] = segment_name(of_role, before)
    renamed = {key: of_role for key, of_role in reads.items() if key != of_role}
    made = {} if last else {of_role: segment_name(key, number) for key, of_role in outputs.items()}
    return msgspec.structs.replace(
        call,
        name=call.name if last else segment_name(call.name, number),
        inputs=(*call.inputs, *reads),
        input_remap={**call.input_remap, **renamed},
        outputs=tuple(made.values()) if made else call.outputs,
        output_remap=made or call.output_remap,
        lag=max(0, call.lag - newer),
        dispatch=msgspec.structs.replace(call.dispatch, segment=Segment(call.name, number, last)),
    )


def refresh_problems(experiment: Any, scripted: bool, chooses: bool) -> Iterator[Problem]:
    """What is wrong with `generation.refresh`, of a script or of steps that choose their rows."""
    own = section(experiment, "generation", GenerationConfig)
    if own is None or own.refresh is None:
        return
    asked, lag = f"{REFRESH} = {own.refresh}", getattr(experiment, "lag", 0)
    if own.segments == 1 or not lag:
        yield Problem(
            (REFRESH, SEGMENT, "lag"),
            f"{asked} has responses drawn on by newer actors, but lag = {lag} and {SEGMENT} = {own.segment or 'null'}: "
            f"{'each is drawn at once' if lag else 'none is newer'}.",
            f"Set lag and {SEGMENT}, or set {REFRESH} to null.",
        )
    elif scripted or chooses:
        why = "a step that a script prepares reads one actor" if scripted else "steps choose their rows by whole ones"
        text = f"{asked} has responses drawn on by newer actors, but {why}."
        yield Problem((REFRESH,), text, f"Set {REFRESH} to null.")


def segment_problems(experiment: Any, calls: Iterable[MFC]) -> Iterator[Problem]:
    """What is wrong with `generation.segment`, where these calls are made."""
    own = section(experiment, "generation", GenerationConfig)
    for role in dict.fromkeys(call.role for call in calls):
        yield from _judge_problems(experiment, role)
    if own is not None and own.segments > MOST_SEGMENTS:
        least = -(-own.max_new_tokens // MOST_SEGMENTS)
        yield Problem(
            (SEGMENT, "generation.max_new_tokens"),
            f"{SEGMENT} = {own.segment} cuts generation.max_new_tokens = {own.max_new_tokens} into {own.segments} "
            f"segments; {MOST_SEGMENTS} are the most.",
            f"Set {SEGMENT} to {least} or more, or to null.",
        )


def _judge_problems(experiment: Any, role: str) -> Iterator[Problem]:
    """Of one that is a judge."""
    judge = section(experiment, role, JudgeConfig)
    generation = GenerationConfig() if judge is None else judge.generation
    for setting in ("segment", "in_flight"):
        key, value = f"{role}.generation.{setting}", getattr(generation, setting)
        if value is not None:
            yield Problem((key,), f"{key} = {value}, but a judge's answers are drawn at once.", f"Set {key} to null.")
