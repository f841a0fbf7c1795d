"""Where a run runs: the settings that may be others when it is resumed. All else is what the run is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.fields import ChangeClass, settings


@dataclass(frozen=True)
class Change:
    """A setting, its new value and the old one, as JSON holds them."""

    key: str
    value: Any
    old: Any

    def __str__(self) -> str:
        return f"{self.key} = {_written(self.value)} (was {_written(self.old)})"


def placement_changes(before: ExperimentConfig, after: ExperimentConfig) -> list[Change]:
    """The settings of placement that differ, in the order of the configuration."""
    keys = [setting.key for setting in settings(type(after)) if setting.change is ChangeClass.PLACEMENT]
    old, new = to_dict(before), to_dict(after)
    pairs = ((key, _value(new, key), _value(old, key)) for key in keys)
    return [Change(key, value, was) for key, value, was in pairs if value != was]


def _value(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for name in key.split("."):
        found = found[name]
    return found


def _written(value: Any) -> str:
    """As a user writes it."""
    return value if isinstance(value, str) else json.dumps(value)
