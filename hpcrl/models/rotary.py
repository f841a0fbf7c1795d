"""Rotary position embedding over interleaved pairs (arXiv 2104.09864): one complex multiplication turns a head.

Hugging Face pairs dimension i of a head with i + d/2; here a pair is adjacent (2i, 2i+1), so that the head is a view
as d/2 complex numbers. `interleave` converts the query and key rows of a projection, `families.tensors` converts them
back; attention scores do not change when query and key are permuted alike.
"""

from math import ceil, floor, log, pi
from typing import NamedTuple

import torch
from torch import Tensor

from hpcrl.families.fields import RotaryConfig


class Turns(NamedTuple):
    """What queries and keys are multiplied by at some positions, each [T, 1, P]; None where positions are learned."""

    everywhere: Tensor | None
    windowed: Tensor | None
    """The same in blocks with a window."""

    def of(self, window: int) -> Tensor | None:
        return self.windowed if window else self.everywhere


def frequencies(rotary: RotaryConfig, head_dim: int) -> Tensor:
    """Angle per position of each pair, [head_dim / 2], fp32 on the CPU."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    periods = rotary.theta**exponents
    plain = 1.0 / periods
    if rotary.kind == "linear":
        return plain / rotary.factor
    if rotary.kind == "llama3":
        return _llama3(plain, rotary)
    if rotary.kind == "yarn":
        return _yarn(periods, rotary)
    return plain


def rotation(positions_T: Tensor, frequencies_P: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Complex numbers of size `scale`, [T, 1, P], to multiply the pairs by. Angles are fp32, as in transformers."""
    angles = positions_T.to(torch.float32)[:, None] * frequencies_P
    cosine, sine = angles.cos(), angles.sin()
    if scale != 1.0:
        cosine, sine = cosine * scale, sine * scale
    if dtype == torch.float64:
        cosine, sine = cosine.double(), sine.double()
    return torch.complex(cosine, sine)[:, None, :]


def rotate(heads_THD: Tensor, rotation_T1P: Tensor) -> Tensor:
    """Turn every head by its position. bf16 is turned in fp32."""
    pairs = heads_THD.unflatten(-1, (-1, 2))
    if pairs.dtype == torch.bfloat16:
        pairs = pairs.float()
    turned = torch.view_as_complex(pairs) * rotation_T1P
    return torch.view_as_real(turned).flatten(-2).to(heads_THD.dtype)


def interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Hugging Face's row order (first halves, then second halves, per head) → adjacent pairs. Dimension 0."""
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(rows.shape)


def _llama3(plain: Tensor, rotary: RotaryConfig) -> Tensor:
    """Llama 3.1's scaling: long wavelengths divided by the factor, short ones kept, a linear blend between."""
    wavelength = 2 * pi / plain
    longest = rotary.original_max_positions / rotary.low_frequency_factor
    shortest = rotary.original_max_positions / rotary.high_frequency_factor
    blend = (rotary.original_max_positions / wavelength - rotary.low_frequency_factor) / (
        rotary.high_frequency_factor - rotary.low_frequency_factor
    )
    scaled = torch.where(wavelength > longest, plain / rotary.factor, plain)
    blended = (1 - blend) * plain / rotary.factor + blend * plain
    between = (wavelength >= shortest) & (wavelength <= longest)
    return torch.where(between, blended, scaled)


def _yarn(periods: Tensor, rotary: RotaryConfig) -> Tensor:
    """YaRN: what turns often is kept, what turns seldom divided by the factor, a ramp between. In transformers' order.

    Its ends are the pairs that turn `beta_fast` and `beta_slow` times within the original positions.
    """
    pairs = len(periods)
    low, high = (
        pairs * log(rotary.original_max_positions / (turns * 2 * pi)) / log(rotary.theta)
        for turns in (rotary.beta_fast, rotary.beta_slow)
    )
    if rotary.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    ramp = (torch.arange(pairs, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (rotary.factor * periods) * (1 - kept) + 1.0 / periods * kept
