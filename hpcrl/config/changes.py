"""What differs between two versions of a run's settings, and what a replay of the older one runs under."""

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from hpcrl.config.bounds import broken_bound
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.fields import ChangeClass, settings

E = TypeVar("E", bound=ExperimentConfig)


@dataclass(frozen=True)
class Change:
    """A setting, its new value and the old one, as JSON holds them."""

    key: str
    value: Any
    old: Any

    def __str__(self) -> str:
        return f"{self.key} = {_written(self.value)} (was {_written(self.old)})"


@dataclass(frozen=True)
class RunSettings:
    """What an attempt runs: the settings of a version, and others under which something is executed again.

    `other_scripts` are those of the others whose script is not this one's. `until_closed` says why nothing is begun
    under these settings: they only close what is open, and the submission's own follow.
    """

    newest: Any
    version: int = 0
    earlier: Mapping[int, Any] = field(default_factory=dict)
    other_scripts: frozenset[int] = frozenset()
    until_closed: str = ""

    def on(self, nodes: int) -> "RunSettings":
        """These settings on exactly so many nodes."""
        earlier = {version: with_nodes(experiment, nodes) for version, experiment in self.earlier.items()}
        return replace(self, newest=with_nodes(self.newest, nodes), earlier=earlier)


def changes(
    before: ExperimentConfig, after: ExperimentConfig, classes: Collection[ChangeClass] = tuple(ChangeClass)
) -> list[Change]:
    """The settings of these classes that differ, in the order of the configuration."""
    keys = [setting.key for setting in settings(type(after)) if setting.change in classes]
    old, new = to_dict(before), to_dict(after)
    pairs = ((key, _value(new, key), _value(old, key)) for key in keys)
    return [Change(key, value, was) for key, value, was in pairs if value != was]


def under(older: E, newest: E) -> E:
    """What is replayed under `older` runs with its numbers, where and how `newest` says."""
    placed = {change.key: change.value for change in changes(older, newest, [ChangeClass.PLACEMENT])}
    return msgspec.convert(with_settings(to_dict(older), placed), type(older))


def with_nodes(experiment: E, nodes: int) -> E:
    """The experiment on exactly so many nodes, with what `on_nodes` says of that number.

    What that has of settings that there are not, or of wrong types, counts as not said; nothing else is looked at.
    """
    if experiment.cluster.nodes == nodes and not experiment.on_nodes:
        return experiment
    found = replace(experiment, cluster=replace(experiment.cluster, nodes=nodes), on_nodes={})
    if isinstance(others := experiment.on_nodes.get(str(nodes)), Mapping):
        kinds = {setting.key: setting for setting in settings(type(experiment))}
        for key, value in others.items():
            if key in kinds and broken_bound(kinds[key].hint, value) is None:
                found = _with(found, key.split("."), msgspec.convert(value, kinds[key].type))
    return found


def _with(section: Any, path: Sequence[str], value: Any) -> Any:
    first, *others = path
    return replace(section, **{first: _with(getattr(section, first), others, value) if others else value})


def with_settings(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as JSON, with other values for these dotted keys."""
    changed = copy.deepcopy(dict(values))
    for key, value in settings.items():
        *sections, last = key.split(".")
        section = changed
        for name in sections:
            section = section[name]
        section[last] = value
    return changed


def _value(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for name in key.split("."):
        found = found[name]
    return found


def _written(value: Any) -> str:
    """As a user writes it."""
    return value if isinstance(value, str) else json.dumps(value)
