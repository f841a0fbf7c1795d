"""Settings of an algorithm of one's own: those that a run can keep, and those that it cannot."""

from pathlib import Path

import pytest
from support.experiments import ppo_values, write_config, write_inputs

from hpcrl.cli.main import main
from hpcrl.errors import ExitCode

OWN = Path(__file__).parents[2] / "examples" / "own" / "algorithm.py"
FIELD = "    margin: NonNegative = 0.0\n"
USED = """
import enum, datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

class Colour(enum.Enum):
    RED = "red"

class Own: pass
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of an algorithm in a file beside it."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = {key: value for key, value in ppo_values().items() if key not in ("ppo", "critic")}
    values["data"] = values["data"] | {"samples_per_prompt": 2}
    return write_config(tmp_path / "own.yaml", values | {"algorithm": "own.py:FILTER"})


def plan(config: Path, field: str, *settings: str, file: str = "own.py") -> int:
    """The exit code of `hpcrl plan` where the algorithm's section has a field `mine` of this type and default."""
    text = OWN.read_text().replace("from dataclasses import dataclass\n", f"from dataclasses import dataclass\n{USED}")
    assert FIELD in text
    (config.parent / file).write_text(text.replace(FIELD, f"{FIELD}    mine: {field}\n"))
    return main(["plan", str(config), "--algorithm", f"{file}:FILTER", *settings])


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ('Path = Path("x")', "pathlib.Path"),
        ("complex = 1j", "complex"),
        ("Colour = Colour.RED", "Colour"),
        ("Own | None = None", "Own | None"),
        ("datetime.date | None = None", "datetime.date | None"),
        ("tuple[Path, ...] = ()", "tuple[pathlib.Path, ...]"),
        ("Sequence[int] = ()", "Sequence[int]"),
        ('bytes = b""', "bytes"),
        ("tuple = ()", "tuple"),
    ],
)
def test_a_setting_that_no_run_could_keep_is_refused_by_name_and_type(
    config: Path, capsys: pytest.CaptureFixture[str], field: str, named: str
) -> None:
    assert plan(config, field) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert f"algorithm = {config.parent}/own.py:FILTER: setting filter.mine has the type " in said
    assert f"{named}, but must be int, float" in said
    assert "Fix the file or set algorithm." in said
    assert plan(config, "float | None = None", file="fixed.py") == ExitCode.DONE


def test_a_setting_of_a_type_that_is_not_there_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(config, '"Nowhere" = 1') == ExitCode.CONFIGURATION
    said = "the settings of FilterExperiment cannot be read (name 'Nowhere' is not defined). Fix the file"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value", "needed"),
    [
        ("tuple[float, float] = (0.0, 1.0)", "[1]", "a list of 2 numbers"),
        ('tuple[int, str] = (1, "a")', "[b, 2]", "a list of 2 values: a whole number, a text"),
        ("tuple[int, ...] = ()", "[b]", "a list of whole numbers"),
        ("tuple[bool, ...] = ()", "[2]", "a list of values, each true or false"),
        ('Literal["a", "b"] | None = None', "c", "one of a, b or null"),
    ],
)
def test_a_value_of_another_type_is_told_the_type_in_words(
    config: Path, capsys: pytest.CaptureFixture[str], field: str, value: str, needed: str
) -> None:
    assert plan(config, field, "--filter.mine", value) == ExitCode.CONFIGURATION
    assert f"filter.mine = {value} (command line) must be {needed}. Set filter.mine." in capsys.readouterr().err
