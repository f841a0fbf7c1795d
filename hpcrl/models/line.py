"""What the stages of a model send while they generate: rows to the next, tokens to all. Knows no schedule."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcrl.models.transformer import Transformer
from hpcrl.parallel.group import Group, Message


class Line:
    """One stage among those that the ranks of `pp` have; a whole model (None) passes nothing."""

    def __init__(self, model: Transformer, pp: Group | None) -> None:
        self.stage, self.stages = model.cut.stage, model.cut.pp
        assert (pp is None and self.stages == 1) or (pp is not None and pp.size == self.stages), (model.cut, pp)
        self._model = model
        self._pp = pp
        self._made: Tensor | None = None

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def keep(self, made: Tensor | None) -> None:
        """To be sent next: rows for the next stage; of the last one, tokens for all others."""
        self._made = made

    def exchange(self, tokens: int, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """Send what is kept; receive so many tokens of the last stage, and so many rows of the stage before."""
        made, self._made = self._made, None
        if self._pp is None or self.stages == 1:
            return None, None
        sends: list[Message] = []
        if made is not None:
            targets = range(self.stages - 1) if self.is_last else (self.stage + 1,)
            sends = [(made.contiguous(), target) for target in targets]
        drawn = torch.empty(tokens, dtype=torch.int64, device=self._model.device) if tokens else None
        given = self._model.entrance(rows) if rows else None
        receives = [
            (tensor, source)
            for tensor, source in ((drawn, self.stages - 1), (given, self.stage - 1))
            if tensor is not None
        ]
        if sends or receives:
            self._pp.exchange(sends, receives).wait()
        return drawn, given

    def told(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """On all stages, the last stage's numbers; the rows have the same lengths on all, and the same type."""
        if self._pp is None or self.stages == 1:
            return list(rows)
        numbers = torch.from_numpy(np.concatenate(rows)).to(self._pp.device)
        self._pp.broadcast(numbers, self.stages - 1)
        return np.split(numbers.cpu().numpy(), np.cumsum([len(row) for row in rows])[:-1])
