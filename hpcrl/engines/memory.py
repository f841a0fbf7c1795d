"""What a rank has of a model's parameters and of their gradient: a 1-D buffer each, which everybody but the model sees.

An optimizer, a digest, a snapshot, a move and a release touch these alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from hpcrl.engines.slices import Slice
from hpcrl.errors import DataError
from hpcrl.families.places import Span
from hpcrl.models.transformer import Transformer
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


class HeldTransformer(Transformer, ABC):
    """A transformer whose parameters a memory holds, and what else an engine asks of it: how they are had."""

    memory: ParameterMemory
    in_step = False
    """Whether its data-parallel ranks compute in step, since each has a part of every parameter: all go through the
    model equally often."""

    @abstractmethod
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Fill the parameters by name, from any type. Raises DataError unless all are there, once, in shape."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear the memory's gradient in place."""
        self.memory.zero_grad()

    def add_up_gradients(self) -> None:
        """Where several ranks of a block have an element, give all of them its gradient over all that these have
        seen."""

    @abstractmethod
    def gradient(self, name: str) -> Tensor:
        """That of a parameter, of this rank's memory."""

    def ends_minibatch(self, ends: bool) -> None:
        """Told whether the next backward pass is the mini-batch's last, after which gradients go to where they
        belong."""

    def going_back(self) -> AbstractContextManager[None]:
        """Around each backward pass; what a library's collectives raise within it tells of a peer."""
        return nullcontext()

    def gathered(self) -> AbstractContextManager[None]:
        """Within it parameters may be read one by one, outside of a forward pass."""
        return nullcontext()


def checked(shapes: Mapping[str, torch.Size], tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same tensors. Raises DataError unless all of these names are there, once, in shape."""
    missing = set(shapes)
    for name, tensor in tensors:
        if name not in missing:
            raise DataError(f"{name} is given twice or is no parameter of this model.")
        if tensor.shape != shapes[name]:
            raise DataError(f"{name} is {tuple(tensor.shape)}; the configuration makes it {tuple(shapes[name])}.")
        yield name, tensor
        missing.discard(name)
    if missing:
        raise DataError(f"No weights were given for {', '.join(sorted(missing))}.")
