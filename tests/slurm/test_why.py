"""Why attempts ended on a real Slurm, from the run directory alone, once a cluster has disturbed them."""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from support.chaos import wait_until
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl, toy_values

from hpcrl.durable.accounting import read_accounts
from hpcrl.inspect.verdicts import Kind
from hpcrl.inspect.views.why import cause_of

pytestmark = pytest.mark.slurm
LEAST = 0.95


@dataclass
class Told:
    """What is said of the attempts that were disturbed, beside what was done to them."""

    run: SlurmRun
    right: int = 0
    wrong: list[str] = field(default_factory=list)

    def after(self, kind: Kind, who: str, act: Callable[[], object]) -> None:
        """Disturb the newest attempt, let the run recover, and see what is said of that attempt."""
        number = self.newest
        act()
        wait_until(lambda: self.newest > number, 120, f"an attempt after {number}")
        self.run.wait_steps(2, timeout_s=120)
        self.see(number, kind, who)

    @property
    def newest(self) -> int:
        found = self.run.run.newest_attempt()
        assert found is not None
        return found

    def see(self, number: int, kind: Kind, who: str) -> None:
        cause = cause_of(self.run.run, number)
        if cause is not None and (cause.kind, cause.who) == (kind, who):
            self.right += 1
        else:
            self.wrong.append(f"attempt {number}: expected {kind} by {who!r}, got {cause}")

    def assert_right(self) -> None:
        share = self.right / (self.right + len(self.wrong))
        print(f"{self.right + len(self.wrong)} failures on Slurm: precision and recall {share:.3f}")
        assert share >= LEAST, "\n".join([*self.wrong, self.run.picture()])


def test_what_disturbs_a_run_on_slurm_is_told_rightly(slurm: SlurmCluster) -> None:
    values = toy_values("low")
    values["control"]["steps"] = 400
    run = SlurmRun.submit(slurm, values)
    told = Told(run)
    run.wait_steps(1)
    (workers,), (master,) = run.jobs("workers"), run.jobs("master")
    with contextlib.ExitStack() as preempting:
        told.after("preempted", "", lambda: preempting.enter_context(slurm.preempt(run.element_away_from_master())))
    told.after("node failure", "worker-1", lambda: run.kill("worker-1"))
    told.after("node failure", "agent-2", lambda: run.kill("agent-2"))
    told.after("hang", "worker-3", lambda: os.kill(run.pid("worker-3"), signal.SIGSTOP))
    told.after("node failure", "master", lambda: run.kill("master"))
    told.after("preempted", "", lambda: run.kill("master", with_signal=signal.SIGTERM))
    told.after("preempted", "", lambda: slurm.requeue(master))
    accounts = read_accounts(run.run, run.run.submissions()[0].nonce)
    assert accounts and all(line.state for lines in accounts.values() for line in lines), slurm.picture()

    number = told.newest
    hpcrl(slurm, "stop", str(run.run.root), check=False)
    slurm.wait_ended(master, workers)
    told.see(number, "cancelled", "")
    said = hpcrl(slurm, "inspect", str(run.run.root), "why").stdout
    assert "cause    cancelled (certain)" in said and "the run went on in attempt" in said
    told.assert_right()


def test_jobs_that_are_cancelled_are_told_so(slurm: SlurmCluster) -> None:
    run = SlurmRun.submit(slurm, toy_values("low"))
    run.wait_steps(1)
    jobs = [*run.jobs("workers"), *run.jobs("master")]
    slurm.scancel(*jobs)
    slurm.wait_ended(*jobs)
    slurm.wait_no_processes()
    told = Told(run)
    told.see(0, "cancelled", "")
    told.assert_right()
