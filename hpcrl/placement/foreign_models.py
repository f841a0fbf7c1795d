"""Roles whose model transformers computes: what they cannot have, said before anything is submitted. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from hpcrl.backends.backend import Backend
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.foreign import ForeignConfig, head_problem
from hpcrl.families.stacks import stacks_of
from hpcrl.placement.abilities import Chosen, able_backends, settings_of
from hpcrl.placement.buffers import unaligned

KIND = "transformers"
"""What `<role>.model` and a backend's declaration call such models."""


def foreign_problems(
    chosen: Iterable[Chosen], models: Mapping[str, DecoderConfig], heads: Mapping[str, HeadKind | None]
) -> Iterator[Problem]:
    """Heads that transformers has no class for; experts that no backend holds; backends that hold hpcrl's own models
    only."""
    said: set[str] = set()
    for under in chosen:
        model, path = models.get(under.role), f"{under.role}.path"
        if not isinstance(model, ForeignConfig):
            continue
        if under.role not in said and (problem := unheld(model, heads[under.role])):
            yield _of_model(under, problem)
        said.add(under.role)
        try:
            backend = under.backend()
        except ConfigurationError:
            continue
        if not _holds(backend):
            keys, why = settings_of(under.key, path), f"transformers computes {path}: {model.because}"
            own = f", or {under.role}.model to auto" if under.model.model == KIND else ""
            yield Problem(
                keys,
                f"{under.key} = {under.name} holds hpcrl's own models only, but {why}.",
                f"Set {under.key} to {able_backends(under.model, _holds)}{own}.",
            )


def _of_model(under: Chosen, problem: str) -> Problem:
    path, code = f"{under.role}.path", f"{under.role}.model"
    if under.model.model == KIND:
        text = f"{code} = {KIND}, but {path}: {problem}."
        return Problem((path, code), text, f"Set {code} to auto, or {path} to another model.")
    return Problem((path, code), f"{path}: {problem}.", f"Set {path} to another model.")


def _holds(backend: Backend) -> bool:
    return KIND in backend.model_kinds


def unheld(model: DecoderConfig, head: HeadKind | None) -> str:
    """Why a model cannot be had under a head by transformers' classes; empty where it can."""
    if not isinstance(model, ForeignConfig):
        return ""
    return head_problem(model, head) or next(filter(None, map(unaligned, stacks_of(model))), "")
