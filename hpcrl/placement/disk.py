"""What a run will write, from shapes alone, and whether the disk has room for it. An estimate; quotas are not known."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import lora_of, models_of
from hpcrl.data.batch import Batch
from hpcrl.data.choice import Choice, FirstToEnd
from hpcrl.errors import ConfigurationError
from hpcrl.families.adapters import with_adapters
from hpcrl.families.reader import parameter_count
from hpcrl.placement.memory import BYTES, head_model, state_size
from hpcrl.placement.sizes import size_in_words
from hpcrl.recipes.algorithm import Algorithm, algorithm_of
from hpcrl.recipes.segments import segments_of

READABLE = 8
"""Bytes that a token of an archive has besides: its characters, and where they end."""
STORED = 3
"""Numbers that a checkpoint has of a parameter that is trained: its master, and AdamW's two moments."""


@dataclass(frozen=True)
class Disk:
    """Bytes of what a run writes, and how many of each lie there at the same time at most.

    A checkpoint is written before the oldest one goes; exports stay for ever. `spilled` is None where clocks alone say
    when there is a checkpoint, so that nobody knows how many steps lie between two.
    """

    checkpoint: Mapping[str, int]
    """By role that changes."""
    checkpoints: int
    export: Mapping[str, int]
    exports: int
    spill: int
    """Of a step, about."""
    spilled: int | None
    """Steps whose spills are kept."""
    archive: Mapping[str, int] = field(default_factory=dict)
    """What stays of the samples of a step, and of an evaluation, about."""
    steps: int = 1
    """Those that leave an archive, where it is known how many there are."""

    @property
    def most(self) -> int:
        """All of it together."""
        written = self.checkpoints * sum(self.checkpoint.values()) + self.exports * sum(self.export.values())
        return written + (self.spilled or 1) * self.spill + self.steps * self.archive.get("a step", 0)

    def describe(self) -> str:
        """In words: 3 checkpoints of 1.20 GiB, 1 export of …"""
        parts = []
        if self.checkpoint:
            parts += [_counted(self.checkpoints, "checkpoint", self.checkpoint)]
            parts += [_counted(self.exports, "export", self.export)]
        if self.spill:
            steps = "of a step" if self.spilled is None else f"of each of {self.spilled} steps"
            parts += [f"about {size_in_words(self.spill)} of spills {steps}"]
        parts += [f"about {size_in_words(size)} of samples of {of}, for good" for of, size in self.archive.items()]
        return ", ".join(parts)


def estimate_disk(experiment: ExperimentConfig, rows: int = 1) -> Disk:
    """Reads the config.json of each trained model. A step has about so many `rows` where its tokens are counted."""
    algorithm, control = algorithm_of(experiment), experiment.control
    kinds = {call.changes: call.kind for call in algorithm.calls(experiment) if call.changes}
    checkpoint, export = {}, {}
    for role, model in models_of(experiment).items():
        if role not in kinds:
            continue
        built, lora = head_model(role, model, algorithm), lora_of(model)
        count = parameter_count(built)
        trained = kinds[role] == "train_step"
        saved = count if lora is None else parameter_count(with_adapters(built, lora))
        checkpoint[role] = saved * (STORED if trained else 1) * state_size(model.dtype)
        if trained:
            export[role] = (count + (lora is not None) * saved) * BYTES[model.dtype]
    every = control.checkpoint.steps if kinds else 1
    return Disk(
        checkpoint=checkpoint,
        checkpoints=control.keep_checkpoints + 1,
        export=export,
        exports=_exports(control),
        spill=_spill(experiment, algorithm, rows),
        spilled=None if every is None else every * (control.keep_checkpoints + 1),
        archive=dict(_archive(experiment, algorithm, rows)),
        steps=control.steps or 1,
    )


