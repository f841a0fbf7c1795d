"""Random mini-batches, padded as the peers hold them, and what our own functions make of them."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hpcrl.algos.functional.losses import Denominators, token_weights
from hpcrl.algos.policy import policy_loss
from hpcrl.recipes.policy import PolicyConfig

Columns = dict[str, list[list[float]]]


def draw(seed: int, spread: float = 0.4, whole: bool = False) -> tuple[Columns, np.ndarray]:
    """Columns [B, T], of which `length` says what is there, and the mask, which leaves some tokens of it out, maybe all
    of a row, or none at all."""
    random = np.random.default_rng(seed)
    count, longest = int(random.integers(2, 6)) * 2, int(random.integers(3, 9))
    lengths = random.integers(1, longest + 1, count)
    lengths[0] = longest
    there = np.arange(longest) < lengths[:, None]
    mask = there & (random.random(there.shape) < 0.8)
    mask[0, 0] = mask[1, 0] = True
    if whole:
        mask = there
    log_probs = -random.random(there.shape) * 3
    names = ("old_log_probs", "sampled_log_probs", "ref_log_probs")
    columns = {name: log_probs + random.normal(0, spread, there.shape) for name in names}
    columns |= {"log_probs": log_probs, "entropy": random.random(there.shape) * 2}
    columns |= {"advantages": random.normal(0, 1, there.shape)}
    return {name: column.tolist() for name, column in columns.items()} | {"length": there.astype(int).tolist()}, mask


def packed(column: Any, columns: Columns) -> torch.Tensor:
    """Of rows that are padded, the tokens that are there."""
    return torch.tensor(column, dtype=torch.float64)[torch.tensor(columns["length"]).bool()]


def padded(tokens: torch.Tensor, columns: Columns) -> torch.Tensor:
    there = torch.tensor(columns["length"]).bool()
    return torch.zeros(there.shape, dtype=torch.float64).masked_scatter(there, tokens.double())


def bounds(columns: Columns) -> torch.Tensor:
    return torch.tensor([0, *(sum(row) for row in columns["length"])]).cumsum(0)


def weights_of(
    columns: Columns, mask: np.ndarray, aggregation: str, constant: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's weight in the mini-batch, and whether it counts."""
    counting, cu_labels = packed(mask.tolist(), columns).bool(), bounds(columns)
    rows = [counting[a:b] for a, b in itertools.pairwise(cu_labels.tolist())]
    whole = Denominators(int(counting.sum()), sum(bool(row.any()) for row in rows), float(constant))
    return token_weights(aggregation, counting, cu_labels, whole), counting


def our_policy_loss(
    columns: Columns, mask: np.ndarray, config: PolicyConfig, constant: float = 1.0
) -> tuple[float, torch.Tensor]:
    """The loss of the mini-batch, and its gradient in the log-probabilities, padded."""
    weights, counting = weights_of(columns, mask, config.aggregation, constant)
    log_probs = packed(columns["log_probs"], columns).requires_grad_()
    given = {"old_log_probs", "sampled_log_probs", "advantages"}
    given |= {"ref_log_probs"} if config.kl.mode == "loss" else set()
    says: Any = SimpleNamespace(
        log_probs=log_probs, entropy=packed(columns["entropy"], columns), cu_labels=bounds(columns)
    )
    held = {name: packed(columns[name], columns) for name in given}
    loss, _ = policy_loss(says, {**held, "weights": weights, "mask": counting.double()}, config, config.kl.coef)
    loss.backward()
    assert log_probs.grad is not None
    return loss.item(), padded(log_probs.grad, columns)
