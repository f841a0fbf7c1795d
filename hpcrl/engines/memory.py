"""What a rank has of a model's parameters and of their gradient: a 1-D buffer each, which everybody but the model sees.

An optimizer, a digest, a snapshot, a move and a release touch these alone.
"""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from hpcrl.engines.slices import Slice
from hpcrl.families.places import Span
from hpcrl.parallel.group import Group


class ParameterMemory(Protocol):
    """Owns the buffers. `spans` say which places lie where in either of them; `offsets` where each parameter begins.

    `shapes` is a fingerprint of the whole model's parameters.
    """

    data: Tensor
    grad: Tensor | None
    """None of a model that is not trained."""
    spans: tuple[Span, ...]
    shapes: str

    @property
    def offsets(self) -> Mapping[str, int]: ...

    def layers(self) -> dict[int, slice]:
        """What of the buffer each layer has, of a model that reads it layer by layer; else nothing."""
        ...

    def zero_grad(self) -> None:
        """Begin a mini-batch's gradient."""
        ...

    def collect_grad(self) -> None:
        """Have in `grad` what backward passes have left since it was cleared."""
        ...

    def weights(self) -> Tensor:
        """`data` as the model computes with it: what another replica of the model is given."""
        ...

    def slice(self, dp: Group) -> Slice:
        """What this rank keeps up to date of it."""
        ...
