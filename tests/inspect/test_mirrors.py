"""A run's curves in TensorBoard's and W&B's files, read back through their formats: each step once, whoever dies."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs, patient_experiment, toy_experiment
from support.made_run import MadeRun, ppo_row
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from hpcrl.cli.main import main
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.mirrors.mirror import mirroring
from hpcrl.inspect.mirrors.wandb_files import records
from hpcrl.inspect.reader import merged_metrics
from hpcrl.recipes.check import mirror_problems

STEPS = 40
SLOW = """
import sys, time
from hpcrl.inspect.mirrors import mirror
append = mirror.values_of
mirror.values_of = lambda *given: time.sleep(0.05) or append(*given)
from hpcrl.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

Curves = dict[str, list[tuple[int, float]]]


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    made = MadeRun(tmp_path / "run", steps=STEPS)
    made.begin()
    for step in range(1, STEPS + 1):
        made.step(step)
    return made


def in_tensorboard(folder: Path) -> Curves:
    """As TensorBoard shows it."""
    shown = EventAccumulator(str(folder))
    shown.Reload()
    return {tag: [(it.step, it.value) for it in shown.Tensors(tag)] for tag in shown.Tags()["tensors"]} | {
        tag: [(it.step, it.value) for it in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]
    }


def in_wandb(folder: Path) -> Curves:
    """All of a run that `wandb sync` would send: what folders of this id hold."""
    curves: Curves = {}
    ids = set()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        ids.add(path.name)
        for data in records(path):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            row = {it.key or ".".join(it.nested_key): json.loads(it.value_json) for it in record.history.item}
            for key, value in row.items():
                curves.setdefault(key, []).append((row["step"], value))
    assert len(ids) == 1, "one run"
    return curves


READERS: dict[str, Callable[[Path], Curves]] = {"tensorboard": in_tensorboard, "wandb": in_wandb}


@pytest.mark.parametrize("kind", READERS)
def test_a_mirror_that_is_killed_and_started_again_has_every_step_once(
    made: MadeRun, kind: str, tmp_path: Path
) -> None:
    words, folder = ["mirror", str(made.run.root), "--to", kind], made.run.mirror(kind)
    drawn, struck, home = random.Random(7), 0, tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", SLOW, *words], stdout=subprocess.DEVNULL, env=environment)
        until = time.monotonic() + 30.0
        while not list(folder.glob("**/*.tfevents.*" if kind == "tensorboard" else "**/*.wandb")):
            assert time.monotonic() < until
            if process.poll() is not None:
                break
            time.sleep(0.02)
        time.sleep(drawn.uniform(0.0, 0.8))
        process.send_signal(signal.SIGKILL)
        struck += process.wait() == -signal.SIGKILL
    assert struck, "none was killed before its end"
    whole = [sys.executable, "-m", "hpcrl.cli.main", *words]
    subprocess.run(whole, check=True, stdout=subprocess.DEVNULL, env=environment)
    curves = READERS[kind](folder)
    for key in ("rew_inf/reward", "actor_train/kl"):
        assert [step for step, _ in curves[key]] == list(range(1, STEPS + 1)), kind
        assert [value for _, value in curves[key]] == pytest.approx([ppo_row(s)[key] for s in range(1, STEPS + 1)])
    assert [step for step, _ in curves["eval_rew/accuracy"]] == [10, 20, 30, 40]
    assert len(curves["time/step_s"]) == STEPS
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(home.iterdir()) == [], "nothing is written anywhere else"


