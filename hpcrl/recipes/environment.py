"""Responses of several turns: the calls in which a model and an environment take theirs, one after the other.

Each round has a call that generates and one that answers, in a graph that is the same for all samples. A sample that is
over has rows of length 0 in the rounds that follow.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hpcrl.config.environment import ENVIRONMENT, MOST_TURNS, EnvironmentConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.form import BYTES, FLAGS, NUMBERS, TOKENS, Form
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem

SAID: Mapping[str, Form] = {"responses": TOKENS, "logprobs": NUMBERS, "finished": FLAGS}
"""What a turn of the model's makes."""
TALK: Mapping[str, Form] = {
    **SAID,
    "response_mask": FLAGS,
    "environment_scores": NUMBERS,
    "turns": BYTES,
    "open": FLAGS,
}
"""What there is of a response after an answer. `response_mask` [T] is true where a token is the model's;
`environment_scores` [1] is what the environment has given so far; `turns` [bytes] is JSON, the messages after the
prompt; `open` [1] is whether the model has a further turn."""
MADE: Mapping[str, Form] = {key: form for key, form in TALK.items() if key not in (*SAID, "open")}
"""The keys of a graph with an environment, besides those between rounds."""

GENERATED = "response_length", "finished"
"""The statistics of a call that generates."""
ANSWERED = "environment_score", "done"
"""The statistics of an environment's call, each of the samples that it has answered."""

_BETWEEN = re.compile(r"(?:said|talk)\d+_(\w+)")
_TURN = re.compile(r"_turn(\d+)_gen$")


def form_between(key: str) -> Form | None:
    """The form of a key between two rounds; None where it is none."""
    found = _BETWEEN.search(key)
    return TALK.get(found[1]) if found else None


def is_turn(call: MFC) -> bool:
    """Whether it is a call of a round behind the first."""
    return bool(call.dispatch.follows)


def turn_of(call: MFC) -> int:
    """Which turn of the model's a call generates, from 0 on."""
    found = _TURN.search(call.name)
    return int(found[1]) - 1 if found else 0


def turns_of(config: EnvironmentConfig, first: str) -> tuple[str, ...]:
    """The calls of all turns of the model's, of which this is the first."""
    more = 0 if config.function is None else min(config.max_turns, MOST_TURNS) - 1  # what is beyond is refused
    return (first, *(f"{first.removesuffix('_gen')}_turn{turn + 2}_gen" for turn in range(more)))


def masked(config: EnvironmentConfig) -> tuple[str, ...]:
    """The key that says which tokens are the model's, where some are not."""
    return () if config.function is None else ("response_mask",)


def turn_problems(config: EnvironmentConfig, experiment: Any) -> Iterator[Problem]:
    """What responses of several turns cannot be."""
    generation: GenerationConfig = experiment.generation
    if config.function is None:
        return
    own = generation.evaluation.samples_per_prompt
    if own > 1:
        yield Problem(
            ("generation.evaluation.samples_per_prompt", "environment.function"),
            f"generation.evaluation.samples_per_prompt = {own} must be 1 with an environment.",
            "Set generation.evaluation.samples_per_prompt.",
        )
    if generation.segment is not None:
        yield Problem(
            ("generation.segment", "environment.function"),
            f"generation.segment = {generation.segment} must be null with an environment, whose turns are drawn whole.",
            "Set generation.segment.",
        )


def rounds(config: EnvironmentConfig, first: MFC) -> Iterator[MFC]:
    """The calls in which the response comes about that `first` alone makes where there is no environment."""
    if config.function is None:
        yield first
        return
    base = first.name.removesuffix("_gen")
    answers = ENVIRONMENT if base == "actor" else f"{base}_{ENVIRONMENT}"
    final = tuple(key for key in TALK if key != "open")
    names = turns_of(config, first.name)
    last = len(names)
    for turn in range(1, last + 1):
        said, before, after = ({key: f"{of}_{key}" for key in TALK} for of in _places(turn))
        reads = {before[key]: key for key in ("responses", "logprobs", "open")} if turn > 1 else {}
        yield msgspec.structs.replace(
            first,
            name=names[turn - 1],
            inputs=("prompts", *reads),
            outputs=tuple(said[key] for key in SAID),
            input_remap=reads,
            output_remap={key: said[key] for key in SAID},
            dispatch=msgspec.structs.replace(first.dispatch, follows=first.name if turn > 1 else ""),
        )
        new = {said[key]: f"new_{key}" for key in SAID}
        so_far = {graph: key for key, graph in before.items()} if turn > 1 else {}
        is_last = turn == last
        yield MFC(
            f"{answers}_turn{turn}",
            ENVIRONMENT,
            "inference",
            ("prompts", *new, *so_far),
            final if is_last else tuple(after.values()),
            input_remap=new | so_far,
            output_remap={} if is_last else after,
            method="step",
        )


def _places(turn: int) -> tuple[str, str, str]:
    """How keys begin of what the model says in this turn, of the talk before it, and of that after it."""
    return f"said{turn}", f"talk{turn - 1}", f"talk{turn}"
