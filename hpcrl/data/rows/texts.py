"""Rows of texts: prompts, and what follows them, of .jsonl files, tokenised when asked for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.config.data import DataConfig, tokenizer_of
from hpcrl.config.fields import section, sections_of
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import models_of
from hpcrl.config.reward import RewardConfig
from hpcrl.config.validate import REWARDS
from hpcrl.data.form import TOKENS
from hpcrl.data.jsonl import AnswerLine, JsonLines
from hpcrl.data.order import row_of
from hpcrl.data.rows.kind import EVAL_PREFIX, Dataset, refuse_small
from hpcrl.data.rows.text_form import Encoded, TextForm
from hpcrl.data.samples import SequenceSample
from hpcrl.data.tokens import TOKENIZER_FILES, Tokens, load_tokens
from hpcrl.errors import DataError
from hpcrl.families.reader import read_config

_CHUNK = 1024  # rows tokenised at once when all lengths are needed
_SHOWN = 20  # ids in a notice


@dataclass(frozen=True)
class LengthLimit:
    """A length that no row may exceed: (tokens of the prompt, of the longest answer with its EOS) → what is bounded."""

    text: str
    limit: int
    length: Callable[[int, int], int]
    always: bool = True
    """Whether it is worth tokenising all rows; else only those that have more bytes than the limit has tokens."""


class TextDataset:
    """Prompts, and what follows them, of a .jsonl file, tokenised as `form` says, under its keys behind `prefix`.

    A row that is longer than one of the bounds is left out. Knows nothing of batches.
    """

    def __init__(
        self,
        records: JsonLines,
        tokens: Tokens,
        config: DataConfig,
        *,
        form: TextForm,
        knob: str,
        prefix: str = "",
        first_rows: int | None = None,
        bounds: Sequence[LengthLimit] = (),
        vocabulary_size: int | None = None,
    ) -> None:
        self._records = records
        self._tokens = tokens
        self._config = config
        self._knob = knob
        self._form = form
        self._prefix = prefix
        self._candidates = records.ids[:first_rows]
        self._bounds = tuple(bounds)
        self._vocabulary_size = vocabulary_size
        # row → tokens of (prompt, longest answer with its EOS, all sequences)
        self._lengths: dict[str, tuple[int, int, int]] = {}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        unwanted = frozenset(self.left_out)
        kept = tuple(row for row in self._candidates if row not in unwanted)
        if not kept:
            raise DataError(f"{self.notice} No row remains.", "Raise the bound.")
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

    def look(self) -> tuple[str, ...]:
        """All rows, where the tokenizer has tokens that the models do not have; else a few."""
        size = self._vocabulary_size
        known = size is None or max(self._tokens.tokenizer.get_vocab().values()) < size
        rows = self._candidates[:_CHUNK] if known else self._candidates
        self._measure(rows)
        kept = tuple(row for row in rows if not any(self._exceeds(bound, row) for bound in self._bounds))
        return kept or self.ids

    def lengths(self, samples: Sequence[str]) -> list[int]:
        rows = [row_of(sample) for sample in samples]
        self._measure(rows)
        return [self._lengths[row][2] for row in rows]

    def rows(self, samples: Sequence[str]) -> SequenceSample:
        rows = [row_of(sample) for sample in samples]
        distinct = list(dict.fromkeys(rows))
        of_row = dict(zip(distinct, self._encode(distinct), strict=True))
        made = {self._prefix + key: [of_row[row].rows[key] for row in rows] for key in self._form.keys}
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
        return row in self._lengths and bound.length(*self._lengths[row][:2]) > bound.limit

    def _measure(self, rows: Sequence[str]) -> None:
        """Note the lengths of rows that are not known yet, some at a time."""
        pending = list(dict.fromkeys(row for row in rows if row not in self._lengths))
        for start in range(0, len(pending), _CHUNK):
            chunk = pending[start : start + _CHUNK]
            self._lengths.update(
                (row, (encoded.prompt, encoded.answer, encoded.tokens))
                for row, encoded in zip(chunk, self._encode(chunk), strict=True)
            )

    def _encode(self, rows: Sequence[str]) -> list[Encoded]:
        records = self._records.read(rows)
        texts = [self._config.prompt_template.replace("{prompt}", record["prompt"]) for record in records]
        found = self._form.encode(self._tokens, self._tokens.encode_prompts(texts), records)
        for row, encoded in zip(rows, found, strict=True):
            self._check(row, encoded)
        return found

    def _check(self, row: str, encoded: Encoded) -> None:
        """Refuse a row that no model can be given. Raises DataError."""
        where = f"row {row!r} of {self._knob} ({self._records.path})"
        if not encoded.prompt:
            raise DataError(
                f"the prompt of {where} has no tokens, and a response needs one to follow.",
                "Change the row, or submit a new run with some text in data.prompt_template.",
            )
        largest = max(int(part.max(initial=0)) for part in _token_rows(encoded, self._form))
        if self._vocabulary_size is not None and largest >= self._vocabulary_size:
            raise DataError(
                f"{where} has the token {largest}, but the models have vocab_size = {self._vocabulary_size}.",
                "Submit a new run with a data.tokenizer and an actor.path that belong together.",
            )


def _token_rows(encoded: Encoded, form: TextForm) -> Iterator[np.ndarray]:
    for key, row in encoded.rows.items():
        if form.keys[key] == TOKENS:
            yield from [row] if isinstance(row, np.ndarray) else row


def open_tokens(experiment: Any) -> Tokens:
    """The tokenizer of data.tokenizer, or else of the first role with a model."""
    named = tokenizer_of(experiment)
    assert named is not None, "the checks of a configuration refuse texts without a tokenizer"
    knob, folder = named
    return load_tokens(folder, knob if knob == "data.tokenizer" else f"{knob} or data.tokenizer")


def open_rows(experiment: Any, evaluates: bool, form: TextForm) -> dict[str, Dataset]:
    data, learns = experiment.data, form.has_answers
    tokens, limits = open_tokens(experiment), _limits(experiment)
    _refuse_unknown_end(experiment, tokens, limits)
    # A user's function says itself what it needs of a row.
    judged = any(reward.function in REWARDS for reward in sections_of(experiment, RewardConfig).values())
    line = AnswerLine if judged and not learns else form.line
    records = JsonLines(data.train, "data.train", line)
    refuse_small("data.batch_size", data.batch_size, f"data.train ({data.train})", len(records.ids))
    room = _room(section(experiment, "generation", GenerationConfig), limits)
    learnt = [*_answer_bounds(data), *_whole_bounds(limits)]
    training = TextDataset(
        records,
        tokens,
        data,
        form=form,
        knob="data.train",
        bounds=[*_prompt_bounds(data), *(learnt if learns else room)],
        vocabulary_size=limits.vocabulary_size,
    )
    if not evaluates:
        return {"train": training}
    held_out = TextDataset(
        JsonLines(data.evaluate, "data.evaluate", line),
        tokens,
        data,
        form=form,
        knob="data.evaluate",
        prefix=EVAL_PREFIX,
        first_rows=data.evaluate_rows,
        bounds=[*_prompt_bounds(data), *room, *(_whole_bounds(limits) if learns else ())],
        vocabulary_size=limits.vocabulary_size,
    )
    return {"train": training, "eval": held_out}


def _refuse_unknown_end(experiment: Any, tokens: Tokens, limits: "Limits") -> None:
    """Raise DataError where the token that ends a text is none of the models'."""
    named, size = tokenizer_of(experiment), limits.vocabulary_size
    if named is not None and size is not None and tokens.eos_id >= size:
        raise DataError(
            f"the tokenizer of {named[0]} ({named[1]}) ends a text with the token {tokens.eos_id}, but the models have "
            f"vocab_size = {size}.",
            "Submit a new run with a data.tokenizer and models that belong together.",
        )


def inputs(experiment: Any) -> Iterator[tuple[str, list[Path]]]:
    data: DataConfig = experiment.data
    yield "data.train", [Path(data.train)]
    if data.evaluate is not None:
        yield "data.evaluate", [Path(data.evaluate)]
    if named := tokenizer_of(experiment):
        folder = named[1]
        others = [folder / name for name in TOKENIZER_FILES[1:] if (folder / name).is_file()]
        yield "data.tokenizer", [folder / TOKENIZER_FILES[0], *others]


@dataclass(frozen=True)
class Limits:
    """The least that the models of an experiment have; None where no config.json is there to say it."""

    positions: int | None = None
    vocabulary_size: int | None = None


def _limits(experiment: Any) -> Limits:
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


def _room(generation: GenerationConfig | None, limits: Limits) -> list[LengthLimit]:
    """Of prompts that responses follow."""
    if generation is None or limits.positions is None:
        return []
    new = generation.max_new_tokens
    text = f"max_position_embeddings - generation.max_new_tokens = {limits.positions} - {new}"
    return [LengthLimit(text, limits.positions - new, lambda prompt, answer: prompt, always=False)]
