"""What a role asks of its backend, and what is said of a backend that cannot do it. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from hpcrl.backends.backend import BACKENDS, Backend, CutBy, Server
from hpcrl.backends.packages import package_problems
from hpcrl.config.experiment import calls_of
from hpcrl.config.model import ModelConfig, PlacementConfig, TrainedModelConfig, lora_of, models_of, offload_of
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


class Chosen(NamedTuple):
    """A role's model under a backend: that of its home, or of a call that is made elsewhere."""

    role: str
    model: ModelConfig
    key: str
    """What chooses the backend: `<role>.backend`, `calls.<call>.backend`."""

    @classmethod
    def at_home(cls, role: str, model: ModelConfig) -> "Chosen":
        return cls(role, model, f"{role}.backend")

    @classmethod
    def in_call(cls, call: str, role: str, model: ModelConfig, backend: str) -> "Chosen":
        return cls(role, replace(model, backend=backend), f"calls.{call}.backend")

    @property
    def name(self) -> str:
        return self.model.backend

    def backend(self) -> Backend:
        """Raises ConfigurationError where there is no such backend."""
        return find(BACKENDS, self.name, self.key, _holds_roles)


def all_chosen(experiment: Any, calls: Sequence[MFC]) -> Iterator[Chosen]:
    """Of all homes of models, then of the calls that have a backend of their own. Raises msgspec.ValidationError where
    `calls` has not its form."""
    models, roles = models_of(experiment), {call.name: call.role for call in calls}
    yield from (Chosen.at_home(role, model) for role, model in models.items())
    for name, entry in calls_of(experiment).items():
        if entry.backend is not None and (role := roles.get(name)) in models:
            yield Chosen.in_call(name, role, models[role], entry.backend)


def engines_of(experiment: Any) -> tuple[str, ...]:
    """The engine classes of all roles and calls, as module:Class."""
    names_ = [model.backend for model in models_of(experiment).values()]
    names_ += [entry.backend for entry in calls_of(experiment).values() if entry.backend is not None]
    return tuple(dict.fromkeys(backend_of(name).engine for name in names_))


def packages_of(backends: Iterable[str]) -> list[str]:
    """What has to be installed for these; an empty name is no backend."""
    found = {name: backend_of(name) for name in backends if name}
    return sorted({package.name for backend in found.values() for package in backend.packages})


def backend_of(name: str) -> Backend:
    """Raises ConfigurationError where there is no such backend."""
    return find(BACKENDS, name, "<role>.backend", _holds_roles)


def _holds_roles(name: str) -> bool:
    """Whether a backend of hpcrl's own holds roles, rather than copies that make responses alone."""
    return find(BACKENDS, name, "<role>.backend").server is None


def cut_by(backend: str) -> CutBy | Literal[""]:
    """What of every parameter a backend gives each data-parallel rank a part of; empty where it gives all."""
    return backend_of(backend).shards


def server_of(backend: str) -> Server | None:
    """What makes responses for a backend, where that is no worker; an empty name is no backend."""
    return backend_of(backend).server if backend else None


def unrepeated(backend: str, device: str) -> str:
    """What is not deterministic of a backend on such a device, by its own word; "" where it promises bits."""
    return f"backend {backend}" if device in backend_of(backend).inexact_on else ""


def axes_of(role: str, section: PlacementConfig, without_model: tuple[str, ...] = WITHOUT_MODEL) -> tuple[str, ...]:
    """The axes over which a role may be split at home; all where its backend is none, which is said elsewhere."""
    model = model_of(section)
    return without_model if model is None else axes_under(Chosen.at_home(role, model))


def axes_under(chosen: Chosen) -> tuple[str, ...]:
    """Those over which a model may be split under a backend."""
    try:
        return chosen.backend().axes
    except ConfigurationError:
        return AXES


