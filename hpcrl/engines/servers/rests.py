"""Responses that go on where an earlier segment has ended, made by a server that takes all it is given for a prompt."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hpcrl.data.samples import further_seed
from hpcrl.models.history import Generated
from hpcrl.models.stopping import StopStrings


class Asked(NamedTuple):
    """What a server is asked for, row by row: its prompt, a seed of 64 bits, most and least tokens."""

    prompts: Sequence[np.ndarray]
    seeds: Sequence[int]
    limits: Sequence[int]
    least: Sequence[int]


def rests(asked: Asked, begun: Sequence[np.ndarray]) -> Asked:
    """Of responses of which so much is drawn. A rest has a seed of its own, by how long what is before it is; so draws
    depend on where responses are cut, and on nothing else."""
    lengths = [len(tokens) for tokens in begun]
    return Asked(
        [np.concatenate(row) for row in zip(asked.prompts, begun, strict=True)],
        [further_seed(seed, length) for seed, length in zip(asked.seeds, lengths, strict=True)],
        [limit - length for limit, length in zip(asked.limits, lengths, strict=True)],
        [max(0, least - length) for least, length in zip(asked.least, lengths, strict=True)],
    )


def ended_by_text(
    made: Generated, begun: Sequence[np.ndarray], least: Sequence[int], text: Callable[[], StopStrings]
) -> Generated:
    """The same, but that a response ends with the token by which its whole text has come to a string: to a server it
    begins with the rest. `least` tokens it has anyway."""
    given = zip(made.tokens, made.logprobs, made.finished, begun, least, strict=True)
    rows = [_ended(tokens, of, finished, before, fewest, text()) for tokens, of, finished, before, fewest in given]
    return Generated(*map(list, zip(*rows, strict=True)))


def _ended(
    tokens: np.ndarray, logprobs: np.ndarray, finished: bool, begun: np.ndarray, least: int, text: StopStrings
) -> tuple[np.ndarray, np.ndarray, bool]:
    for token in begun.tolist():
        text.take(token)
    for count, token in enumerate(tokens.tolist(), 1):
        if text.take(token) and count >= least:
            return tokens[:count], logprobs[:count], True
    return tokens, logprobs, finished
