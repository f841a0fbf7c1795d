"""Updates without a finite gradient, in real processes: all ranks skip them, and so does whoever resumes."""

import math
from functools import partial
from pathlib import Path

import pytest
from support.chaos import begin, create_run, finish, remains
from support.elastic import spoil_gradients
from support.faults import InWorkers, Strike, Strikes
from support.hosts import write_task
from support.judged_run import hpcrl

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.errors import ExitCode
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.status import read_status
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

SPOILED = partial(spoil_gradients, {(2, 0): math.inf, (3, 0): math.nan})


def experiment_of(folder: Path, max_skipped: int = 10) -> SFTExperiment:
    write_task(folder)
    optimizer = OptimizerConfig(lr=0.01, schedule="cosine", max_skipped=max_skipped)
    return SFTExperiment(
        control=ControlConfig(steps=5, checkpoint=Frequency(steps=4)),
        cluster=ClusterConfig(device="cpu", heartbeat_s=0.2, lost_after_s=10.0),
        data=DataConfig(train=str(folder / "rows.jsonl"), batch_size=5),
        actor=SFTModelConfig(path=str(folder / "model"), optimizer=optimizer),
    )


def test_a_gradient_that_one_rank_spoils_is_skipped_by_all_and_by_a_replay_that_has_a_sound_one(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path)
    (tmp_path / "plain").mkdir()
    plain = create_run(tmp_path / "plain" / "run", experiment)
    assert finish(plain, InWorkers(SPOILED), timeout_s=120) == [0]
    rows = remains(plain).metrics
    assert [row["actor_train/skipped"] for row in rows] == [0, 1, 1, 0, 0]
    assert ["actor_train/grad_norm" in row for row in rows] == [True, False, False, True, True]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert read_status(plain.root).skipped.updates == {"actor_train": 2}
    assert "skipped  2 updates of actor_train: gradients not finite" in status_text(read_status(plain.root))

    (tmp_path / "killed").mkdir()
    run = create_run(tmp_path / "killed" / "run", experiment)
    strike = Strike(tmp_path / "killed", "kill", "master", "manifest.write", "KILL", "all", 1)
    jobs = begin(run, "first", Strikes((InWorkers(SPOILED), strike)))
    jobs.wait_for("master", 120)
    jobs.kill_all()
    assert finish(run, timeout_s=120) == [0]
    assert remains(run) == remains(plain)


@pytest.mark.slow
def test_a_run_that_skips_too_often_ends_naming_the_limit_and_gets_further_with_a_higher_one(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", experiment_of(tmp_path, max_skipped=1))
    jobs = begin(run, "first", InWorkers(SPOILED))
    assert jobs.wait_for("master", 120) == ExitCode.INTERNAL
    jobs.wait(60)
    verdict = run.read_verdict(0)
    assert verdict is not None and "actor.optimizer.max_skipped = 1 may be skipped" in verdict.reason
    inputs = ("actor.path", "data.tokenizer", "data.train")  # of which the test's run recorded none
    done = hpcrl(tmp_path, "resume", "run", "--actor.optimizer.max_skipped", "10", "--accept-changed", *inputs)
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
