"""Rows of texts: prompts, and what follows them, of .jsonl files, tokenised when asked for."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.config.data import DataConfig, sources_of, tokenizer_of
from hpcrl.config.fields import section, sections_of
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import models_of
from hpcrl.config.reward import RewardConfig
from hpcrl.data.chat import find_template
from hpcrl.data.form import TOKENS
from hpcrl.data.index import RowIds
from hpcrl.data.jsonl import JsonLines, open_kept
from hpcrl.data.order import row_of
from hpcrl.data.rows.kind import EVAL_PREFIX, Dataset, Indexes, refuse_small
from hpcrl.data.rows.lengths import TOTAL, RowLengths
from hpcrl.data.rows.lines import JUDGED
from hpcrl.data.rows.mixed import MixedDataset
from hpcrl.data.rows.text_form import Encoded, TextForm
from hpcrl.data.rows.turns import TextRow, Texts
from hpcrl.data.samples import SequenceSample
from hpcrl.data.source_files import RowMaker, files_of, row_maker
from hpcrl.data.table import Table
from hpcrl.data.tokens import Tokens, load_tokens, tokenizer_files
from hpcrl.data.user_code import code_places
from hpcrl.errors import DataError
from hpcrl.families.reader import family_of, read_config

_LOOKED_AT = 1024  # rows that are tried before the start
_SHOWN = 20  # ids in a notice


@dataclass(frozen=True)
class LengthLimit:
    """A length that no row may exceed: (tokens of prompts, of their longest answers with EOS) → what is bounded."""

    text: str
    limit: int
    length: Callable[[np.ndarray, np.ndarray], np.ndarray]
    always: bool = True
    """Whether it is worth tokenising all rows; else only those that have more bytes than the limit has tokens."""


class TextDataset:
    """Prompts, and what follows them, of a .jsonl file, tokenised as `form` says, under its keys behind `prefix`.

    A row that is longer than one of the bounds is left out. Knows nothing of batches.
    """

    def __init__(
        self,
        records: JsonLines,
        texts: Texts,
        *,
        form: TextForm,
        prefix: str = "",
        first_rows: int | None = None,
        bounds: Sequence[LengthLimit] = (),
        vocabulary_size: int | None = None,
        indexes: Indexes,
        measured_by: str = "",
        measured: bool = False,
    ) -> None:
        """`measured_by` is what lengths depend on besides the rows; with `measured`, all of them are kept."""
        self._records = records
        self._texts = texts
        self._form = form
        self._prefix = prefix
        self._answers_are_in_chats = form.has_answers and records.has_whole_chats
        self._candidates = np.arange(len(records.index), dtype=np.uint32)[:first_rows]
        self._bounds = tuple(bounds)
        self._vocabulary_size = vocabulary_size
        self._indexes = indexes
        self._measured_by = measured_by
        self._measured = measured
        self._lengths = RowLengths(len(records.index), self._measure)

    @cached_property
    def ids(self) -> RowIds:
        kept = self._candidates[~self._exceeding]
        if not len(kept):
            raise DataError(
                f"{self.notice} No row remains.", "Submit a new run with shorter rows, or with a higher bound."
            )
        return RowIds(self._records.index, kept)

    @cached_property
    def left_out(self) -> RowIds:
        return RowIds(self._records.index, self._candidates[self._exceeding])

    @property
    def notice(self) -> str:
        if not self.left_out:
            return ""
        rows = self.left_out.rows
        bounds = [bound.text for bound in self._bounds if self._exceeds(bound, rows).any()]
        count, shown = len(rows), ", ".join(self.left_out[:_SHOWN])
        return (
            f"{count} of {len(self._candidates)} rows of {self._records.knob} ({self._records.path}) are longer than "
            f"{' or '.join(bounds)} tokens and left out: {shown}{', …' if count > _SHOWN else ''}."
        )

    def look(self) -> Sequence[str]:
        """All rows, where the tokenizer has tokens that the models do not have; else a few."""
        size = self._vocabulary_size
        known = size is None or max(self._texts.tokens.tokenizer.get_vocab().values()) < size
        rows = self._candidates[:_LOOKED_AT] if known else self._candidates
        self._lengths.of(rows)
        kept = rows[~self._exceeds_any(rows)]
        return RowIds(self._records.index, kept) if len(kept) else self.ids

    def lengths(self, samples: Sequence[str]) -> list[int]:
        return [int(length) for length in self._lengths.of(np.array(self._rows(samples), np.uint32))[TOTAL]]

    def row_lengths(self) -> np.ndarray:
        return self._lengths.of(self.ids.rows)[TOTAL]

    def rows(self, samples: Sequence[str]) -> SequenceSample:
        rows = self._rows(samples)
        distinct = list(dict.fromkeys(rows))
        of_row = dict(zip(distinct, self._encode(distinct), strict=True))
        made = {self._prefix + key: [of_row[row].rows[key] for row in rows] for key in self._form.keys}
        return SequenceSample.from_rows(samples, made)

    def text(self, sample: str) -> dict[str, Any]:
        return self._records.read(self._rows([sample]))[0]

    def _rows(self, samples: Sequence[str]) -> list[int]:
        return [self._records.row(row_of(sample)) for sample in samples]

    @cached_property
    def _exceeding(self) -> np.ndarray:
        """Whether each candidate is longer than one of the bounds, bool [candidates]."""
        wanted = np.full(len(self._candidates), self._measured)
        for bound in self._bounds:
            wanted |= self._may_exceed(bound)
        if wanted.any():
            self._lengths.keep(open_kept(self._indexes, *self._kept_lengths(self._candidates[wanted])))
        return self._exceeds_any(self._candidates)

    def _kept_lengths(self, rows: np.ndarray) -> tuple[str, Callable[[], Table]]:
        """What a table of these rows' lengths is called, and what makes it."""
        what = (self._records.name, self._measured_by, self._form.lines[0].__name__)
        digest = hashlib.blake2b(repr(what).encode(), digest_size=8)
        digest.update(rows.tobytes())
        name = f"{self._records.knob}.lengths.{digest.hexdigest()}"
        return name, lambda: self._lengths.table(name, rows)

    def _may_exceed(self, bound: LengthLimit) -> np.ndarray:
        """Without tokenising them. A token stands for a byte of text at least; the prefix and an EOS come on top."""
        if bound.always or self._records.chats:
            return np.ones(len(self._candidates), np.bool_)
        beside = len(self._texts.prompt_template.encode()) + len(self._texts.tokens.prefix) + 1
        return self._records.index.sizes[self._candidates].astype(np.int64) + beside > bound.limit

    def _exceeds_any(self, rows: np.ndarray) -> np.ndarray:
        found = np.zeros(len(rows), np.bool_)
        for bound in self._bounds:
            found |= self._exceeds(bound, rows)
        return found

    def _exceeds(self, bound: LengthLimit, rows: np.ndarray) -> np.ndarray:
        """Of rows that are measured; the others fit."""
        found = self._lengths.known(rows)
        prompts, answers, _ = self._lengths.of(rows[found])
        found[found] = bound.length(prompts, answers) > bound.limit
        return found

    def _measure(self, rows: Sequence[int]) -> list[tuple[int, int, int]]:
        return [(encoded.prompt, encoded.answer, encoded.tokens) for encoded in self._encode(rows)]

    def _encode(self, rows: Sequence[int]) -> list[Encoded]:
        records = self._records.read(rows)
        found = self._form.encode(self._texts.tokens, self._read(rows, records))
        for row, encoded in zip(rows, found, strict=True):
            self._check(row, encoded)
        return found

    def _read(self, rows: Sequence[int], records: Sequence[Mapping[str, Any]]) -> list[TextRow]:
        """Raises DataError, naming the row."""
        try:
            if self._answers_are_in_chats:
                return self._texts.answered(records)
            return self._texts.prompts(records, self._form.completions)
        except DataError as error:
            if len(rows) > 1:
                return [self._read([row], [record])[0] for row, record in zip(rows, records, strict=True)]
            said = str(error).removesuffix(" ".join(error.advice)).rstrip()
            where = f"row {self._records.index.id(rows[0])!r} of {self._records.knob} ({self._records.path})"
            raise DataError(f"{where}: {said}", *error.advice) from error

    def _check(self, row: int, encoded: Encoded) -> None:
        """Refuse a row that no model can be given. Raises DataError."""
        where = f"row {self._records.index.id(row)!r} of {self._records.knob} ({self._records.path})"
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


