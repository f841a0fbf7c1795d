"""A model of which low-rank adapters alone are trained: its own parameters lie in one buffer, theirs in another."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import islice

import torch
from torch import Tensor, nn

from hpcrl.engines.flat import FlatParameters
from hpcrl.engines.foreign import HeldForeign
from hpcrl.engines.memory import HeldModel, HeldTransformer, MergedParameters, ParameterMemory, checked, gradient_of
from hpcrl.engines.slices import FlatSlice
from hpcrl.families.adapters import adapted_targets
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import family_of, parameters_of
from hpcrl.models.adapters import Adapted, AdaptedProducts, Adapter, adapters_by_matrix, wide_type
from hpcrl.models.foreign import ForeignModel
from hpcrl.models.foreign_adapters import BesideModules
from hpcrl.models.packing import Packing
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.shards import Cut


class AdaptedMemory(ParameterMemory, ABC):
    """Fulfils `ParameterMemory` of what is trained: the adapters, and a head for values or rewards. Each data-parallel
    rank has it whole, in flat buffers.

    All else is frozen, without gradients. What another replica is given is the model with adapters merged in.
    """

    def __init__(self, config: DecoderConfig, cut: Cut, dtype: torch.dtype, device: torch.device) -> None:
        """`config` has adapters."""
        assert config.adapters is not None
        self.config, self.cut = config, cut
        self.trained = FlatParameters(config, cut, dtype, device, trainable=True)
        self.data, self.grad = self.trained.data, self.trained.grad
        self.spans, self.shapes = self.trained.spans, self.trained.shapes
        targets = adapted_targets(config, family_of(config.base))
        self.beside: Mapping[str, tuple[Adapter, ...]] = adapters_by_matrix(targets, self.trained.views, cut.tp)
        """Name of a matrix → its adapters."""
        self._turned = {target.matrix.name for target in targets if target.turned}
        """Matrices that are [out, in]."""
        self.adapted = Adapted(config.adapters.scale)

    @property
    def offsets(self) -> Mapping[str, int]:
        return self.trained.offsets

    def layers(self) -> dict[int, slice]:
        """It lies in two buffers, which come together."""
        return {}

    def zero_grad(self) -> None:
        self.trained.zero_grad()

    def collect_grad(self) -> None:
        self.trained.collect_grad()

    def slice(self, dp: Group) -> FlatSlice:
        return self.trained.slice(dp)

    @property
    @abstractmethod
    def frozen(self) -> Tensor:
        """The buffer of what is not trained."""

    @abstractmethod
    def weights(self, dtype: torch.dtype | None = None) -> Tensor:
        """As those of a model without adapters, in a type of at least the numbers of its own."""

    @abstractmethod
    def merged(self, index: int, of: int) -> MergedParameters:
        """The same, parameter by parameter: those that are the `index`-th of so many data-parallel ranks'."""

    @abstractmethod
    def masters(self, dp: Group) -> Tensor:
        """What a rank would keep up to date of the merged parameters, in at least fp32."""

    @abstractmethod
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Fill the model and its adapters by name."""

    @property
    def modules(self) -> Mapping[str, tuple[Adapter, ...]]:
        """Path of a linear module of transformers' → its adapters."""
        return {name.removesuffix(".weight"): beside for name, beside in self.beside.items()}

    def differs(self, name: str) -> bool:
        """Whether a parameter of the model is another one when adapters are merged in."""
        return name in self.trained.views or name in self.beside

    def merge_rows_(self, rows: Tensor, name: str, first: int = 0) -> Tensor:
        """Make of a parameter's frozen rows, from `first` on, what others are given of them. It is one that differs."""
        stop = first + len(rows)
        if name in self.trained.views:
            return rows.copy_(self.trained.views[name].detach()[first:stop])
        beside = [it.turned() for it in self.beside[name]] if name in self._turned else self.beside[name]
        return self.adapted.merge_(rows, [it.of_rows(first, stop) for it in beside])


