"""What is wrong with an experiment where its values meet the workers, the graph and the models. All at once."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import models_of
from hpcrl.config.validate import Check, bound_problems, section_problems
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.family import FAMILIES
from hpcrl.families.reader import parameters_of, read_config
from hpcrl.placement.abilities import axes_of, axes_problem, backend_problems
from hpcrl.placement.layouts import Layout, parse_layout
from hpcrl.placement.plan import cpu_roles, mesh_of
from hpcrl.plugins import find
from hpcrl.recipes.algorithm import Algorithm, algorithm_of
from hpcrl.recipes.check import algorithm_problems, declaration_problems, evaluation_problems, statistic_problems

WORLD = ("cluster.nodes", "cluster.workers_per_node")
"""The settings that say how many workers there are."""


def placement_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Roles that do not fit their workers, batches that do not fill them, models that are not supported."""
    if any(declaration_problems(experiment)):
        return
    algorithm = algorithm_of(experiment)
    calls = algorithm.calls(experiment)
    for role in dict.fromkeys(call.role for call in calls):
        yield from _role_problems(experiment, algorithm, role)
    for role, model in models_of(experiment).items():
        yield from backend_problems(role, model, calls)
    for call in calls:
        if call.blends:
            yield from _blend_problems(experiment, call)
    yield from _model_problems(experiment, algorithm)


ALL_CHECKS: tuple[Check, ...] = (
    bound_problems,
    algorithm_problems,
    section_problems,
    evaluation_problems,
    statistic_problems,
    placement_problems,
)
"""What an experiment must pass before anything is made."""


def _role_problems(experiment: ExperimentConfig, algorithm: Algorithm[Any], role: str) -> Iterator[Problem]:
    cluster, placement = experiment.cluster, getattr(experiment, role)
    if role in cpu_roles(experiment):
        yield from _cpu_role_problems(experiment, algorithm, role)
        return
    world = cluster.nodes * cluster.workers_per_node
    mesh_key, layout_key = f"{role}.mesh", f"{role}.layout"
    try:
        ranks = mesh_of(experiment, role, cluster.nodes)
    except ValueError as error:
        yield Problem((mesh_key, *WORLD), f"{mesh_key} = {error}.", f"Set {mesh_key} or cluster.nodes.")
        return
    try:
        layout = Layout(dp=len(ranks)) if placement.layout is None else parse_layout(placement.layout)
    except ValueError as error:
        yield Problem((layout_key,), f"{layout_key} = {error}.", f"Set {layout_key}.")
        return
    if layout.size != len(ranks):
        of = f"cluster.nodes · cluster.workers_per_node = {cluster.nodes} · {cluster.workers_per_node}"
        has = f"{of} = {world}" if placement.mesh is None else f'{mesh_key} = "{placement.mesh}" has {len(ranks)}'
        yield Problem(
            (layout_key, mesh_key, *WORLD),
            f"{layout_key} = {placement.layout} needs dp·tp·pp = {layout.dp}·{layout.tp}·{layout.pp} = "
            f"{layout.size} workers, but {has}.",
            f"Change {layout_key}, {mesh_key} or cluster.nodes.",
        )
    elif problem := axes_problem(layout_key, placement.layout, layout, axes_of(role, placement)):
        yield problem
    yield from _batch_problems(experiment, algorithm, layout_key, layout.dp, f"{layout_key} has dp = {layout.dp}")


def _cpu_role_problems(experiment: ExperimentConfig, algorithm: Algorithm[Any], role: str) -> Iterator[Problem]:
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
    parts = len(mesh_of(experiment, role, experiment.cluster.nodes))
    has = f"cluster.nodes · {workers} = {experiment.cluster.nodes} · {placement.workers} = {parts} parts"
    yield from _batch_problems(experiment, algorithm, workers, parts, f"{has} are to share them")


def _batch_problems(
    experiment: ExperimentConfig, algorithm: Algorithm[Any], parts_key: str, parts: int, has: str
) -> Iterator[Problem]:
    batch, key = algorithm.batch(experiment), algorithm.rows.batch_setting
    if batch.pieces < parts:
        whole = "samples" if batch.kept_whole == "sample" else "rows that are kept whole"
        yield Problem(
            (key, parts_key, *WORLD),
            f"{key} gives {batch.pieces} {whole} per step, but {has}, and every part needs one.",
            f"Raise {key} or lower {parts_key}.",
        )


def _blend_problems(experiment: ExperimentConfig, call: MFC) -> Iterator[Problem]:
    """A role that is blended with another is on the same workers, laid out alike: no parameters are sent."""
    key, of = f"{call.role}.mesh", f"{call.blends}.mesh"
    try:
        own, other = (_placed(experiment, role) for role in (call.role, call.blends))
    except ValueError:
        return  # said of the role itself
    if own != other:
        yield Problem(
            (key, f"{call.role}.layout", of, f"{call.blends}.layout"),
            f"{call.role} is {own}, but {call.blends}, which {call.name} blends into it, {other}.",
            f"Set {key} and {call.role}.layout to those of {call.blends}.",
        )


def _placed(experiment: ExperimentConfig, role: str) -> str:
    """Layout and workers of a role, in words. Raises ValueError where there is none such."""
    ranks, layout = mesh_of(experiment, role, experiment.cluster.nodes), getattr(experiment, role).layout
    arranged = Layout(dp=len(ranks)) if layout is None else parse_layout(layout)
    return f"laid out as {arranged} on worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _model_problems(experiment: ExperimentConfig, algorithm: Algorithm[Any]) -> Iterator[Problem]:
    """Models that cannot be loaded, are too short for the longest sequence, or do not know each other's tokens."""
    models: dict[str, DecoderConfig] = {}
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
            models[role] = read_config(Path(model.path), model.family, family_key)
        except ConfigurationError as error:
            yield from (
                Problem((key,), f"{key}: {problem.text}", problem.advice or f"Set {key}.") for problem in error.found
            )
    calls = algorithm.calls(experiment)
    for call in calls:
        if call.blends in models and call.role in models:
            yield from _shape_problems(call, models, algorithm)
    if any(call.kind == "generate" for call in calls):
        yield from _position_problems(experiment, models)
    yield from _vocabulary_problems(models, {role: algorithm.roles[role].head for role in models})


def _shape_problems(call: MFC, models: Mapping[str, DecoderConfig], algorithm: Algorithm[Any]) -> Iterator[Problem]:
    """Only models of the same parameters can be blended."""
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
    for parameter in parameters_of(model if head is None else model.with_head(head)):
        yield parameter.name, parameter.shape


def _position_problems(experiment: ExperimentConfig, models: Mapping[str, DecoderConfig]) -> Iterator[Problem]:
    data, generation = section(experiment, "data", DataConfig), section(experiment, "generation", GenerationConfig)
    if data is None or generation is None:
        return
    longest = (data.max_prompt_tokens or 1) + generation.max_new_tokens
    for role, model in models.items():
        if longest > model.max_positions:
            key = f"{role}.path"
            yield Problem(
                (key, "data.max_prompt_tokens", "generation.max_new_tokens"),
                f"data.max_prompt_tokens + generation.max_new_tokens = {longest}, but {key} has "
                f"max_position_embeddings = {model.max_positions}.",
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
