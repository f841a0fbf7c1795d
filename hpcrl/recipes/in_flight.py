"""Partial rollouts: so many prompts are in flight, and a step trains on the first whose responses end.

A step makes the call that draws them in rounds, a segment of each response in one, and begins others for those that
have ended. What has not been trained on goes on in the next step, by a newer actor (Kimi Team 2025, arXiv:2501.12599).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from hpcrl.config.environment import EnvironmentConfig
from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.choice import FirstToEnd
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem

IN_FLIGHT = "generation.in_flight"
SO_FAR = "versions", "whole"
"""What there is of a response in flight, besides its tokens. `versions` [T] says which version of the actor drew each
token, `whole` [1] whether it has ended."""

STATISTICS = "open", "staleness"
"""Of a call that is made in rounds, besides those of one that generates."""


def in_rounds(call: MFC, so_far: tuple[str, ...] = SO_FAR) -> MFC:
    """The call as it is made in rounds; these keys are what it needs to go on, besides its outputs."""
    dispatch = msgspec.structs.replace(call.dispatch, in_rounds=True)
    return msgspec.structs.replace(call, outputs=(*call.outputs, *so_far), dispatch=dispatch)


def by_ends(generation: GenerationConfig, calls: tuple[MFC, ...], first: str) -> tuple[MFC, ...]:
    """The calls of a graph where the call named `first` is made in rounds, and all others on training data wait for the
    choice; unchanged where nothing is in flight."""
    if generation.in_flight is None:
        return calls
    return tuple(in_rounds(call) if call.name == first else _late(call) for call in calls)


def _late(call: MFC) -> MFC:
    waits = call.dataset == "train" and not call.changes
    return msgspec.structs.replace(call, rows="chosen") if waits else call


def choice_by_ends(generation: GenerationConfig) -> FirstToEnd | None:
    if generation.in_flight is None:
        return None
    return FirstToEnd(key="whole", in_flight=generation.in_flight, max_age=generation.max_age, setting=IN_FLIGHT)


def in_flight_problems(
    experiment: Any, rows: int, environment: EnvironmentConfig, filter_metric: str | None
) -> Iterator[Problem]:
    """What is wrong with responses in flight, where a step trains on the responses to so many `rows`."""
    own = section(experiment, "generation", GenerationConfig)
    assert own is not None, "a policy has one"
    if own.in_flight is None:
        if own.max_age is not None:
            text = f"generation.max_age = {own.max_age} has an effect only where {IN_FLIGHT} is set, but it is null."
            yield Problem(("generation.max_age", IN_FLIGHT), text, f"Set {IN_FLIGHT} or leave generation.max_age out.")
        return
    asked = f"{IN_FLIGHT} = {own.in_flight}"
    if own.in_flight < rows:
        text = f"{asked} must be at least data.batch_size = {rows}, the prompts that a step trains on."
        yield Problem((IN_FLIGHT, "data.batch_size"), text, f"Raise {IN_FLIGHT}, to a quarter more than that, say.")
    if own.segment is None:
        text = f"{asked} draws responses a segment at a time, but generation.segment is null."
        yield Problem((IN_FLIGHT, "generation.segment"), text, "Set generation.segment to a few hundred tokens.")
    if environment.function is not None:
        text = f"{asked} draws responses a segment at a time, but with an environment a turn is drawn whole."
        yield Problem((IN_FLIGHT, "environment.function"), text, f"Set {IN_FLIGHT} to null.")
    if filter_metric is not None:
        text = f"{asked} has steps train on the prompts that end first, and {filter_metric} on those that differ."
        yield Problem((IN_FLIGHT, filter_metric), text, "Set one of them to null.")


def unused_problems(experiment: Any, calls: Iterable[MFC]) -> Iterator[Problem]:
    """Responses in flight where a step draws none that it trains on."""
    own = section(experiment, "generation", GenerationConfig)
    if own is not None and own.in_flight is not None and not any(call.in_rounds for call in calls):
        text = f"{IN_FLIGHT} = {own.in_flight}, but {experiment.algorithm} trains on no responses that it draws."
        yield Problem((IN_FLIGHT,), text, f"Leave {IN_FLIGHT} out.")
