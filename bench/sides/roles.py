"""Roles of hpcrl's algorithms in this process: what a worker's host builds, without the files and the sockets."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from hpcrl.algos.builder import Builder
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import TrainedModelConfig
from hpcrl.data.datasets import Texts
from hpcrl.data.samples import SequenceSample
from hpcrl.data.tokens import Tokens
from hpcrl.engines.model import PackedModel, Size
from hpcrl.engines.sampler import Sampler
from hpcrl.families.config import HeadKind
from hpcrl.models.kernels import Kernels
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import over_data
from hpcrl.plugins import load
from hpcrl.processes import keep_freed_memory
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.workers.host import nobody_is_told
from hpcrl.workers.meter import Meter, Phase


class Watched(Meter):
    """One that knows how long it and what is counted for it take; `seconds` are those since it was last asked."""

    def __init__(self) -> None:
        super().__init__()
        self._own_s = 0.0
        for owner, name in ((PackedModel, "size"), (Sampler, "_tell")):
            setattr(owner, name, self._watched(getattr(owner, name)))
        for name in ("begin", "taken", "count", "rows"):
            setattr(self, name, self._watched(getattr(self, name)))

    @contextmanager
    def timing(self, phase: Phase) -> Iterator[None]:
        begun = time.perf_counter()
        inner = super().timing(phase)
        inner.__enter__()
        inside = time.perf_counter()
        yield
        left = time.perf_counter()
        inner.__exit__(None, None, None)
        self._own_s += inside - begun + time.perf_counter() - left

    def seconds(self) -> float:
        taken, self._own_s = self._own_s, 0.0
        return taken

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            begun = time.perf_counter()
            found = function(*given)
            self._own_s += time.perf_counter() - begun
            return found

        return call


class Unwatched(Meter):
    """One that measures nothing, so that a step can be had without."""

    def __init__(self) -> None:
        super().__init__()
        PackedModel.size = lambda *_: Size(0, 0, 0.0, 0.0)
        Sampler._tell = lambda *_: None
        self.begin = self.taken = self.count = self.rows = lambda *_: None
        self.timing = self.together = lambda *_: nullcontext()

    def seconds(self) -> float:
        return 0.0


def settle() -> None:
    """As a worker does."""
    keep_freed_memory()
    torch.set_num_threads(1)


def builder(
    role: str,
    experiment: ExperimentConfig,
    tokenizer: Path,
    head: HeadKind | None = None,
    meter: Meter | None = None,
) -> Builder[Any]:
    """With another head than its algorithm gives the role, if one is named."""
    alone = Group((0,), 0, torch.device("cpu"))
    endless = Texts(Tokens(Tokenizer.from_file(str(tokenizer)), eos_ids=()), {})
    ends_with = head or algorithm_of(experiment).roles[role].head
    steps = experiment.control.steps if isinstance(getattr(experiment, role), TrainedModelConfig) else None
    return Builder(
        role=role,
        backend="native",
        at_home=True,
        head=ends_with,
        experiment=experiment,
        steps=steps,
        blended=False,
        empty=False,
        groups=over_data(alone),
        device=torch.device("cpu"),
        kernels=Kernels(True),
        texts=endless,
        told=nobody_is_told,
        meter=meter or Meter(),
    )


def build(role: str, experiment: ExperimentConfig, tokenizer: Path, meter: Meter | None = None) -> Any:
    return load(algorithm_of(experiment).roles[role].maker)(builder(role, experiment, tokenizer, meter=meter))


def rows_of(**columns: Sequence[Sequence[int]]) -> SequenceSample:
    """A batch with made-up ids."""
    count = len(next(iter(columns.values())))
    rows = {key: [np.array(row, np.int32) for row in column] for key, column in columns.items()}
    return SequenceSample.from_rows([f"{i:03d}@0" for i in range(count)], rows)
