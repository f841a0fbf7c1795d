"""The data sets of an experiment: ids and lengths for the master, rows for the workers, made when asked for."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import Experiment, PPOExperiment, SFTExperiment, ToyExperiment
from hpcrl.config.model import models_of
from hpcrl.config.validate import REWARDS
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.order import SampleOrder, row_of
from hpcrl.data.samples import SequenceSample
from hpcrl.data.tokens import Tokens, load_tokens
from hpcrl.errors import DataError
from hpcrl.families.reader import read_config
from hpcrl.recipes.algorithm import evaluates
from hpcrl.recipes.toy import ToyConfig

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


@dataclass(frozen=True)
class LengthLimit:
    """A length that no row may exceed: (tokens of the prompt, of the answer with its EOS) → what is bounded."""

    text: str
    limit: int
    length: Callable[[int, int], int]
    always: bool = True
    """Whether it is worth tokenising all rows; else only those that have more bytes than the limit has tokens."""


class TextDataset:
    """Prompts, or prompts with answers, of a .jsonl file, tokenised.

    A row that is longer than one of the bounds is left out. Knows nothing of batches.
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
        bounds: Sequence[LengthLimit] = (),
        vocabulary_size: int | None = None,
    ) -> None:
        self._records = records
        self._tokens = tokens
        self._config = config
        self._knob = knob
        self._prompt_key = prompt_key
        self._answer_key = answer_key
        self._candidates = records.ids[:first_rows]
        self._bounds = tuple(bounds)
        self._vocabulary_size = vocabulary_size
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
        bounds = [bound.text for bound in self._bounds if any(self._exceeds(bound, row) for row in self.left_out)]
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
        rows = [row for row in self._candidates if any(self._may_exceed(bound, row) for bound in self._bounds)]
        self._measure(rows)
        return tuple(row for row in rows if any(self._exceeds(bound, row) for bound in self._bounds))

    def _may_exceed(self, bound: LengthLimit, row: str) -> bool:
        """Without tokenising it. A token stands for a byte of text at least; the prefix and an EOS come on top."""
        texts = self._records.size(row) + len(self._config.prompt_template.encode())
        return bound.always or texts + len(self._tokens.prefix) + 1 > bound.limit

    def _exceeds(self, bound: LengthLimit, row: str) -> bool:
        return row in self._lengths and bound.length(*self._lengths[row]) > bound.limit

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
        answers = [np.zeros(0, np.int32)] * len(prompts)
        if self._answer_key is not None:
            answers = self._tokens.encode_answers([record["answer"] for record in records])
        for row, prompt, answer in zip(rows, prompts, answers, strict=True):
            self._check(row, prompt, answer)
        return prompts, answers

    def _check(self, row: str, prompt: np.ndarray, answer: np.ndarray) -> None:
        """Refuse a row that no model can be given. Raises DataError."""
        where = f"row {row!r} of {self._knob} ({self._records.path})"
        if not len(prompt):
            raise DataError(
                f"the prompt of {where} has no tokens, and a response needs one to follow. Change the row, or put "
                "some text into data.prompt_template."
            )
        largest = max(int(prompt.max()), int(answer.max(initial=0)))
        if self._vocabulary_size is not None and largest >= self._vocabulary_size:
            raise DataError(
                f"{where} has the token {largest}, but the models have vocab_size = {self._vocabulary_size}. Set "
                "data.tokenizer or actor.path, so that they belong together."
            )


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
    data, learns = experiment.data, isinstance(experiment, SFTExperiment)
    tokens, limits = _tokens(experiment), _limits(experiment)
    judged = experiment.reward.function in REWARDS  # a user's function says itself what it needs of a row
    records = JsonLines(data.train, "data.train", answers=learns or judged)
    _refuse_small(data, len(records.ids))
    training = TextDataset(
        records,
        tokens,
        data,
        knob="data.train",
        prompt_key="prompts",
        answer_key="answers" if learns else None,
        bounds=[
            *_prompt_bounds(data),
            *([*_answer_bounds(data), *_whole_bounds(limits)] if learns else _room(experiment, limits)),
        ],
        vocabulary_size=limits.vocabulary_size,
    )
    if data.evaluate is None or not evaluates(experiment):
        return {"train": training}
    held_out = TextDataset(
        JsonLines(data.evaluate, "data.evaluate", answers=learns or judged),
        tokens,
        data,
        knob="data.evaluate",
        prompt_key="eval_prompts",
        answer_key="eval_answers" if learns else None,
        first_rows=data.evaluate_rows,
        bounds=[*_prompt_bounds(data), *_room(experiment, limits), *(_whole_bounds(limits) if learns else ())],
        vocabulary_size=limits.vocabulary_size,
    )
    return {"train": training, "eval": held_out}


