"""Which rows begin with the same prompt, and how rows are cut so that a model reads it once. Knows no tensors.

Shape legend: L packed tokens of B rows; P labels of all of them. A row's last token is never read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SHARED = 8
"""A shorter prompt costs less to read again than to share."""


def prompt_numbers(tokens: np.ndarray, lengths: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """int64 [B]: the first row with the same prompt; the row itself where the prompt is too short to be shared.

    `prompts` are the lengths of the prompts.
    """
    firsts: dict[bytes, int] = {}
    numbers = []
    begins = (np.cumsum(lengths) - lengths).tolist()
    for row, (begin, prompt) in enumerate(zip(begins, prompts.tolist(), strict=True)):
        shared = prompt >= LEAST_SHARED
        numbers.append(firsts.setdefault(tokens[begin : begin + prompt].tobytes(), row) if shared else row)
    return np.array(numbers, np.int64)


@dataclass(frozen=True)
class Texts:
    """Rows cut into texts: a prompt that several of them begin with, what follows it in each, and whole rows."""

    pieces: list[tuple[int, int, int]]
    """(row, first token, end) of each text; none is empty."""
    prefixes: list[int]
    """The text that comes before each text, or -1."""
    places: list[tuple[int, int]]
    """(text, first token of the row that it has) of each row's end."""

    @property
    def lengths(self) -> list[int]:
        return [end - begin for _, begin, end in self.pieces]

    def readers(self, counted: np.ndarray) -> np.ndarray:
        """int64: how many of the rows that are counted each text is of."""
        found = np.zeros(len(self.pieces), np.int64)
        for (text, _), counts in zip(self.places, counted.tolist(), strict=True):
            found[[own for own in (text, self.prefixes[text]) if own >= 0]] += counts
        return found

    def inputs(self, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The tokens that are read, text after text."""
        if not len(lengths):
            return np.zeros(len(self.pieces), tokens.dtype)
        begins = (np.cumsum(lengths) - lengths).tolist()
        return np.concatenate([tokens[begins[row] + begin : begins[row] + end] for row, begin, end in self.pieces])

    def label_rows(self, lengths: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """int64 [P]: where among the inputs each label is predicted: at the token before it.

        The last token of a shared prompt predicts the first label of several rows.
        """
        begins = np.cumsum([0, *self.lengths])
        text, own = np.array(self.places, np.int64).reshape(-1, 2).T
        before = np.array([self.prefixes[i] for i in text.tolist()], np.int64)
        first = lengths - 1 - labels
        at = np.arange(int(labels.sum())) - (np.cumsum(labels) - labels - first).repeat(labels)  # in the row
        in_own = begins[text].repeat(labels) + at - own.repeat(labels)
        return np.where(at >= own.repeat(labels), in_own, begins[before].repeat(labels) + at)


def cut_rows(lengths: np.ndarray, prompts: np.ndarray, numbers: Sequence[int] | np.ndarray) -> Texts:
    """Rows as texts. Rows of one number that stand here together share their prompt.

    Of no rows there is a text of one token, any one, so that there is something to go through a model.
    """
    if not len(lengths):
        return Texts([(0, 0, 1)], [-1], [])
    alike = np.bincount(numbers)[numbers].tolist()
    pieces: list[tuple[int, int, int]] = []
    prefixes: list[int] = []
    places: list[tuple[int, int]] = []
    shared: dict[int, int] = {}
    for row, (length, prompt, number) in enumerate(zip(lengths.tolist(), prompts.tolist(), numbers, strict=True)):
        begin, prefix = 0, -1
        if alike[row] > 1:
            if number not in shared:
                shared[number] = len(pieces)
                pieces.append((row, 0, prompt))
                prefixes.append(-1)
            begin, prefix = prompt, shared[number]
        if begin < length - 1:
            places.append((len(pieces), begin))
            pieces.append((row, begin, length - 1))
            prefixes.append(prefix)
        else:
            places.append((prefix, 0))
    return Texts(pieces, prefixes, places)
