"""A file beside the user's code that has the name of a module is refused before anything is submitted."""

import re
from pathlib import Path

import pytest

from hpcrl.cli.main import main
from hpcrl.data.user_code import collect_code
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.hidden_modules import refuse_hiding

SCRIPT = """
from dataclasses import replace

from hpcrl.recipes import toy


def loop(run, e):
    (actor,) = run.groups("actor")
    for step in run.steps():
        actor.generate(step.batch())


TOY = replace(toy.ALGORITHM, script=loop)
"""


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("json.py", "Python's own module json"),
        ("statistics/__init__.py", "Python's own module statistics"),
        ("numpy.py", "the module numpy, which hpcrl needs"),
        ("torch.py", "the module torch, which hpcrl needs"),
        ("jinja2.py", "the module jinja2, which hpcrl needs"),
    ],
)
def test_a_file_beside_a_script_that_hides_a_module_is_refused_by_name(tmp_path, capsys, file, owner):
    (tmp_path / "loop.py").write_text(SCRIPT)
    (tmp_path / "run.yaml").write_text("name: x\ncontrol: {steps: 2}\n")
    hiding = tmp_path / file
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("raise RuntimeError('imported')\n")
    words = ["plan", f"{tmp_path}/run.yaml", f"--algorithm={tmp_path}/loop.py:TOY", f"--run_root={tmp_path}"]
    assert main(words) == ExitCode.CONFIGURATION
    (named, _) = refused(tmp_path)
    told = capsys.readouterr().err
    assert f"{named} has the name of {owner}, and would be imported in its place." in told
    assert f"algorithm = {tmp_path}/loop.py:TOY" in told and f"Rename {named.name}" in told
    named.rename(named.with_name(f"own_{named.name}"))
    assert main(words) == ExitCode.DONE


def refused(folder: Path) -> tuple[Path, str]:
    """What is refused in it, and why."""
    with pytest.raises(ConfigurationError) as error:
        refuse_hiding(folder, "algorithm = loop.py:TOY")
    found = re.search(r": (\S+) has the name of", str(error.value))
    assert found is not None
    return Path(found[1]), str(error.value)


def test_a_file_beside_a_reward_that_hides_a_module_is_refused(tmp_path):
    (tmp_path / "judge.py").write_text("def score(response):\n    return 1.0\n")
    places = {"reward.function": f"{tmp_path}/judge.py:score"}
    assert collect_code(places, ()).files
    (tmp_path / "random.py").write_text("")
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/random.py has the name of Python's own module random"):
        collect_code(places, ())


def test_what_hides_nothing_that_is_needed_may_have_any_name(tmp_path, monkeypatch):
    """Packages leave modules such as `utils` behind, which nobody means; a folder without __init__.py hides nothing."""
    (tmp_path / "utils.py").touch()
    (tmp_path / "test.py").touch()
    (tmp_path / "torch").mkdir()
    (tmp_path / "json.txt").touch()
    (tmp_path / "json.py").mkdir()
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "utils.py").touch()
    monkeypatch.setattr("hpcrl.hidden_modules._homes", lambda: [str(tmp_path / "left")])
    refuse_hiding(tmp_path, "algorithm = loop.py:TOY")
    refuse_hiding(tmp_path / "gone", "algorithm = loop.py:TOY")
