"""The commands about a run, on one that `hpcrl submit` made."""

import json
import os
import shutil
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from support.made_run import MadeRun

from hpcrl.cli import logs as logs_command
from hpcrl.cli.arguments import find_run
from hpcrl.cli.log_filter import moment
from hpcrl.cli.main import main
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode


def hpcrl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hpcrl.cli.main", *words], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    """The directory of a toy run of three steps that is done."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "toy.yaml").write_text("algorithm: toy\ncontrol: {steps: 3, evaluate: {steps: 1}}\n")
    done = hpcrl("submit", str(folder / "toy.yaml"), "--run-dir", str(folder / "run"), "--toy.width", "4")
    assert done.returncode == ExitCode.DONE, done.stderr
    return str(folder / "run")


def test_a_run_keeps_the_settings_of_the_command_line(run):
    frozen = json.loads((Path(run) / "run.json").read_text())
    assert frozen["experiment"]["toy"]["width"] == 4


def test_a_run_directory_that_exists_is_not_written_into(run, capsys, tmp_path):
    (tmp_path / "toy.yaml").write_text("algorithm: toy\ncontrol: {steps: 1}\n")
    before = sorted(Path(run).rglob("*"))
    assert main(["submit", str(tmp_path / "toy.yaml"), "--run-dir", run]) == ExitCode.CONFIGURATION
    assert run in capsys.readouterr().err
    assert sorted(Path(run).rglob("*")) == before


def test_nobody_else_reads_anything_of_a_run(run):
    for path in (Path(run), *Path(run).rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("word", ["submit", "dry-run"])
@pytest.mark.parametrize(
    ("name", "what"),
    [("%j", "'%'"), ("a\\b", r"'\\'"), ("a\nb", r"'\n'"), (os.fsdecode(b"\xff"), "a byte that is not UTF-8")],
)
def test_a_path_that_slurm_would_read_otherwise_is_refused_before_anything_is_made(tmp_path, capfd, word, name, what):
    (tmp_path / "toy.yaml").write_text("algorithm: toy\ncontrol: {steps: 1}\ncluster: {type: local}\n")
    words = ["submit", str(tmp_path / "toy.yaml"), "--run-dir", str(tmp_path / name / "run")]
    assert main([*words, *(["--dry-run"] if word == "dry-run" else [])]) == ExitCode.CONFIGURATION
    said = capfd.readouterr().err
    assert f"the path of a run cannot have {what} in it" in said and "Choose another --run-dir." in said
    assert [path.name for path in tmp_path.iterdir()] == ["toy.yaml"]


def test_status_says_that_it_is_done(run, capsys):
    assert main(["status", run]) == ExitCode.DONE
    assert "done" in capsys.readouterr().out
    assert main(["status", run, "--json"]) == ExitCode.DONE
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["step"], status["exit_code"]) == ("done", 3, 0)


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_logs_are_of_all_processes_or_of_one_and_end_with_the_run(run, capsys, follow):
    assert main(["logs", run, *follow]) == ExitCode.DONE
    everybody = capsys.readouterr().out.splitlines()
    assert {line.split()[2] for line in everybody} >= {"master", "agent-0", "worker-0", "worker-1"}
    assert main(["logs", run, *follow, "--worker", "worker-1"]) == ExitCode.DONE
    assert {line.split()[2] for line in capsys.readouterr().out.splitlines()} == {"worker-1"}


@pytest.mark.slow
def test_logs_are_followed_from_the_moment_a_run_is_resumed_and_not_if_nothing_came_of_it(tmp_path, capsys):
    (tmp_path / "toy.yaml").write_text("algorithm: toy\ncontrol: {steps: 2}\ncluster: {type: local, device: cpu}\n")
    where = str(tmp_path / "run")
    assert hpcrl("submit", str(tmp_path / "toy.yaml"), "--run-dir", where).returncode == ExitCode.DONE
    assert hpcrl("resume", where, "--detach", "--control.steps", "4").returncode == ExitCode.DONE
    assert main(["logs", where, "--follow", "--worker", "master"]) == ExitCode.DONE
    assert "step 4 was the last" in capsys.readouterr().out
    RunDirectory(Path(where)).record_submission("vanished", {"master": 2**22 + 1, "group": 2**22 + 1})
    assert main(["logs", where, "--follow", "--worker", "master"]) == ExitCode.DONE


