"""An engine that is timed: a model of a few blocks, by whole calls, while all workers do the same.

A worker of a run has its peers beside it, which take memory's bandwidth and the node's power, so nothing is timed
alone. What other programs disturb is timed again.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig, TrainedModelConfig
from hpcrl.engines.engine import Columns, Engine, EngineContext, EngineState, Objective, Sequences, Statistic, Update
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import config_to_json, parameters_of
from hpcrl.models.kernels import Kernels
from hpcrl.models.output import Predictions
from hpcrl.models.parts import parts_of
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.abilities import Chosen
from hpcrl.plugins import load
from hpcrl.processes import waited_s
from hpcrl.workers.host import nobody_is_told
from hpcrl.workers.meter import Meter

WHOLE = 10**6
"""Tokens of a micro-batch: a call is one."""
ROUNDS = 17
"""Of a profiled generation."""
SEVERAL = 5
"""Micro-batches of a call by which what it does once is told from what it does for each."""
DISTURBED = 0.05
"""A worker that waited for a processor for a larger share of a call was disturbed by others."""
AGAIN = 3
"""How often a call is made besides, if it was disturbed."""
SPREAD = 0.03
"""Of random numbers, on both sides of 0."""


class Taken(NamedTuple):
    """Seconds of a call."""

    whole: float
    """Until the last of its workers had ended."""
    each: float
    """Of a worker, on average, as are those of phases. In each of many short calls another worker is the last, and a
    long call is no sum of these."""
    backward: float = 0.0
    optimizer: float = 0.0
    waited: float = 0.0
    """For a processor, by the worker that waited longest."""

    @property
    def is_disturbed(self) -> bool:
        return self.waited > DISTURBED * self.whole


def usual(taken: Sequence[tuple[float, ...]]) -> list[float]:
    """The mean of the middle third, by the first of their numbers; of two, of both. Means alone add up: a median of few
    exchanges says less of many."""
    trimmed = len(taken) // 3
    middle = sorted(taken)[trimmed : len(taken) - trimmed]
    return [sum(column) / len(middle) for column in zip(*middle, strict=True)]


@dataclass
class Timer:
    """Times what all workers of `together` do at once, who then know the same of it, and of what it has measured."""

    together: Sequence[Group]
    """Groups along which all are reached, one after another."""
    device: torch.device
    meter: Meter
    now: Callable[[], float] = time.perf_counter
    spent: float = 0.0
    """Seconds, in all."""
    until: float = inf
    """When so much is spent, nothing is tried again."""
    disturbed: int = 0
    """Calls of which there was none that nobody disturbed."""

    def meet(self, numbers: Sequence[float] = (0.0,)) -> tuple[list[float], list[float]]:
        """Once all workers are here: of each number the mean of theirs, and the largest."""
        means = most = torch.tensor(numbers, dtype=torch.float64)
        for group in self.together:
            of_all = group.gathered(torch.stack([means, most]).to(self.device)).cpu()
            means, most = of_all[:, 0].mean(0), of_all[:, 1].amax(0)
        return means.tolist(), most.tolist()

    def timed(self, action: Callable[[], Any]) -> Taken:
        """Once, from when all were ready."""
        self._finish()
        self.meet()
        self.meter.begin()
        waited, begun = waited_s(), self.now()
        action()
        self._finish()
        whole, waited = self.now() - begun, waited_s() - waited
        seconds = self.meter.taken(0.0, whole).seconds
        means, most = self.meet([whole, seconds.backward, seconds.optimizer, waited])
        taken = Taken(most[0], means[0], backward=means[1], optimizer=means[2], waited=most[3])
        self.spent += taken.whole
        return taken

    def typical(self, action: Callable[[], Any], repeats: int) -> Taken:
        """Of some repeats, after a first that does not count: what is usual of those that nobody disturbed, or of all,
        where there are none. Workers that exchange much wait for one another's threads, too."""
        self.timed(action)
        taken: list[Taken] = []
        while len(taken) < repeats or self._tries_again(taken, repeats):
            taken.append(self.timed(action))
        calm = [it for it in taken if not it.is_disturbed]
        self.disturbed += not calm
        return Taken(*usual(calm or taken))

    def _tries_again(self, taken: Sequence[Taken], repeats: int) -> bool:
        calm = sum(not it.is_disturbed for it in taken)
        return calm < repeats and len(taken) < repeats + AGAIN and self.spent < self.until

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


ByPart = Callable[[Sequence[int], Sequence[int]], dict[str, float]]
"""Prompts and responses of a call → seconds of its parts."""


