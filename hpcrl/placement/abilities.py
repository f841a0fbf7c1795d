"""What a role asks of its backend, and what is said of a backend that cannot do it. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcrl.backends.backend import BACKENDS, Backend
from hpcrl.backends.packages import package_problems
from hpcrl.config.model import ModelConfig, PlacementConfig, models_of
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.config import DecoderConfig
from hpcrl.placement.judges import model_of
from hpcrl.placement.layouts import Layout
from hpcrl.plugins import find, names

WITHOUT_MODEL = ("dp",)
"""The axes over which a role that has no model is split: each worker takes a part of the rows."""
AXES = ("dp", "tp", "pp")
ANY_DEVICE = "auto"
"""The `cluster.device` of which nobody knows yet what it will be."""


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
        return AXES


def axes_problem(key: str, text: str | None, layout: Layout, axes: Sequence[str], but: str = "") -> Problem | None:
    """What is wrong with a layout, which setting `key` has as `text`, for a role that is split over these axes; `but`
    says who splits it over no others."""
    beyond = [axis for axis, size in _sizes(layout).items() if size > 1 and axis not in axes]
    if not beyond:
        return None
    return Problem(
        (key,),
        f"{key} = {text} splits a model over workers by {' and '.join(beyond)}, but "
        f"{but or f'it is split over {_in_words(axes)} only'}.",
        f"Set {key} to d{layout.size}.",
    )


def backend_axes_problem(
    role: str,
    model: ModelConfig,
    key: str,
    text: str | None,
    layout: Layout,
    axes: Sequence[str],
    device: str = ANY_DEVICE,
) -> Problem | None:
    """The same of a role whose backend splits it over these axes, with the backends that split it so."""
    backend_key = f"{role}.backend"
    but = f"{backend_key} = {model.backend} splits over {_in_words(axes)} only"
    problem = axes_problem(key, text, layout, axes, but)
    if problem is None:
        return None
    needed = {axis for axis, size in _sizes(layout).items() if size > 1}
    others = able_backends(model, lambda backend: needed <= set(backend.axes), device)
    return Problem((key, backend_key), problem.text, f"Set {key} to d{layout.size}, or {backend_key} to {others}.")


def able_backends(model: ModelConfig, able: Callable[[Backend], bool], device: str = ANY_DEVICE) -> str:
    """hpcrl's own that can do something in the type of a model, on such a device, in words."""
    found = ((name, find(BACKENDS, name, "<role>.backend")) for name in names(BACKENDS))
    fitting = [
        name
        for name, backend in found
        if model.dtype in backend.dtypes and device in (ANY_DEVICE, *backend.devices) and able(backend)
    ]
    return " or ".join(part for part in (", ".join(fitting[:-1]), *fitting[-1:]) if part)


def built_problems(role: str, model: ModelConfig, built: DecoderConfig, device: str) -> Iterator[Problem]:
    """What of a role's model its backend does not compute."""
    try:
        backend = backend_of(role, model)
    except ConfigurationError:  # said elsewhere
        return
    if lacks := _lacks(backend, built):
        key, path = f"{role}.backend", f"{role}.path"
        others = able_backends(model, lambda other: not _lacks(other, built), device)
        yield Problem(
            (key, path),
            f"{path} has a model with {_fields(lacks, vars(built))}, but {key} = {model.backend} computes "
            f"{_fields(lacks, backend.models)}.",
            f"Set {key} to {others}.",
        )


def _lacks(backend: Backend, built: DecoderConfig) -> list[str]:
    """What a model is and should not be, by fields of its configuration."""
    return [name for name, value in backend.models.items() if getattr(built, name) != value]


def _fields(names_: Sequence[str], values: Mapping[str, Any]) -> str:
    """Each with its value, if that is a word or a number."""
    plain = (str, bool, int, float, type(None))
    return ", ".join(f"{name} = {values[name]}" if isinstance(values[name], plain) else name for name in names_)


def backend_problems(
    role: str, model: ModelConfig, calls: Sequence[MFC], device: str = ANY_DEVICE
) -> Iterator[Problem]:
    """What the role's backend cannot do of its calls, in its type, on such a device; what is not installed for it."""
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
    if device not in (ANY_DEVICE, *backend.devices):
        yield Problem(
            (key, "cluster.device"),
            f"{key} = {model.backend} computes on {', '.join(backend.devices)} only, but cluster.device = {device}.",
            f"Set {key} to {able_backends(model, lambda other: True, device)}.",
        )
    for wrong, advice in package_problems(backend.packages):
        yield Problem((key,), f"{key} = {model.backend}, but {wrong}.", f"{advice}; or set {key}.")
    kinds: tuple[tuple[str, str, Callable[[Backend], bool]], ...] = (
        ("train_step", "train", lambda it: it.train),
        ("generate", "generate", lambda it: it.generate),
    )
    for kind, verb, able in kinds:
        wanted = [call.name for call in calls if call.role == role and call.kind == kind]
        if wanted and not able(backend):
            yield Problem(
                (key,),
                f"{key} = {model.backend} cannot {verb}, but {', '.join(wanted)} has to.",
                f"Set {key} to {able_backends(model, able, device)}.",
            )


def _sizes(layout: Layout) -> dict[str, int]:
    return dict(zip(AXES, (layout.dp, layout.tp, layout.pp), strict=True))


def _in_words(axes: Sequence[str]) -> str:
    return " and ".join(axes)