@dataclass(frozen=True)
class Limits:
    """The least that the models of an experiment have; None where no config.json is there to say it."""

    positions: int | None = None
    vocabulary_size: int | None = None


def _limits(experiment: SFTExperiment | PPOExperiment) -> Limits:
    models = [
        read_config(Path(model.path), model.family, f"{role}.family")
        for role, model in models_of(experiment).items()
        if (Path(model.path) / "config.json").is_file()
    ]
    if not models:
        return Limits()
    return Limits(min(model.max_positions for model in models), min(model.vocabulary_size for model in models))


def _prompt_bounds(data: DataConfig) -> list[LengthLimit]:
    bound = data.max_prompt_tokens
    if bound is None:
        return []
    return [LengthLimit(f"data.max_prompt_tokens = {bound}", bound, lambda prompt, answer: prompt)]


def _answer_bounds(data: DataConfig) -> list[LengthLimit]:
    bound = data.max_answer_tokens
    return (
        []
        if bound is None
        else [LengthLimit(f"data.max_answer_tokens = {bound}", bound, lambda prompt, answer: answer)]
    )


def _whole_bounds(limits: Limits) -> list[LengthLimit]:
    """Of rows whose answers a model is given."""
    if limits.positions is None:
        return []
    text = f"max_position_embeddings = {limits.positions} (prompt and answer together)"
    return [LengthLimit(text, limits.positions, lambda prompt, answer: prompt + answer, always=False)]


def _room(experiment: SFTExperiment | PPOExperiment, limits: Limits) -> list[LengthLimit]:
    """Of prompts that responses follow."""
    new = experiment.generation.max_new_tokens
    if limits.positions is None:
        return []
    text = f"max_position_embeddings - generation.max_new_tokens = {limits.positions} - {new}"
    return [LengthLimit(text, limits.positions - new, lambda prompt, answer: prompt, always=False)]


def _refuse_small(data: DataConfig, rows: int) -> None:
    if data.batch_size > rows:
        raise DataError(
            f"data.batch_size = {data.batch_size}, but data.train ({data.train}) has {rows} rows to train on, so no "
            "step would be as large. Lower data.batch_size."
        )


def open_order(experiment: Experiment, rows: Sequence[str]) -> SampleOrder:
    """The order of the training rows. Raises DataError where they do not fill a batch."""
    if isinstance(experiment, ToyExperiment):
        return SampleOrder(rows, batch_size=experiment.toy.batch_size, seed=experiment.seed)
    data = experiment.data
    _refuse_small(data, len(rows))
    return SampleOrder(
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


def open_texts(experiment: SFTExperiment | PPOExperiment, datasets: Mapping[str, Dataset]) -> Texts:
    return Texts(_tokens(experiment), datasets)


def _tokens(experiment: SFTExperiment | PPOExperiment) -> Tokens:
    """The tokenizer of data.tokenizer, or else the actor's."""
    if experiment.data.tokenizer is not None:
        return load_tokens(experiment.data.tokenizer)
    return load_tokens(experiment.actor.path, "actor.path or data.tokenizer")
