"""What is wrong with an experiment where its values meet the workers, the graph and the models. All at once."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section, settings
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig, following_roles, models_of
from hpcrl.config.validate import Check, bound_problems, section_problems
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.family import FAMILIES
from hpcrl.families.reader import family_of, parameters_of, read_config
from hpcrl.families.spaces import KINDS, space_of
from hpcrl.placement.abilities import Chosen, all_chosen, backend_problems, built_problems
from hpcrl.placement.check_adapters import adapter_problems, shared_problems
from hpcrl.placement.check_calls import calls_problems
from hpcrl.placement.check_cuts import cut_problems, router_problems
from hpcrl.placement.check_layouts import WORLD, Written, batch_problems, layout_problems, mesh_problem
from hpcrl.placement.foreign_models import foreign_problems, unheld
from hpcrl.placement.judges import judges_held, release_problems
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.node_counts import on_each_count, settings_problems
from hpcrl.placement.placing import cpu_roles, entries_of, mesh_of
from hpcrl.plugins import find
from hpcrl.recipes.algorithm import SCRIPT, Algorithm, algorithm_of
from hpcrl.recipes.check import (
    algorithm_problems,
    declaration_problems,
    evaluation_problems,
    mirror_problems,
    profile_problems,
    statistic_problems,
)


def placement_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Roles that do not fit their workers, batches that do not fill them, models that are not supported: on any number
    of nodes that the run may have."""
    if any(it.key in WORLD and it.broken_bound(it.of(experiment)) for it in settings(type(experiment))):
        return
    if problems := list(settings_problems(experiment)):
        yield from problems
    else:
        yield from on_each_count(_placement_problems)(experiment)


