"""What `hpcrl stop` says of jobs that do not obey."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.made_run import MadeRun

from hpcrl.cli.main import main
from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ExitCode, InternalError
from hpcrl.launch import stop as module
from hpcrl.launch.launcher import Launchers


def test_what_does_not_end_is_told_and_status_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A launcher whose jobs cannot be ended stands for a node whose processes hang in its kernel."""
    cluster = ClusterConfig(type="local", heartbeat_s=0.01, grace_s=0.01, lost_after_s=0.1, orphan_timeout_s=0.1)
    made = MadeRun(tmp_path / "run", cluster=cluster)
    made.run.record_submission("submission", {"group": 1})
    made.begin()
    made.send(4, "actor_gen", 1, [1])
    hangs = SimpleNamespace(
        living=lambda run, submission: ["master"],
        accepts_commands=lambda run, submission: True,
        end=lambda run, submission: None,
    )
    monkeypatch.setattr(Launchers, "of", lambda self, submission: hangs)
    monkeypatch.setattr(module, "LEAVE_S", 0.1)
    with pytest.raises(InternalError, match=r"are still there\. `hpcrl status .*` shows what they do\."):
        module.stop(made.run.root, now=True)
    monkeypatch.undo()
    capsys.readouterr()
    assert main(["status", str(made.run.root)]) == ExitCode.DONE
    assert "worker-1 actor_gen, step 4" in capsys.readouterr().out
