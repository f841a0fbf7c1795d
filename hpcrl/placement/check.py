"""What is wrong with an experiment where its values meet the workers, the graph and the models. All at once."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcrl.config.condition import Condition
from hpcrl.config.experiment import Experiment, PPOExperiment, SFTExperiment, ToyExperiment
from hpcrl.config.model import PlacementConfig, models_of
from hpcrl.config.validate import CHECKS, Check, Problem
from hpcrl.errors import ConfigurationError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import FAMILIES
from hpcrl.families.reader import read_config
from hpcrl.placement.abilities import axes_of, axes_problem, backend_problems
from hpcrl.placement.layouts import Layout, parse_layout, parse_mesh
from hpcrl.plugins import find
from hpcrl.recipes.algorithm import recipe

WORLD = ("cluster.nodes", "cluster.workers_per_node")
"""The settings that say how many workers there are."""


def placement_problems(experiment: Experiment) -> Iterator[Problem]:
    """Roles that do not fit their workers, batches that do not fill them, models that are not supported."""
    calls = recipe(experiment).calls
    for role in dict.fromkeys(call.role for call in calls):
        yield from _role_problems(experiment, role, getattr(experiment, role))
    for role, model in models_of(experiment).items():
        yield from backend_problems(role, model, calls)
    if not isinstance(experiment, ToyExperiment):
        yield from _model_problems(experiment)
    yield from _stop_problems(experiment)


ALL_CHECKS: tuple[Check, ...] = (*CHECKS, placement_problems)
"""What an experiment must pass before anything is made."""


def _role_problems(experiment: Experiment, role: str, placement: PlacementConfig) -> Iterator[Problem]:
    cluster = experiment.cluster
    world = cluster.nodes * cluster.workers_per_node
    mesh_key, layout_key = f"{role}.mesh", f"{role}.layout"
    try:
        ranks = parse_mesh(placement.mesh, world)
    except ValueError as error:
        yield Problem((mesh_key, *WORLD), f"{mesh_key} = {error}. Set {mesh_key} or cluster.nodes.")
        return
    try:
        layout = Layout(dp=len(ranks)) if placement.layout is None else parse_layout(placement.layout)
    except ValueError as error:
        yield Problem((layout_key,), f"{layout_key} = {error}. Set {layout_key}.")
        return
    if layout.size != len(ranks):
        of = f"cluster.nodes · cluster.workers_per_node = {cluster.nodes} · {cluster.workers_per_node}"
        has = f"{of} = {world}" if placement.mesh is None else f'{mesh_key} = "{placement.mesh}" has {len(ranks)}'
        yield Problem(
            (layout_key, mesh_key, *WORLD),
            f"{layout_key} = {placement.layout} needs dp·tp·pp = {layout.dp}·{layout.tp}·{layout.pp} = {layout.size} "
            f"workers, but {has}. Change {layout_key}, {mesh_key} or cluster.nodes.",
        )
    elif problem := axes_problem(layout_key, placement.layout, layout, axes_of(role, placement)):
        yield Problem((layout_key,), problem)
    yield from _batch_problems(experiment, layout_key, layout)


def _batch_problems(experiment: Experiment, layout_key: str, layout: Layout) -> Iterator[Problem]:
    if isinstance(experiment, ToyExperiment):
        key, rows = "toy.batch_size", experiment.toy.batch_size
    else:
        key, rows = "data.batch_size", experiment.data.batch_size * experiment.data.samples_per_prompt
    if rows < layout.dp:
        yield Problem(
            (key, layout_key, *WORLD),
            f"{key} gives {rows} samples per step, but {layout_key} has dp = {layout.dp}, and every part needs one. "
            f"Raise {key} or lower {layout_key}.",
        )


def _model_problems(experiment: SFTExperiment | PPOExperiment) -> Iterator[Problem]:
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
            yield from (Problem((family_key,), problem) for problem in error.problems)
            continue
        try:
            models[role] = read_config(Path(model.path), model.family, family_key)
        except ConfigurationError as error:
            yield from (Problem((key,), f"{key}: {problem} Set {key}.") for problem in error.problems)
    if any(call.kind == "generate" for call in recipe(experiment).calls):
        yield from _position_problems(experiment, models)
    yield from _vocabulary_problems(models)


def _position_problems(
    experiment: SFTExperiment | PPOExperiment, models: Mapping[str, DecoderConfig]
) -> Iterator[Problem]:
    longest = (experiment.data.max_prompt_tokens or 1) + experiment.generation.max_new_tokens
    for role, model in models.items():
        if longest > model.max_positions:
            key = f"{role}.path"
            yield Problem(
                (key, "data.max_prompt_tokens", "generation.max_new_tokens"),
                f"data.max_prompt_tokens + generation.max_new_tokens = {longest}, but {key} has "
                f"max_position_embeddings = {model.max_positions}. Lower generation.max_new_tokens or "
                "data.max_prompt_tokens.",
            )


def _vocabulary_problems(models: Mapping[str, DecoderConfig]) -> Iterator[Problem]:
    """The reference gives probabilities of the actor's tokens, so it has the same; the critic only reads them."""
    if "actor" not in models:
        return
    actors = models["actor"].vocabulary_size
    for role, model in models.items():
        own, key = model.vocabulary_size, f"{role}.path"
        if own < actors or (role == "reference" and own != actors):
            least = "" if role == "reference" else "at least "
            yield Problem(
                (key, "actor.path"),
                f"{key} has vocab_size = {own}, but actor.path has {actors}; {least}as many are needed, of the same "
                f"tokens. Set {key}.",
            )


def _stop_problems(experiment: Experiment) -> Iterator[Problem]:
    """A condition on a call that the graph lacks would never hold."""
    try:
        condition = Condition.parse(experiment.control.stop_when or "")
    except ValueError:
        return
    calls = [call.name for call in recipe(experiment).calls]
    if condition.call not in calls:
        yield Problem(
            ("control.stop_when",),
            f"control.stop_when = {condition.metric!r} is a metric of a call {condition.call!r}, but the calls are "
            f"{', '.join(calls)}. Set control.stop_when.",
        )