class AdaptedParameters(AdaptedMemory):
    """That of a model whose own parameters lie in a flat buffer, too."""

    def __init__(self, config: DecoderConfig, cut: Cut, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, cut, dtype, device)
        self.base = FlatParameters(config.base, cut, dtype, device, trainable=False)

    @property
    def stacked(self) -> dict[str, nn.Parameter]:
        """What the model's own modules compute with, by name: a head that is trained is not the frozen one."""
        return {name: self.trained.views.get(name, view) for name, view in self.base.stacked.items()}

    @property
    def frozen(self) -> Tensor:
        return self.base.data

    def weights(self, dtype: torch.dtype | None = None) -> Tensor:
        merged = self.base.data.to(dtype or self.base.data.dtype, copy=True)
        for name, view in self.base.cut(merged):
            if self.differs(name):
                self.merge_rows_(view, name)
        return merged

    def merged(self, index: int, of: int) -> MergedParameters:
        for parameter, offset in islice(self.base.layout.spans(), index, None, of):
            end, own = offset + parameter.numel, self.base.views[parameter.name].detach()
            spans = [span.moved(-offset) for span in self.base.spans if offset <= span.offset < end]
            differs = self.differs(parameter.name)
            yield (self.merge_rows_(own.clone(), parameter.name) if differs else own).reshape(-1), spans

    def masters(self, dp: Group) -> Tensor:
        whole = self.weights(wide_type(self.base.data))
        offset, length = dp.bounds(len(whole))
        return whole[offset : offset + length].clone()

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        both = self.base.views, self.trained.views  # a head that is trained is in both
        shapes = {name: view.shape for views in both for name, view in views.items()}
        for name, tensor in checked(shapes, tensors):
            for view in (views[name] for views in both if name in views):
                view.detach().copy_(tensor)


class AdaptedModel(HeldModel):
    """A model with adapters, as a rank holds it."""

    has_adapters = True
    memory: AdaptedMemory

    @property
    def trained_config(self) -> DecoderConfig:
        return self.memory.config

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.memory.load(tensors)

    def tensors(self) -> list[Tensor]:
        return [self.memory.frozen, self.memory.data]

    def merged(self, index: int, of: int) -> MergedParameters:
        return self.memory.merged(index, of)

    def masters(self, dp: Group) -> Tensor:
        """What this rank would keep up to date of the merged parameters, in at least fp32."""
        return self.memory.masters(dp)

    def without_adapters(self) -> AbstractContextManager[None]:
        return self.memory.adapted.off()

    def gradient(self, name: str) -> Tensor:
        return gradient_of(self.memory.trained.views[name])


def adapted_in_flat_buffers(
    config: DecoderConfig, groups: ReplicaGroups, dtype: torch.dtype, device: torch.device
) -> AdaptedModel:
    """What a rank holds of a model with adapters. Raises DataError where they cannot be beside a module."""
    memory = AdaptedParameters(config, groups.cut, dtype, device)
    foreign = isinstance(config, ForeignConfig)
    return AdaptedForeign(memory, groups.dp) if foreign else AdaptedTransformer(memory, groups.tp)


class AdaptedTransformer(AdaptedModel, HeldTransformer):
    """hpcrl's own transformer; cut for several ranks, it works with `tensor`."""

    def __init__(self, memory: AdaptedParameters, tensor: Group | None = None) -> None:
        HeldTransformer.__init__(self, memory.config.base, memory.stacked, memory.cut, tensor)
        self.memory = memory
        of_matrices = {memory.base.views[name]: beside for name, beside in memory.beside.items()}
        self.ranks.products = AdaptedProducts(memory.adapted, of_matrices)

    def add_up_gradients(self) -> None:
        gradients = {name: view.grad for name, view in self.memory.trained.views.items() if view.grad is not None}
        self.ranks.add_up_gradients(parameters_of(self.memory.config), gradients)


class AdaptedForeign(AdaptedModel, HeldForeign):
    """A model of transformers, whose linear modules give what is added, too."""

    def __init__(self, memory: AdaptedParameters, dp: Group | None = None) -> None:
        """Raises DataError where adapters cannot be beside a module."""
        frozen = memory.frozen
        HeldForeign.__init__(self, memory.config.base, memory.stacked, frozen.dtype, frozen.device, dp)
        self.memory = memory
        check_all_compute(self.model, BesideModules(self.model.library, memory.adapted, memory.modules))


@torch.no_grad()
def check_all_compute(model: ForeignModel, beside: BesideModules) -> None:
    """Raises DataError where a module that adapters are beside has no part in what the model says."""
    model.hidden(torch.zeros(1, dtype=torch.int64, device=model.device), Packing.of([1], model.device))
    beside.check_all_computed()
