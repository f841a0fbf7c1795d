"""Roles whose model transformers computes: what they cannot have, said before anything is submitted. Pure."""

from collections.abc import Iterator, Mapping

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import models_of
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.foreign import ForeignConfig, head_problem
from hpcrl.placement.abilities import able_backends, backend_of

KIND = "transformers"
"""What `<role>.model` and a backend's declaration call such models."""


def foreign_problems(
    experiment: ExperimentConfig, models: Mapping[str, DecoderConfig], heads: Mapping[str, HeadKind | None]
) -> Iterator[Problem]:
    """Heads that transformers has no class for; backends that hold hpcrl's own models only."""
    for role, config in models_of(experiment).items():
        model, path, backend_key = models.get(role), f"{role}.path", f"{role}.backend"
        if not isinstance(model, ForeignConfig):
            continue
        if problem := headless(model, heads[role]):
            yield Problem((path, f"{role}.model"), f"{path}: {problem}.", f"Set {path} to another model.")
        try:
            kinds = backend_of(role, config).model_kinds
        except ConfigurationError:
            continue
        if KIND not in kinds:
            others = able_backends(config, lambda backend: KIND in backend.model_kinds)
            yield Problem(
                (backend_key, path),
                f"{backend_key} = {config.backend} holds hpcrl's own models only, but transformers computes {path}: "
                f"{model.because}.",
                f"Set {backend_key} to {others}.",
            )


def headless(model: DecoderConfig, head: HeadKind | None) -> str:
    """Why a model cannot be had under a head by transformers' classes; empty where it can."""
    return head_problem(model, head) if isinstance(model, ForeignConfig) else ""