def test_a_run_that_goes_on_is_followed_and_a_torn_record_is_passed_over(
    made: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mirror", str(made.run.root)]
    assert main(words) == ExitCode.DONE
    assert f"{STEPS} steps are in {made.run.mirror('tensorboard')}" in capsys.readouterr().out
    (file,) = made.run.mirror("tensorboard").glob("*tfevents*")
    file.write_bytes(file.read_bytes()[:-9])
    assert file.stat().st_mode & 0o777 == 0o600
    made.step(STEPS + 1)
    assert main(words) == ExitCode.DONE
    told = capsys.readouterr().out
    assert f"2 new steps, up to step {STEPS + 1}" in told, "the torn one, and the new one"
    curve = in_tensorboard(made.run.mirror("tensorboard"))["rew_inf/reward"]
    assert [step for step, _ in curve] == list(range(1, STEPS + 2))
    assert main(words) == ExitCode.DONE and "new step" not in capsys.readouterr().out


def test_two_mirrors_of_one_folder_and_unknown_programs_are_refused(
    made: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with mirroring("tensorboard", made.run, made.run.mirror("tensorboard")):
        assert main(["mirror", str(made.run.root)]) == ExitCode.CONFIGURATION
    assert "Another process mirrors a run into" in capsys.readouterr().err
    assert main(["mirror", str(made.run.root)]) == ExitCode.DONE, "once the other has ended"
    assert main(["mirror", str(made.run.root), "--to", "mlflow"]) == ExitCode.CONFIGURATION
    assert "Give one of tensorboard, wandb." in capsys.readouterr().err


def mirrored_toy(root: Path, delay_s: float = 0.0) -> RunDirectory:
    experiment = patient_experiment(steps=5, delay_s=delay_s)
    control = dataclasses.replace(experiment.control, mirror="tensorboard")
    return create_run(root, dataclasses.replace(experiment, control=control))


def test_a_run_is_mirrored_beside_its_master(tmp_path: Path) -> None:
    run = mirrored_toy(tmp_path / "run")
    assert finish(run) == [0], outputs(run)
    curves = in_tensorboard(run.mirror("tensorboard"))
    counted = Counter(step for step, _ in curves["samples"])
    assert counted == Counter(row["step"] for row in merged_metrics(run))
    log = run.mirror("tensorboard").with_suffix(".log")
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_mirror_that_cannot_be_written_does_not_disturb_the_run(tmp_path: Path) -> None:
    run = mirrored_toy(tmp_path / "run")
    (run.root / "mirror").mkdir()
    run.mirror("tensorboard").write_text("a file stands where its folder would be")
    assert finish(run) == [0], outputs(run)
    assert "FileExistsError" in run.mirror("tensorboard").with_suffix(".log").read_text()


def test_a_mirror_that_hangs_does_not_hold_the_run_up(tmp_path: Path) -> None:
    """It is stopped for good as soon as it is there."""
    run = mirrored_toy(tmp_path / "run", delay_s=0.3)
    folder = run.mirror("tensorboard")
    stopper = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, signal, subprocess, time\n"
            "print('looks', flush=True)\n"
            "while not (out := subprocess.run(['pgrep', '-f', f'hpcrl.launch.mirroring {os.environ[\"RUN\"]}'],"
            " capture_output=True, text=True).stdout.split()): time.sleep(0.02)\n"
            "os.kill(int(out[0]), signal.SIGSTOP); print(out[0])",
        ],
        env={**os.environ, "RUN": str(run.root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stopper.stdout is not None and stopper.stdout.readline() == "looks\n"
        assert finish(run) == [0], outputs(run)
        stopped, _ = stopper.communicate(timeout=30)
    finally:
        stopper.kill()
    assert not Path(f"/proc/{stopped.strip()}").exists(), "nothing is left"
    assert main(["mirror", str(run.root)]) == ExitCode.DONE, "what is missing is added afterwards"
    assert {step for step, _ in in_tensorboard(folder)["samples"]} == {row["step"] for row in merged_metrics(run)}


def test_a_program_that_is_not_installed_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = toy_experiment(steps=5)
    asked = dataclasses.replace(experiment, control=dataclasses.replace(experiment.control, mirror="wandb"))
    assert list(mirror_problems(asked)) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (problem,) = mirror_problems(asked)
    assert problem.advice == "Run: pip install 'hpcrl[wandb]'; or leave control.mirror out."
    assert list(mirror_problems(experiment)) == []
