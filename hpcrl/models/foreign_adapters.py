"""Low-rank adapters beside the linear modules of a model of transformers, which know nothing of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from hpcrl.errors import DataError
from hpcrl.families.foreign import current_name
from hpcrl.models.adapters import Adapted, Adapter


class BesideModules:
    """Has linear modules give what adapters add, too, as long as these count."""

    def __init__(self, library: nn.Module, adapted: Adapted, beside: Mapping[str, Sequence[Adapter]]) -> None:
        """`beside`: of which module. Raises DataError where one is not linear."""
        self._adapted = adapted
        self._waiting = set(beside)
        """Modules that have computed nothing yet."""
        for path, adapters in beside.items():
            _linear(library, path).register_forward_hook(self._hook(path, adapters))

    def check_all_computed(self) -> None:
        """Raises DataError naming modules whose matrix the model may multiply by, but not through them."""
        if self._waiting:
            names = sorted({path.rpartition(".")[2] for path in self._waiting})
            raise DataError(
                f"transformers computes nothing by its modules {', '.join(names)}, so that what is beside them would "
                "not count. Leave them out of lora.targets."
            )

    def _hook(self, path: str, adapters: Sequence[Adapter]) -> Callable[..., Tensor]:
        def added(_: nn.Module, given: tuple[Any, ...], product: Tensor) -> Tensor:
            self._waiting.discard(path)
            return self._adapted.add_(product, given[0], adapters) if self._adapted.on else product

        return added


def _linear(library: nn.Module, path: str) -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    try:
        module = library.get_submodule(current_name(path))
    except AttributeError:
        module = None
    if not isinstance(module, cast(Any, nn.Linear | Conv1D)):
        raise DataError(
            f"transformers' {type(library).__name__} has no linear module {path}; no adapters can be there."
        )
    return module
