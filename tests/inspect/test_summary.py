import io
import time
from pathlib import Path

from rich.console import Console
from support.made_run import MadeRun, ended_run

from hpcrl.config.cluster import ClusterConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import CallFailed, WorkersReady
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import show
from hpcrl.inspect.views.summary import summary


def text_of(run: RunDirectory) -> str:
    out = io.StringIO()
    show(summary(RunReader(run)), Console(file=out, width=110, color_system=None))
    return out.getvalue()


def test_a_run_that_is_done_is_summed_up(tmp_path: Path) -> None:
    made = ended_run(tmp_path / "run")
    (made.run.export("actor", 60)).mkdir(parents=True)
    text = text_of(made.run)
    words = " ".join(text.split())
    assert "run · done · step 60 was the last" in words
    assert "held-out share with reward ≥ 1 0.400 0.875 0.875 0, 60" in words
    assert "held-out: of the evaluation's responses, greedy unless generation.evaluation.temperature is set" in words
    assert "reward 0.440 0.862 0.870 1–10, 51–60" in words
    assert "steps 60 of 60" in words
    assert "restarts 1" in words
    assert "actor_gen 67% 0.200 s 122" in words
    assert "generated tokens/s" in words
    assert str(made.run.root / "export/actor/step-00000060") in text
    assert "hpcrl resume" not in text


def test_a_run_that_failed_says_what_failed_first_and_how_to_go_on(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.write(CallFailed(1, "step 1 rew_inf, part 0", "boom", "Traceback\n  deep\n"))
    made.verdict("failed", 66, "worker-1 raised")
    text = text_of(made.run)
    assert "user's code (certain): worker-1 in step 1 rew_inf, part 0\n" in text and text.count("boom") == 1
    assert f"hpcrl resume {made.run.root} " in text


def test_a_run_without_anything_is_summed_up_too(tmp_path: Path) -> None:
    assert "no verdict" in text_of(MadeRun(tmp_path / "run").run)


def test_a_run_that_is_at_work_is_not_to_be_resumed(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run", cluster=ClusterConfig(type="slurm"))
    made.begin()
    assert "hpcrl resume" in text_of(made.run), "nobody has written anything for long"
    made.time = time.time()
    made.write(WorkersReady(2))
    text = text_of(made.run)
    assert "hpcrl resume" not in text and f"hpcrl status {made.run.root} " in text
