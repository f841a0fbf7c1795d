"""How a model of transformers can be computed, found out by trial: packed or padded, and what its head does.

The trial is with parameters of its own, the same everywhere and in every attempt, so that what is found is, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor, nn

from hpcrl.errors import DataError
from hpcrl.families.foreign import ForeignConfig
from hpcrl.models.foreign import MOST_PADDING, WINDOWS, ForeignModel
from hpcrl.models.packing import Packing
from hpcrl.models.softcap import capped_

TOLERANCE: Mapping[torch.dtype, float] = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.05}
"""Of the norm of what a text alone gives: rotations and softmax are in fp32 whatever the model is in; a text that sees
another is wrong by far more."""
_SCALES = ("logits_scaling", "logit_scale", "lm_head_multiplier", "output_multiplier_scale")
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "logit_softcap")


@dataclass(frozen=True)
class Trial:
    """What was found; `why` texts are not packed, where they are not."""

    packs: bool
    why: str = ""


@torch.no_grad()
def try_out(model: ForeignModel, views: Mapping[str, nn.Parameter]) -> Trial:
    """Give the views numbers, compute a few texts in each way, and clear the views. Raises DataError where the head
    does what is not known here."""
    for name, view in views.items():
        view.detach().copy_(_noise(name, view))
    try:
        texts = list(_texts(model.config, model.device))
        model.packs, model.most_padding = False, 0.0
        alone = [model.hidden(text, Packing.of([len(text)], model.device)) for text in texts]
        packing = Packing.of([len(text) for text in texts], model.device)
        model.most_padding = 1.0
        pads = not _differs(model.hidden(torch.cat(texts), packing), alone)
        model.most_padding = MOST_PADDING if pads else 0.0
        if model.config.head == "vocabulary":
            _learn_head(model, texts[0], alone[0])
        trial = _packed(model, texts, packing, alone)
    finally:
        for view in views.values():
            view.detach().zero_()
    model.packs = trial.packs
    return trial


def _packed(model: ForeignModel, texts: list[Tensor], packing: Packing, alone: list[Tensor]) -> Trial:
    model.packs = True
    try:
        together = model.hidden(torch.cat(texts), packing)
    except Exception as error:  # Whatever it raises, it is not computed so.
        return Trial(False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200])
    finally:
        model.packs = False
    return Trial(False, "packed texts are not what they are alone") if _differs(together, alone) else Trial(True)


def _differs(together_TE: Tensor, alone: list[Tensor]) -> bool:
    expected_TE = torch.cat(alone)
    error = (together_TE - expected_TE).double().norm() / expected_TE.double().norm()
    return not bool(error <= TOLERANCE[expected_TE.dtype])


def _texts(config: ForeignConfig, device: torch.device) -> Iterator[Tensor]:
    """Two short ones, and one longer than any window, in order of length."""
    windows = [0, *(size for name, size in config.carried.items() if WINDOWS.search(name) and isinstance(size, int))]
    longest = min(config.max_positions, max(max(windows) + 5, 12))
    generator = torch.Generator().manual_seed(1)
    for length in sorted({min(5, longest), min(9, longest), longest}):
        yield torch.randint(0, config.vocabulary_size, (length,), generator=generator).to(device)


def _noise(name: str, view: Tensor) -> Tensor:
    """Numbers under which attention is far from even: matrices keep lengths, norms nearly so, biases are small."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    generator = torch.Generator(view.device).manual_seed(int.from_bytes(digest, "little") >> 1)
    wide = torch.float32
    numbers = torch.randn(view.shape, generator=generator, device=view.device, dtype=wide)
    if view.dim() > 1:
        return numbers.mul_(2.0 * view.shape[-1] ** -0.5)
    return numbers.mul_(0.1) if name.endswith("bias") else numbers.mul_(0.1).add_(1.0)


def _learn_head(model: ForeignModel, text: Tensor, hidden_TE: Tensor) -> None:
    """Find which of config.json's fields turn products with the output matrix into logits. Raises DataError."""
    model.attend(model.usual)
    logits_TV = model.library(input_ids=text[None], use_cache=False).logits[0].double()
    products_TV, carried = model.products(hidden_TE).double(), model.config.carried
    numbers = [float(carried[name]) for name in _SCALES if isinstance(carried.get(name), int | float)]
    theirs = model.library.config
    caps = [getattr(theirs, name, None) for name in _SOFTCAPS]
    for softcap in (None, *(float(cap) for cap in caps if cap)):
        for scale in (1.0, *numbers, *(1 / number for number in numbers if number)):
            made_TV = products_TV * scale
            made_TV = made_TV if softcap is None else capped_(made_TV, softcap)
            if not _differs(made_TV.to(hidden_TE.dtype), [logits_TV.to(hidden_TE.dtype)]):
                model.scale, model.softcap = scale, softcap
                return
    raise DataError(
        f"{model.config.library.causal} does more to its logits than config.json's {', '.join((*_SCALES, *_SOFTCAPS))} "
        "say, which is not supported."
    )
