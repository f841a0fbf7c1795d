"""The spaces in which a model's parameters have names and shapes: hpcrl's own, and Hugging Face's, which transformers
computes in. A parameter of one is a permutation of elements of the other's. Arithmetic of names, and numpy."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Literal

import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import family_of, parameters_of
from hpcrl.families.stored import shapes
from hpcrl.families.tensors import PlacedPiece, fused, placed

Space = Literal["own", "huggingface"]
KINDS: Mapping[Space, Literal["own", "transformers"]] = {"own": "own", "huggingface": "transformers"}
"""Whose code computes in a space, as `<role>.model` has it."""


def space_of(config: DecoderConfig) -> Space:
    """That of a model's parameters."""
    return "huggingface" if isinstance(config, ForeignConfig) else "own"


def strange_tensor(one: DecoderConfig, other: DecoderConfig) -> str:
    """A tensor of files that a model consists of in one space and not in the other, so that its parameters cannot go
    there; "" if there is none."""
    own, theirs = shapes(one), shapes(other)
    return next((name for name in {**own, **theirs} if own.get(name) != theirs.get(name)), "")


class Translation:
    """From one space to the other, of one model, by the tensors that both make its parameters of. Keeps every bit.

    Knows nothing of shards: who asks for a parameter brings what reads those of the other space.
    """

    def __init__(self, source: DecoderConfig, target: DecoderConfig) -> None:
        assert space_of(source) != space_of(target) and not strange_tensor(source, target), (source, target)
        self.source, self.target = source, target
        self._given, self._made = _placed(source), _placed(target)
        self._places = {it.piece.name: (whole, it) for whole, pieces in self._given.items() for it in pieces}
        """Tensor → the parameter of the source that has it, and where."""

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """Name in the source → name in the target, of parameters that differ in nothing else."""
        given = {pieces[0].piece: whole for whole, pieces in self._given.items() if len(pieces) == 1}
        made = {pieces[0].piece: whole for whole, pieces in self._made.items() if len(pieces) == 1}
        return {given[piece].name: whole.name for piece, whole in made.items() if piece in given}

    @cached_property
    def made(self) -> tuple[Parameter, ...]:
        """All others of the target, in an order in which those that are made of one follow one another."""
        holders = {it.piece.name: whole for whole, pieces in self._made.items() for it in pieces}
        found = dict.fromkeys(holders[tensor] for tensor in self._places)
        renamed = set(self.renamed.values())
        return tuple(parameter for parameter in found if parameter.name not in renamed)

    def make(self, parameter: Parameter, read: Callable[[Parameter], np.ndarray]) -> np.ndarray:
        """A parameter of the target in its shape; `read` gives those of the source, in theirs."""

        def tensor(name: str) -> np.ndarray:
            whole, placed_there = self._places[name]
            return placed_there.stored(read(whole), self.source.head_dim)

        return fused(parameter, self._made[parameter], self.target.head_dim, tensor)


def _placed(config: DecoderConfig) -> dict[Parameter, list[PlacedPiece]]:
    """Those of each parameter."""
    pieces = family_of(config).pieces
    return {parameter: list(placed(pieces(config, parameter))) for parameter in parameters_of(config)}
