"""A model of transformers in flat buffers: to everything but its own forward pass it is as hpcrl's own are."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.engines.flat import FlatParameters
from hpcrl.engines.memory import Generates, HeldModel, fill, gradient_of
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.models.foreign import ForeignModel
from hpcrl.models.foreign_generation import ForeignGenerator
from hpcrl.models.foreign_trial import try_out
from hpcrl.models.generation import GenerationOptions
from hpcrl.models.output import Predictions
from hpcrl.parallel.group import Group
from hpcrl.placement.shards import WHOLE
from hpcrl.workers.meter import Meter


class HeldForeign(HeldModel):
    """A whole model of transformers, whose parameters a memory holds.

    How its texts go through it is found out when it is made, alike on all ranks of `dp`: packed, if it can be so on
    each of them.
    """

    def __init__(
        self,
        config: DecoderConfig,
        views: Mapping[str, nn.Parameter],
        dtype: torch.dtype,
        device: torch.device,
        dp: Group | None = None,
    ) -> None:
        """`views`: what its modules compute with, by name."""
        super().__init__()
        assert isinstance(config, ForeignConfig), config.family
        self.config: ForeignConfig = config
        self.cut, self.dtype, self.device = WHOLE, dtype, device
        self.lessons = None
        self.recompute = False
        self.awaited: Callable[[int], None] = _at_once
        self.model = ForeignModel(config, views, dtype, device)
        self.model.recompute(lambda: self.recompute)
        trial = try_out(self.model, views)
        if dp is not None and dp.size > 1:
            able = dp.total(torch.tensor([int(trial.packs), int(self.model.most_padding > 0)]))
            self.model.packs = int(able[0]) == dp.size
            self.model.most_padding *= int(able[1]) == dp.size
        self.shares_prefixes = self.model.packs
        self.padded_because = "" if self.model.packs else trial.why or "another worker cannot pack them"

    @property
    def attention_kernels(self) -> str:
        return self.model.attention_kernels

    def forward(self, *given: Any, temperature: float = 1.0, with_entropy: bool = False) -> Predictions:
        self._await()
        found: Predictions = self.model(*given, temperature, with_entropy)
        return found

    def generator(self, options: GenerationOptions, pp: Group, meter: Meter) -> Generates:
        self._await()
        return ForeignGenerator(self.model, options, meter)

    def _await(self) -> None:
        """Have all parameters there: transformers does not say when it reads a layer's."""
        for layer in range(self.config.blocks + 2):
            self.awaited(layer)


class FlatForeign(HeldForeign):
    """The same over flat buffers, of which parameters and gradients are views."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        trainable: bool = True,
        dp: Group | None = None,
        memory: FlatParameters | None = None,
        offloaded: bool = False,
    ) -> None:
        """`memory`: one that is there already."""
        memory = memory or FlatParameters(config, WHOLE, dtype, torch.device(device), trainable, offloaded)
        super().__init__(config, memory.stacked, dtype, torch.device(device), dp)
        self.memory: FlatParameters = memory

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        fill(self.memory.views, tensors)

    def gradient(self, name: str) -> Tensor:
        return gradient_of(self.memory.views[name])


def _at_once(_layer: int) -> None:
    """Parameters that never leave are there."""
