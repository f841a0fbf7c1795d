"""A stand-in for a CUDA graph: it records the operations of a step on a CPU, and replays them without any Python."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from hpcrl.models.decode_steps import Made
from hpcrl.models.transfers import Reading

aten = torch.ops.aten
WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique_dim", "lift_fresh"}
"""Operations for which the host must know numbers of the device, or by which it makes a tensor out of its own."""


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def memory(tensor: Tensor) -> int:
    return 0 if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


class _Operation(NamedTuple):
    function: Any
    args: Any
    made: tuple[tuple[int, bool], ...]
    """The numbers of its results, and whether each has memory of its own."""


class NoWaits(TorchDispatchMode):
    """Refuses what a host waits for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in WAITS, f"the host waits for {name}"
        return self.done(func, args, func(*args, **(kwargs or {})), kwargs or {})

    def done(self, func: Any, args: Any, made: Any, kwargs: Any) -> Any:
        return made


class _Recording(NoWaits):
    """What a function has the device do. Of tensors that it was not given by itself it keeps no reference: who else
    does not hold them has freed them when it is replayed, as a GPU's memory would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self.made: list[Tensor] = []
        self.given: dict[int, weakref.ref[Tensor]] = {}
        self._known: dict[int, int] = {}

    def done(self, func: Any, args: Any, made: Any, kwargs: Any) -> Any:
        known = self._known
        for tensor in tensors((args, kwargs)):
            if id(tensor) not in known:
                self.given[id(tensor)] = weakref.ref(tensor)
        named = tree_map_only(
            Tensor, lambda it: ("made", known[id(it)]) if id(it) in known else ("given", id(it)), (args, kwargs)
        )
        taken = {memory(tensor) for tensor in tensors((args, kwargs))}
        numbers = []
        for tensor in tensors(made):
            own = memory(tensor) not in taken or not memory(tensor)
            if id(tensor) not in known:
                known[id(tensor)] = len(self.made)
                self.made.append(tensor)
            numbers.append((known[id(tensor)], own))
        self.operations.append(_Operation(func, named, tuple(numbers)))
        return made

    def poison(self) -> None:
        """Nothing that it has made means anything any more."""
        for number, own in (it for operation in self.operations for it in operation.made):
            if own and not self.made[number].is_mkldnn:
                self.made[number].fill_(float("nan") if self.made[number].is_floating_point() else -(2**30))

    def replay(self) -> None:
        for operation in self.operations:
            args, kwargs = tree_map_named(operation.args, self._tensor)
            for (number, own), tensor in zip(operation.made, tensors(operation.function(*args, **kwargs)), strict=True):
                if own:
                    self.made[number].copy_(tensor)

    def _tensor(self, kind: str, number: int) -> Tensor:
        if kind == "made":
            return self.made[number]
        tensor = self.given[number]()
        assert tensor is not None, "a step reads a tensor that is there no longer when it is replayed"
        return tensor


def tree_map_named(tree: Any, of: Callable[[str, int], Tensor]) -> Any:
    if isinstance(tree, tuple) and len(tree) == 2 and tree[0] in ("made", "given"):
        return of(*tree)
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map_named(branch, of) for branch in tree)
    return {name: tree_map_named(branch, of) for name, branch in tree.items()} if isinstance(tree, dict) else tree


class StandIn:
    """A `Recorder` for a CPU.

    As a CUDA graph, a recording knows operations, addresses and the numbers that Python had when it was recorded, and
    nothing else: what a step should have read anew at each visit it would have as it was. Unlike one it says so where
    the host would wait, or an address has been freed, and all that it made before is poisoned before it makes it again.
    It cannot show which operations CUDA refuses to record, nor that several recordings may share their memory.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def record(self, function: Callable[[], Made]) -> Callable[[], Made]:
        recording = _Recording()
        with recording:
            made = function()
        self.recorded += 1

        def replay() -> Made:
            self.replayed += 1
            recording.poison()
            recording.replay()
            return made

        return replay


@contextmanager
def no_waits() -> Iterator[list[Reading]]:
    """Within it the host may read nothing of a tensor but through a `Reading`; those that it has read."""
    read: list[Reading] = []
    numbers = Reading.numbers

    def refused(*_: Any) -> Any:
        raise AssertionError("the host reads a tensor")

    def noted(reading: Reading) -> Any:
        read.append(reading)
        with pytest.MonkeyPatch.context() as lifted:
            lifted.setattr(torch.Tensor, "numpy", torch._C.TensorBase.numpy)
            return numbers(reading)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "numpy", "item", "cpu", "__int__", "__float__", "__bool__", "__index__"):
            patch.setattr(torch.Tensor, name, refused)
        patch.setattr(Reading, "numbers", noted)
        with NoWaits():
            yield read