def open_rows(experiment: Any, evaluates: bool, indexes: Indexes, form: TextForm) -> dict[str, Dataset]:
    data, learns = experiment.data, form.has_answers
    tokens, limits = open_tokens(experiment), _limits(experiment)
    _refuse_unknown_end(experiment, tokens, limits)
    judged = any(reward.needs_answers for reward in sections_of(experiment, RewardConfig).values())
    lines = JUDGED if judged and not learns else form.lines
    texts, maker, measured_by = (
        _open_texts(experiment, tokens),
        _row_maker(experiment),
        _measured_by(experiment, indexes),
    )

    def opened(knob: str, path: str, bounds: Sequence[LengthLimit], **how: Any) -> TextDataset:
        records = JsonLines(path, knob, lines, indexes, data.fields, maker)
        if records.chats and data.prompt_template != "{prompt}":
            raise DataError(
                f"data.prompt_template is for prompts that are texts, but the rows of {knob} ({path}) are chats.",
                "Submit a new run with data.chat_template in the place of data.prompt_template.",
            )
        if knob == "data.train" and data.batch_size is not None:
            refuse_small("data.batch_size", data.batch_size, f"{knob} ({path})", len(records.index))
        return TextDataset(
            records,
            texts,
            form=form,
            bounds=bounds,
            vocabulary_size=limits.vocabulary_size,
            indexes=indexes,
            measured_by=measured_by,
            measured=knob != "data.evaluate" and (data.batch_tokens is not None or data.balance),
            **how,
        )

    room = _room(section(experiment, "generation", GenerationConfig), limits)
    learnt = [*_answer_bounds(data), *_whole_bounds(limits)]
    own = [*_prompt_bounds(data), *(learnt if learns else room)]
    sources = {knob: opened(knob, source.path, own) for knob, source in sources_of(data).items()}
    found: dict[str, Dataset] = {"train": sources["data.train"] if data.train is not None else _mixed(data, sources)}
    if evaluates:
        held_out = [*_prompt_bounds(data), *room, *(_whole_bounds(limits) if learns else ())]
        how = {"prefix": EVAL_PREFIX, "first_rows": data.evaluate_rows}
        found["eval"] = opened("data.evaluate", data.evaluate, held_out, **how)
    return found


