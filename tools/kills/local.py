"""A point on this machine: PPO of a tiny qwen2 with the torch host, two nodes with two workers each, real processes."""

from pathlib import Path

from support.chaos import (
    Remains,
    begin,
    create_run,
    finish,
    outputs,
    remains,
    rows_of,
    started_twice,
    wait_until,
    waking,
)
from support.cluster import RUNNING, alive_of
from support.faults import Strike
from support.hosts import write_task
from support.phases import Phased
from support.tiny_ppo import tiny_ppo

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.recipes.ppo import PPOExperiment
from kills.points import MASTER_PHASES, STOP, WORKER_PHASES, Point

NODES = 2
PATIENCE_S = 120.0
STANDS_STILL_S = 25.0
"""How long a user watches a master that is stopped and that no agent has met, which nobody misses."""
LEAVES_S = 40.0
"""How long a process that was stopped may take to see that the run goes on without it."""
REQUEUED = (ExitCode.REQUEUE, ExitCode.PREEMPTED)
EXPLAINED = {("reward", STOP): (ExitCode.USER_CODE,), ("master", STOP): (RUNNING,)}


def experiment(task: Path, point: Point | None = None) -> PPOExperiment:
    """An agent that is stopped holds up nobody, so it must be missed before the run is done."""
    quick = point is not None and (point.role, point.what) == ("agent", STOP)
    return tiny_ppo(task, nodes=NODES, lost_after_s=0.8 if quick else 3.0, start_timeout_s=12.0)


def undisturbed(folder: Path) -> Remains:
    """What a run leaves that nobody disturbs."""
    folder.mkdir()
    write_task(folder.parent / "task")
    run = create_run(folder / "run", experiment(folder.parent / "task"))
    codes = begin(run, "s0", nodes=NODES).wait(PATIENCE_S)
    assert set(codes.values()) == {0}, outputs(run)
    return remains(run)


def strike(folder: Path, point: Point, reference: Remains) -> str:
    """Strike, let the run recover or resume it, and compare; how it came to its end. Raises AssertionError."""
    folder.mkdir()
    run = create_run(folder / "run", experiment(folder.parent / "task", point))
    struck = fault_of(folder, point)
    with waking(run, lambda: struck.hit if point.what == STOP else ()):
        stands_still = (point.role, point.what) == ("master", STOP)
        codes = finish(run, Phased(struck), STANDS_STILL_S if stands_still else PATIENCE_S, NODES)
    # Anything else would not be requeued: the disturbance was taken for the run's own fault. (A function that stands
    # still cannot be told from one that is slow: it times out.)
    explained = {*REQUEUED, *EXPLAINED.get((point.role, point.what), ())}
    assert all(code < 0 or code in explained for code in codes[:-1]), f"masters ended with {codes}\n{outputs(run)}"
    assert struck.marker.exists(), "the strike never came"
    wait_until(lambda: not alive_of(run.root), LEAVES_S, f"the end of {alive_of(run.root)}")
    assert remains(run) == reference, f"other bits\n{outputs(run)}"
    assert started_twice(run) == [], started_twice(run)
    assert len(codes) <= 2, f"resumed {len(codes) - 1} times: {'; '.join(ends_of_attempts(run))}"
    if len(codes) == 2:
        return "resumed"
    return "unnoticed" if len(run.numbers()) == 1 else "recovered"


def ends_of_attempts(run: RunDirectory) -> list[str]:
    """Why each of them ended that could say so."""
    rows = (row for number in run.numbers() for row in rows_of(run.events(number)))
    return [row["reason"] for row in rows if row["event"] == "ending"]


def fault_of(folder: Path, point: Point) -> Strike:
    """Who strikes at the point, and whom."""
    if point.phase.startswith("master: "):
        name, nth = MASTER_PHASES[point.phase.removeprefix("master: ")]
        return Strike(folder, "strike", "master", name, point.what, "self", nth)
    if point.role == "reward":
        name = "reward.begin" if point.phase == "reward" else "reward.end"
        return Strike(folder, "strike", "worker-3", name, point.what, "reward-3")
    name, nth = WORKER_PHASES[point.phase]
    # Only the first rank of a role exports.
    who, other = (
        ("worker-0", "worker-3")
        if point.phase.startswith(("copy for an export", "export"))
        else ("worker-3", "worker-0")
    )
    target = {
        "worker": "self",
        "peer": other,
        "agent": "agent-1" if who == "worker-3" else "agent-0",
        "master": "master",
    }
    return Strike(folder, "strike", who, name, point.what, target[point.role], nth)
