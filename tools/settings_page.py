"""docs/settings.md: every setting of every section, from the dataclasses alone.

`make docs` writes the page; a test compares it with what the dataclasses say now.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import Setting, description, sections, settings
from hpcrl.config.yaml_file import in_yaml
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every setting, section by section. This page is made from the dataclasses of the configuration by `make docs`; do not
edit it. The settings that all algorithms have come first, then those of each algorithm.

`hpcrl new my.yaml` writes a configuration with all of them as comments; `hpcrl submit --algorithm NAME --help` prints
them. The last column but one says what changing a setting means in a run that exists: `placement` (where and how its
processes run), `numbers` (what it computes or keeps from then on), `fork` (what `hpcrl fork` alone may change),
`identity` (what it is: submit a new run).
"""


def page() -> str:
    """The whole text."""
    shared = {setting.key for setting in settings(ExperimentConfig)}
    parts = [HEAD, *_sections(ExperimentConfig, "## Every algorithm", set())]
    for name in names(ALGORITHMS):
        parts += _sections(algorithm_of(name).experiment, f"## {name}", shared)
    return "\n".join(parts).rstrip("\n") + "\n"


def _sections(config: type, title: str, known: set[str]) -> Iterator[str]:
    """The tables of a configuration's sections, without the settings that are known."""
    by_section: dict[str, list[Setting]] = {}
    for setting in settings(config):
        if setting.key not in known:
            by_section.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    yield from (title, "", inspect.getdoc(config) or "", "")
    for name, owner in [("", config), *sections(config)]:
        if name in by_section:
            yield from (f"### `{name}`", "", description(owner, name), "") if name else ()
            yield "| setting | type | default | changing it | what |\n|---|---|---|---|---|"
            yield from map(_line, by_section[name])
            yield ""


def _line(setting: Setting) -> str:
    change = "" if setting.change is None else setting.change.value
    cells = (f"`{setting.key}`", setting.bounded_expectation, _default(setting), change, setting.help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(setting: Setting) -> str:
    value: Any = setting.default
    if setting.required or setting.like:
        return f"that of `{setting.like}`" if setting.like else "required"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return f"`{in_yaml(value)}`" if len(value.splitlines()) > 1 else f"`{value}`"
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
