"""Reading YAML as a user means it: 1e-6 is a number, and a key that stands twice is a mistake."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from hpcrl.errors import ConfigurationError


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-6 for a text and lets the last of two equal keys win; this loader does neither."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f'the key "{key.value}" stands here twice', problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises ConfigurationError, with the line if there is one."""
    try:
        values = yaml.load(path.read_bytes(), _Loader)
    except OSError as error:
        raise ConfigurationError(
            [f"{path} cannot be read: {error.strerror}."], "Give the path of a YAML file."
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ConfigurationError([f"{place}: {error.problem}."], "Correct the YAML there.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"{path} is not YAML: {error}."], "Correct it.") from None
    if not isinstance(values, dict):
        raise ConfigurationError(
            [f"{path} holds {values!r}, but a configuration is a mapping."], "Begin it with `algorithm: ppo` and so on."
        )
    return values
