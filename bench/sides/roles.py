"""Roles of hpcrl's algorithms in this process: what a worker's host builds, without the files and the sockets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from hpcrl.algos.builder import Builder, RoleMaker
from hpcrl.algos.role import Role
from hpcrl.config.experiment import PPOExperiment, SFTExperiment
from hpcrl.data.datasets import Texts
from hpcrl.data.samples import SequenceSample
from hpcrl.data.tokens import Tokens
from hpcrl.parallel.context import Group


def settle() -> None:
    """As a worker does with `deterministic: true`."""
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False


def builder(role: str, experiment: SFTExperiment | PPOExperiment, tokenizer: Path) -> Builder[Any]:
    alone = Group((0,), 0, torch.device("cpu"))
    endless = Texts(Tokens(Tokenizer.from_file(str(tokenizer)), eos_ids=()), {})
    return Builder(role, experiment, experiment.control.steps or 1, alone, torch.device("cpu"), endless)


def build(
    makers: Mapping[str, RoleMaker], role: str, experiment: SFTExperiment | PPOExperiment, tokenizer: Path
) -> Role:
    return makers[role](builder(role, experiment, tokenizer))


def rows_of(**columns: Sequence[Sequence[int]]) -> SequenceSample:
    """A batch with made-up ids."""
    count = len(next(iter(columns.values())))
    rows = {key: [np.array(row, np.int32) for row in column] for key, column in columns.items()}
    return SequenceSample.from_rows([f"{i:03d}@0" for i in range(count)], rows)
