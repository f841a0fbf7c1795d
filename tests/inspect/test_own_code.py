"""Whoever is told of an error in their code is told of the file that they wrote, not of the run's copy of it."""

from pathlib import Path

import pytest
from support.made_run import MadeRun

from hpcrl.data.user_code import CodeSetting, UserCode
from hpcrl.events import CallFailed
from hpcrl.inspect.cause_text import cause_lines
from hpcrl.inspect.own_code import OwnCode
from hpcrl.inspect.views.why import causes_of

OWN = "/home/me/reward.py"
SOURCE = b"def score(text):\n    return first(text)\n\ndef first(text):\n    return int(text[3])\n"


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    made = MadeRun(tmp_path / "run")
    made.begin()
    code = UserCode({"reward.function": CodeSetting(f"{OWN}:score", (OWN,))}, {OWN: SOURCE})
    assert made.run.keep_code(code) == 1
    return made


def test_why_names_the_line_to_edit_and_the_copy_that_was_executed(made: MadeRun) -> None:
    copy = made.run.code_copy(1) / OWN[1:]
    frames = f'  File "{copy}", line 2, in score\n  File "{copy}", line 5, in first\n'
    made.write(CallFailed(0, "step 1 rew_inf, part 0", f"UserCodeError: {copy}:score failed\n{frames}", "Traceback\n"))
    made.verdict("failed", 66, "worker-0 raised")
    (cause,) = causes_of(made.run)
    edit = cause.edit
    assert edit is not None and (edit.file, edit.line, edit.text) == (OWN, 5, "return int(text[3])")
    assert edit.copy == str(copy)
    text = "\n".join(cause_lines(cause))
    assert f"edit     {OWN}, line 5: return int(text[3])" in text and str(copy) not in text
    assert f'File "{OWN}", line 2, in score' in text


def test_what_is_to_be_accepted_are_the_settings_that_name_the_code(made: MadeRun) -> None:
    other = "/home/me/judge.py"
    settings = {
        "reward.components.right.function": CodeSetting(f"{OWN}:score", (OWN,)),
        "reward.components.tidy.function": CodeSetting(f"{other}:tidy", (other, OWN)),
        "reward.components.tidy2.function": CodeSetting(f"{other}:tidy", (other,)),
    }
    number = made.run.keep_code(UserCode(settings, {OWN: SOURCE, other: SOURCE}))
    assert made.run.newest_code() == number
    own = OwnCode(made.run)
    line = own.line(f'  File "{made.run.code_copy(number) / OWN[1:]}", line 5, in first\n')
    assert own.settings(line, "") == ["reward.components.right.function", "reward.components.tidy.function"]
    said = "reward.components.tidy.function judge.py:tidy took longer than reward.timeout_s = 60"
    assert own.settings(None, said) == ["reward.components.tidy.function"]
    made.write(CallFailed(0, "step 1 rew_inf, part 0", f"UserCodeError: {said}", "Traceback\n"))
    made.verdict("failed", 66, "worker-0 raised")
    (cause,) = causes_of(made.run)
    assert cause.next == f"hpcrl resume {made.run.root} --accept-changed reward.components.tidy.function"


def test_an_error_that_names_no_setting_is_the_algorithms(made: MadeRun) -> None:
    """As of a computation, or of a role's method, whose rows do not fit."""
    said = "priced (loop.py:12), in step 5, gave 7 rows of d; it has to give a dict of lists"
    settings = {"algorithm": CodeSetting(f"{OWN}:PPO", (OWN,)), "reward.function": CodeSetting(f"{OWN}:score", (OWN,))}
    made.run.keep_code(UserCode(settings, {OWN: SOURCE}))
    assert OwnCode(made.run).settings(None, f"reward.function {OWN}:score took longer") == ["reward.function"]
    made.write(CallFailed(2, "step 5 priced, part 0", f"UserCodeError: {said}", "Traceback\n"))
    made.verdict("failed", 66, "worker-2 raised")
    (cause,) = causes_of(made.run)
    assert cause.next == f"hpcrl resume {made.run.root} --accept-changed algorithm"


def test_of_stacks_that_have_the_innermost_first_that_one_is_named(made: MadeRun) -> None:
    copy = made.run.code_copy(1) / OWN[1:]
    line = OwnCode(made.run).line("", f'  File "{copy}", line 5 in first\n  File "{copy}", line 2 in score')
    assert line is not None and line.line == 5


def test_a_path_that_only_looks_like_a_copy_stays_as_it_is(made: MadeRun) -> None:
    text = f'  File "/data/code/007/reward.py", line 1, in x\n  File "{made.run.code_copy(1)}/home/me/other.py", line 1'
    own = OwnCode(made.run)
    assert own.named(text) == text and own.line(text) is None
