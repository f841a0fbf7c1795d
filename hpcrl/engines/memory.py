"""What a rank has of a model's parameters and of their gradient: a 1-D buffer each, which everybody but the model sees.

An optimizer, a digest, a snapshot, a move and a release touch these alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hpcrl.engines.slices import Slice
from hpcrl.errors import DataError, InternalError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.places import Span
from hpcrl.models.attention import kernels_on
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.history import Generated
from hpcrl.models.lessons import Lessons
from hpcrl.models.output import Predictions
from hpcrl.models.packing import Packing
from hpcrl.models.transformer import Transformer
from hpcrl.parallel.group import Group
from hpcrl.placement.shards import Cut
from hpcrl.workers.meter import Meter


class ParameterMemory(Protocol):
    """Owns the buffers. `spans` say which places lie where in either of them; `offsets` where each parameter begins, of
    which there is something.

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


MergedParameters = Iterator[tuple[Tensor, Sequence[Span]]]
"""1-D tensors, and the places of their elements in a model."""


class Generates(Protocol):
    """What makes responses of a model as it is at each call."""

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        seeds: Sequence[int],
        limits: Sequence[int] | None = None,
        begun: Sequence[np.ndarray] | None = None,
    ) -> Generated:
        """As `Generator.generate`."""
        ...


class HeldModel(nn.Module, ABC):
    """A model whose parameters a memory holds, and what an engine asks of it.

    Whole unless `cut` says otherwise. What it computes is its own affair: `Transformer` is hpcrl's own.
    """

    config: DecoderConfig
    cut: Cut
    dtype: torch.dtype
    device: torch.device
    memory: ParameterMemory
    lessons: Lessons | None
    recompute: bool
    awaited: Callable[[int], None]
    """As those of `Transformer`."""
    in_step = False
    """Whether its data-parallel ranks compute in step, since each has a part of every parameter: all go through the
    model equally often."""
    trains_in_step = False
    """Whether they do in training alone, since each backward pass adds gradients up over all of them."""
    has_adapters = False
    """Whether these alone are trained, and saved."""
    shares_prefixes = True
    """Whether a prompt that several sequences begin with may go through it once."""
    padded_because = ""
    """Why its texts are padded; empty where they are packed."""

    @property
    def trained_config(self) -> DecoderConfig:
        """Its shape, with its adapters if these alone are trained."""
        return self.config

    @property
    def attention_kernels(self) -> str:
        """Those that its attention may be computed by, by name."""
        config = self.config
        return kernels_on(self.device, self.dtype, config.head_dim, caps=config.attention_softcap is not None)

    @abstractmethod
    def forward(
        self,
        given_T: Tensor,
        packing: Packing,
        rows: Tensor,
        labels_R: Tensor,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
    ) -> Predictions:
        """What the model says of a label at each of these rows (caller's order). Of the last stage only."""

    @abstractmethod
    def generator(self, options: GenerationOptions, pp: Group, meter: Meter) -> Generates:
        """What generates from it, and tells `meter` so; the ranks of `pp` have its stages."""

    @abstractmethod
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Fill the parameters by name, from any type. Raises DataError unless all are there, once, in shape."""

    @abstractmethod
    def gradient(self, name: str) -> Tensor:
        """That of a parameter, of this rank's memory."""

    def decoded(self, given_T: Tensor, packing: Packing, rows: Tensor | None = None) -> Tensor:
        """This rank's rows for the next stage, of a model that has stages, or routers."""
        raise InternalError(f"A {type(self).__name__} has neither stages nor routers.")

    def entrance(self, rows: int) -> Tensor:
        """Room for rows of the stage before, of a model that has stages."""
        raise InternalError(f"A {type(self).__name__} has no stages.")

    def teach(self, lessons: Lessons | None) -> None:
        """Have routers learn, of a model that has any."""
        raise InternalError(f"A {type(self).__name__} has no routers.")

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear the memory's gradient in place."""
        self.memory.zero_grad()

    def tensors(self) -> list[Tensor]:
        """The buffers on its device of all that it reads: the memory's, and what is never trained if that is
        elsewhere."""
        return [self.memory.data]

    def gradients(self) -> list[Tensor]:
        """The buffers of its gradient that are on its device."""
        return [] if self.memory.grad is None else [self.memory.grad]

    def merged(self, index: int, of: int) -> MergedParameters | None:
        """Every `of`-th parameter from one on, as another replica is given it, where the memory's buffer is not all of
        the model."""
        return None

    def without_adapters(self) -> AbstractContextManager[None]:
        """Within it the model is what it was before its adapters were trained."""
        raise InternalError(f"A {type(self).__name__} has no adapters.")

    def add_up_gradients(self) -> None:
        """Where several ranks of a block have an element, give all of them its gradient over all that these have
        seen."""

    def ends_minibatch(self, ends: bool) -> None:
        """Told whether the next backward pass is the mini-batch's last, after which gradients go to where they
        belong."""

    def going_back(self) -> AbstractContextManager[None]:
        """Around each backward pass; what a library's collectives raise within it tells of a peer."""
        return nullcontext()

    def gathered(self) -> AbstractContextManager[None]:
        """Within it parameters may be read one by one, outside of a forward pass."""
        return nullcontext()


class HeldTransformer(Transformer, HeldModel):
    """hpcrl's own transformer, whose parameters a memory holds."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        self.memory.zero_grad()

    def generator(self, options: GenerationOptions, pp: Group, meter: Meter) -> Generator:
        return Generator(self, options, pp, meter=meter)


def fill(views: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Have these numbers in parameters, by name. Raises DataError as `checked`."""
    for name, tensor in checked({name: view.shape for name, view in views.items()}, tensors):
        views[name].detach().copy_(tensor)


def gradient_of(view: Tensor) -> Tensor:
    """That of a parameter which is trained: a view of the memory's."""
    assert view.grad is not None, "trained"
    return view.grad


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
