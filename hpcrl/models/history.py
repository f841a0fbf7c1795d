"""What was drawn of each row, token by token, and which rows it has ended. Knows no model, no slots and no device."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcrl.models.stopping import StopStrings


class Generated(NamedTuple):
    """Responses in the order of the prompts. `logprobs` are those of the distribution sampled from: after temperature,
    top-k, top-p and the ban of EOS before `min_new_tokens`."""

    tokens: list[np.ndarray]
    """int32, with the ending token where there is one."""
    logprobs: list[np.ndarray]
    """One a token: float64 of a model in float64, else float32."""
    finished: list[bool]
    """Whether the row ended by a token of `eos_token_ids` or by its text, not by its limit."""


class _Step(NamedTuple):
    rows: np.ndarray
    tokens: np.ndarray
    logprobs: Tensor
    """On the device."""
    counts: np.ndarray | None
    """Which of them count; None: all."""


class History:
    """Turned into responses at the end. What is drawn for a row after its end is thrown away."""

    def __init__(
        self,
        ending: Sequence[int],
        stops: Callable[[], StopStrings] | None = None,
        least: int = 0,
        begun: Sequence[np.ndarray] = (),
    ) -> None:
        """A row ends by a token of `ending`, or by what reads its text, from `least` tokens on. What is `begun` of the
        rows is read, and is no part of what was drawn here."""
        self._ending = frozenset(ending)
        self._least = least
        self._texts: defaultdict[int, StopStrings] | None = stops and defaultdict(stops)
        self._counts: Counter[int] = Counter()
        self._steps: list[_Step] = []
        self._ended: set[int] = set()
        if self._texts is not None:
            self._counts.update({row: len(tokens) for row, tokens in enumerate(begun)})
            for row, tokens in enumerate(begun):
                for token in tokens.tolist():
                    self._texts[row].take(token)

    def add(self, rows: Sequence[int], tokens_N: np.ndarray, logprobs_N: Tensor) -> list[int]:
        """Write down one token of each of these rows. Which of them ended by it."""
        counts = None
        drawn = list(zip(rows, tokens_N.tolist(), strict=True))
        if self._ended and not self._ended.isdisjoint(rows):
            counts = np.array([row not in self._ended for row in rows])
            drawn = [(row, token) for row, token in drawn if row not in self._ended]
        self._steps.append(_Step(np.asarray(rows, np.int64), tokens_N, logprobs_N, counts))
        ended = [row for row, token in drawn if token in self._ending]
        if self._texts is not None:
            self._counts.update(row for row, _ in drawn)
            stopped = [row for row, token in drawn if self._texts[row].take(token)]
            ended += [row for row in stopped if self._counts[row] >= self._least]
        self._ended.update(ended)
        return ended

    def responses(self, count: int) -> Generated:
        """Of the rows 0 … count - 1, each of which has a token at least."""
        rows, tokens = (np.concatenate(column) for column in list(zip(*self._steps, strict=True))[:2])
        logprobs = torch.cat([step.logprobs for step in self._steps]).cpu().numpy()
        counts = np.concatenate([np.ones(len(it.rows), bool) if it.counts is None else it.counts for it in self._steps])
        rows, tokens, logprobs = rows[counts], tokens[counts], logprobs[counts]
        order = np.argsort(rows, kind="stable")
        cuts = np.cumsum(np.bincount(rows, minlength=count))[:-1]
        return Generated(
            tokens=np.split(tokens[order].astype(np.int32), cuts),
            logprobs=np.split(logprobs[order], cuts),
            finished=[row in self._ended for row in range(count)],
        )
