"""What a role asks of its backend, and what is said of a backend that cannot do it. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from hpcrl.backends.backend import BACKENDS, Backend
from hpcrl.config.model import ModelConfig, PlacementConfig, models_of
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.placement.judges import model_of
from hpcrl.placement.layouts import Layout
from hpcrl.plugins import find

WITHOUT_MODEL = ("dp",)
"""The axes over which a role that has no model is split: each worker takes a part of the rows."""
WORDS = {"dp": "data", "tp": "tensor", "pp": "pipeline"}


def backend_of(role: str, model: ModelConfig) -> Backend:
    """Raises ConfigurationError where there is no such backend."""
    return find(BACKENDS, model.backend, f"{role}.backend")


def engines_of(experiment: Any) -> tuple[str, ...]:
    """The engine classes of all roles, as module:Class."""
    backends = [backend_of(role, model) for role, model in models_of(experiment).items()]
    return tuple(dict.fromkeys(backend.engine for backend in backends))


def shards(experiment: Any, role: str) -> bool:
    """Whether a role's backend gives each data-parallel rank a part of every parameter."""
    model = models_of(experiment).get(role)
    return model is not None and backend_of(role, model).shards


def axes_of(role: str, section: PlacementConfig, without_model: tuple[str, ...] = WITHOUT_MODEL) -> tuple[str, ...]:
    """The axes over which a role may be split; all of them where its backend is none, which is said elsewhere."""
    model = model_of(section)
    if model is None:
        return without_model
    try:
        return backend_of(role, model).axes
    except ConfigurationError:
        return tuple(WORDS)


def axes_problem(key: str, text: str | None, layout: Layout, axes: Sequence[str], whole: str = "") -> Problem | None:
    """What is wrong with a layout, which setting `key` has as `text`, for a role that is split over these axes; `whole`
    says why its model is not split."""
    sizes = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp}
    if all(axis in axes for axis, size in sizes.items() if size > 1):
        return None
    kinds = "- and ".join(WORDS[axis] for axis in axes)
    only = f"this version runs {kinds}-parallel layouts only"
    but = f"transformers loads it, whole on each: {whole}" if whole else only
    return Problem((key,), f"{key} = {text} splits a model over workers, but {but}.", f"Set {key} to d{layout.size}.")


def backend_problems(role: str, model: ModelConfig, calls: Sequence[MFC]) -> Iterator[Problem]:
    """What the role's backend cannot do of its calls, in its type."""
    key, dtype_key = f"{role}.backend", f"{role}.dtype"
    try:
        backend = backend_of(role, model)
    except ConfigurationError as error:
        yield from error.about(key)
        return
    if model.dtype not in backend.dtypes:
        yield Problem(
            (dtype_key, key),
            f"{dtype_key} = {model.dtype}, but {key} = {model.backend} computes in {', '.join(backend.dtypes)}.",
            f"Set {dtype_key} or {key}.",
        )
    for kind, able, verb in (("train_step", backend.train, "train"), ("generate", backend.generate, "generate")):
        wanted = [call.name for call in calls if call.role == role and call.kind == kind]
        if wanted and not able:
            yield Problem(
                (key,),
                f"{key} = {model.backend} cannot {verb}, but {', '.join(wanted)} has to.",
                f"Set {key} to one that can.",
            )
