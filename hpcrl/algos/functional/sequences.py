"""Sums and means over each sequence of packed arrays.

Shape legend: P labels of B sequences; `cu_labels` [B + 1] are the sequences' bounds.
"""

import numpy as np
import torch


def sequence_sums(numbers_P: torch.Tensor, cu_labels: torch.Tensor) -> torch.Tensor:
    """Each sequence's sum, in the numbers' type, [B]; 0 of one without labels.

    Differentiable; on a CPU always added up in order, so that a sequence's sum does not depend on its neighbours.
    """
    lengths = cu_labels.diff()
    owners = torch.arange(len(lengths), device=cu_labels.device).repeat_interleave(lengths)
    return numbers_P.new_zeros(len(lengths)).index_add(0, owners, numbers_P)


def last_labels(mask_P: torch.Tensor, cu_labels: torch.Tensor) -> torch.Tensor:
    """Where each sequence's last label of the mask is, [B]; the last of all, where it has none of the mask. A sequence
    has a label at least."""
    positions_P = torch.where(mask_P, torch.arange(len(mask_P)), -1)
    ends = cu_labels[1:] - 1
    found = np.maximum.reduceat(positions_P.numpy(), cu_labels[:-1].numpy()) if len(ends) else ends.numpy()
    last_B = torch.from_numpy(found)
    return torch.where(last_B >= cu_labels[:-1], last_B, ends)


def sequence_means(numbers_P: torch.Tensor, mask_P: torch.Tensor, cu_labels: torch.Tensor) -> torch.Tensor:
    """Each sequence's mean over the labels of the mask, [B]; 0 of one without any."""
    weights_P = mask_P.to(numbers_P.dtype)
    return sequence_sums(numbers_P * weights_P, cu_labels) / sequence_sums(weights_P, cu_labels).clamp(min=1.0)