def _mixed(data: DataConfig, sources: Mapping[str, Dataset]) -> MixedDataset:
    weights = {knob.rpartition(".")[2]: source.weight for knob, source in sources_of(data).items()}
    return MixedDataset(dict(zip(weights, sources.values(), strict=True)), weights)


def _row_maker(experiment: Any) -> RowMaker | None:
    function = experiment.data.row
    return function and row_maker("data.row", code_places(experiment).get("data.row"), function)


def _open_texts(experiment: Any, tokens: Tokens) -> Texts:
    data, named = experiment.data, tokenizer_of(experiment)
    assert named is not None, "the checks of a configuration refuse texts without a tokenizer"
    file = None if data.chat_template is None else Path(data.chat_template)
    chat = find_template(named[1], file, data.template_args)
    return Texts(tokens=tokens, prompt_template=data.prompt_template, chat=chat, learn=data.learn)


def _measured_by(experiment: Any, indexes: Indexes) -> str:
    """All that the lengths of rows depend on, besides the rows."""
    data, named = experiment.data, ("data.tokenizer", "data.chat_template")
    prints = [indexes.fingerprint(*each) for each in inputs(experiment) if each[0] in named]
    return repr((prints, data.prompt_template, sorted(data.template_args.items()), data.learn))


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
    for knob, source in sources_of(data).items():
        yield knob, files_of(Path(source.path), knob)
    if data.evaluate is not None:
        yield "data.evaluate", files_of(Path(data.evaluate), "data.evaluate")
    if data.chat_template is not None:
        yield "data.chat_template", [Path(data.chat_template)]
    if named := tokenizer_of(experiment):
        yield "data.tokenizer", tokenizer_files(named[1])


@dataclass(frozen=True)
class Limits:
    """The least that the models of an experiment have; None where no config.json is there to say it."""

    positions: int | None = None
    vocabulary_size: int | None = None
    called: str = ""
    """What a config.json calls the positions."""


def _limits(experiment: Any) -> Limits:
    models = [
        read_config(Path(model.path), model.family, f"{role}.family", model.model)
        for role, model in models_of(experiment).items()
        if (Path(model.path) / "config.json").is_file()
    ]
    if not models:
        return Limits()
    shortest = min(models, key=lambda model: model.max_positions)
    vocabulary_size = min(model.vocabulary_size for model in models)
    return Limits(shortest.max_positions, vocabulary_size, family_of(shortest).positions)


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
    text = f"{limits.called} = {limits.positions} (prompt and answer together)"
    return [LengthLimit(text, limits.positions, lambda prompt, answer: prompt + answer, always=False)]


def _room(generation: GenerationConfig | None, limits: Limits) -> list[LengthLimit]:
    """Of prompts that responses follow."""
    if generation is None or limits.positions is None:
        return []
    new = generation.max_new_tokens
    text = f"{limits.called} - generation.max_new_tokens = {limits.positions} - {new}"
    return [LengthLimit(text, limits.positions - new, lambda prompt, answer: prompt, always=False)]
