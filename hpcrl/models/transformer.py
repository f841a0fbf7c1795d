"""The packed decoder-only transformer of one shard: numbers in, numbers out. Knows no files, roles or losses.

Shapes: T rows (tokens) of a packed batch, R selected rows, E hidden size.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from hpcrl.errors import DataError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import family_of
from hpcrl.models.layers import Embedding
from hpcrl.models.output import Output, Predictions
from hpcrl.models.packing import Packing
from hpcrl.models.rotary import frequencies, rotation
from hpcrl.plugins import load


class Transformer(nn.Module):
    """A flat list of layers over named parameters, which are given: it neither makes nor moves them.

    `views` has each parameter by name, under the names that the model's family declares.
    """

    def __init__(self, config: DecoderConfig, views: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.config = config
        self.views = views
        self.embedding = Embedding(views)
        block = load(family_of(config).block)
        self.blocks = nn.ModuleList(block(config, layer, views) for layer in range(1, config.blocks + 1))
        self.output = Output(config, views)
        self._frequencies = frequencies(config.rotary, config.head_dim).to(self.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.embedding.device

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Fill the parameters by name, from any type. Raises DataError unless all are there, once, in shape."""
        missing = set(self.views)
        for name, tensor in tensors:
            if name not in missing:
                raise DataError(f"{name} is given twice or is no parameter of this model.")
            view = self.views[name].detach()
            if view.shape != tensor.shape:
                raise DataError(f"{name} is {tuple(tensor.shape)}; the configuration makes it {tuple(view.shape)}.")
            view.copy_(tensor)
            missing.discard(name)
        if missing:
            raise DataError(f"No weights were given for {', '.join(sorted(missing))}.")

    def rotation(self, positions_T: Tensor) -> Tensor:
        """What queries and keys at these positions are multiplied by."""
        return rotation(positions_T, self._frequencies, self.dtype)

    def forward(
        self,
        tokens_T: Tensor,
        packing: Packing,
        rows: Tensor,
        labels_R: Tensor,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
    ) -> Predictions:
        """What the model says of a label at each of these rows (caller's order)."""
        return self.output(self._decoded(tokens_T, packing, rows), labels_R, temperature, with_entropy)

    def hidden(self, tokens_T: Tensor, packing: Packing, rows: Tensor | None = None) -> Tensor:
        """Hidden states after the final norm, [T, E], or [R, E] of the given rows only (caller's order)."""
        return self.output.norm(self._decoded(tokens_T, packing, rows))

    def _decoded(self, tokens_T: Tensor, packing: Packing, rows: Tensor | None) -> Tensor:
        """What the last block gives. After its attention only the given rows go on."""
        tokens = tokens_T if packing.order is None else tokens_T[packing.order]
        x = self.embedding(tokens)
        turns = self.rotation(packing.positions)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, turns, packing)
        return last(x, turns, packing, _picked_rows(packing, rows))


def _picked_rows(packing: Packing, rows: Tensor | None) -> Tensor | None:
    """Rows of the caller's order as rows of the sorted order; None where all are wanted and nothing was moved."""
    if packing.inverse is None:
        return rows
    return packing.inverse if rows is None else packing.inverse[rows]
