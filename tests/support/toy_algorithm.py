"""REINFORCE in a file of one's own: a row's responses are scored, and the row's mean score is the baseline of each.

Declaration and steps are together. Whatever needs torch is imported inside functions, which workers alone call.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from hpcrl.config.bounds import Count
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, PathText
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import PlacementConfig, TrainedModelConfig
from hpcrl.data.batch import Batch
from hpcrl.data.form import NUMBERS, TOKENS
from hpcrl.data.order import row_of
from hpcrl.data.rows.kind import EVAL_PREFIX, Dataset, Indexes, RowKind
from hpcrl.data.rows.texts import open_tokens
from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.data.tokens import Tokens
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import DataError, InternalError, Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind, on_eval
from hpcrl.workers.host import Outcome, Work

MINIBATCHES = 3
RESPONSES = 4
"""Of each row."""


@dataclass(frozen=True, kw_only=True)
class LettersConfig:
    """What is read, and how much of it is a step."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    file: PathText
    """A .jsonl file with `start`, a text, and `limit`, a letter, per line."""
    rows: Annotated[Count, ChangeClass.NUMBERS] = 8
    """Rows per step."""
    held_out: Count = 4
    """So many rows at the end of the file are evaluated on, and never trained on."""


@dataclass(frozen=True, kw_only=True)
class LettersExperiment(ExperimentConfig):
    """Learn to go on with tokens that come before a letter in the vocabulary."""

    letters: LettersConfig
    """What is read, and how much of it is a step."""
    actor: TrainedModelConfig
    """The policy."""
    reward: PlacementConfig = PlacementConfig()  # noqa: RUF009 (sections are frozen)
    """What scores responses and compares them."""
    generation: GenerationConfig = GenerationConfig(max_new_tokens=4)  # noqa: RUF009 (sections are frozen)
    """How responses are sampled."""


class Line(msgspec.Struct):
    start: str
    limit: str


class Letters:
    """Rows r0, r1, …, by their line."""

    left_out: tuple[str, ...] = ()
    notice = ""

    def __init__(self, lines: Mapping[str, Line], tokens: Tokens, prefix: str = "") -> None:
        self._lines = lines
        self._tokens = tokens
        self._prefix = prefix
        self.ids = tuple(lines)

    def look(self) -> tuple[str, ...]:
        return self.ids

    def lengths(self, samples: Sequence[str]) -> list[int]:
        return [len(start) + 1 for start in self.rows(samples).rows(self._prefix + "starts")]

    def row_lengths(self) -> np.ndarray:
        return np.array(self.lengths(self.ids))

    def rows(self, samples: Sequence[str]) -> SequenceSample:
        lines = [self._lines[row_of(sample)] for sample in samples]
        made = {"starts": [line.start for line in lines], "limit": [line.limit for line in lines]}
        keys = {self._prefix + key: self._tokens.encode_prompts(texts) for key, texts in made.items()}
        return SequenceSample.from_rows(samples, keys)

    def text(self, sample: str) -> Mapping[str, Any]:
        return msgspec.to_builtins(self._lines[row_of(sample)])


def open_letters(experiment: LettersExperiment, evaluates: bool, indexes: Indexes) -> dict[str, Dataset]:
    """The rows to train on, and those at the end of the file."""
    path, tokens, lines = Path(experiment.letters.file), open_tokens(experiment), {}
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        where = f"{path}, line {number}"
        try:
            line = msgspec.json.decode(text, type=Line)
        except msgspec.DecodeError as error:
            raise DataError(f"{where}: {error}. Fix the line or set letters.file.") from None
        if len(line.limit) != 1:
            raise DataError(f"{where}: limit = {line.limit!r} must be one letter. Fix the line or set letters.file.")
        lines[f"r{number - 1}"] = line
    ids, held_out = list(lines), experiment.letters.held_out
    train: dict[str, Dataset] = {"train": Letters({row: lines[row] for row in ids[:-held_out]}, tokens)}
    if not evaluates:
        return train
    return train | {"eval": Letters({row: lines[row] for row in ids[-held_out:]}, tokens, EVAL_PREFIX)}


ROWS: RowKind[LettersExperiment] = RowKind(
    fields=("start", "limit"),
    keys={"starts": TOKENS, "limit": TOKENS},
    open=open_letters,
    inputs=lambda experiment: [("letters.file", [Path(experiment.letters.file)])],
    batch_setting="letters.rows",
)

CALLS = (
    MFC("sample", "actor", "generate", ("starts",), ("responses",)),
    MFC("grade", "reward", "inference", ("responses", "limit"), ("scores",)),
    MFC("compare", "reward", "inference", ("responses", "scores"), ("advantages",), method="centre"),
    MFC("learn", "actor", "train_step", ("starts", "responses", "advantages")),
    on_eval(MFC("eval_sample", "actor", "generate", ("starts",), ("responses",), greedy=True)),
    on_eval(MFC("eval_grade", "reward", "inference", ("responses", "limit"), ("scores",))),
)


