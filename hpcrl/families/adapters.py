"""Low-rank adapters of a model's linear layers (LoRA, arXiv 2106.09685): which there are, as parameters and in files.

A matrix W [in, out] is used as W + alpha/rank · A · B, A [in, rank], B [rank, out]. A layer of Hugging Face's has a
pair of its own, also where its matrix is fused with others here. Names of layers, of tensors and of fields are PEFT's.
A model that transformers computes has them beside its linear modules, which are known by their names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcrl.config.model import LoraConfig
from hpcrl.families.config import Adapters, DecoderConfig
from hpcrl.families.family import Family, Parameter, Piece, TPBlock
from hpcrl.families.foreign import EXPERT, ForeignConfig, foreign_family
from hpcrl.families.library import LibraryModel

PREFIX = "base_model.model."
"""What begins all names in a file of PEFT's."""
DOWN, UP = "lora_A", "lora_B"
_WEIGHT = ".weight"
_OF_EXPERTS = ("gate_proj", "up_proj", "down_proj", "gate", "w1", "w2", "w3")
"""What PEFT takes for experts, which have no adapters, and for what picks them, in any model that has some."""


def with_adapters(config: DecoderConfig, lora: LoraConfig) -> DecoderConfig:
    """A model with the adapters that its role asks for."""
    assert lora.rank is not None
    return replace(config, adapters=Adapters(lora.rank, lora.alpha, lora.targets))


@dataclass(frozen=True)
class Target:
    """A linear layer of Hugging Face's: some columns of a matrix of ours."""

    matrix: Parameter
    module: str
    """Its path at Hugging Face."""
    inputs: int
    outputs: int
    paired: bool
    transposed: bool
    """Whether its tensor is [out, in]."""
    before: tuple[TPBlock, ...] = ()
    """What of the matrix lies before it, as tensor-parallel ranks cut it."""
    blocks: tuple[TPBlock, ...] = ()
    """The layer itself, so cut; nothing where its columns are not cut."""
    turned: bool = False
    """Whether the matrix is [out, in] here, too."""

    @property
    def name(self) -> str:
        """As PEFT's target_modules have it."""
        return self.module.rpartition(".")[2]

    def called(self, name: str) -> bool:
        """Whether it is meant by an entry of target_modules."""
        return self.module == name or self.module.endswith(f".{name}")

    @property
    def names(self) -> tuple[str, str]:
        """Those of A and B."""
        return f"{self.matrix.name}.{self.name}.{DOWN}", f"{self.matrix.name}.{self.name}.{UP}"

    def begin(self, tp: int) -> int:
        """Its first column in what a tensor-parallel rank has of the matrix."""
        return sum(block.width(tp) for block in self.before)

    def parameters(self, rank: int) -> tuple[Parameter, Parameter]:
        """A and B. Where W is cut along its inputs so is A, where along its outputs so is B; else all have them whole,
        and each rank a part of their gradients."""
        (down, up), layer = self.names, self.matrix.layer
        rows = (0, self.matrix.tp_blocks) if self.matrix.tp_dim == 0 else (None, ())
        columns = (1, self.blocks) if self.matrix.tp_dim == 1 else (None, ())
        return (
            Parameter(down, layer, (self.inputs, rank), *rows),
            Parameter(up, layer, (rank, self.outputs), *columns),
        )

    def pieces(self, rank: int) -> tuple[Piece, Piece]:
        """Those of A and B in PEFT's file."""
        path = PREFIX + self.module
        return (
            Piece(f"{path}.{DOWN}{_WEIGHT}", rank, transposed=True),
            Piece(f"{path}.{UP}{_WEIGHT}", self.outputs, self.paired, transposed=True),
        )


def targets_of(config: DecoderConfig, family: Family) -> tuple[Target, ...]:
    """All layers of a model (without adapters, of this family) that could have one: the linear ones of its blocks; in a
    model with experts, those of attention."""
    found = tuple(_targets(config, family))
    if config.experts is None and not (isinstance(config, ForeignConfig) and config.stacked):
        return found
    return tuple(target for target in found if target.name not in _OF_EXPERTS)


def unsupported(config: DecoderConfig) -> str:
    """Why a model can have no adapters; empty where it can."""
    if not isinstance(config, ForeignConfig) or targets_of(config, foreign_family(config)):
        return ""
    return "transformers computes no linear layers in it"


def adapted_targets(config: DecoderConfig, family: Family) -> tuple[Target, ...]:
    """The layers of a model that have adapters; `family` is that of the model without."""
    assert config.adapters is not None
    found, wanted = targets_of(config.base, family), config.adapters.targets
    return tuple(target for target in found if not wanted or any(map(target.called, wanted)))


