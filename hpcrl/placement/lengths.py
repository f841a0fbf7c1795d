"""How long prompts and responses are: of a run, of a file, or by mean and spread. What a step's texts are drawn from.

A draw is a function of its arguments: quantiles, in an order that a seed gives, so that few texts tell of all.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import msgspec
import numpy as np

from hpcrl.config.bounds import Tokens
from hpcrl.errors import ConfigurationError, DataError

ARCHIVES = 20
"""Of a run, so many of the newest are read."""
MOST_TEXTS = 20_000_000
"""That are drawn: of all steps that are simulated, together."""


class Line(msgspec.Struct, frozen=True):
    """A line of a file of lengths, in tokens."""

    prompt: Tokens
    response: Tokens


@dataclass(frozen=True, eq=False)
class Lengths:
    """Of texts, [N] each: tokens of a prompt, and of what comes after it.

    Texts that are made longer or shorter are drawn in the order in which they were before, so that the same are drawn.
    """

    prompts: np.ndarray
    responses: np.ndarray
    source: str = "as given"
    """Where they come from, in words."""
    order: np.ndarray | None = None
    """In which texts are drawn; None: by responses, then by prompts."""

    def __post_init__(self) -> None:
        if not len(self.prompts) == len(self.responses) > 0:
            raise ValueError(
                f"{len(self.prompts)} prompts and {len(self.responses)} responses; as many are needed, and some"
            )
        if self.prompts.min() < 1 or self.responses.min() < 1:
            raise ValueError("a prompt and a response have at least one token")

    def drawn(self, rows: int, per_row: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Prompts [rows · per_row], the same for all samples of a row, and responses: as these are spread."""
        count = rows * per_row
        if count > MOST_TEXTS:
            raise ConfigurationError(
                [f"{count:,} texts are too many to reckon with: lengths of at most {MOST_TEXTS:,} are drawn."],
                "Lower data.batch_size, or --steps.",
            )
        order = self.drawn_order
        among = order[((np.arange(count) + 0.5) / count * len(order)).astype(np.int64)]
        among = among[np.random.default_rng(seed).permutation(count)]
        prompts = np.repeat(self.prompts[among[::per_row]], per_row)
        return prompts, self.responses[among]

    @property
    def drawn_order(self) -> np.ndarray:
        return np.lexsort((self.prompts, self.responses)) if self.order is None else self.order

    def cut(self, longest_prompt: int, longest_response: int) -> "Lengths":
        """The same with at most so many tokens."""
        prompts, responses = np.minimum(self.prompts, longest_prompt), np.minimum(self.responses, longest_response)
        return replace(self, prompts=prompts, responses=responses)

    def scaled(self, factor: float, longest: int) -> "Lengths":
        """The same with longer or shorter responses, of at most so many tokens."""
        responses = np.clip(np.rint(self.responses * factor), 1, longest).astype(np.int64)
        return replace(self, responses=responses, order=self.drawn_order)


def spread_lengths(prompt: tuple[float, float], response: tuple[float, float], longest: tuple[int, int]) -> Lengths:
    """By mean and standard deviation of either, log-normal (as lengths of texts nearly are), and by its `longest`."""
    prompts, responses = (
        _quantiles(*of, most, seed) for seed, (of, most) in enumerate(zip((prompt, response), longest, strict=True))
    )
    return Lengths(prompts, responses)


def _quantiles(mean: float, deviation: float, longest: int, seed: int, count: int = 1024) -> np.ndarray:
    if mean < 1 or deviation < 0:
        raise ValueError(f"lengths with mean {mean:g} and deviation {deviation:g}; at least 1 and 0 are needed")
    width = math.sqrt(math.log(1 + (deviation / mean) ** 2))
    normal = NormalDist(math.log(mean) - width**2 / 2, width) if width else None
    found = [mean if normal is None else math.exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count)]
    lengths = np.clip(np.rint(found), 1, longest).astype(np.int64)
    return np.random.default_rng(seed).permutation(lengths)


def lengths_in(path: Path) -> Lengths:
    """Of a file with a line for each text, {"prompt": 31, "response": 240}. Raises DataError."""
    lines, where = [], f"{path}"
    try:
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            where = f"{path}, line {number}"
            if line.strip():
                lines.append(msgspec.json.decode(line, type=Line))
        if not lines:
            raise ValueError("it has no lines")
    except (OSError, ValueError) as error:
        like = 'A file of lengths has lines like {"prompt": 31, "response": 240}, in tokens.'
        raise DataError(f"{where}: {error}. {like}") from error
    return _of_lines(lines)


def lengths_of_run(samples: Path) -> Lengths:
    """Of a run's folder of archives, as its newest training steps have them. Raises DataError where none has texts."""
    # Who has no run waits for no HDF5.
    from hpcrl.durable.archives import read_archive

    lines: list[Line] = []
    for path in sorted(samples.rglob("step-*.h5"))[-ARCHIVES:]:
        groups = read_archive(path)[1]
        train = groups.get("train")
        if train is None or not {"prompts", "responses"} <= set(train.keys):
            continue
        prompts, responses = (train.meta.keys[key].lengths for key in ("prompts", "responses"))
        lines += [Line(sum(own), sum(made)) for own, made in zip(prompts, responses, strict=True) if sum(made)]
    if not lines:
        raise DataError(f"{samples} has no archives with prompts and responses, whose lengths could be taken.")
    return _of_lines(lines)


def _of_lines(lines: list[Line]) -> Lengths:
    table = np.array([(line.prompt, line.response) for line in lines], np.int64).reshape(-1, 2)
    return Lengths(table[:, 0], table[:, 1])
