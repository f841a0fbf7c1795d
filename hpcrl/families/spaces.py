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

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """Name in the source → name in the target, of parameters that differ in nothing else."""
        ours = {parameter.name: pieces for parameter, pieces in _pieces(self.target)}
        found = {}
        for parameter, pieces in _pieces(self.source):
            name = self._targets[pieces[0].name].name
            if len(pieces) == 1 and pieces == ours[name]:
                found[parameter.name] = name
        return found

    @cached_property
    def made(self) -> tuple[Parameter, ...]:
        """All others of the target, in an order in which those that are made of one follow one another."""
        renamed = set(self.renamed.values())
        found = (self._targets[piece.name] for _, pieces in _pieces(self.source) for piece in pieces)
        return tuple(dict.fromkeys(parameter for parameter in found if parameter.name not in renamed))

    def make(self, parameter: Parameter, read: Callable[[Parameter], np.ndarray]) -> np.ndarray:
        """A parameter of the target in its shape; `read` gives those of the source, in theirs."""

        def tensor(name: str) -> np.ndarray:
            holder = self._sources[name]
            return tensor_of(self.source, holder, read(holder), name)

        return parameter_of(self.target, parameter, tensor)

    @cached_property
    def _sources(self) -> Mapping[str, Parameter]:
        return _by_tensor(self.source)

    @cached_property
    def _targets(self) -> Mapping[str, Parameter]:
        return _by_tensor(self.target)


def _pieces(config: DecoderConfig) -> list[tuple[Parameter, tuple[Piece, ...]]]:
    pieces = family_of(config).pieces
    return [(parameter, pieces(config, parameter)) for parameter in parameters_of(config)]


def _by_tensor(config: DecoderConfig) -> Mapping[str, Parameter]:
    """Which parameter has a tensor."""
    return {piece.name: parameter for parameter, pieces in _pieces(config) for piece in pieces}
