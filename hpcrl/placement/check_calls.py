"""What is wrong with `calls`: names of no call, calls that stay at home, layouts and meshes that do not fit."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from hpcrl.backends.backend import BACKENDS
from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import Between, CallPlacement, CPUPlacementConfig, ModelConfig
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.placement.abilities import Chosen, backend_problems, server_of, settings_of
from hpcrl.placement.check_layouts import Written, layout_problems, mesh_problem
from hpcrl.placement.check_servers import server_problems
from hpcrl.placement.layouts import Layout
from hpcrl.placement.placing import Placed, entries_of, home_of, place_of
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import SCRIPT, Algorithm, algorithm_of

WHOLE = (CPUPlacementConfig, ClassifierConfig)
"""Sections of roles that have no parameters of hpcrl's: they are where they are loaded."""


def calls_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """All that is wrong with the calls that are placed elsewhere; what is wrong with homes is said of the roles."""
    algorithm = algorithm_of(experiment)
    recipe = {call.name: call for call in algorithm.declared(experiment) if call.role != SCRIPT}
    found: list[Problem] = []
    for name, value in experiment.calls.items():
        found += _entry_problems(experiment, name, value, recipe.get(name), list(recipe))
    yield from found
    if not found:
        yield from _together(experiment, algorithm)


def _entry_problems(
    experiment: ExperimentConfig, name: str, value: Any, call: MFC | None, known: Sequence[str]
) -> Iterator[Problem]:
    key = f"calls.{name}"
    if call is None:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" The nearest is {near[0]}." if near else ""
        yield Problem(
            ("calls",),
            f"calls places {name}, but the calls are {', '.join(known)}.{meant}",
            f"Rename or leave out {key}.",
        )
        return
    try:
        entry = msgspec.convert(value, CallPlacement)
    except msgspec.ValidationError as error:
        fields = ", ".join(CallPlacement.__struct_fields__)
        text = f"{key} = {value} must be a mapping with {fields} ({error})."
        yield Problem(("calls",), text, f"Set {key}.")
        return
    role, section = call.role, getattr(experiment, call.role)
    home = (f"{role}.layout", f"{role}.mesh")
    if call.changes:
        text = f"{key} places a {call.kind}, but what changes a role is done at its home."
        yield Problem(("calls", *home), text, f"Set {', '.join(home)} or {role}.backend, and leave out {key}.")
    elif isinstance(section, WHOLE):
        text = f"{key} places a call of {role}, which is where it is loaded: no parameters of it are sent."
        yield Problem(("calls", *home), text, f"Set {home[0]} and {home[1]}, and leave out {key}.")
    else:
        if entry.micro_batch_tokens is not None and not isinstance(section, ModelConfig):
            own = f"{key}.micro_batch_tokens"
            text = f"{own} = {entry.micro_batch_tokens} cuts what a model reads, but {role} has none."
            yield Problem(("calls",), text, f"Leave out {own}.")
        yield from _backend_problems(experiment, call, section, entry)
        mesh_key = home[1] if entry.mesh is None else f"{key}.mesh"
        yield from _placement_problems(experiment, call, entry, mesh_key)


def _backend_problems(experiment: ExperimentConfig, call: MFC, section: Any, entry: CallPlacement) -> Iterator[Problem]:
    """Of a call's own backend, if it has one."""
    if entry.backend is None:
        if entry.python is not None:
            key, serving = f"calls.{call.name}", " or ".join(name for name in names(BACKENDS) if server_of(name))
            text = f"{key}.python = {entry.python} is the interpreter of a server, but {key}.backend is null."
            yield Problem(("calls",), text, f"Set {key}.backend to {serving}, or leave out {key}.python.")
        return
    key, known = f"calls.{call.name}.backend", names(BACKENDS)
    if not isinstance(section, ModelConfig):
        yield Problem(("calls",), f"{key} = {entry.backend}, but {call.role} has no model.", f"Leave out {key}.")
    elif entry.backend not in known:
        text = f"{key} = {entry.backend} must be one of {', '.join(known)}"
        why = "a backend in a file of yours holds a role at its home"
        yield Problem(("calls",), f"{text}: {why}.", f"Set {key}, or {call.role}.backend.")
    else:
        yield from backend_problems(_chosen(call, section, entry.backend), [call], experiment.cluster.device)
        server = server_of(entry.backend)
        if server is None or call.kind == "generate":
            yield from server_problems(experiment, call, section, entry, server)