def settings_of(*keys: str) -> tuple[str, ...]:
    """The settings that keys of messages are in: `calls` is one, whatever is in it."""
    return tuple("calls" if key.startswith("calls.") else key for key in keys)


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
    chosen: Chosen, key: str, text: str | None, layout: Layout, device: str = ANY_DEVICE
) -> Problem | None:
    """The same of a model under a backend, with the backends that split it so."""
    axes, backend_key = axes_under(chosen), chosen.key
    but = f"{backend_key} = {chosen.name} splits over {_in_words(axes)} only"
    problem = axes_problem(key, text, layout, axes, but)
    if problem is None:
        return None
    needed = {axis for axis, size in _sizes(layout).items() if size > 1}
    others = able_backends(chosen.model, lambda backend: needed <= set(backend.axes), device)
    return Problem(
        settings_of(key, backend_key), problem.text, f"Set {key} to d{layout.size}, or {backend_key} to {others}."
    )


def able_backends(model: ModelConfig, able: Callable[[Backend], bool], device: str = ANY_DEVICE) -> str:
    """hpcrl's own that can hold a role and do something in the type of its model, on such a device, in words."""
    found = ((name, backend_of(name)) for name in names(BACKENDS))
    fitting = [
        name
        for name, backend in found
        if backend.server is None
        and model.dtype in backend.dtypes
        and device in (ANY_DEVICE, *backend.devices)
        and able(backend)
    ]
    return " or ".join(part for part in (", ".join(fitting[:-1]), *fitting[-1:]) if part)


