"""The spaces in which a model's parameters have names and shapes: hpcrl's own, and Hugging Face's, which transformers
computes in. A parameter of one is a permutation of elements of the other's. Arithmetic of names, and numpy."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Literal

import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter, Piece
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import family_of, parameters_of
from hpcrl.families.stored import shapes
from hpcrl.families.tensors import parameter_of, tensor_of

Space = Literal["own", "huggingface"]
KINDS: Mapping[Space, Literal["own", "transformers"]] = {"own": "own", "huggingface": "transformers"}
"""Whose code computes in a space, as `<role>.model` has it."""


def space_of(config: DecoderConfig) -> Space:
    """That of a model's parameters."""
    return "huggingface" if isinstance(config, ForeignConfig) else "own"


def strange_tensor(one: DecoderConfig, other: DecoderConfig) -> str:
    """A tensor that a model has in one space and not in the other, so that its parameters cannot change it; "" if there
    is none."""
    own, theirs = shapes(one), shapes(other)
    return next((name for name in {**own, **theirs} if own.get(name) != theirs.get(name)), "")


class Translation:
    """From one space to the other, of one model that is the same in both. Keeps every bit of every element.

    Knows nothing of files: who asks for a parameter brings what reads those of the other space.
    """

    def __init__(self, source: DecoderConfig, target: DecoderConfig) -> None:
        assert {space_of(source), space_of(target)} == set(KINDS) and not strange_tensor(source, target)
        self.source, self.target = source, target
        self._own = target if space_of(target) == "own" else source

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """Name in the source → name in the target, of parameters that differ in nothing else."""
        alike = {piece.name: whole.name for whole, piece in self._pieces if len(self._made_of[whole.name]) == 1}
        alike = {tensor: own for tensor, own in alike.items() if _is_plain(self._made_of[own][0])}
        return alike if self._own is self.target else {own: tensor for tensor, own in alike.items()}

    @cached_property
    def made(self) -> tuple[Parameter, ...]:
        """All others of the target, in an order in which those of the source follow one another."""
        found = {parameter.name: parameter for parameter in parameters_of(self.target)}
        named = [whole.name if self._own is self.target else piece.name for whole, piece in self._pieces]
        renamed = set(self.renamed.values())
        return tuple(found[name] for name in dict.fromkeys(named) if name not in renamed)

    def make(self, parameter: Parameter, read: Callable[[Parameter], np.ndarray]) -> np.ndarray:
        """A parameter of the target in its shape; `read` gives those of the source, in theirs."""
        if self._own is self.target:
            return parameter_of(self._own, parameter, lambda name: read(self._of_source[name]))
        whole = self._of_tensor[parameter.name]
        return tensor_of(self._own, whole, read(whole), parameter.name)

    @cached_property
    def _pieces(self) -> list[tuple[Parameter, Piece]]:
        pieces = family_of(self._own).pieces
        return [(whole, piece) for whole in parameters_of(self._own) for piece in pieces(self._own, whole)]

    @cached_property
    def _made_of(self) -> Mapping[str, list[Piece]]:
        found: dict[str, list[Piece]] = {}
        for whole, piece in self._pieces:
            found.setdefault(whole.name, []).append(piece)
        return found

    @cached_property
    def _of_tensor(self) -> Mapping[str, Parameter]:
        return {piece.name: whole for whole, piece in self._pieces}

    @cached_property
    def _of_source(self) -> Mapping[str, Parameter]:
        return {parameter.name: parameter for parameter in parameters_of(self.source)}


def _is_plain(piece: Piece) -> bool:
    """Whether a tensor lies in its file as the parameter does that it is."""
    return not (piece.paired or piece.transposed) and piece.matrix is None