def _placement_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Of an experiment on one number of nodes."""
    if any(declaration_problems(experiment)):
        return
    algorithm = algorithm_of(experiment)
    calls = algorithm.calls(experiment)
    for role in dict.fromkeys(call.role for call in calls if call.role != SCRIPT):
        yield from _role_problems(experiment, role)
    elsewhere = _under_others(experiment, calls)
    for role, model in models_of(experiment).items():
        of_role = [call for call in calls if call.role == role and call.name not in elsewhere]
        yield from backend_problems(Chosen.at_home(role, model), of_role, experiment.cluster.device)
    yield from release_problems(experiment)
    yield from shared_problems(experiment, calls)
    yield from calls_problems(experiment)
    yield from _allocation_problems(experiment)
    yield from _model_problems(experiment, algorithm)


ALL_CHECKS: tuple[Check, ...] = (
    bound_problems,
    algorithm_problems,
    section_problems,
    evaluation_problems,
    statistic_problems,
    profile_problems,
    mirror_problems,
    placement_problems,
)
"""What an experiment must pass before anything is made."""


def _under_others(experiment: ExperimentConfig, calls: Sequence[MFC]) -> set[str]:
    """The calls that have a backend of their own."""
    try:
        return {name for name, (_, entry) in entries_of(experiment, calls).items() if entry.backend is not None}
    except msgspec.ValidationError:  # said of `calls`
        return set()


def _chosen(experiment: ExperimentConfig, calls: Sequence[MFC]) -> list[Chosen]:
    """Each model under the backends that it is to have."""
    try:
        return list(all_chosen(experiment, calls))
    except msgspec.ValidationError:  # said of `calls`
        return [Chosen.at_home(role, model) for role, model in models_of(experiment).items()]


def _allocation_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """An allocation that has nothing to place, or a layout of all models that is none or of another size."""
    asked, cluster = experiment.allocation, experiment.cluster
    if asked != "manual" and not models_of(experiment):
        yield Problem(
            ("allocation",),
            f"allocation = {asked} places models, and algorithm {experiment.algorithm} has none.",
            "Leave allocation out.",
        )
    elif asked[-1].isdigit():
        key, has = (
            "allocation",
            f"{cluster.most_nodes} · {cluster.workers_per_node} = {cluster.most_nodes * cluster.workers_per_node}",
        )
        try:
            layout = parse_layout(asked)
        except ValueError as error:
            yield Problem((key,), f"{key} = {error}.", f"Set {key}.")
            return
        if layout.size != cluster.most_nodes * cluster.workers_per_node:
            yield Problem(
                (key, *WORLD),
                f"{key} = {asked} needs dp·tp·pp = {layout.dp}·{layout.tp}·{layout.pp} = {layout.size} workers, but "
                f"cluster.nodes · cluster.workers_per_node = {has}.",
                f"Set {key} or cluster.nodes.",
            )


def _role_problems(experiment: ExperimentConfig, role: str) -> Iterator[Problem]:
    placement = getattr(experiment, role)
    if role in cpu_roles(experiment):
        yield from _cpu_role_problems(experiment, role)
        return
    given = placement.layout is not None or placement.mesh is not None
    if experiment.allocation != "manual" and not given and isinstance(placement, ModelConfig):
        return  # it is placed only then
    written = Written(role, placement.layout, f"{role}.layout", placement.mesh, f"{role}.mesh")
    try:
        ranks = mesh_of(experiment, role, experiment.cluster.most_nodes)
    except ValueError as error:
        yield mesh_problem(written, error)
        return
    yield from layout_problems(experiment, written, ranks)


def _cpu_role_problems(experiment: ExperimentConfig, role: str) -> Iterator[Problem]:
    """Of a role on CPU workers of its own, which hold it whole."""
    workers, placement = f"{role}.workers", getattr(experiment, role)
    for name in ("mesh", "layout"):
        if getattr(placement, name) is not None:
            key = f"{role}.{name}"
            yield Problem(
                (key, workers),
                f"{key} = {getattr(placement, name)} places {role} on model workers, but {workers} = "
                f"{placement.workers} gives it workers of its own.",
                f"Leave out {key} or {workers}.",
            )
    parts = len(mesh_of(experiment, role, experiment.cluster.most_nodes))
    has = f"cluster.nodes · {workers} = {experiment.cluster.most_nodes} · {placement.workers} = {parts} parts"
    yield from batch_problems(experiment, (workers,), parts, f"{has} are to share them", f"lower {workers}")


def _model_problems(experiment: ExperimentConfig, algorithm: Algorithm[Any]) -> Iterator[Problem]:
    """Models that cannot be loaded, are too short for the longest sequence, or do not know each other's tokens."""
    models: dict[str, DecoderConfig] = {}
    following = following_roles(experiment)
    for role, model in models_of(experiment).items():
        if not (Path(model.path) / "config.json").is_file():
            continue
        key, family_key = f"{role}.path", f"{role}.family"
        try:
            if model.family is not None:
                find(FAMILIES, model.family, family_key)
        except ConfigurationError as error:
            yield from error.about(family_key)
            continue
        try:
            models[role] = _read(model, family_key)
        except ConfigurationError as error:
            if model.model != "auto":
                yield from _unread(role, model, error)
                continue
            # The family is named by each role, whatever its folder.
            yield from (
                Problem((key,), f"{key}: {problem.text}", problem.advice or f"Set {key}.")
                for problem in error.found
                if problem.advice or role not in following
            )
    heads = {role: algorithm.roles[role].head for role in models}
    chosen = _chosen(experiment, algorithm.calls(experiment))
    yield from foreign_problems(chosen, models, heads)
    models = {role: model for role, model in models.items() if not unheld(model, heads[role])}
    cut = {role: model.with_head(heads[role]) for role, model in models.items()}
    judges = {role: _read(judge, f"{role}.family") for role, judge in judges_held(experiment).items()}
    yield from cut_problems(experiment, cut | judges)
    yield from router_problems(experiment, cut)
    yield from adapter_problems(experiment, cut)
    for under in chosen:
        if under.role in cut:
            yield from built_problems(under, cut[under.role], experiment.cluster.device)
    calls = algorithm.calls(experiment)
    for call in calls:
        if call.blends in models and call.role in models:
            yield from _shape_problems(call, models, algorithm)
    if any(call.kind == "generate" for call in calls):
        yield from _position_problems(experiment, {role: models[role] for role in models if role not in following})
    yield from _vocabulary_problems(models, heads)


