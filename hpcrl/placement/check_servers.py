"""What is wrong with a call whose responses a server makes: its interpreter, its layout, what it is to draw."""

from collections.abc import Iterator
from pathlib import Path

from hpcrl.backends.backend import Server
from hpcrl.backends.packages import interpreter_problem
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section
from hpcrl.config.judge import JudgeConfig, drawing_of
from hpcrl.config.model import CallPlacement, ModelConfig
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.placement.placing import Placed, place_of


def server_problems(
    experiment: ExperimentConfig, call: MFC, model: ModelConfig, entry: CallPlacement, server: Server | None
) -> Iterator[Problem]:
    """Of an entry of `calls` under a backend that has this server, or none."""
    key = f"calls.{call.name}"
    if server is None:
        if entry.python is not None:
            yield Problem(
                ("calls",),
                f"{key}.python = {entry.python} names an interpreter, but {key}.backend = {entry.backend} computes in "
                "hpcrl's own workers.",
                f"Leave out {key}.python.",
            )
        return
    yield from _interpreter_problems(key, entry, server)
    yield from _node_problems(experiment, call, entry)
    yield from _drawing_problems(experiment, call.role, f"{key}.backend = {entry.backend}", server)
    if model.family is not None and ":" in model.family:
        family = f"{call.role}.family"
        yield Problem(
            ("calls", family),
            f"{key}.backend = {entry.backend} reads models by their model_type, but {family} = {model.family} is your "
            "own.",
            f"Leave out {key}.backend.",
        )


def _interpreter_problems(key: str, entry: CallPlacement, server: Server) -> Iterator[Problem]:
    python = f"{key}.python"
    if entry.python is not None and not Path(entry.python).is_absolute():
        yield Problem(
            ("calls",),
            f"{python} = {entry.python} must be an absolute path, since every node runs it.",
            f"Set {python}.",
        )
    elif problem := interpreter_problem(entry.python, server):
        named = f"{python} = {entry.python}" if entry.python else f"{key}.backend = {entry.backend}"
        yield Problem(
            ("calls",),
            f"{named}, but {problem}.",
            f"Set {python} to an interpreter that has {server.package[0]} (docs/backends.md).",
        )


def _node_problems(experiment: ExperimentConfig, call: MFC, entry: CallPlacement) -> Iterator[Problem]:
    """A part whose workers are on several nodes."""
    slots, key = experiment.cluster.workers_per_node, f"calls.{call.name}"
    try:
        place = place_of(experiment, call.role, entry, experiment.cluster.most_nodes)
    except ValueError:  # said of the layout or the mesh
        return
    if place.layout.size != len(place.ranks) or place.layout.pp > 1:
        return
    for part in _parts(place):
        if len({rank // slots for rank in part}) > 1:
            yield Problem(
                ("calls", "cluster.workers_per_node"),
                f"{key}.layout = {place.layout.short} has workers {', '.join(map(str, part))} compute one model "
                "together, which are on several nodes, and a server is on one.",
                f"Set {key}.layout to one with t at most cluster.workers_per_node, or {key}.mesh.",
            )
            return


def _parts(place: Placed) -> Iterator[tuple[int, ...]]:
    tp = place.layout.tp
    yield from (place.ranks[first : first + tp] for first in range(0, len(place.ranks), tp))


def _drawing_problems(experiment: ExperimentConfig, role: str, chosen: str, server: Server) -> Iterator[Problem]:
    data, drawing = section(experiment, "data", DataConfig), drawing_of(experiment, role)
    if data is not None and data.max_prompt_tokens is None:
        key = "data.max_prompt_tokens"
        text = f"{chosen} makes room for the longest texts when it starts, but {key} is null."
        yield Problem(("calls", key), text, f"Set {key}.")
    if drawing is None:
        return
    generation, own = drawing.generation, f"{role}." if section(experiment, role, JudgeConfig) else ""
    temperatures = {
        f"{own}generation.temperature": None if generation.greedy else generation.temperature,
        f"{own}generation.evaluation.temperature": generation.evaluation.temperature,
    }
    for key, temperature in temperatures.items():
        if temperature is not None and temperature < server.coolest:
            yield Problem(
                ("calls", key),
                f"{chosen} would take {server.coolest:g} for lower temperatures, but {key} = {temperature:g}.",
                f"Set {key} to {server.coolest:g} or more.",
            )