def _chosen(call: MFC, model: ModelConfig, backend: str) -> Chosen:
    return Chosen.in_call(call.name, call.role, model, backend)


def _placement_problems(
    experiment: ExperimentConfig, call: MFC, entry: CallPlacement, mesh_key: str
) -> Iterator[Problem]:
    """Of an entry that has its form."""
    role, key, nodes = call.role, f"calls.{call.name}", experiment.cluster.most_nodes
    section = getattr(experiment, role)
    try:
        home = home_of(experiment, role, nodes)
    except ValueError:
        return  # said of the role itself
    mesh = section.mesh if entry.mesh is None else str(entry.mesh)
    own = entry.backend if isinstance(section, ModelConfig) else None
    chosen = _chosen(call, section, own) if own else None
    written = Written(role, entry.layout, f"{key}.layout", mesh, mesh_key, chosen)
    try:
        ranks = place_of(experiment, role, CallPlacement(mesh=entry.mesh), nodes).ranks
    except ValueError as error:
        yield mesh_problem(written, error)
        return
    found = list(layout_problems(experiment, written, ranks))
    if (
        not found
        and call.dispatch.without_stages
        and (layout := place_of(experiment, role, entry, nodes).layout).pp > 1
    ):
        text = f"{key}.layout = {entry.layout} has pipeline stages, but {call.method} is registered as one without."
        instead = Layout(dp=layout.dp * layout.pp, tp=layout.tp)
        found.append(Problem(settings_of(key), text, f"Set {key}.layout to {instead}, or leave out {key}."))
    yield from found
    if not found and entry.between is not None and place_of(experiment, role, entry, nodes) == home:
        yield Problem(
            settings_of(key),
            f"{key}.between = {entry.between} says what becomes of a copy, but the call is made at {role}'s home.",
            f"Leave out {key}.",
        )


class _Away(NamedTuple):
    """A call that is made elsewhere than at its role's home."""

    key: str
    """The entry that places it."""
    role: str
    place: Placed
    between: Between | None


def _together(experiment: ExperimentConfig, algorithm: Algorithm[Any]) -> Iterator[Problem]:
    """What entries ask for that are right one by one: of a role's home, of one copy, of the host."""
    calls, nodes = algorithm.calls(experiment), experiment.cluster.most_nodes
    roles = {call.name: call.role for call in calls}
    away: dict[str, _Away] = {}
    try:
        homes = {call.role: home_of(experiment, call.role, nodes) for call in calls}
        for name, (own, entry) in entries_of(experiment, calls).items():
            role = roles[name]
            place = place_of(experiment, role, entry, nodes)
            if place != homes[role]:
                away[name] = _Away(f"calls.{own}", role, place, entry.between)
    except ValueError:
        return  # a home that is none; said of the role itself
    yield from _idle_homes(calls, away)
    yield from _between_problems(away.values())


def _idle_homes(calls: Sequence[MFC], away: Mapping[str, _Away]) -> Iterator[Problem]:
    for role in dict.fromkeys(call.role for call in calls):
        of_role = [call.name for call in calls if call.role == role]
        if all(name in away and server_of(away[name].place.backend) is None for name in of_role):
            keys = _keys(away[name] for name in of_role)
            yield Problem(
                ("calls", f"{role}.layout", f"{role}.mesh"),
                f"All calls of {role} are made elsewhere than at its home ({keys}), where nobody would use it.",
                f"Set {role}.layout and {role}.mesh in the place of {away[of_role[0]].key}.",
            )


def _between_problems(away: Iterable[_Away]) -> Iterator[Problem]:
    first: dict[tuple[str, Placed], _Away] = {}
    for call in away:
        if call.between is None:
            continue
        other = first.setdefault((call.role, call.place), call)
        if other.between != call.between:
            yield Problem(
                ("calls",),
                f"{call.key}.between = {call.between}, but {other.key}.between = {other.between}, and one copy of "
                f"{call.role} makes both.",
                f"Set {call.key}.between.",
            )


def _keys(away: Iterable[_Away]) -> str:
    return ", ".join(dict.fromkeys(call.key for call in away))
