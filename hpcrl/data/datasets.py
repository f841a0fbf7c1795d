"""The data sets of an experiment: ids and lengths for the master, rows for the workers, made when asked for."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import Experiment, PPOExperiment, SFTExperiment, ToyExperiment
from hpcrl.config.toy import ToyConfig
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.order import Order, row_of
from hpcrl.data.samples import SequenceSample
from hpcrl.data.tokens import Tokens, load_tokens
from hpcrl.dataflow.recipes import evaluates
from hpcrl.errors import DataError

_CHUNK = 1024  # rows tokenised at once when all lengths are needed
_SHOWN = 20  # ids in a notice


class Dataset(Protocol):
    """Rows under keys. Sample ids come from `hpcrl.data.order`; several may be of one row."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The rows to use, in the order of the file."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """The rows that are not used."""

    @property
    def notice(self) -> str:
        """What is left out and why, in a sentence; empty if nothing is."""

    def lengths(self, samples: Sequence[str]) -> list[int]:
        """Tokens of each sample, all keys together."""

    def rows(self, samples: Sequence[str]) -> SequenceSample: ...

    def text(self, sample: str) -> Mapping[str, Any]:
        """The record that the sample was made of, for a reward function."""


class TextDataset:
    """Prompts, or prompts with answers, of a .jsonl file, tokenised.

    A row whose prompt, or answer with its EOS, is longer than its bound is left out. Knows nothing of batches.
    """

    def __init__(
        self,
        records: JsonLines,
        tokens: Tokens,
        config: DataConfig,
        *,
        knob: str,
        prompt_key: str,
        answer_key: str | None = None,
        first_rows: int | None = None,
    ) -> None:
        self._records = records
        self._tokens = tokens
        self._config = config
        self._knob = knob
        self._prompt_key = prompt_key
        self._answer_key = answer_key
        self._candidates = records.ids[:first_rows]
        self._lengths: dict[str, tuple[int, int]] = {}  # row → tokens of (prompt, answer with its EOS)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        unwanted = frozenset(self.left_out)
        kept = tuple(row for row in self._candidates if row not in unwanted)
        if not kept:
            raise DataError(f"{self.notice} No row remains; raise the bound.")
        return kept

    @property
    def notice(self) -> str:
        if not self.left_out:
            return ""
        bounds = [
            f"{knob} = {bound}"
            for knob, bound in (
                ("data.max_prompt_tokens", self._config.max_prompt_tokens),
                ("data.max_answer_tokens", self._answer_bound),
            )
            if bound is not None
        ]
        count, shown = len(self.left_out), ", ".join(self.left_out[:_SHOWN])
        return (
            f"{count} of {len(self._candidates)} rows of {self._knob} ({self._records.path}) are longer than "
            f"{' or '.join(bounds)} tokens and left out: {shown}{', …' if count > _SHOWN else ''}."
        )

    def lengths(self, samples: Sequence[str]) -> list[int]:
        rows = [row_of(sample) for sample in samples]
        self._measure(rows)
        return [sum(self._lengths[row]) for row in rows]

    def rows(self, samples: Sequence[str]) -> SequenceSample:
        rows = [row_of(sample) for sample in samples]
        distinct = list(dict.fromkeys(rows))
        of_row = {row: encoded for row, *encoded in zip(distinct, *self._encode(distinct), strict=True)}
        keys = (self._prompt_key, self._answer_key)
        made = {key: [of_row[row][i] for row in rows] for i, key in enumerate(keys) if key is not None}
        return SequenceSample.from_rows(samples, made)

    def text(self, sample: str) -> dict[str, Any]:
        return self._records.read([row_of(sample)])[0]

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        prompt_bound, answer_bound = self._config.max_prompt_tokens, self._answer_bound
        if prompt_bound is None and answer_bound is None:
            return ()
        self._measure(self._candidates)
        return tuple(
            row
            for row in self._candidates
            if (prompt_bound is not None and self._lengths[row][0] > prompt_bound)
            or (answer_bound is not None and self._lengths[row][1] > answer_bound)
        )

    @property
    def _answer_bound(self) -> int | None:
        return self._config.max_answer_tokens if self._answer_key else None

    def _measure(self, rows: Sequence[str]) -> None:
        """Note the lengths of rows that are not known yet, some at a time."""
        pending = list(dict.fromkeys(row for row in rows if row not in self._lengths))
        for start in range(0, len(pending), _CHUNK):
            chunk = pending[start : start + _CHUNK]
            prompts, answers = self._encode(chunk)
            self._lengths.update(
                (row, (len(prompt), len(answer))) for row, prompt, answer in zip(chunk, prompts, answers, strict=True)
            )

    def _encode(self, rows: Sequence[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Tokens of the prompts, and of the answers; those are empty where answers are not wanted."""
        records = self._records.read(rows)
        texts = [self._config.prompt_template.replace("{prompt}", record["prompt"]) for record in records]
        prompts = self._tokens.encode_prompts(texts)
        if self._answer_key is None:
            return prompts, [np.zeros(0, np.int32)] * len(prompts)
        return prompts, self._tokens.encode_answers([record["answer"] for record in records])


class SyntheticDataset:
    """Made-up vectors, for roles that are vectors: rows r0, r1, … whose numbers and lengths follow from their ids."""

    left_out: tuple[str, ...] = ()
    notice = ""

    def __init__(self, key: str, prefix: str, config: ToyConfig) -> None:
        self._key = key
        self._width = config.width
        self.ids = tuple(f"{prefix}{i}" for i in range(config.rows))

    def lengths(self, samples: Sequence[str]) -> list[int]:
        return [len(self._vector(row_of(sample))) for sample in samples]

    def rows(self, samples: Sequence[str]) -> SequenceSample:
        return SequenceSample.from_rows(samples, {self._key: [self._vector(row_of(sample)) for sample in samples]})

    def text(self, sample: str) -> dict[str, Any]:
        return {"id": row_of(sample)}

    def _vector(self, row: str) -> np.ndarray:
        """Between 1 and `width` numbers in [-0.5, 0.5)."""
        digest = hashlib.shake_128(row.encode()).digest(8 * (1 + self._width))
        first, *numbers = np.frombuffer(digest, "<u8").tolist()
        return np.array(numbers[: 1 + first % self._width]) / 2.0**64 - 0.5


def open_datasets(experiment: Experiment) -> dict[str, Dataset]:
    """ "train", and "eval" where the experiment evaluates. Reads and checks every line; tokenises nothing yet.

    Raises:
        DataError: naming file, line, field and setting.
    """
    if isinstance(experiment, ToyExperiment):
        toy: dict[str, Dataset] = {"train": SyntheticDataset("x", "r", experiment.toy)}
        return toy | ({"eval": SyntheticDataset("eval_x", "e", experiment.toy)} if evaluates(experiment) else {})
    data, answers = experiment.data, isinstance(experiment, SFTExperiment)
    tokens = _tokens(experiment)
    training = TextDataset(
        JsonLines(data.train, "data.train", answers=answers),
        tokens,
        data,
        knob="data.train",
        prompt_key="prompts",
        answer_key="answers" if answers else None,
    )
    if data.evaluate is None or not evaluates(experiment):
        return {"train": training}
    held_out = TextDataset(
        JsonLines(data.evaluate, "data.evaluate", answers=False),
        tokens,
        data,
        knob="data.evaluate",
        prompt_key="eval_prompts",
        first_rows=data.evaluate_rows,
    )
    return {"train": training, "eval": held_out}


def open_order(experiment: Experiment, rows: Sequence[str]) -> Order:
    """The order of the training rows."""
    if isinstance(experiment, ToyExperiment):
        return Order(rows, batch_size=experiment.toy.batch_size, seed=experiment.seed)
    data = experiment.data
    return Order(
        rows,
        batch_size=data.batch_size,
        seed=experiment.seed,
        shuffle=data.shuffle,
        samples_per_prompt=data.samples_per_prompt,
    )


@dataclass(frozen=True)
class Texts:
    """What roles need to know of the data: how tokens read, and which record a sample was made of."""

    tokens: Tokens
    datasets: Mapping[str, Dataset]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.tokens.eos_ids

    def decode(self, tokens: np.ndarray) -> str:
        return self.tokens.decode(tokens)

    def record(self, source: str, sample_id: str) -> Mapping[str, Any]:
        return self.datasets[source].text(sample_id)


def open_texts(experiment: SFTExperiment | PPOExperiment) -> Texts:
    return Texts(_tokens(experiment), open_datasets(experiment))


def _tokens(experiment: SFTExperiment | PPOExperiment) -> Tokens:
    """The tokenizer of data.tokenizer, or else the actor's."""
    if experiment.data.tokenizer is not None:
        return load_tokens(experiment.data.tokenizer)
    return load_tokens(experiment.actor.path, "actor.path or data.tokenizer")
