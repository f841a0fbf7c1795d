"""What is wrong with a layout over a mesh: of a role's home, or of a call that is made elsewhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import ModelConfig
from hpcrl.errors import Problem
from hpcrl.placement.abilities import Chosen, axes_of, axes_problem, axes_under, backend_axes_problem, settings_of
from hpcrl.placement.judges import whole_because
from hpcrl.placement.layouts import Layout, Ranks, parse_layout
from hpcrl.recipes.algorithm import algorithm_of

WORLD = ("cluster.nodes", "cluster.workers_per_node")
"""The settings that say how many workers there are."""


@dataclass(frozen=True)
class Written:
    """A layout and a mesh of a role as they are written, and the keys under which they are."""

    role: str
    layout: str | None
    layout_key: str
    mesh: str | None
    mesh_key: str
    chosen: Chosen | None = None
    """The backend of its own that a call has."""


def mesh_problem(written: Written, error: ValueError) -> Problem:
    key = written.mesh_key
    return Problem(settings_of(key, *WORLD), f"{key} = {error}.", f"Set {key} or cluster.nodes.")


def layout_problems(experiment: ExperimentConfig, written: Written, ranks: Ranks) -> Iterator[Problem]:
    """A layout that is none, is not as large as its mesh, or splits what the role's backend does not split; batches
    that do not fill it."""
    cluster, key, mesh_key = experiment.cluster, written.layout_key, written.mesh_key
    try:
        layout = Layout(dp=len(ranks)) if written.layout is None else parse_layout(written.layout)
    except ValueError as error:
        yield Problem(settings_of(key), f"{key} = {error}.", f"Set {key}.")
        return
    if layout.size != len(ranks):
        of = f"cluster.nodes · cluster.workers_per_node = {cluster.most_nodes} · {cluster.workers_per_node}"
        has = f"{of} = {len(ranks)}" if written.mesh is None else f'{mesh_key} = "{written.mesh}" has {len(ranks)}'
        yield Problem(
            settings_of(key, mesh_key, *WORLD),
            f"{key} = {written.layout} needs dp·tp·pp = {layout.dp}·{layout.tp}·{layout.pp} = {layout.size} workers, "
            f"but {has}.",
            f"Change {key}, {mesh_key} or cluster.nodes.",
        )
    else:
        yield from _axes_problems(experiment, written, layout)
    has = f"{key} has dp = {layout.dp}"
    yield from batch_problems(experiment, (key, mesh_key), layout.dp, has, _fewer_parts(experiment, written))


def _fewer_parts(experiment: ExperimentConfig, written: Written) -> str:
    """What splits a batch over fewer workers."""
    key = written.layout_key
    mesh = f"{key.removesuffix('layout')}mesh to fewer workers"
    if written.layout is not None:
        mesh += f" and {key} to match"
    if written.chosen is not None:
        axes = axes_under(written.chosen)
    else:
        role = algorithm_of(experiment).roles[written.role]
        axes = axes_of(written.role, getattr(experiment, written.role), role.axes)
    return f"set {mesh}" if axes == ("dp",) else f"set {key} to one with a smaller d, or {mesh}"


def _axes_problems(experiment: ExperimentConfig, written: Written, layout: Layout) -> Iterator[Problem]:
    """A layout that splits a role as its backend, or who else holds it, does not."""
    key, text, role = written.layout_key, written.layout, written.role
    section = getattr(experiment, role)
    axes = axes_of(role, section, algorithm_of(experiment).roles[role].axes)
    if isinstance(section, ModelConfig):
        chosen = written.chosen or Chosen.at_home(role, section)
        problem = backend_axes_problem(chosen, key, text, layout, experiment.cluster.device)
    elif isinstance(section, ClassifierConfig) and section.path is not None:
        whole = f"transformers loads it, whole on each: {whole_because(section)}"
        problem = axes_problem(key, text, layout, axes, whole)
    else:
        modelless = f"{role} has no model, and is split over {' and '.join(axes)} only"
        problem = axes_problem(key, text, layout, axes, modelless)
    if problem is not None:
        yield replace(problem, keys=settings_of(*problem.keys))


def batch_problems(
    experiment: ExperimentConfig, parts_keys: Sequence[str], parts: int, has: str, fewer: str
) -> Iterator[Problem]:
    """Batches that do not give each of so many parts, which `parts_keys` make, a sample; `fewer` says how to have
    fewer."""
    algorithm = algorithm_of(experiment)
    batch, key = algorithm.batch(experiment), algorithm.rows.batch_setting
    if batch.tokens is None and batch.pieces < parts:
        whole = "samples" if batch.kept_whole == "sample" else "rows that are kept whole"
        yield Problem(
            settings_of(key, *parts_keys, *WORLD),
            f"{key} gives {batch.pieces} {whole} per step, but {has}, and every part needs one.",
            f"Raise {key}, or {fewer}.",
        )
