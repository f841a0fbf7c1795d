"""Which functions a file has is read from it, before anything runs it."""

from pathlib import Path

import pytest

from hpcrl.config.python_names import names_in
from hpcrl.config.reward import RewardConfig
from hpcrl.config.validate_reward import function_notices, reward_problems

SOURCE = """
import os.path as place, json
from re import match as fits
CONSTANT: int = 3
first, (second, *rest) = 1, (2, 3)
def score(prompt, response, row):
    hidden = 1
async def later(): ...
class Judge:
    def method(self): ...
if CONSTANT:
    def chosen(): ...
with open(os.devnull) as file:
    inside = lambda it: (outside := it)
def _own(): ...
"""


def test_what_a_module_binds_is_read_and_nothing_of_it_is_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE + "raise SystemExit('run')\n")
    names = names_in(path)
    assert names is not None and not names.may_have_others
    assert names.functions == ("score", "later", "chosen")
    assert names.bound == {
        "place", "json", "fits", "CONSTANT", "first", "second", "rest", "score", "later", "Judge", "chosen", "file",
        "inside", "_own",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["from os import *", "globals()['scor'] = 1", "exec('scor = 1')", "def __getattr__(name): return len",
     "import sys; setattr(sys.modules[__name__], 'scor', len)"],
)  # fmt: skip
def test_a_name_that_may_be_made_as_the_file_is_loaded_gives_a_notice_only(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def score(p, r, row): return 1\n{line}\n")
    reward = RewardConfig(function=f"{path}:scor")
    assert list(reward_problems("reward", reward)) == []
    (notice,) = function_notices("reward", reward)
    assert f"{path}:scor: no scor is to be seen in that file" in notice
    assert list(function_notices("reward", RewardConfig(function=f"{path}:score"))) == []


def test_a_misspelt_function_is_a_problem_that_names_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def score(p, r, row): return 1\ndef other(p, r, row): return 1\n")
    components = {"a": {"function": f"{path}:scor"}}
    for reward in (RewardConfig(function=f"{path}:scor"), RewardConfig(components=components)):
        (problem,) = reward_problems("reward", reward)
        assert "there is no function scor in that file; it has score, other." in str(problem)
        assert list(function_notices("reward", reward)) == []
    path.write_text("x = 1\n")
    assert "it has none" in str(*reward_problems("reward", RewardConfig(function=f"{path}:scor")))


@pytest.mark.parametrize("content", [b"def score(:", b"\x00", None])
def test_what_is_no_python_is_left_to_who_reads_the_code(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_bytes(content)
    assert names_in(path) is None