def check_room(experiment: ExperimentConfig, free_bytes: int, place: str, rows: int = 1) -> Iterator[str]:
    """What is doubtful, in a sentence. A step has about so many `rows` where its tokens are counted.

    Raises:
        ConfigurationError: there is no room for a single checkpoint.
    """
    disk = estimate_disk(experiment, rows)
    one, free = sum(disk.checkpoint.values()), size_in_words(free_bytes)
    if one > free_bytes:
        raise ConfigurationError(
            [f"one checkpoint takes {size_in_words(one)} ({_of_roles(disk.checkpoint)}), but {place} has {free} free."],
            "Free some space there, or set run_root (or --run-dir) to a folder on a larger disk.",
        )
    if disk.most > free_bytes:
        yield (
            f"the run may write {size_in_words(disk.most)} ({disk.describe()}), but {place} has {free} free. Lower "
            "control.keep_checkpoints, export more rarely (control.export), or set run_root to a larger disk."
        )


def _exports(control: ControlConfig) -> int:
    """Where nobody knows how many there will be, the one at the end."""
    known = ((control.export.steps, control.steps), (control.export.epochs, control.epochs))
    return 1 + sum((of - 1) // every for every, of in known if every is not None and of is not None)


def _spill(experiment: ExperimentConfig, algorithm: Algorithm[Any], rows: int) -> int:
    """Each key as if it had a number for every token that is generated."""
    generation = section(experiment, "generation", GenerationConfig)
    if generation is None:
        return 0
    choice = algorithm.choice(experiment)
    rounds = _most_rounds(choice, algorithm.batch(experiment), generation)
    token = _token_bytes(experiment, algorithm, "train", twice=True)
    return round(rounds * _samples(algorithm.batch(experiment), rows) * generation.max_new_tokens * token)


def _most_rounds(choice: Choice | FirstToEnd | None, batch: Batch, generation: GenerationConfig) -> float:
    """How many times as much as it trains on a step draws at most. In flight, a round spills a response again from its
    first token on: in the mean over rounds, half of it."""
    if not isinstance(choice, FirstToEnd):
        return 1 if choice is None else choice.max_rounds
    return choice.in_flight / batch.rows * (generation.segments + 1) / 2


def _token_bytes(experiment: ExperimentConfig, algorithm: Algorithm[Any], data_set: str, twice: bool = False) -> int:
    """Of all that is made for a token that is generated; `twice` of what is drawn in segments, and then made whole."""
    calls = [call for call in algorithm.calls(experiment) if call.dataset == data_set]
    calls += [call for call in calls if twice and len(segments_of(call, experiment)) > 1]
    keys = [key for call in calls for key in (*call.outputs, *call.shown)]
    forms = algorithm.forms(experiment)
    return sum(forms[key].number_bytes * prod(forms[key].trailing) for key in keys)


def _samples(batch: Batch, rows: int) -> int:
    return batch.samples if batch.tokens is None else rows * batch.per_row


def _archive(experiment: ExperimentConfig, algorithm: Algorithm[Any], rows: int) -> Iterator[tuple[str, int]]:
    """A prompt as if it were as long as it may be, or as a response, and the row's record as long."""
    generation, data = section(experiment, "generation", GenerationConfig), section(experiment, "data", DataConfig)
    if generation is None or data is None:
        return
    longest, kept = generation.max_new_tokens, experiment.samples
    prompt = (data.max_prompt_tokens or longest) * 2 * READABLE
    counts = {"train": _samples(algorithm.batch(experiment), rows), "eval": data.evaluate_rows}
    for data_set, of, wanted in (("train", "a step", kept.per_step), ("eval", "an evaluation", kept.per_evaluation)):
        token, count = _token_bytes(experiment, algorithm, data_set), counts[data_set]
        count = count if wanted == "all" else min(wanted, count or wanted)
        if token and count:
            yield of, count * (prompt + longest * (token + READABLE))


def _counted(count: int, what: str, of: Mapping[str, int]) -> str:
    return f"{count} {what}{'s' * (count > 1)} of {size_in_words(sum(of.values()))} ({_of_roles(of)})"


def _of_roles(of: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {size_in_words(size)}" for role, size in of.items())
