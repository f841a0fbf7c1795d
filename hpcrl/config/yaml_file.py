"""Reading YAML as a user means it: 1e-6 is a number, and a key that stands twice is a mistake.

What a file unfolds to is measured before anything is made of it: a few lines of aliases can stand for billions.
"""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from hpcrl.errors import ConfigurationError

MOST_BYTES = 256 << 10
MOST_VALUES = 100_000
"""Of a file, and of what it is with every alias written out."""
DEEPEST = 100
IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "character '\\t'": "a tab stands there, but YAML takes spaces only",
        "<block": "this line is not indented as those before it, or the name of its section is missing",
        "mapping values are not allowed": "this line is not indented as those before it, or has a colon too many",
    }
)
"""What PyYAML says of common mistakes, by a part of it, as a person says it."""


TOO_DEEP = f"values are nested more than {DEEPEST} deep"
_Extent = tuple[int, int]
"""How many values a node is with every alias in it written out, and how deep they are nested."""


def _measure(node: yaml.Node, known: Mapping[yaml.Node, _Extent]) -> _Extent:
    """Of a node whose children are known. Raises MarkedYAMLError where it is too much."""
    pairs = node.value if isinstance(node, yaml.CollectionNode) else ()
    children = [known[each] for pair in pairs for each in (pair if isinstance(pair, tuple) else (pair,))]
    size, depth = 1 + sum(size for size, _ in children), 1 + max((depth for _, depth in children), default=0)
    if size > MOST_VALUES:
        problem = f"with its aliases written out this is {size:,} values; {MOST_VALUES:,} are allowed"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    if depth > DEEPEST:
        raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=node.start_mark)
    return size, depth


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-6 for a text and lets the last of two equal keys win; this loader does neither."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._depth = 0
        self._extents: dict[yaml.Node, _Extent] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuses at the first value that is too deep or stands for too much, before anything after it is read."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=self.peek_event().start_mark)
        alias = self.check_event(yaml.AliasEvent)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and node not in self._extents:
            if alias:
                raise yaml.MarkedYAMLError(problem="an alias stands within what it names", problem_mark=node.start_mark)
            self._extents[node] = _measure(node, self._extents)
        return node

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
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ConfigurationError(
                [f"{path} has more than {MOST_BYTES >> 10} KiB, which no configuration needs."], "Give another file."
            )
        values = yaml.load(text, _Loader)
    except OSError as error:
        raise ConfigurationError(
            [f"{path} cannot be read: {error.strerror}."], "Give the path of a YAML file."
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        problem = next((said for part, said in IN_WORDS.items() if part in str(error.problem)), error.problem)
        raise ConfigurationError([f"{place}: {problem}."], "Correct the YAML there.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"{path} is not YAML: {error}."], "Correct it.") from None
    if values is None:
        raise ConfigurationError([f"{path} is empty."], "Begin it with `algorithm: ppo` and so on.")
    if not isinstance(values, dict):
        raise ConfigurationError(
            [f"{path} holds {values!r:.200}, but a configuration is a mapping."],
            "Begin it with `algorithm: ppo` and so on.",
        )
    return values


def is_yaml(value: Any) -> bool:
    """Whether a value is no text, or one that YAML's syntax allows."""
    try:
        return not isinstance(value, str) or all(True for _ in yaml.parse(value))
    except yaml.YAMLError:
        return False


def in_yaml(value: Any) -> str:
    """A value as YAML in one line."""
    plain = list(value) if isinstance(value, tuple) else value
    style = '"' if isinstance(value, str) and "\n" in value else None
    dumped = yaml.safe_dump(plain, default_style=style, default_flow_style=True, allow_unicode=True, width=10**9)
    return dumped.partition("\n")[0]
