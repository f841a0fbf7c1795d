"""What a data-parallel worker needs of a model of which it has its part of every parameter, by who gathers them."""

from collections import Counter
from typing import NamedTuple

from hpcrl.config.model import Offload
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of
from hpcrl.families.stacks import stacks_of
from hpcrl.placement.own_parts import own_parts

ADDED_UP = 2**24
"""At most so many elements of gradients are added up at a time where they are so as they come."""


class CutBytes(NamedTuple):
    """As `Memory` has them; `working` comes on top of what a whole model takes."""

    parameters: float
    gradients: float
    optimizer: float
    offloaded: float
    drawing: float
    working: float


def _lasting(
    parameters: float, gradients: float, moments: float, masters: float, offload: Offload, gradients_go: bool
) -> tuple[float, float, float, float]:
    """What lasts of a model, in the order of `CutBytes`, of so many bytes of each; `masters` where they are no
    parameters. With the parameters, gradients may go, too."""
    if offload == "none":
        return parameters, gradients, moments + masters, 0.0
    if offload == "optimizer":
        return parameters, gradients, 0.0, 1.5 * moments  # Masters are there in any case.
    gone = parameters + moments + masters + gradients * gradients_go
    return 0.0, gradients * (not gradients_go), 0.0, gone


class _Sizes(NamedTuple):
    """Numbers of a model's parameters."""

    others: int
    """What is in no block."""
    block: int
    """Those of the largest."""
    all: int
    largest: int
    """Of a single tensor that modules compute with."""

    @classmethod
    def of(cls, model: DecoderConfig) -> "_Sizes":
        sizes: Counter[int] = Counter()
        for parameter in parameters_of(model):
            sizes[parameter.layer if 1 <= parameter.layer <= model.blocks else 0] += parameter.numel
        block = max(sizes[layer] for layer in range(1, model.blocks + 1))
        return cls(sizes[0], block, sizes.total(), max(stack.numel for stack in stacks_of(model)))


def cut_by_rows(
    model: DecoderConfig, dp: int, size: int, state: int, *, trained: bool, changes: bool, offload: Offload, each: bool
) -> CutBytes:
    """Where FSDP2 gathers.

    In a pass a worker has all that is no block, and one block, which it has twice, beside its own rows of it, while it
    is gathered; in generation all blocks. In training it has gradients of all parameters, until the last backward pass,
    and those of a block while they are added up; where that is done after each micro-batch, those of what is no block
    and of two blocks, and its own rows twice. What changes is kept in at least fp32, and needs no masters beside it.
    Where parameters are in the host's memory, gradients are, too; own rows arrive in the type in which they are kept.
    """
    of = _Sizes.of(model)
    # Of few experts the first rank may have far more than its share.
    experts = [it for it in own_parts(model, dp, 0, "rows").stacks if it.stack.holds_experts]
    own = of.all / dp + sum(it.room - it.stack.numel / dp for it in experts)
    whole = of.others + 2 * of.block + own if each else of.all
    gathering = (1 + 1 / dp) * max(of.others, of.block)
    kept = state if changes else size
    arriving = max(of.others, of.block) / dp * kept * (offload == "parameters" and kept > size)
    return CutBytes(
        *_lasting(own * kept, trained * own * state, 2 * trained * own * state, 0.0, offload, gradients_go=True),
        drawing=(of.all + of.block) * size,
        working=(of.others + of.block + gathering) * size + trained * (whole + of.block) * state + arriving,
    )


def cut_by_elements(
    model: DecoderConfig, dp: int, size: int, state: int, *, trained: bool, changes: bool, offload: Offload
) -> CutBytes:
    """Where DeepSpeed's ZeRO 3 gathers.

    In a pass a worker has all that is no block, and one block, which it has twice while it is gathered, and with its
    gradient in the backward pass; in generation all blocks. In training it has room for as many gradients as are added
    up at a time, and they are there three times meanwhile; a parameter that has more goes by itself. Parameters are in
    `dtype`, with masters beside them. From the host's memory its part of a block comes to the device first.
    """
    of = _Sizes.of(model)
    wide = state * (size < state)
    some = min(ADDED_UP, of.all) * state
    alone = of.largest * (size + wide + state) if of.largest > ADDED_UP else 0
    own = of.all / dp
    kept = own * size, trained * own * state, 2 * trained * own * state, changes * own * wide
    arriving = max(of.others, of.block) / dp * size * (offload == "parameters")
    return CutBytes(
        *_lasting(*kept, offload, gradients_go=False),
        drawing=of.all * size,
        working=(of.others + 2 * of.block) * size + trained * (some + max(2 * some, alone)) + arriving,
    )
