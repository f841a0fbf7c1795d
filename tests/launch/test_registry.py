"""The names of a user's runs."""

import shutil
import threading
from pathlib import Path

import pytest
from filelock import FileLock
from support.made_run import MadeRun

import hpcrl.launch.registry
from hpcrl.cli.main import main
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.launch.registry import Registry, state_folder


def test_a_run_is_found_by_its_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("HPCRL_STATE", str(tmp_path / "state"))
    run = MadeRun(tmp_path / "runs" / "ppo-1").run
    Registry.of_user().add(run.root)
    monkeypatch.chdir("/")
    assert main(["status", "ppo-1"]) == ExitCode.DONE
    assert str(run.root) in capsys.readouterr().out
    assert main(["list"]) == ExitCode.DONE
    assert "ppo-1" in capsys.readouterr().out
    assert main(["status", "ppo-2"]) == ExitCode.CONFIGURATION


def test_a_path_counts_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("HPCRL_STATE", str(tmp_path / "state"))
    Registry.of_user().add(MadeRun(tmp_path / "elsewhere" / "ppo").run.root)
    here = MadeRun(tmp_path / "here" / "ppo").run
    monkeypatch.chdir(tmp_path / "here")
    assert main(["status", "ppo"]) == ExitCode.DONE
    assert str(here.root) in capsys.readouterr().out


def test_a_run_in_the_folder_runs_is_found_by_its_name_by_whoever_asks(tmp_path: Path, monkeypatch, capsys) -> None:
    """Before one elsewhere that has the name too."""
    monkeypatch.setenv("HPCRL_STATE", str(tmp_path / "state"))
    Registry.of_user().add(MadeRun(tmp_path / "elsewhere" / "ppo").run.root)
    MadeRun(tmp_path / "runs" / "ppo")
    monkeypatch.chdir(tmp_path)
    assert main(["status", "ppo"]) == ExitCode.DONE
    assert "runs/ppo" in capsys.readouterr().out
    for words in (["generate", "ppo", "1"], ["chat", "ppo@2"], ["eval", "ppo"], ["export", "ppo"]):
        assert main(words) == ExitCode.CONFIGURATION
        assert "runs/ppo has no checkpoint" in (said := capsys.readouterr().err), said
    for word, near in (("pp0", "ppo"), ("pp0@2", "ppo@2")):
        assert main(["eval", word]) == ExitCode.CONFIGURATION
        assert f"there is no folder or run {word}. The nearest is {near}." in capsys.readouterr().err
    assert main(["status", "pp0"]) == ExitCode.CONFIGURATION
    assert "The nearest is ppo." in capsys.readouterr().err


def test_a_name_of_two_runs_is_refused_with_both(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "state")
    paths = [MadeRun(tmp_path / folder / "ppo").run.root for folder in "ab"]
    for path in paths:
        registry.add(path)
    with pytest.raises(ConfigurationError, match=f"{paths[0]}, {paths[1]}"):
        registry.find("ppo")


def test_what_was_removed_is_forgotten_and_what_is_not_mounted_is_kept(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "state")
    removed, away, here = (MadeRun(tmp_path / name / name).run.root for name in ("removed", "away", "here"))
    for path in (removed, away):
        registry.add(path)
    shutil.rmtree(removed)
    away.parent.rename(tmp_path / "unmounted")
    assert registry.runs() == []
    registry.add(here)
    registry.add(here)
    assert registry.runs() == [here]
    (tmp_path / "unmounted").rename(away.parent)
    assert registry.runs() == [away, here]
    assert str(removed) not in (tmp_path / "state" / "runs.jsonl").read_text()


def test_names_that_are_added_at_once_are_all_kept(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "state")
    paths = [MadeRun(tmp_path / f"run{number}").run.root for number in range(12)]
    threads = [threading.Thread(target=registry.add, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(registry.runs()) == sorted(paths)


def test_nothing_that_is_wrong_with_the_registry_keeps_a_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MadeRun(tmp_path / "run").run
    (tmp_path / "file").write_text("")
    Registry(tmp_path / "file" / "state").add(run.root)
    registry = Registry(tmp_path / "state")
    registry.add(run.root)
    (tmp_path / "state" / "runs.jsonl").write_bytes(b'{"run_d\n\xff\n' + (tmp_path / "state/runs.jsonl").read_bytes())
    assert registry.runs() == [run.root]
    monkeypatch.setattr(hpcrl.launch.registry, "LOCK_S", 0.05)
    with FileLock(tmp_path / "state" / "runs.lock"):
        registry.add(tmp_path / "other")
    assert registry.runs() == [run.root]


def test_the_folder_is_hpcrls_own_or_the_desktops_or_the_usual_one() -> None:
    assert state_folder({"HPCRL_STATE": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert state_folder({"XDG_STATE_HOME": "/b"}) == Path("/b/hpcrl")
    assert state_folder({"XDG_STATE_HOME": "not/absolute"}) == Path.home() / ".local/state/hpcrl"