def built_problems(chosen: Chosen, built: DecoderConfig, device: str) -> Iterator[Problem]:
    """What of a role's model a backend does not compute."""
    try:
        backend = chosen.backend()
    except ConfigurationError:  # said elsewhere
        return
    if lacks := _lacks(backend, built):
        key, path = chosen.key, f"{chosen.role}.path"
        others = able_backends(chosen.model, lambda other: not _lacks(other, built), device)
        yield Problem(
            settings_of(key, path),
            f"{path} has a model with {_fields(lacks, vars(built))}, but {key} = {chosen.name} computes "
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


def _home_problem(chosen: Chosen, calls: Sequence[MFC], device: str) -> Problem:
    """Of a role that is to be at home where copies alone are."""
    key, name = chosen.key, chosen.name
    makes = [f", and calls.{call.name}.backend to {name}" for call in calls if call.kind == "generate"][:1]
    return Problem(
        (key,),
        f"{key} = {name} makes responses for a call with a copy of a model, and cannot hold a role.",
        f"Set {key} to {able_backends(chosen.model, lambda _: True, device)}{''.join(makes)}.",
    )


def backend_problems(chosen: Chosen, calls: Sequence[MFC], device: str = ANY_DEVICE) -> Iterator[Problem]:
    """What a backend cannot do of calls that are to be made under it, in the role's type, on such a device; what is not
    installed for it."""
    for problem in _backend_problems(chosen, calls, device):
        yield replace(problem, keys=settings_of(*problem.keys))


def device_problems(chosen: Chosen, device: str, said: str) -> Iterator[Problem]:
    """Where the backend does not compute on a device; `said` is what has chosen this one."""
    backend, key = chosen.backend(), chosen.key
    if device not in (ANY_DEVICE, *backend.devices):
        yield Problem(
            (key, "cluster.device"),
            f"{key} = {chosen.name} computes on {', '.join(backend.devices)} only, but {said}.",
            f"Set {key} to {able_backends(chosen.model, lambda other: True, device)}.",
        )


def _backend_problems(chosen: Chosen, calls: Sequence[MFC], device: str) -> Iterator[Problem]:
    (role, model, key), dtype_key = chosen, f"{chosen.role}.dtype"
    try:
        backend = chosen.backend()
    except ConfigurationError as error:
        yield from error.about(key)
        return
    if backend.server is not None and key == f"{role}.backend":
        yield _home_problem(chosen, calls, device)
        return
    if model.dtype not in backend.dtypes:
        yield Problem(
            (dtype_key, key),
            f"{dtype_key} = {model.dtype}, but {key} = {model.backend} computes in {', '.join(backend.dtypes)}.",
            f"Set {dtype_key} or {key}.",
        )
    yield from _reduce_problems(chosen, backend, device)
    if key == f"{role}.backend" and (lora := lora_of(model)) is not None and not backend.lora:
        rank_key = f"{role}.lora.rank"
        yield Problem(
            (rank_key, key),
            f"{rank_key} = {lora.rank} trains adapters, which {key} = {model.backend} cannot.",
            f"Set {key} to {able_backends(model, lambda other: other.lora, device)}, or leave out {role}.lora.",
        )
    yield from _offload_problems(chosen, backend, device)
    yield from device_problems(chosen, device, f"cluster.device = {device}")
    for wrong, advice in package_problems(backend.packages):
        yield Problem((key,), f"{key} = {model.backend}, but {wrong}.", f"{advice}; or set {key}.")
    kinds: tuple[tuple[str, str, Callable[[Backend], bool]], ...] = (
        ("train_step", "train", lambda it: it.train),
        ("generate", "generate", lambda it: bool(it.generate)),
        ("inference", "predict", lambda it: it.predict),
        ("evaluate", "predict", lambda it: it.predict),
    )
    for kind, verb, able in kinds:
        wanted = [call.name for call in calls if call.kind == kind]
        if wanted and not able(backend):
            others = able_backends(model, able, device)
            elsewhere = f", or calls.{wanted[0]}.backend" if kind == "generate" and key == f"{role}.backend" else ""
            yield Problem(
                (key,),
                f"{key} = {model.backend} cannot {verb}, but {', '.join(wanted)} has to.",
                f"Set {key} to {others}{elsewhere}.",
            )


def _reduce_problems(chosen: Chosen, backend: Backend, device: str) -> Iterator[Problem]:
    """Gradients that are to be added up after each micro-batch under a backend that does it in its own way."""

    def chooses(other: Backend) -> bool:
        return bool(other.shards) and not other.adds_up

    role, model, key = chosen
    if key != f"{role}.backend" or not isinstance(model, TrainedModelConfig) or model.reduce == "update":
        return
    reduce_key = f"{role}.reduce"
    if (lora := lora_of(model)) is not None:
        yield Problem(
            (reduce_key, f"{role}.lora.rank"),
            f"{reduce_key} = {model.reduce}, but {role}.lora.rank = {lora.rank} has gradients of adapters alone, which "
            "are small and are added up once an update.",
            f"Leave out {reduce_key} or {role}.lora.",
        )
    elif not chooses(backend):
        yield Problem(
            (reduce_key, key),
            f"{reduce_key} = {model.reduce}, but {key} = {model.backend} does not let you choose when gradients are "
            "added up.",
            f"Leave out {reduce_key}, or set {key} to {able_backends(model, chooses, device)}.",
        )


def _offload_problems(chosen: Chosen, backend: Backend, device: str) -> Iterator[Problem]:
    """What is to be in the host's memory where the backend keeps it on the device, or is there and is to go there."""
    role, model, key = chosen
    if key != f"{role}.backend" or (what := offload_of(model)) == "none":
        return
    offload_key = f"{role}.offload"
    if (lora := lora_of(model)) is not None:
        lora_key, rank_key = f"{role}.lora", f"{role}.lora.rank"
        adapters = "has masters and moments of adapters alone, which are small and stay on the device"
        stays = "keeps the frozen model on the device" if what == "parameters" else adapters
        yield Problem(
            (offload_key, rank_key),
            f"{offload_key} = {what}, but {rank_key} = {lora.rank} {stays}.",
            f"Leave out {offload_key} or {lora_key}.",
        )
    elif what not in backend.offloads:
        keeps = "updates" if what == "optimizer" else "keeps parameters"
        yield Problem(
            (offload_key, key),
            f"{offload_key} = {what}, but {key} = {model.backend} {keeps} on its devices.",
            f"Leave out {offload_key}, or set {key} to "
            f"{able_backends(model, lambda other: what in other.offloads, device)}.",
        )
    there = {"parameters": "parameters"} if what == "parameters" else {}
    for kind, named in ({"optimizer": "masters and moments"} | there).items():
        if (how := getattr(model.between, kind, "keep")) != "keep":
            between_key = f"{role}.between.{kind}"
            yield Problem(
                (between_key, offload_key),
                f"{between_key} = {how}, but with {offload_key} = {what} {named} are always in the host's memory.",
                f"Leave out {between_key} or {offload_key}.",
            )


def _sizes(layout: Layout) -> dict[str, int]:
    return dict(zip(AXES, (layout.dp, layout.tp, layout.pp), strict=True))


def _in_words(axes: Sequence[str]) -> str:
    return " and ".join(axes)
