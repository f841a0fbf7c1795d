"""What is checked, placed and told of a run for each number of nodes that it may have. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from hpcrl.config.bounds import broken_bound
from hpcrl.config.changes import changes, with_nodes
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, settings
from hpcrl.config.validate import Check
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.placement.layouts import mesh_text

E = TypeVar("E", bound=ExperimentConfig)

OF_ALL = ("cluster.nodes", "on_nodes", "allocation")
"""Settings that are the same on any number of nodes."""


def on_each_count(check: Check) -> Check:
    """The check of a number of nodes for all that a run may have: where several have the same problem, it is told of
    the first, with the others' numbers."""

    def checked(experiment: Any) -> Iterable[Problem]:
        if not experiment.cluster.is_elastic:
            return check(with_nodes(experiment, experiment.cluster.most_nodes))
        return _merged({count: list(check(with_nodes(experiment, count))) for count in experiment.cluster.node_counts})

    return checked


def _merged(found: Mapping[int, Iterable[Problem]]) -> Iterator[Problem]:
    first: dict[tuple[str, ...], int] = {}
    counts: dict[tuple[str, ...], list[int]] = {}
    for count, problems in found.items():
        for keys in dict.fromkeys(problem.keys for problem in problems):
            first.setdefault(keys, count)
            counts.setdefault(keys, []).append(count)
    for count, problems in found.items():
        for problem in problems:
            if first[problem.keys] == count:
                yield replace(problem, text=f"{_on(counts[problem.keys])}: {problem.text}")


def _on(counts: list[int]) -> str:
    first, *others = counts
    return f"on {in_words(first)}" + (f" (as on {mesh_text(tuple(others))})" if others else "")


def in_words(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def settings_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """What is wrong with `on_nodes` itself."""
    kinds = {setting.key: setting for setting in settings(type(experiment))}
    for count, others in experiment.on_nodes.items():
        key = f'on_nodes."{count}"'
        if not count.isdecimal() or not isinstance(others, Mapping):
            yield Problem(
                ("on_nodes",), f"{key} must be a number of nodes and a mapping of settings to values.", "Set on_nodes."
            )
            return
        for name in others:
            if name in OF_ALL or name not in kinds or kinds[name].change is not ChangeClass.PLACEMENT:
                yield Problem(
                    ("on_nodes",),
                    f"{key} has {name}, but it can only have settings of class placement, and not {', '.join(OF_ALL)}.",
                    "Set on_nodes.",
                )
                return
            if (needed := broken_bound(kinds[name].hint, others[name])) is not None:
                yield Problem(("on_nodes",), f"{key}: {name} = {others[name]} must be {needed}.", "Set on_nodes.")
                return


@contextmanager
def telling_count(experiment: ExperimentConfig, count: int) -> Iterator[None]:
    """What is wrong on so many nodes says so, where the run may have others."""
    try:
        yield
    except ConfigurationError as error:
        if not experiment.cluster.is_elastic:
            raise
        advice = f"Or set cluster.nodes (now {experiment.cluster.nodes}) so that the run never has {in_words(count)}."
        raise ConfigurationError(
            [
                replace(it, text=f"on {in_words(count)}: {it.text}", advice=f"{it.advice} {advice}".strip())
                for it in error.found
            ]
        ) from error


def settle_each(experiment: E, settle: Callable[[E], E]) -> E:
    """The experiment as an allocation settles it, which is asked for each number of nodes; `allocation` is then manual.

    Raises ConfigurationError with what is wrong on the first number for which anything is.
    """
    cluster = experiment.cluster
    if not cluster.is_elastic:
        return settle(with_nodes(experiment, cluster.most_nodes))
    found: dict[str, dict[str, Any]] = {}
    for count in cluster.node_counts:
        plain = with_nodes(replace(experiment, on_nodes={}), count)
        with telling_count(experiment, count):
            settled = settle(with_nodes(experiment, count))
        placed = changes(plain, settled, [ChangeClass.PLACEMENT])
        found[str(count)] = {change.key: change.value for change in placed if change.key not in OF_ALL}
    return replace(experiment, allocation="manual", on_nodes=found)