def test_logs_of_a_process_that_never_was_name_those_that_were(run, capsys):
    assert main(["logs", run, "--worker", "worker-9"]) == ExitCode.CONFIGURATION
    assert "Name one of those who have: agent-0, master, worker-0, worker-1." in capsys.readouterr().err


def test_resume_of_a_run_that_is_done_says_so_and_changes_nothing(run, capsys):
    before = {path: path.stat().st_mtime_ns for path in Path(run).rglob("*")}
    for words in (["--dry-run"], []):
        assert main(["resume", run, *words]) == ExitCode.DONE
        assert capsys.readouterr().out.strip()
    assert {path: path.stat().st_mtime_ns for path in Path(run).rglob("*")} == before


def test_stop_of_a_run_that_is_not_running_says_so(run, capsys):
    assert main(["stop", run]) == ExitCode.DONE
    assert "is done: step 3 was the last." in capsys.readouterr().out


def test_inspect_sums_it_up(run, capsys):
    assert main(["inspect", run]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "actor_gen" in shown and "done" in shown


def test_inspect_draws_its_curves(run, capsys):
    pytest.importorskip("matplotlib")
    assert main(["inspect", run, "--plot"]) == ExitCode.DONE
    drawn = [Path(line) for line in capsys.readouterr().out.split()]
    assert {path.name for path in drawn} == {"curves.png", "curves.svg"}
    assert all(path.stat().st_size > 0 for path in drawn)


def test_inspect_draws_its_curves_where_it_is_told(run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "taken").touch()
    assert main(["inspect", run, "--plot", "--out", str(tmp_path / "taken")]) == ExitCode.CONFIGURATION
    assert "taken cannot be written: " in (said := capsys.readouterr().err) and "Name a place where you can" in said
    out = tmp_path / "plots" / "first"
    assert main(["inspect", run, "--out", str(out)]) == ExitCode.CONFIGURATION
    assert "--out is where --plot draws to. Give --plot too." in capsys.readouterr().err
    assert main(["inspect", run, "--out", str(out), "--plot"]) == ExitCode.DONE
    assert capsys.readouterr().out.split() == [str(out / "curves.png"), str(out / "curves.svg")]
    assert {path.name for path in out.iterdir()} == {"curves.png", "curves.svg"}


def test_logs_are_filtered_by_pattern_level_time_and_several_workers(run, capsys):
    assert main(["logs", run, "--worker", "worker-0", "agent-0", "--grep", "^(forked|loaded)"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[2] for line in lines} == {"worker-0", "agent-0"} and len(lines) == 2
    capsys.readouterr()
    assert main(["logs", run, "--level", "error"]) == ExitCode.DONE
    assert capsys.readouterr() == ("", "hpcrl: no line of level error; --level warning shows more.\n")
    assert main(["logs", run, "--since", "1d", "--grep", "ending"]) == ExitCode.DONE
    assert "state=done" in capsys.readouterr().out
    assert main(["logs", run, "--since", "0s"]) == ExitCode.DONE
    assert capsys.readouterr().out == ""


def test_logs_are_filtered_by_step_call_role_and_attempt(run, capsys, monkeypatch):
    def shown(*words):
        assert main(["logs", run, *words]) == ExitCode.DONE
        return capsys.readouterr().out.splitlines()

    everything, second = shown(), shown("--step", "2")
    assert second and all("step=2" in line for line in second)
    assert second == [line for line in everything if "step=2 " in line]
    trained = shown("--call", "actor_train")
    assert trained and all("call=actor_train" in line for line in trained)
    assert set(trained) < set(shown("--role", "actor")) and not any("rew_inf" in it for it in shown("--role", "actor"))
    assert shown("--attempt", "0", "--until", "1d") == []
    assert main(["logs", run, "--until", "1d"]) == ExitCode.DONE
    assert capsys.readouterr().err == "hpcrl: no line matches all of these options.\n"
    assert main(["logs", run, "--around", "first-failure"]) == ExitCode.CONFIGURATION
    assert "has no failure" in capsys.readouterr().err
    assert shown("--around", "1d") == []
    monkeypatch.setattr(logs_command.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("PAGER", "head -n 1")
    assert main(["logs", run]) == ExitCode.DONE
    monkeypatch.setenv("PAGER", "no-such-pager")
    assert len(shown()) == len(everything)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--role", "judge"], "--role judge is not there. There are: actor, "),
        (["--call", "gen"], "--call gen is not there. There are: actor_"),
        (["--attempt", "7"], "--attempt 7 is not there. There are: 0."),
        (["--step", "999"], "--step 999 is none of the run's"),
        (["--grep", "("], "--grep ( is not a regular expression"),
        (["--level", "loud"], "--level loud is no level. Give one of error, warning, info"),
        (["--since", "soon"], "--since soon is no time. Give a span like 10m"),
    ],
)
def test_what_a_filter_cannot_be_is_refused(run, capsys, words, said):
    assert main(["logs", run, *words]) == ExitCode.CONFIGURATION
    assert said in capsys.readouterr().err


def test_a_time_is_a_span_before_now_or_of_today_or_a_date():
    now = datetime(2026, 1, 31, 15, 0).timestamp()
    assert moment("--since", "90s", now) == now - 90
    assert moment("--since", "1.5h", now) == now - 5400
    assert moment("--since", "9:05", now) == datetime(2026, 1, 31, 9, 5).timestamp()
    assert moment("--since", "2026-01-30T14:30", now) == datetime(2026, 1, 30, 14, 30).timestamp()


def test_list_shows_the_runs_of_a_folder(run, capsys, monkeypatch):
    assert main(["list", str(Path(run).parent)]) == ExitCode.DONE
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["run", "algorithm", "state"]
    assert line.split()[:4] == ["run", "toy", "done", "3/3"]
    assert main(["list", str(Path(run).parent), "--json"]) == ExitCode.DONE
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["run_dir"], listed["exit_code"]) == (run, 0)


