"""An agent, its zygote or a worker that ends before it can tell the master why: the run's verdict has its words."""

from pathlib import Path

import pytest
from support.chaos import begin, create_run, finish, outputs, toy_experiment
from support.mishaps import At, ToFiles, half, lose_module, raise_disk, remove

from hpcrl.durable.notices import leave_notice, read_notices
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.views.status import read_status

LIMIT_S = 60.0


ENDINGS = {
    "zygote": ("agent-0", "as agent-0", lose_module, ExitCode.INTERNAL, "hpcrl.workers.toy:ToyHost cannot be imported"),
    "agent": (
        "master",
        "plan.published",
        ToFiles("attempts/*/plan.json", half),
        ExitCode.INTERNAL,
        "plan.json is damaged",
    ),
    "disk": ("agent-0", "agent.start", raise_disk, ExitCode.REQUEUE, "Read-only file system"),
    "worker": ("master", "plan.published", ToFiles("key.json", remove), ExitCode.INTERNAL, "key.json is missing"),
}


@pytest.mark.parametrize("who", ENDINGS)
def test_who_cannot_tell_the_master_is_heard_all_the_same(tmp_path: Path, who: str) -> None:
    role, point, act, code, says = ENDINGS[who]
    run = create_run(tmp_path / "run", toy_experiment(1, start_timeout_s=50.0, lost_after_s=3.0))
    run.record_submission("first", {"master": 1})
    jobs = begin(run, "first", At(role, point, act, run.root))
    try:
        assert jobs.wait_for("master", LIMIT_S) == code, outputs(run)
    finally:
        jobs.kill_all()
    status = read_status(run.root)
    assert says in status.why and status.exit_code == code, status.why
    assert ("agent-0 on " if who != "worker" else "worker-") in status.why
    if who != "worker":
        (notice,) = read_notices(run, "first").values()
        assert notice.verdict.reason in status.why
        finish(run, timeout_s=LIMIT_S)


def test_of_several_starts_of_an_agent_the_last_counts(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy_experiment(1))

    def verdict(reason: str) -> Verdict:
        return Verdict(None, "failed", 70, reason, None, None, None, 0.0)

    for nonce, node, incarnation in (("a", 0, (7, 1)), ("a", 0, (7, 0)), ("a", 1, (8, 0)), ("b", 0, (9, 9))):
        leave_notice(run, nonce, node, incarnation, verdict(f"{nonce} {node} {incarnation}"))
    leave_notice(run, "a", 1, (8, 0), verdict("a second time"))
    found = {node: notice.verdict.reason for node, notice in read_notices(RunDirectory(run.root), "a").items()}
    assert found == {0: "a 0 (7, 1)", 1: "a 1 (8, 0)"}
