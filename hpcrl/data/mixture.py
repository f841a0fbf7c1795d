"""Several sources in one order: whose turn is at each position, exactly, and which of its rows comes then."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import accumulate, count
from math import gcd, lcm
from typing import overload

from hpcrl.data.cutting import ByRows, ByTokens
from hpcrl.data.order import SampleOrder, StepSamples, sample_ids

BETWEEN = "/"
"""What stands between the name of a source and the id of its row."""


class MixedIds(Sequence[str]):
    """The ids of all rows of several sources, `<source>/<row>`, one source after another."""

    def __init__(self, sources: Mapping[str, Sequence[str]], weights: Mapping[str, float]) -> None:
        self.sources = sources
        self.weights = weights

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        left = at + len(self) if at < 0 else at
        for name, rows in self.sources.items():
            if 0 <= left < len(rows):
                return f"{name}{BETWEEN}{rows[left]}"
            left -= len(rows)
        raise IndexError(at)

    def __iter__(self) -> Iterator[str]:
        for name, rows in self.sources.items():
            yield from (f"{name}{BETWEEN}{row}" for row in rows)

    def __contains__(self, row_id: object) -> bool:
        name, _, row = str(row_id).partition(BETWEEN)
        return name in self.sources and row in self.sources[name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MixedIds):
            return NotImplemented
        return self.sources == other.sources and self.weights == other.weights

    __hash__ = None  # type: ignore[assignment]


class Turns:
    """Whose turn is at each position, from 0: source i has had its share of every prefix to within one row.

    The rule of the chairman assignment problem (Tijdeman 1980): of those that may have a turn without having more than
    their share, the one that must have one soonest. Turns repeat with the sum of the weights as whole numbers.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(str(weight)) for weight in weights]
        whole = [int(weight * lcm(*(each.denominator for each in exact))) for weight in exact]
        self._shares = [share // reduce(gcd, whole) for share in whole]
        self._period = sum(self._shares)
        self._turns = bytearray()  # those of the first period that have been asked for
        self._had = [0] * len(whole)

    def had(self, position: int) -> list[int]:
        """How many turns each source has had before this position."""
        periods, rest = divmod(position, self._period)
        self._think(rest)
        return [periods * share + self._turns.count(i, 0, rest) for i, share in enumerate(self._shares)]

    def of(self, first: int, last: int) -> list[int]:
        """Whose turns are at these positions."""
        self._think(min(last, self._period))
        if last > self._period:
            self._think(self._period)
        return [self._turns[at % self._period] for at in range(first, last)]

    def _think(self, count: int) -> None:
        while len(self._turns) < count:
            turn = self._next(len(self._turns) + 1)
            self._turns.append(turn)
            self._had[turn] += 1

    def _next(self, position: int) -> int:
        if len(self._shares) == 1:
            return 0
        parts, period = 2 * len(self._shares) - 2, self._period
        owed = [parts * (share * position - period * had) for share, had in zip(self._shares, self._had, strict=True)]
        may = [i for i, due in enumerate(owed) if due >= period]
        return min(may, key=lambda i: Fraction((parts - 1) * period - owed[i], self._shares[i]))


class MixedOrder:
    """As `SampleOrder`, over several sources. Each has epochs of its own and is read on and on; no batch is smaller.

    An epoch of the whole is over once each source has been read as often.
    """

    start = 0

    def __init__(
        self,
        rows: MixedIds,
        cutting: ByRows | ByTokens,
        *,
        seed: int,
        shuffle: bool = True,
        samples_per_prompt: int = 1,
    ) -> None:
        self._names = list(rows.sources)
        self._counts = [len(each) for each in rows.sources.values()]
        self._turns = Turns([rows.weights[name] for name in self._names])
        # A source's order follows from the names of its rows here, so that equal sources are not read alike.
        self._orders = [
            SampleOrder(MixedIds({name: each}, {}), ByRows(1), seed=seed, shuffle=shuffle)
            for name, each in rows.sources.items()
        ]
        self._cutting = cutting
        self._samples_per_prompt = samples_per_prompt

    def batches(self, epochs: int) -> None:
        """A run of several sources is as long as `control.steps` says: `control.epochs` is refused."""

    def batch_at(self, cursor: int) -> StepSamples:
        cutting = self._cutting
        return self.draw(cursor, cutting.size if isinstance(cutting, ByRows) else self._fitting(cursor, cutting))

    def draw(self, cursor: int, rows: int) -> StepSamples:
        """The samples of the next `rows` rows."""
        had = Counter(dict(enumerate(self._turns.had(cursor))))
        ids: list[str] = []
        for turn in self._turns.of(cursor, cursor + rows):
            drawn = self._orders[turn].batch_at(had[turn])
            (row,), epoch = drawn.ids, drawn.epoch
            ids += sample_ids([row.rpartition("@")[0]], epoch, self._samples_per_prompt)
            had[turn] += 1
        before, after = self.epochs_before(cursor), self.epochs_before(cursor + rows)
        return StepSamples(tuple(ids), before, cursor + rows, after > before)

    def _fitting(self, cursor: int, cutting: ByTokens) -> int:
        """How many rows from there on fit into the budget, at least one."""
        had, first, tokens = self._turns.had(cursor), [0, *accumulate(self._counts)], 0
        for rows in count():
            (turn,) = self._turns.of(cursor + rows, cursor + rows + 1)
            tokens += int(cutting.lengths[first[turn] + self._orders[turn].place_at(had[turn])])
            if tokens > cutting.budget:
                break
            had[turn] += 1
        return max(rows, 1)

    def epochs_before(self, cursor: int) -> int:
        """How many epochs are over."""
        return min(had // count for had, count in zip(self._turns.had(cursor), self._counts, strict=True))