def test_list_takes_the_usual_folder_if_it_is_there(run, capsys, monkeypatch, tmp_path):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == ExitCode.DONE
    assert "no run in" in capsys.readouterr().out
    (tmp_path / "runs" / "mine").symlink_to(run)
    assert main(["list"]) == ExitCode.DONE
    assert "mine" in capsys.readouterr().out


COMMANDS = (["status"], ["inspect"], ["logs"], ["resume", "--dry-run"], ["resume"], ["stop"])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, marks=pytest.mark.slow),
        pytest.param(b"", marks=pytest.mark.slow),
        b"\xff\x00{garbage",
        pytest.param("half", marks=pytest.mark.slow),
    ],
    ids=["removed", "empty", "garbage", "half"],
)
def test_whatever_file_of_a_run_is_damaged_every_command_says_a_sentence(run, capsys, tmp_path, content):
    files = [path.relative_to(run) for path in sorted(Path(run).rglob("*")) if path.is_file()]
    for file in files:
        damaged = tmp_path / "damaged"
        shutil.copytree(run, damaged)
        path = damaged / file
        if content is None:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content == "half" else content)
        for command, *words in COMMANDS:
            # One that has lost its verdict is not done any more, and would be resumed in earnest.
            if [command, *words] == ["resume"] and file.name in ("verdict.json", "claim.json"):
                continue
            code = main([command, str(damaged), *words])
            said = capsys.readouterr()
            assert code in set(ExitCode), (file, command, said)
            assert code == ExitCode.DONE or said.err.strip(), (file, command)
            assert "Traceback" not in said.err, (file, command, said.err)
        assert main(["list", str(tmp_path)]) == ExitCode.DONE
        shutil.rmtree(damaged)


def test_a_name_is_looked_for_in_the_folder_of_runs_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MadeRun(tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    assert find_run("first") == Path("runs/first")
    assert find_run("runs/second") == Path("runs/second")
    with pytest.raises(ConfigurationError, match="there is no run second"):
        find_run("second")
