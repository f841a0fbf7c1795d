"""Roles of hpcrl's algorithms in this process: what a worker's host builds, without the files and the sockets."""

from collections.abc import Sequence
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
from hpcrl.families.config import HeadKind
from hpcrl.models.kernels import Kernels
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import over_data
from hpcrl.plugins import load
from hpcrl.processes import keep_freed_memory
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.workers.host import nobody_is_told


def settle() -> None:
    """As a worker does."""
    keep_freed_memory()
    torch.set_num_threads(1)


def builder(role: str, experiment: ExperimentConfig, tokenizer: Path, head: HeadKind | None = None) -> Builder[Any]:
    """With another head than its algorithm gives the role, if one is named."""
    alone = Group((0,), 0, torch.device("cpu"))
    endless = Texts(Tokens(Tokenizer.from_file(str(tokenizer)), eos_ids=()), {})
    ends_with = head or algorithm_of(experiment).roles[role].head
    steps = experiment.control.steps if isinstance(getattr(experiment, role), TrainedModelConfig) else None
    return Builder(
        role=role,
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
    )


def build(role: str, experiment: ExperimentConfig, tokenizer: Path) -> Any:
    return load(algorithm_of(experiment).roles[role].maker)(builder(role, experiment, tokenizer))


def rows_of(**columns: Sequence[Sequence[int]]) -> SequenceSample:
    """A batch with made-up ids."""
    count = len(next(iter(columns.values())))
    rows = {key: [np.array(row, np.int32) for row in column] for key, column in columns.items()}
    return SequenceSample.from_rows([f"{i:03d}@0" for i in range(count)], rows)