def rows_not_kept(config: DecoderConfig, family: Family, layers: range, tp: int = 1) -> int:
    """How many numbers of a token a rank of `tp` gives matrices without adapters, which keep them for no backward pass.
    Attention keeps what it gives; of a model that transformers computes it is not known, and none."""
    if isinstance(config, ForeignConfig):
        return 0
    adapted = {target.matrix.name for target in adapted_targets(config, family)}
    matrices = (it for it in family.parameters(config.base) if it.layer in layers and len(it.shape) == 2)
    named = (it for it in matrices if 1 <= it.layer <= config.blocks and not it.name.endswith(".output"))
    return sum(it.cut(tp).shape[0] for it in named if it.name not in adapted)


def adapter_family(config: DecoderConfig, family: Family) -> Family:
    """What is trained of a model with adapters, declared as a model is: they themselves, and a head for values or
    rewards, which begins random. `family` is that of the model without."""
    assert config.adapters is not None
    rank, targets = config.adapters.rank, adapted_targets(config, family)
    heads = tuple(it for it in family.parameters(config.base) if _is_head(config, it))
    made: dict[str, tuple[Piece, ...]] = {
        parameter.name: (piece,)
        for target in targets
        for parameter, piece in zip(target.parameters(rank), target.pieces(rank), strict=True)
    }
    for head in heads:
        made[head.name] = tuple(replace(it, name=PREFIX + it.name) for it in family.pieces(config.base, head))

    def parameters(_: DecoderConfig) -> Iterator[Parameter]:
        for target in targets:
            yield from target.parameters(rank)
        yield from heads

    return replace(family, parameters=parameters, pieces=lambda _, parameter: made[parameter.name], prefix="")


def head_modules(config: DecoderConfig, family: Family) -> tuple[str, ...]:
    """The modules at Hugging Face that are trained whole: a head for values or rewards."""
    heads = (it for it in family.parameters(config.base) if _is_head(config, it))
    pieces = (piece.name for head in heads for piece in family.pieces(config.base, head))
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in pieces))


def _is_head(config: DecoderConfig, parameter: Parameter) -> bool:
    """Whether a parameter is of a head that gives a number."""
    if config.head == "vocabulary" or parameter.layer != config.blocks + 1:
        return False
    if isinstance(config, ForeignConfig):
        return parameter.name.startswith(f"{config.library.head}.")
    return parameter.name.rpartition(".")[2] in ("head", "head_bias")


def _targets(config: DecoderConfig, family: Family) -> Iterator[Target]:
    for parameter in family.parameters(config):
        if len(parameter.shape) != 2 or not 1 <= parameter.layer <= config.blocks:
            continue
        if isinstance(config, ForeignConfig):
            yield from _foreign(parameter, config.library)
        else:
            yield from _fused(parameter, family.pieces(config, parameter))


def _foreign(matrix: Parameter, library: LibraryModel) -> Iterator[Target]:
    """The layer whose matrix it is, if it is that of a linear module of transformers'; experts' are none."""
    module = matrix.name.removesuffix(_WEIGHT)
    as_made = library.linear.get(module.rpartition(".")[2])
    if as_made is None or module == matrix.name or EXPERT.search(matrix.name):
        return
    inputs, outputs = matrix.shape if as_made else matrix.shape[::-1]
    yield Target(matrix, module, inputs, outputs, paired=False, transposed=not as_made, turned=not as_made)


def _fused(matrix: Parameter, pieces: Sequence[Piece]) -> Iterator[Target]:
    """The layers that a matrix is fused of."""
    inputs, width = matrix.shape
    cut = list(matrix.tp_blocks) if matrix.tp_dim == 1 else [TPBlock(width)]
    before: tuple[TPBlock, ...] = ()
    for piece in pieces:
        outputs, blocks = piece.rows if piece.transposed else width, list[TPBlock]()
        while cut and matrix.tp_dim == 1 and sum(block.numel for block in blocks) < outputs:
            blocks.append(cut.pop(0))
        yield Target(
            matrix,
            piece.name.removesuffix(_WEIGHT),
            inputs,
            outputs,
            piece.paired,
            piece.transposed,
            before,
            tuple(blocks),
        )
        before = (*before, *blocks)


def layers_by_matrix(targets: Sequence[Target]) -> Mapping[str, tuple[Target, ...]]:
    """Name of a matrix → its layers that have adapters."""
    names = dict.fromkeys(target.matrix.name for target in targets)
    return {name: tuple(target for target in targets if target.matrix.name == name) for name in names}
