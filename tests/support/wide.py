"""transformers computed in float64 throughout: it rounds norms and weights of attention to float32 on the way."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CASTS = (torch.Tensor.float, torch.Tensor.to, torch.Tensor.type)


class Wide(TorchFunctionMode):
    """While it is entered, no float64 number becomes a float32 one, and no softmax is asked for as such."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        named = dict(named or {})
        to_float32 = function is torch.Tensor.float or torch.float32 in (*arguments[1:], named.get("dtype"))
        if function in _CASTS and to_float32 and arguments[0].dtype == torch.float64:
            return arguments[0]
        if named.get("dtype") == torch.float32 and any(
            isinstance(given, torch.Tensor) and given.dtype == torch.float64 for given in arguments
        ):
            named["dtype"] = torch.float64
        return function(*arguments, **named)
