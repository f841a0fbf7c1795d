"""A decoder of transformers over parameters that are given: what it says of labels, packed or padded.

Its texts go through it packed, by our attention, where that gives what one text after another does; else padded.
Shapes: T rows (tokens), R rows with labels, E hidden size, V vocabulary, H heads, D dimensions of a head.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import pairwise
from math import sqrt
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from hpcrl.errors import DataError
from hpcrl.families.foreign import ForeignConfig, current_name, foreign_fields
from hpcrl.models.attention import attention, kernels_on
from hpcrl.models.output import Predictions
from hpcrl.models.packing import Packing
from hpcrl.models.tensor_parallel import alone
from hpcrl.models.vocabulary import Vocabulary

PACKED = "hpcrl_packed"
"""What transformers calls our attention."""
MOST_PADDING = 1 / 3
"""Of a padded batch's own tokens: texts of very different lengths go through the model in several batches."""

_HARMLESS = frozenset({"position_ids", "cache_position", "position_embeddings", "layer_idx", "is_causal", "use_cache"})
"""Arguments of attention that change nothing beside those that are followed."""


class UnpackableError(Exception):
    """The model asks something of attention that ours does not do."""


class ForeignModel(nn.Module):
    """What transformers' class makes of a config.json, over `views` of its tensors by name; experts' are stacked."""

    def __init__(
        self, config: ForeignConfig, views: Mapping[str, nn.Parameter], dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        _register()
        self.config = config
        self.dtype, self.device = dtype, device
        self.library = _empty_model(config, dtype)
        """transformers' own."""
        _bind(self.library, views, config.library.causal)
        _settle_buffers(self.library, device)
        self.library.eval()  # dropout has no place in a loss that is compared with that of a rollout
        self.vocabulary = Vocabulary(config.vocabulary_size, alone(device))
        self.usual = str(self.library.config._attn_implementation)
        """The attention that transformers takes by itself."""
        self.packs = False
        """Whether texts go through it packed."""
        self.most_padding = MOST_PADDING
        """Where they do not, that of a batch, of its own tokens; none: a batch has texts of one length."""
        self.scale, self.softcap = 1.0, cast("float | None", None)
        """What becomes of products with the output matrix: times the one, and capped by the other."""

    @property
    def attention_kernels(self) -> str:
        """Those that its attention may be computed by in training, by name."""
        library = f"transformers {version('transformers')}"
        if not self.packs:
            return f"{self.usual} of {library}"
        caps = any(self.config.carried.get(name) for name in SOFTCAPS)
        return f"{kernels_on(self.device, self.dtype, self.config.head_dim, caps=caps)} in {library}"

    def as_tried(self, other: "ForeignModel") -> None:
        """Compute as another of the same model, which has been tried out."""
        self.packs, self.most_padding = other.packs, other.most_padding
        self.scale, self.softcap = other.scale, other.softcap

    def recompute(self, enabled: Callable[[], bool]) -> None:
        """Where it is enabled, blocks keep only what they were given for the backward pass (arXiv 1604.06174)."""
        for block in blocks_of(self.library, self.config.blocks):
            block.forward = _again(block.forward, enabled)

    def attend(self, name: str) -> None:
        """Compute attention by this implementation from now on."""
        if self.library.config._attn_implementation != name:
            self.library.set_attn_implementation(name)

    def forward(
        self, given_T: Tensor, packing: Packing, rows: Tensor, labels_R: Tensor, temperature: float, with_entropy: bool
    ) -> Predictions:
        """As `Transformer.forward`."""
        hidden_TE = self.hidden(given_T if packing.order is None else given_T[packing.order], packing)
        hidden_RE = hidden_TE.index_select(0, rows if packing.inverse is None else packing.inverse[rows])
        nothing, each = torch.zeros(0, device=self.device), torch.arange(len(labels_R) + 1, device=self.device)
        if self.config.head != "vocabulary":
            return Predictions(nothing, nothing, self.values(hidden_RE), each)
        matrix_VE, hidden_RE = self._head(hidden_RE)
        log_probs, entropy = self.vocabulary.label_logprobs(
            hidden_RE,
            matrix_VE,
            labels_R,
            temperature=temperature,
            with_entropy=with_entropy,
            softcap=self.softcap,
        )
        return Predictions(log_probs, nothing if entropy is None else entropy, nothing, each)

    def hidden(self, tokens_T: Tensor, packing: Packing) -> Tensor:
        """[T, E] after the final norm, of texts in sorted order."""
        if not self.packs:
            self.attend(self.usual)
            return torch.cat([self._padded(tokens_T, bounds) for bounds in _batches(packing, self.most_padding)])
        self.attend(PACKED)
        positions_1T = packing.positions[None]
        return self._through(tokens_T[None], position_ids=positions_1T, hpcrl_packing=packing)[0]

    def values(self, hidden_RE: Tensor) -> Tensor:
        """The head's number for each row; at least fp32 [R], of a product in that type."""
        head = cast(nn.Linear, getattr(self.library, self.config.library.head))
        wide = torch.promote_types(head.weight.dtype, torch.float32)
        return nn.functional.linear(hidden_RE.to(wide), head.weight.to(wide), head.bias.to(wide))[:, 0]

    def products(self, hidden_RE: Tensor) -> Tensor:
        """[R, V] of the output matrix, before scale and softcap."""
        output = self.library.get_output_embeddings()
        return nn.functional.linear(hidden_RE.to(output.weight.dtype), output.weight, output.bias)

    def _head(self, hidden_RE: Tensor) -> tuple[Tensor, Tensor]:
        """A matrix, and hidden states whose products with it are the logits: a bias is one more column."""
        output = self.library.get_output_embeddings()
        hidden_RE = hidden_RE.to(output.weight.dtype)
        scaled_RE = hidden_RE if self.scale == 1.0 else hidden_RE * self.scale
        if output.bias is None:
            return output.weight, scaled_RE
        ones_R1 = scaled_RE.new_full((len(scaled_RE), 1), self.scale)
        return torch.cat([output.weight, output.bias[:, None]], 1), torch.cat([scaled_RE, ones_R1], 1)

    def _padded(self, tokens_T: Tensor, bounds: list[tuple[int, int]]) -> Tensor:
        """Some neighbouring texts as a batch, padded behind their ends, where no token before can see."""
        longest = max(stop - start for start, stop in bounds)
        tokens_BL = tokens_T.new_zeros(len(bounds), longest)
        mask_BL = torch.zeros_like(tokens_BL)
        for row, (start, stop) in enumerate(bounds):
            tokens_BL[row, : stop - start] = tokens_T[start:stop]
            mask_BL[row, : stop - start] = 1
        if len({stop - start for start, stop in bounds}) == 1:
            return self._through(tokens_BL).flatten(0, 1)
        return self._through(tokens_BL, attention_mask=mask_BL)[mask_BL.bool()]

    def _through(self, tokens: Tensor, **options: Any) -> Tensor:
        found = self.library.base_model(input_ids=tokens, use_cache=False, return_dict=True, **options)
        return cast(Tensor, found.last_hidden_state)


def blocks_of(library: nn.Module, count: int) -> list[nn.Module]:
    """The blocks of a decoder: of its lists of so many modules, the one whose name is shortest. Raises DataError."""
    lists = {name: it for name, it in library.named_modules() if isinstance(it, nn.ModuleList) and len(it) == count}
    if not lists:
        raise DataError(f"transformers' {type(library).__name__} has no list of {count} blocks; it is not supported.")
    return list(lists[min(lists, key=len)])


def packed_attention(
    module: nn.Module,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    hpcrl_packing: Packing | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Our attention as transformers calls one. Raises UnpackableError for what it does not know."""
    unknown = [name for name, value in others.items() if value is not None and value is not False]
    wrong = sorted(set(unknown) - _HARMLESS)
    if attention_mask is not None:
        wrong.append("a mask")
    if hpcrl_packing is None:
        wrong.append("no word of where its texts end")
    if dropout or others.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        wrong.append("dropout, or attention that is not causal")
    if wrong or hpcrl_packing is None:
        raise UnpackableError(f"its attention is given {', '.join(wrong)}")
    q_THD, k_TKD, v_TKD = (heads[0].transpose(0, 1) for heads in (query_1HTD, key_1KTD, value_1KTD))
    factor = 1.0 if scaling is None else scaling * sqrt(q_THD.shape[-1])
    if abs(factor - 1.0) > 1e-9:
        q_THD = q_THD * factor
    out_TD = attention(q_THD, k_TKD, v_TKD, hpcrl_packing, sliding_window or 0, softcap)
    return out_TD.view(1, len(q_THD), q_THD.shape[1], -1), None


def _register() -> None:
    """Tell transformers of our attention; it makes no masks for it."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PACKED, packed_attention)
    AttentionMaskInterface.register(PACKED, lambda *_, **__: None)


class _EmptyParameters(TorchFunctionMode):
    """What is made to be filled later has no memory; buffers are computed, and real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            kwargs = {**(kwargs or {}), "device": "meta"}
        return func(*args, **(kwargs or {}))


def _empty_model(config: ForeignConfig, dtype: torch.dtype) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForTokenClassification, GenerationConfig

    maker = AutoModelForCausalLM if config.head == "vocabulary" else AutoModelForTokenClassification
    try:
        theirs = CONFIG_MAPPING[config.family].from_dict(foreign_fields(config, str(dtype).removeprefix("torch.")))
        # By itself transformers 5.17 takes a kernel that caps no scores.
        capped = any(config.carried.get(name) for name in SOFTCAPS)
        with _EmptyParameters():
            model = maker.from_config(theirs, dtype=dtype, **({"attn_implementation": "eager"} if capped else {}))
    except (ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
        raise DataError(f"transformers cannot make a {config.family} of its config.json: {error}") from error
    if dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # torch's grouped products have no float64
    if config.head == "vocabulary":
        model.generation_config = GenerationConfig()
    return model


def _bind(library: Any, views: Mapping[str, nn.Parameter], name: str) -> None:
    """Have the model compute with these parameters. Raises DataError unless they are all that it has."""
    theirs: dict[int, list[str]] = {}
    for own, parameter in library.named_parameters(remove_duplicate=False):
        theirs.setdefault(id(parameter), []).append(own)
    named = {own: names for names in theirs.values() for own in names}
    output = library.get_output_embeddings() if hasattr(library, "get_output_embeddings") else None
    at_the_end = next((path for path, module in library.named_modules() if module is output), "")
    unbound = {names[0] for names in theirs.values()}
    for tensor, view in views.items():
        # A folder may call the output matrix by an older name.
        own = next((it for it in (tensor, current_name(tensor)) if it in named), "")
        own = own or f"{at_the_end}.{tensor.rpartition('.')[2]}"
        names = named.get(own, [])
        if not names or names[0] not in unbound or library.get_parameter(own).shape != view.shape:
            raise DataError(f"transformers' {name} has no tensor {tensor} of shape {list(view.shape)}.")
        unbound.discard(names[0])
        for each in names:
            path, _, attribute = each.rpartition(".")
            library.get_submodule(path)._parameters[attribute] = view
    if unbound:
        raise DataError(f"No weights were given for {', '.join(sorted(unbound)[:8])} of transformers' {name}.")


def _settle_buffers(library: nn.Module, device: torch.device) -> None:
    """Put them where the model computes. Raises DataError for one that is not computed when the model is made."""
    for path, module in library.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            if buffer.device.type == "meta":
                raise DataError(f"transformers fills {path}.{name} from a file, which is not supported.")
            module._buffers[name] = buffer.to(device)


def _again(forward: Callable[..., Any], enabled: Callable[[], bool]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        if not (enabled() and torch.is_grad_enabled()):
            return forward(*args, **options)
        return checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=False, determinism_check="none", **options
        )

    return run


def _batches(packing: Packing, most_padding: float) -> Iterator[list[tuple[int, int]]]:
    """Neighbouring texts whose padding is bounded: (first row, the one behind the last) of each."""
    batch: list[tuple[int, int]] = []
    for start, stop in pairwise(packing.cu_seqlens.tolist()):
        tokens = stop - (batch[0][0] if batch else start)
        if (len(batch) + 1) * (stop - start) > (1 + most_padding) * tokens:
            yield batch
            batch = []
        batch.append((start, stop))
    yield batch


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has an argument of this name."""
    return name in inspect.signature(function).parameters


SOFTCAPS = ("attn_logit_softcapping",)
"""What the fields are called that cap the scores of attention."""
WINDOWS = re.compile(r"window|chunk")
"""What the fields of config.json are called that bound how far a token sees."""