def batch(experiment: LettersExperiment) -> Batch:
    return Batch(rows=experiment.letters.rows, per_row=RESPONSES, minibatches=MINIBATCHES, kept_whole="row")


def check(experiment: LettersExperiment) -> Iterator[Problem]:
    letters = experiment.letters
    if letters.rows < MINIBATCHES:
        yield Problem(
            ("letters.rows",),
            f"letters.rows = {letters.rows} must be at least {MINIBATCHES}, so that each minibatch has a row. Raise "
            "letters.rows.",
        )
    if not Path(letters.file).is_file():
        yield Problem(
            ("letters.file",), f"letters.file = {letters.file} must be a file, but there is none. Set letters.file."
        )


def notices(experiment: LettersExperiment) -> Iterator[str]:
    if experiment.generation.max_new_tokens == 1:
        yield "generation.max_new_tokens = 1 leaves nothing to say but a token."


class Actor:
    """The policy."""

    def __init__(self, engine: Any, experiment: LettersExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def generate(self, work: Work, call: MFC) -> Outcome:
        """starts → responses."""
        seeds = [sample_seed(self.experiment.seed, work.step, work.call, sample) for sample in work.batch.ids]
        wanted = replace(self.experiment.generation, greedy=call.greedy)
        made = self.engine.generate(work.batch.rows("starts"), seeds, wanted)
        stats = {"length": (float(sum(map(len, made.tokens))), float(len(seeds)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"responses": made.tokens}), stats)

    def train_step(self, work: Work, call: MFC) -> Outcome:
        from hpcrl.algos.training import Training
        from hpcrl.engines.engine import Columns, Objective, Sequences

        training = Training(self.engine, work, batch(self.experiment), Objective(loss), "token-mean")
        sequences = Sequences.from_rows(work.batch.rows("starts"), work.batch.rows("responses"))
        training.run(sequences, Columns({"advantages": work.batch.data["advantages"]}))
        return Outcome(stats=training.stats(), record=training.record())

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class Reward:
    """Scores responses and compares those of a row. Has no model."""

    engine = None
    experiment: Any = None

    def inference(self, work: Work, call: MFC) -> Outcome:
        """responses, limit → scores: the share of a response's tokens that come before the limit."""
        pairs = zip(work.batch.rows("responses"), work.batch.rows("limit"), strict=True)
        scores = [float((response < limit[0]).mean()) for response, limit in pairs]
        rows = [np.array([score], np.float32) for score in scores]
        stats = {"score": (sum(scores), float(len(scores)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"scores": rows}), stats)

    def centre(self, work: Work, call: MFC) -> Outcome:
        """responses, scores → advantages: of each token, its response's score less the mean of the row's."""
        by_row: dict[str, list[float]] = {}
        scores = [float(score[0]) for score in work.batch.rows("scores")]
        for sample, score in zip(work.batch.ids, scores, strict=True):
            by_row.setdefault(row_of(sample), []).append(score)
        if any(len(of_row) != RESPONSES for of_row in by_row.values()):
            raise InternalError(f"step {work.step} {work.call}: a row's responses are in several parts")
        above = [
            score - sum(by_row[row_of(sample)]) / RESPONSES
            for sample, score in zip(work.batch.ids, scores, strict=True)
        ]
        responses = work.batch.rows("responses")
        rows = [np.full(len(response), one, np.float32) for response, one in zip(responses, above, strict=True)]
        stats = {"spread": (sum(map(abs, above)), float(len(above)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"advantages": rows}), stats)

    def close(self) -> None:
        pass


def loss(predictions: Any, columns: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    weighted = columns["weights"] * columns["advantages"]
    return -(weighted * predictions.log_probs).sum(), {}


def actor(at: Any) -> Actor:
    return Actor(at.engine(), at.experiment)


def reward(at: Any) -> Reward:
    return Reward()


ALGORITHM = Algorithm(
    experiment=LettersExperiment,
    recipe=lambda experiment: CALLS,
    roles={"actor": RoleKind(f"{__name__}:actor", "vocabulary"), "reward": RoleKind(f"{__name__}:reward")},
    rows=ROWS,
    made={"responses": TOKENS, "scores": NUMBERS, "advantages": NUMBERS},
    batch=batch,
    check=check,
    notices=notices,
    metrics={
        "sample": ("length",),
        "grade": ("score",),
        "compare": ("spread",),
        "learn": ("loss", "lr", "grad_norm", "skipped"),
        "eval_sample": ("length",),
        "eval_grade": ("score",),
    },
)
