"""What a step consists of: its texts, and how calls cut them over parts, minibatches, micro-batches and slots, by the
functions that a run cuts them with. Knows no models and no time.

Shapes: M micro-batches; X texts that go through a model.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from hpcrl.data.batch import Batch
from hpcrl.data.micro_batches import micro_batches
from hpcrl.data.partition import Positions, partition_step, share_out
from hpcrl.data.prefixes import LEAST_SHARED, cut_rows
from hpcrl.data.rows.pairs import PAIRS
from hpcrl.placement.draws import WHOLE, Drawn
from hpcrl.placement.lengths import Lengths
from hpcrl.placement.visits import Prompts, Visits, visits_of
from hpcrl.recipes.algorithm import algorithm_of

T = TypeVar("T")

SLOWEST = 4
"""Of many parts, so many of the heaviest, and of those with the longest responses, are reckoned."""


@dataclass(frozen=True, eq=False)
class MicroBatches:
    """Those of one part of a call, in the order in which they go through the model."""

    labels_M: np.ndarray
    """Tokens that are predicted."""
    lengths_X: np.ndarray
    before_X: np.ndarray
    """Tokens of the text that a text goes on from."""
    batch_X: np.ndarray
    """Whose it is."""

    def __len__(self) -> int:
        return len(self.labels_M)

    @cached_property
    def texts_M(self) -> np.ndarray:
        return np.bincount(self.batch_X, minlength=len(self))

    @cached_property
    def tokens_M(self) -> np.ndarray:
        return self._of_batch(self.lengths_X)

    @cached_property
    def pairs_M(self) -> np.ndarray:
        """Tokens that its tokens see, themselves included."""
        return self.pairs(0)

    def pairs(self, window: int) -> np.ndarray:
        """The same where a token sees at most so many (0: all)."""
        first, last = self.before_X + 1, self.before_X + self.lengths_X
        whole = (first + last) * self.lengths_X // 2
        if not window:
            return self._of_batch(whole)
        growing = np.maximum(0, window - first)
        bounded = (first + window - 1) * growing // 2 + window * (self.lengths_X - growing)
        return self._of_batch(np.where(last <= window, whole, bounded))

    def _of_batch(self, numbers_X: np.ndarray) -> np.ndarray:
        return np.bincount(self.batch_X, numbers_X, len(self)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Workload:
    """A step: texts, [N], those of a sample side by side. Remembers how it was cut."""

    prompts: np.ndarray
    responses: np.ndarray
    """Of a text whose answer is given, that."""
    texts: int = 1
    """Of a sample."""
    per_row: int = 1
    """Samples of a row, which share their prompt."""
    minibatches: int = 1
    passes: int = 1
    whole_rows: bool = False
    """Whether samples of a row always go together."""
    _made: dict[Any, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return len(self.prompts) // self.texts

    @property
    def tokens(self) -> int:
        return int(self.prompts.sum() + self.responses.sum())

    def parts(self, dp: int) -> tuple[Positions, ...]:
        """Samples of each part of a generation or an inference: cut before responses are known."""
        return self._once(("parts", dp), lambda: self._divided(dp)[1])

    def heaviest(self, dp: int) -> tuple[Positions, ...]:
        """Of these, the ones that may last longest: all, or of many those with most tokens and with the longest
        responses."""
        return self._once(("heaviest", dp), lambda: self._slowest(self.parts(dp)))

    def shares(self, dp: int) -> tuple[tuple[Positions, ...], ...]:
        """minibatch → part → samples of a train_step: cut by the lengths that have been made."""

        def made() -> tuple[tuple[Positions, ...], ...]:
            minibatches = self._divided(dp)[0]
            lengths = self._by_sample(self.prompts + self.responses).sum(axis=1).tolist()
            parts = [set(part) for part in share_out(lengths, minibatches, dp, self._rows)]
            return tuple(tuple(tuple(i for i in each if i in part) for part in parts) for each in minibatches)

        return self._once(("shares", dp), made)

    def predicted(self, dp: int, tokens: int, shared: bool = True) -> tuple[MicroBatches, ...]:
        """Of the heaviest parts of an inference, of at most so many tokens each; `shared` prompts go through a model
        once."""
        return self._once(
            ("predicted", dp, tokens, shared),
            lambda: tuple(self._micro_batches(part, tokens, shared) for part in self.heaviest(dp)),
        )

    def trained(self, dp: int, tokens: int, shared: bool = True) -> tuple[tuple[MicroBatches, ...], ...]:
        """minibatch → its heaviest parts → micro-batches, of one pass of a train_step."""
        return self._once(
            ("trained", dp, tokens, shared),
            lambda: tuple(
                tuple(self._micro_batches(part, tokens, shared) for part in self._slowest(parts))
                for parts in self.shares(dp)
            ),
        )

    def generated(
        self, dp: int, stages: int, slots: int, prefill_tokens: int, drawn: Drawn = WHOLE
    ) -> tuple[Visits, ...]:
        """Of the heaviest parts of a call that draws this of each text."""
        return self._once(
            ("generated", dp, stages, slots, prefill_tokens, drawn),
            lambda: tuple(
                visits_of(self._waiting(part, drawn), slots, prefill_tokens, stages) for part in self.heaviest(dp)
            ),
        )

    def _slowest(self, parts: tuple[Positions, ...]) -> tuple[Positions, ...]:
        if len(parts) <= 2 * SLOWEST:
            return parts
        tokens = [int((self.prompts + self.responses)[self._of(part)].sum()) for part in parts]
        longest = [int(self.responses[self._of(part)].max(initial=0)) for part in parts]
        found = {i for sizes in (tokens, longest) for i in np.argsort(sizes, kind="stable")[-SLOWEST:].tolist()}
        return tuple(parts[i] for i in sorted(found))

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    @cached_property
    def _rows(self) -> list[str] | None:
        return [str(sample // self.per_row) for sample in range(self.samples)] if self.whole_rows else None

    def _by_sample(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.reshape(self.samples, self.texts)

    def _divided(self, dp: int) -> tuple[tuple[Positions, ...], tuple[Positions, ...]]:
        """By what the data set knows: of answers that are given, their lengths too."""
        known = self.prompts if self.texts == 1 else self.prompts + self.responses
        lengths = self._by_sample(known).sum(axis=1).tolist()
        return partition_step(lengths, min(self.minibatches, self.samples), dp, self._rows)

    def _of(self, part: Positions) -> np.ndarray:
        """The texts of a part."""
        first = np.array(part, np.int64) * self.texts
        return (first[:, None] + np.arange(self.texts)).ravel()

    def _numbers(self, texts: np.ndarray) -> np.ndarray:
        """Equal for texts with one prompt: the first of them."""
        row, first = np.unique(texts // (self.texts * self.per_row), return_index=True)
        shared = first[np.searchsorted(row, texts // (self.texts * self.per_row))]
        return np.where(self.prompts[texts] >= LEAST_SHARED, shared, np.arange(len(texts)))

    def _waiting(self, part: Positions, drawn: Drawn = WHOLE) -> Prompts:
        """Of what is more than a prompt no two are alike."""
        texts = self._of(part)
        read, made = drawn.of(self.prompts[texts], self.responses[texts])
        row = texts // (self.texts * self.per_row) if drawn.shares else texts
        some = made > 0
        return Prompts(read[some].tolist(), row[some].tolist(), made[some].tolist())

    def _micro_batches(self, part: Positions, tokens: int, shared: bool) -> MicroBatches:
        texts = self._of(part)
        prompts, responses = self.prompts[texts], self.responses[texts]
        lengths, samples = prompts + responses, texts // self.texts
        numbers = self._numbers(texts) if shared else np.arange(len(texts))
        labels, found = [], []
        for number, rows in enumerate(micro_batches(lengths, samples, prompts, numbers, tokens)):
            cut = cut_rows(lengths[rows], prompts[rows], np.unique(numbers[rows], return_inverse=True)[1])
            own = cut.lengths
            found += [(own[i], own[at] if at >= 0 else 0, number) for i, at in enumerate(cut.prefixes)]
            labels.append(int(responses[rows].sum()))
        columns = np.array(found, np.int64).reshape(-1, 3).T
        return MicroBatches(np.array(labels, np.int64), *columns)


def workload_of(experiment: Any, lengths: Lengths, seed: int = 0) -> Workload:
    """A step of an experiment with texts of such lengths."""
    algorithm = algorithm_of(experiment)
    batch: Batch = algorithm.batch(experiment)
    texts = 2 if algorithm.rows is PAIRS else 1
    rows = _rows_of(batch, lengths)
    prompts, responses = lengths.drawn(rows, batch.per_row * texts, seed)
    return Workload(
        prompts,
        responses,
        texts=texts,
        per_row=batch.per_row,
        minibatches=min(batch.minibatches, rows * batch.per_row),
        passes=batch.passes,
        whole_rows=batch.kept_whole == "row",
    )


def _rows_of(batch: Batch, lengths: Lengths) -> int:
    """Where a step's tokens are counted, as many rows as have these on average."""
    if batch.tokens is None:
        return batch.rows
    each = float((lengths.prompts + lengths.responses).mean())
    return max(1, min(batch.rows, int(batch.tokens / each)))
