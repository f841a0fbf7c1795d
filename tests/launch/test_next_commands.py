"""The command that each verdict advises (docs/troubleshooting.md has them) is typed after a failure of that kind, and
the run gets further.
"""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.failures import QUICK, SLOW, Breaks, Failure, made
from support.judged_run import hpcrl, written
from support.slurm_made import made_on_slurm

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.verdicts import VERDICTS, Kind
from hpcrl.inspect.views.why import Cause, causes_of

ROOT = Path(__file__).parents[2]
FAILURES = {failure.name: failure for failure in (*QUICK, *SLOW)}
DONE = "done"


@dataclass(frozen=True)
class Followed:
    """A failure, what is put in the place of the advised command's examples, and what shows that it helped: words that
    the command prints, or DONE: the run is done."""

    failure: Failure
    helped: str = DONE
    examples: Sequence[str] = ()
    instead: Sequence[str] = ()
    slow: bool = True


def by(name: str, helped: str = DONE, examples: str = "", instead: str = "", slow: bool = True) -> Followed:
    return Followed(FAILURES[name], helped, examples.split(), instead.split(), slow)


BROKEN = Failure(
    "the master's code breaks",
    "internal",
    "master",
    lambda scene: Breaks(scene.folder, "strike", "master", "journal.before", "", nth=7),
)
FOLLOWED: dict[Kind, Followed] = {
    "configuration": by("no GPU is there", DONE, "--SECTION.SETTING VALUE", "--cluster.device cpu"),
    "host memory": by("an allocation fails"),
    "time limit": by("the allocation ends", instead="--control.steps 30 --toy.delay_s 0"),
    "preempted": by("SIGTERM to the master", instead="--control.steps 30 --toy.delay_s 0"),
    "node failure": by("every attempt is killed"),
    "hang": by("a worker does not start", "no progress in starting"),
    "disk": by("no room for a manifest", "Filesystem"),
    "cancelled": by("hpcrl stop", slow=False),
    "internal": Followed(BROKEN, "ZeroDivisionError: float division by zero", slow=False),
}
MODELS = "launch/test_next_commands.py::test_a_function_is_corrected_and_a_call_made_smaller_as_it_is_advised"
ELSEWHERE: dict[Kind, str] = {
    "data": "launch/test_next_inputs.py::test_a_data_set_that_is_written_anew_ends_the_next_attempt_and_is_accepted",
    "user's code": MODELS,
    "GPU memory": MODELS,
    "waiting for Slurm": "launch/test_next_commands.py::test_who_waits_for_slurm_may_ask_how_it_is",
    "more nodes": (
        "master/test_node_range.py::test_a_run_begins_with_the_nodes_that_have_come_and_takes_in_one_that_comes_later"
    ),
    "changed script": "launch/test_changed_script.py::test_a_script_is_changed_in_the_middle_of_a_run",
    "communication": "slurm/test_why.py::nodes_that_do_not_reach_the_master",
}


def follow(cause: Cause, folder: Path, examples: Sequence[str] = (), instead: Sequence[str] = ()) -> str:
    """Type the command; what it has printed."""
    words = [word for word in shlex.split(cause.next) if word not in examples]
    if words[0] != "hpcrl":
        return subprocess.run([*words, *instead], capture_output=True, text=True, check=True).stdout
    done = hpcrl(folder, *words[1:], *instead)
    assert done.returncode == ExitCode.DONE, f"{cause.next}\n{done.stdout}{done.stderr}"
    return done.stdout


def submitted_here(failure: Failure) -> Failure:
    """As `hpcrl submit` writes down where a run was started."""

    def experiment(folder: Path) -> ExperimentConfig:
        made = failure.experiment(folder)
        return replace(made, cluster=replace(made.cluster, type="local"))

    return replace(failure, experiment=experiment)


def newest(folder: Path) -> Cause:
    return causes_of(RunDirectory.look(folder / "run"))[0]


def is_done(folder: Path) -> bool:
    verdict = RunDirectory.look(folder / "run").newest_verdict()
    return verdict is not None and verdict.state == "done"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if FOLLOWED[kind].slow else []) for kind in FOLLOWED]
)
def test_what_is_advised_after_a_failure_helps(kind: Kind, tmp_path: Path) -> None:
    followed = FOLLOWED[kind]
    cause, seen = made(submitted_here(followed.failure), tmp_path)
    assert cause is not None and cause.kind == kind, seen
    said = follow(newest(tmp_path), tmp_path, followed.examples, followed.instead)
    assert is_done(tmp_path) if followed.helped == DONE else followed.helped in said, said


@pytest.mark.slow
def test_a_function_is_corrected_and_a_call_made_smaller_as_it_is_advised(tmp_path: Path) -> None:
    written(tmp_path)
    reward, right = tmp_path / "score.py", (tmp_path / "score.py").read_text()
    body = right.index("def score")
    reward.write_text(right[:body] + "def score(prompt, response, row):\n    return row['label']\n")
    settings = ("--run-dir", "run", "--control.steps", "1", "--reward.trial_rows", "0")
    assert hpcrl(tmp_path, "submit", "ppo.yaml", *settings).returncode == ExitCode.USER_CODE
    cause = newest(tmp_path)
    assert (cause.kind, cause.next.split()[-1]) == ("user's code", "reward.function")
    full = 'raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")'
    reward.write_text(f"{right[:body]}def score(prompt, response, row):\n    {full}\n")
    hpcrl(tmp_path, *shlex.split(cause.next)[1:])

    cause = newest(tmp_path)
    assert (cause.kind, cause.next.split()[-2]) == ("GPU memory", "--actor.micro_batch_tokens")
    reward.write_text(right)
    follow(cause, tmp_path, instead=("--accept-changed", "reward.function"))
    assert is_done(tmp_path)


def test_who_waits_for_slurm_may_ask_how_it_is(tmp_path: Path) -> None:
    made_on_slurm(tmp_path / "run")
    cause = newest(tmp_path)
    assert cause.kind == "waiting for Slurm" and "no process has begun yet" in follow(cause, tmp_path)


def test_every_verdict_s_command_is_followed() -> None:
    assert sorted({**FOLLOWED, **ELSEWHERE}) == sorted(VERDICTS)
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), place
