"""Gradients that no kernel gives twice: such a run is resumed, and compared by tolerance. No GPU is needed: a stand-in
differs from call to call, as flash attention's backward on CUDA does, with or without torch saying so."""

from functools import partial
from pathlib import Path

import pytest
from support.chaos import begin, create_run, finish, outputs, rows_of
from support.elastic import attend_by_products, differ, drifts, tell_of_another_digest
from support.faults import InWorkers, Strike, Strikes
from support.hosts import write_task

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

BACKEND = """
from hpcrl.backends.backend import Backend

MINE = Backend(
    train=True,
    generate=True,
    axes=("dp",),
    dtypes=("fp32",),
    inexact_on=("cpu",),
    engine="hpcrl.engines.native:NativeEngine",
)
"""
"""Of which nobody promises that an update that is made again has the same bits."""


def a_run(folder: Path, backend: str = "native") -> RunDirectory:
    write_task(folder)
    experiment = SFTExperiment(
        control=ControlConfig(steps=4, checkpoint=Frequency(steps=3)),
        cluster=ClusterConfig(device="cpu", heartbeat_s=0.2, lost_after_s=10.0),
        data=DataConfig(train=str(folder / "rows.jsonl"), batch_size=6),
        actor=SFTModelConfig(path=str(folder / "model"), optimizer=OptimizerConfig(lr=0.001), backend=backend),
    )
    return create_run(folder / "run", experiment)


def told_of(run: RunDirectory) -> list[str]:
    """The operations that are told to give other bits every time."""
    return [row["operation"] for row in rows_of(run.events(0)) if row["event"] == "not deterministic"]


def test_an_update_of_a_backend_that_promises_no_bits_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BACKEND)
    run = a_run(tmp_path, f"{tmp_path / 'mine.py'}:MINE")
    assert finish(run, Strikes(()), timeout_s=120) == [0], outputs(run)
    (operation,) = told_of(run)
    assert operation.startswith("backend ") and operation.endswith("mine.py:MINE")
    lines = [line.event for line in read_history(run).lines if isinstance(line.event, Trained)]
    assert lines and all(line.numerics.inexact == (operation,) for line in lines)


@pytest.mark.parametrize(("named", "operation"), [(True, "put_"), (False, "one that torch does not name")])
def test_a_run_whose_kernels_differ_from_call_to_call_resumes_and_names_the_operation(
    tmp_path: Path, named: bool, operation: str
) -> None:
    run = a_run(tmp_path)
    varying = InWorkers(partial(differ, named))
    strike = Strike(tmp_path, "kill", "master", "manifest.write", "KILL", "all", 1)
    jobs = begin(run, "first", Strikes((varying, strike)))
    jobs.wait_for("master", 120)
    jobs.kill_all()
    assert finish(run, varying, timeout_s=120) == [0], outputs(run)
    lines = [line.event for line in read_history(run).lines if isinstance(line.event, Trained)]
    assert lines and all(line.numerics.inexact == (operation,) for line in lines)
    first, *later = drifts(run)
    assert first["why"] == f"not every operation is deterministic there ({operation})" and not first["unlike"]
    assert all(drift["why"] for drift in later)
    assert told_of(run) == [operation]


def test_a_resume_where_another_kernel_computes_attention_says_so_and_promises_no_bits(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    jobs = begin(run, "first", Strikes((Strike(tmp_path, "kill", "master", "manifest.write", "KILL", "all", 1),)))
    jobs.wait_for("master", 120)
    jobs.kill_all()
    tell_of_another_digest(run, "actor_train")
    assert finish(run, InWorkers(attend_by_products), timeout_s=120) == [0], outputs(run)
    lines = [line.event for line in read_history(run).lines if isinstance(line.event, Trained)]
    assert {line.numerics.attention for line in lines} == {("sdpa and merged",) * 2, ("sdpa",) * 2}
    loaded = [row["attention"] for n in (0, 1) for row in rows_of(run.worker_log(n, "worker-0")) if "attention" in row]
    assert loaded == [{"actor": "sdpa and merged"}, {"actor": "sdpa"}]
    (changed,) = [row for row in rows_of(run.events(1)) if row["event"] == "numerics changed"]
    assert "attention: sdpa and merged" in changed["was"] and "attention: sdpa;" in changed["now"]
    assert f"recorded over {changed['was']}, replayed over {changed['now']}" == drifts(run)[0]["why"]
    assert [row["event"] for row in rows_of(run.events(0))].count("numerics changed") == 0