class Subject:
    """An engine, and calls of it that are timed."""

    def __init__(self, engine: Any, timer: Timer, vocabulary: int, *, shortest: int = 24, repeats: int = 2) -> None:
        """`shortest`: tokens of texts of which the last alone predicts something."""
        self._engine: Engine = engine
        self._state: EngineState = engine
        self._timer = timer
        self._vocabulary = vocabulary
        self._shortest = shortest
        self._repeats = repeats
        self.draw = np.random.default_rng(0)

    def inference(self, prompts: Sequence[int], responses: Sequence[int]) -> Taken:
        sequences = self._sequences(prompts, responses)
        return self._taken(lambda: self._engine.forward(sequences))

    def train_step(self, prompts: Sequence[int], responses: Sequence[int]) -> Taken:
        sequences = self._sequences(prompts, responses)
        columns = Columns({"weights": np.full(int(sequences.labels.sum()), 1e-3)})
        objective = Objective(_loss)
        return self._taken(lambda: self._engine.train_batch(sequences, columns, objective, Update(1, 0, 1)))

    def generate(
        self, prompts: Sequence[int], seeds: Sequence[int], most: int, least: int, slots: int
    ) -> tuple[Taken, list[int]]:
        """Also tokens of each response."""
        texts = self._texts(prompts)
        config = GenerationConfig(max_new_tokens=most, min_new_tokens=least, slots=slots)
        made: list[Any] = []
        taken = self._taken(lambda: made.append(self._engine.generate(texts, seeds, config)))
        return taken, [len(tokens) for tokens in made[-1].tokens]

    # Points of a profile, each by its number of tokens or rows and a length

    def predicted(self, tokens: int, length: int) -> dict[str, float]:
        """Without tokens: what a call does once."""
        return self._passes(self._inferred, tokens, length)

    def trained(self, tokens: int, length: int) -> dict[str, float]:
        """Without tokens: what a call does once."""
        return self._passes(self._taught, tokens, length)

    def _passes(self, call: ByPart, tokens: int, length: int) -> dict[str, float]:
        if tokens:
            return call(*self._sides(tokens, length))
        self._state.cut(self._shortest)  # so each text is a micro-batch
        single, together = (call([1] * count, [self._shortest - 1] * count) for count in (1, SEVERAL))
        self._state.cut(WHOLE)
        return {of: single[of] - (together[of] - single[of]) / (SEVERAL - 1) for of in single}

    def _inferred(self, prompts: Sequence[int], responses: Sequence[int]) -> dict[str, float]:
        return {"forward": self.inference(prompts, responses).each}

    def _taught(self, prompts: Sequence[int], responses: Sequence[int]) -> dict[str, float]:
        of = self.train_step(prompts, responses)
        return {"taught": of.each - of.backward - of.optimizer, "backward": of.backward, "update": of.optimizer}

    def read(self, tokens: int, length: int) -> dict[str, float]:
        """Prompts: what twice as many of them take longer."""
        texts = unlike(tokens, length)
        count = len(texts)
        once = self.generate(texts, range(count), 1, 1, count)[0].each
        twice = self.generate([*texts, *texts], range(2 * count), 1, 1, count)[0].each
        return {"prefill": twice - once, "begin": 2 * once - twice}

    def decoded(self, rows: int, seen: int) -> dict[str, float]:
        begun = self.generate([seen] * rows, range(rows), 1, 1, rows)[0].each
        whole = self.generate([seen] * rows, range(rows), ROUNDS, ROUNDS, rows)[0].each
        return {"decode": (whole - begun) / (ROUNDS - 1)}

    def _sides(self, tokens: int, length: int) -> tuple[list[int], list[int]]:
        """Prompts and responses of so many tokens that a model reads: all of them predict something, or (without a
        length) one of each text does."""
        texts = unlike(tokens, length or self._shortest)
        ones = [1] * len(texts)
        return (ones, texts) if length else (texts, ones)

    def _texts(self, lengths: Sequence[int]) -> list[np.ndarray]:
        """Of tokens that end nothing."""
        return [self.draw.integers(self._vocabulary // 8, self._vocabulary, length, np.int32) for length in lengths]

    def _sequences(self, prompts: Sequence[int], responses: Sequence[int]) -> Sequences:
        return Sequences.from_rows(self._texts(prompts), self._texts(responses))

    def _taken(self, action: Callable[[], Any]) -> Taken:
        return self._timer.typical(action, self._repeats)


def unlike(tokens: int, length: int) -> list[int]:
    """So many tokens in texts of about a length: as in a run few are equally long, since those that are go through
    attention together, and others one after another."""
    count = max(1, tokens // length)
    by = [min(length - 1, 1 + i % max(1, length // 4)) for i in range(count // 2)]
    pairs = ((length - it, length + it) for it in by)
    return [*chain.from_iterable(pairs), *[length] * (count % 2)]


def opened(
    folder: Path,
    config: DecoderConfig,
    settings: ModelConfig,
    groups: ReplicaGroups,
    timer: Timer,
    tokens: int,
    ends: tuple[int, ...] = (0,),
) -> Engine:
    """The engine of a model with its head, of random numbers; `folder` is made, for its shape. It is trained where its
    settings are of a role that is. `ends`: tokens that end a response."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_to_json(config, "float32")))
    context = EngineContext(
        role="profiled",
        model=replace(settings, path=str(folder), micro_batch_tokens=tokens),
        head=config.head,
        seed=1,
        groups=groups,
        device=timer.device,
        tokenizer=folder,
        eos_token_ids=ends,
        steps=1 if isinstance(settings, TrainedModelConfig) else None,
        blended=False,
        empty=True,
        kernels=Kernels(deterministic=False),
        told=nobody_is_told,
        meter=timer.meter,
    )
    engine: Any = load(Chosen.at_home("profiled", context.model).backend().engine).open(context)
    engine.fill(parts_of(config, groups.cut, _random(config)))
    made: Engine = engine
    return made


def _random(config: DecoderConfig) -> Iterator[tuple[str, torch.Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    for it in parameters_of(config):
        yield it.name, torch.empty(it.shape).uniform_(-SPREAD, SPREAD, generator=numbers)


def _loss(
    predictions: Predictions, columns: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, Mapping[str, Statistic]]:
    """One that all predictions have a part in."""
    of = predictions.log_probs if len(predictions.log_probs) else predictions.values
    return (columns["weights"] * of).sum(), {}