def _read(model: ModelConfig, family_key: str) -> DecoderConfig:
    return read_config(Path(model.path), model.family, family_key, model.model).with_experts_cut(model.experts)


def _unread(role: str, model: ModelConfig, error: ConfigurationError) -> Iterator[Problem]:
    """Of code that was chosen for a model which it does not read."""
    code, key = f"{role}.model", f"{role}.path"
    for problem in error.found:
        yield Problem(
            (code, key),
            f"{code} = {model.model}, but {key}: {problem.text}",
            f"Set {code} to auto, or {key} to another model.",
        )


def _shape_problems(call: MFC, models: Mapping[str, DecoderConfig], algorithm: Algorithm[Any]) -> Iterator[Problem]:
    """Only models of the same parameters can be blended."""
    spaces = {role: space_of(models[role]) for role in (call.role, call.blends)}
    if len(set(spaces.values())) > 1:
        key, of, code = f"{call.role}.model", f"{call.blends}.model", KINDS[spaces[call.blends]]
        yield Problem(
            (key, of),
            f"{call.name} blends {call.blends} into {call.role}, but transformers' code computes one of the two and "
            "hpcrl's own the other.",
            f"Set {key} to {code}.",
        )
        return
    own, other = (dict(_shapes(models[role], algorithm.roles[role].head)) for role in (call.role, call.blends))
    if own != other:
        key, of = f"{call.role}.path", f"{call.blends}.path"
        name = next(name for name in {**own, **other} if own.get(name) != other.get(name))
        yield Problem(
            (key, of),
            f"{key} has {name} of shape {own.get(name)}, but {of} of shape {other.get(name)}, and {call.name} blends "
            f"{call.blends} into {call.role}.",
            f"Set {key} to a model of the same shape.",
        )


def _shapes(model: DecoderConfig, head: HeadKind | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    for parameter in parameters_of(model.with_head(head)):
        yield parameter.name, parameter.shape


def _position_problems(experiment: ExperimentConfig, models: Mapping[str, DecoderConfig]) -> Iterator[Problem]:
    data, generation = section(experiment, "data", DataConfig), section(experiment, "generation", GenerationConfig)
    if data is None or generation is None:
        return
    prompt, new = data.max_prompt_tokens, generation.max_new_tokens
    for role, model in models.items():
        key = f"{role}.path"
        has = f"{key} has {family_of(model).positions} = {model.max_positions}"
        if prompt is None and new >= model.max_positions:
            text = f"generation.max_new_tokens = {new} leaves prompts no room: {has}."
            yield Problem((key, "generation.max_new_tokens"), text, "Lower generation.max_new_tokens.")
        elif prompt is not None and prompt + new > model.max_positions:
            yield Problem(
                (key, "data.max_prompt_tokens", "generation.max_new_tokens"),
                f"data.max_prompt_tokens + generation.max_new_tokens = {prompt + new}, but {has}.",
                "Lower generation.max_new_tokens or data.max_prompt_tokens.",
            )


def _vocabulary_problems(
    models: Mapping[str, DecoderConfig], heads: Mapping[str, HeadKind | None]
) -> Iterator[Problem]:
    """Roles that give probabilities give them of the same tokens, those of the first; the others only read these."""
    speaking = [role for role in models if heads[role] == "vocabulary"]
    if not speaking:
        return
    first, tokens = f"{speaking[0]}.path", models[speaking[0]].vocabulary_size
    for role, model in models.items():
        own, key = model.vocabulary_size, f"{role}.path"
        if own < tokens or (role in speaking and own != tokens):
            least = "" if role in speaking else "at least "
            yield Problem(
                (key, first),
                f"{key} has vocab_size = {own}, but {first} has {tokens}; {least}as many are needed, of the same "
                "tokens.",
                f"Set {key}.",
            )
