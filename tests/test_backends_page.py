"""docs/backends.md: its commands do what it says."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.chaos import rows_of, wait_until
from support.hosts import write_task
from support.layout_runs import ppo, sft

from hpcrl.config.experiment import to_dict
from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

PAGE = (Path(__file__).parent.parent / "docs" / "backends.md").read_text(encoding="utf-8")
COMMANDS = {words[1]: words for words in map(shlex.split, PAGE.splitlines()) if words[:1] == ["hpcrl"]}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def hpcrl(*words: str) -> str:
    command = [sys.executable, "-m", "hpcrl.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == ExitCode.DONE, done.stderr + done.stdout
    return done.stdout


def test_the_commands_are_these() -> None:
    assert list(COMMANDS) == ["plan", "doctor", "resume"]


def test_a_plan_says_what_each_needs(task: Path, tmp_path: Path) -> None:
    config = tmp_path / "ppo.yaml"
    config.write_text(yaml.safe_dump(to_dict(ppo(task, "d2", 2))))
    _, _, _, *words = COMMANDS["plan"]
    assert {"--actor.backend", "--critic.backend"} <= set(words)
    both = [
        hpcrl("plan", str(config), *words),
        hpcrl("plan", str(config), *(["native" if w == "fsdp" else w for w in words])),
    ]
    assert both[0] != both[1] and "memory" in both[0].lower()


def test_a_run_that_is_stopped_goes_on_under_the_other(task: Path, tmp_path: Path) -> None:
    config, root = tmp_path / "sft.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(to_dict(sft(task, "d2", 2))))
    hpcrl("submit", str(config), "--run-dir", str(root), "--detach", "--control.steps", "400")
    run = RunDirectory.open(root)
    wait_until(lambda: closed(run) >= 2, 60, "2 steps")
    nonce = run.newest_nonce()
    assert nonce is not None
    run.publish_command(Command("drain", nonce))
    hpcrl("stop", str(root))
    words = [str(root) if word == "RUN" else word for word in COMMANDS["resume"][1:]]
    told = hpcrl(*words)
    assert "actor.backend: what is computed with another value is equal up to rounding" in told
    hpcrl(*(word for word in words if word != "--dry-run"), "--control.steps", str(closed(run) + 2))
    assert any(row["event"] == "closed" for row in rows_of(run.events(run.numbers()[-1])))


def closed(run: RunDirectory) -> int:
    rows = [row for attempt in run.numbers() for row in rows_of(run.events(attempt))]
    return len({row["step"] for row in rows if row["event"] == "closed"})
