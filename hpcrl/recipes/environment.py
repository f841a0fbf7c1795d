"""Responses of several turns: the calls in which a model and an environment take theirs, one after the other.

Each round has a call that generates and one that answers, in a graph that is the same for all samples. A sample that is
over has rows of length 0 in the rounds that follow.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from hpcrl.config.environment import ENVIRONMENT, EnvironmentConfig
from hpcrl.data.form import BYTES, FLAGS, NUMBERS, TOKENS, Form
from hpcrl.dataflow.graph import MFC

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

_TURN = re.compile(r"\w+_turn\d+_gen")
_BETWEEN = re.compile(r"(?:said|talk)\d+_(\w+)")


def form_between(key: str) -> Form | None:
    """The form of a key between two rounds; None where it is none."""
    found = _BETWEEN.search(key)
    return TALK.get(found[1]) if found else None


def is_turn(call: MFC) -> bool:
    """Whether it is a call of a round behind the first."""
    return _TURN.fullmatch(call.name) is not None


def rounds(config: EnvironmentConfig, first: MFC) -> Iterator[MFC]:
    """The calls in which the response comes about that `first` alone makes where there is no environment."""
    if config.function is None:
        yield first
        return
    base = first.name.removesuffix("_gen")
    answers = ENVIRONMENT if base == "actor" else f"{base}_{ENVIRONMENT}"
    final = tuple(key for key in TALK if key != "open")
    for turn in range(1, config.max_turns + 1):
        said, before, after = ({key: f"{of}_{key}" for key in TALK} for of in _places(turn))
        reads = {before["responses"]: "responses", before["open"]: "open"} if turn > 1 else {}
        yield msgspec.structs.replace(
            first,
            name=first.name if turn == 1 else f"{base}_turn{turn}_gen",
            inputs=("prompts", *reads),
            outputs=tuple(said[key] for key in SAID),
            input_remap=reads,
            output_remap={key: said[key] for key in SAID},
        )
        new = {said[key]: f"new_{key}" for key in SAID}
        so_far = {graph: key for key, graph in before.items()} if turn > 1 else {}
        is_last = turn == config.max_turns
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
