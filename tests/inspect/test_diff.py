"""How two runs differ: what is told of what was made to differ, and nothing else."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from support.made_run import MadeRun, ppo_row, submit_with
from support.miniature import Miniature, make_run

from hpcrl.cli import inspect
from hpcrl.data.user_code import CodeSetting, UserCode
from hpcrl.durable.journal import Adopted, Opened, encode_line, open_journal
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import render
from hpcrl.inspect.views.diff import Curve, Diff, Difference, OtherSamples, diff


def between(first: RunDirectory, second: RunDirectory) -> Diff:
    return diff(RunReader(first), RunReader(second))


def text_of(view: Diff) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as shown:
        console.print(render(view), soft_wrap=True)
    return shown.get()


def measured(root: Path, *rows: dict[str, float]) -> MadeRun:
    made = MadeRun(root)
    made.begin()
    for row in rows:
        made.close(int(row["step"]), row)
    return made


def test_of_a_run_and_its_repetition_nothing_differs(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    for run in runs:
        Miniature(run, tmp_path / "notes").go(4)
    view = between(*runs)
    assert view.same and "Nothing differs in what both have done." in text_of(view)


def test_a_curve_is_told_from_where_it_differs_and_by_how_much_at_the_end(tmp_path: Path) -> None:
    one = measured(tmp_path / "a", *(ppo_row(step) for step in range(6)))
    rows = [ppo_row(step) for step in range(5)]
    rows[3]["actor_train/kl"] += 0.5
    rows[4]["actor_train/kl"] += 0.25
    rows[4]["odd"] = 1.0
    rows[2]["rew_inf/reward"] = float("nan")
    other = measured(tmp_path / "b", *rows)
    view = between(one.run, other.run)
    assert (view.compared, view.steps_first, view.steps_second) == (5, 5, 4) and view.only == {"odd": "first"}
    reward, kl = view.curves
    assert isinstance(reward, Curve) and (reward.metric, reward.step, reward.last_step) == ("rew_inf/reward", 2, 4)
    assert reward.last_by == 0.0
    assert (kl.metric, kl.step, kl.last_step) == ("actor_train/kl", 3, 4) and kl.last_by == pytest.approx(0.25)
    assert not view.same and "+0.25" in text_of(view)


def test_a_number_that_is_none_is_the_same_as_itself(tmp_path: Path) -> None:
    rows = [{"step": 1.0, "x": float("nan")}, {"step": 2.0, "x": float("inf")}]
    runs = [measured(tmp_path / name, *rows).run for name in ("a", "b")]
    assert between(*runs).curves == []


def test_settings_differ_by_their_dotted_names_as_the_newest_version_has_them(tmp_path: Path) -> None:
    runs = [MadeRun(tmp_path / name).run for name in ("a", "b")]
    assert between(*runs).settings == []
    submit_with(runs[1], "n", {"seed": 7, "control.steps": 99})
    assert {it.name: (it.first, it.second) for it in between(*runs).settings} == {
        "seed": (1, 7),
        "control.steps": (60, 99),
    }


def test_inputs_and_code_differ_by_their_digests(tmp_path: Path) -> None:
    runs = []
    for name, text in (("a", b"one"), ("b", b"two")):
        run = make_run(tmp_path / name)
        setting = CodeSetting("/home/me/reward.py:score", ("/home/me/reward.py",))
        run.keep_code(UserCode({"reward.function": setting}, {"/home/me/reward.py": text, "/home/me/same.py": b""}))
        runs.append(run)
    run = RunDirectory.create(
        tmp_path / "c",
        experiment={"a": 1},
        host="m:C",
        key=KeyPair("p" * 40, "s" * 40),
        inputs={"data": "2", "more": "3"},
    )
    view = between(*runs)
    assert [it.name for it in view.code] == ["/home/me/reward.py"] and view.inputs == [] and view.settings == []
    assert between(runs[0], run).inputs == [Difference("data", "1", "2"), Difference("more", None, "3", "first")]


def opened_run(root: Path, *steps: tuple[str, ...]) -> RunDirectory:
    run = make_run(root)
    number = run.claim_attempt("s")
    run.files.publish(run.adopted(number), encode_line(Adopted((), {})), "adopted")
    journal = open_journal(run.files, run.journal(number))
    journal.append([Opened(i + 1, ids, 0, {}, {}, 0, (), 0, False, False) for i, ids in enumerate(steps)])
    journal.close()
    return run


def test_the_first_step_of_other_samples_is_told(tmp_path: Path) -> None:
    one = opened_run(tmp_path / "a", ("1", "2"), ("3", "4"), ("5",))
    other = opened_run(tmp_path / "b", ("1", "2"), ("3", "5", "4"))
    view = between(one, other)
    assert view.samples == OtherSamples(2, 1, "4", "5", 2, 2, 3)
    assert "Step 2 is the first that was made of other samples: number 1 is 4 and 5; 2 of 2 and 3" in text_of(view)
    assert between(one, one).samples is None
    fewer = between(one, opened_run(tmp_path / "c", ("1",))).samples
    assert fewer is not None and (fewer.step, fewer.first, fewer.second) == (1, "2", None)


def test_the_command_needs_a_second_run_and_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [measured(tmp_path / name, ppo_row(1)).run for name in ("a", "b")]
    root, other = (str(run.root) for run in runs)
    with pytest.raises(ConfigurationError, match=r"needs another run\. Name it: hpcrl inspect RUN diff OTHER\."):
        inspect.run([root, "diff"])
    assert inspect.run([root, "diff", other, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared"] == 1
    with pytest.raises(ConfigurationError, match="The view steps takes no other run"):
        inspect.run([root, "steps", other])
    with pytest.raises(ConfigurationError, match="is no run"):
        inspect.run([root, "diff", str(tmp_path)])
