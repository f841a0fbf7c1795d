"""A point on this machine: a run on real processes, without Slurm."""

from pathlib import Path

from support.chaos import (
    begin,
    create_run,
    finish,
    outputs,
    rows_of,
    started_twice,
    wait_until,
    waking,
)
from support.cluster import RUNNING, alive_of
from support.faults import After, Strike, Strikes
from support.phases import Phased

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from kills import runs
from kills.points import (
    CHOOSING,
    CHOOSING_PHASES,
    EVALUATE,
    EVALUATE_PHASES,
    GENERATE,
    GENERATE_PHASES,
    HOUSEKEEPER_PHASES,
    LAYOUTS,
    LAYOUTS_PHASES,
    MASTER_PHASES,
    PPO,
    STOP,
    WORKER_PHASES,
    Passage,
    Point,
)
from kills.runs import NODES, Left

PATIENCE_S = 120.0
STANDS_STILL_S = 25.0
"""How long a user watches a master that is stopped and that no agent has met, which nobody misses."""
LEAVES_S = 40.0
"""How long a process that was stopped may take to see that the run goes on without it."""
REQUEUED = (ExitCode.REQUEUE, ExitCode.PREEMPTED)
EXPLAINED = {("reward", STOP): (ExitCode.USER_CODE,), ("master", STOP): (RUNNING,)}


def experiment(task: Path, point: Point) -> ExperimentConfig:
    """An agent that is stopped holds up nobody, so it must be missed before the run is done."""
    quick = (point.role, point.what) == ("agent", STOP)
    return runs.experiment(point.run, task, lost_after_s=0.8 if quick else 3.0, start_timeout_s=12.0)


class References:
    """What each run leaves that nobody disturbs; it runs once, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Left] = {}
        runs.write_tasks(folder / "task")

    def of(self, point: Point) -> Left:
        name = point.run
        if name not in self._known:
            run = create_run(self._folder / f"undisturbed-{name}" / "run", experiment(self._folder / "task", point))
            codes = begin(run, "s0", nodes=NODES).wait(PATIENCE_S)
            assert set(codes.values()) == {0}, outputs(run)
            self._known[name] = runs.left(name, run)
        return self._known[name]


def strike(folder: Path, point: Point, reference: Left) -> str:
    """Strike, let the run recover or resume it, and compare; how it came to its end. Raises AssertionError."""
    folder.mkdir()
    run = create_run(folder / "run", experiment(folder.parent / "task", point))
    struck = fault_of(folder, point)
    with waking(run, lambda: struck.hit if point.what == STOP else ()):
        stands_still = (point.role, point.what) == ("master", STOP)
        codes = finish(run, Phased(armed(struck)), STANDS_STILL_S if stands_still else PATIENCE_S, NODES)
    # Anything else would not be requeued: the disturbance was taken for the run's own fault. (A function that stands
    # still cannot be told from one that is slow: it times out.)
    explained = {*REQUEUED, *EXPLAINED.get((point.role, point.what), ())}
    assert all(code < 0 or code in explained for code in codes[:-1]), f"masters ended with {codes}\n{outputs(run)}"
    assert struck.marker.exists(), "the strike never came"
    wait_until(lambda: not alive_of(run.root), LEAVES_S, f"the end of {alive_of(run.root)}")
    assert runs.left(point.run, run) == reference, f"other bits\n{outputs(run)}"
    assert started_twice(run) == [], started_twice(run)
    assert len(codes) <= 2, f"resumed {len(codes) - 1} times: {'; '.join(ends_of_attempts(run))}"
    if len(codes) == 2:
        return "resumed"
    return "unnoticed" if len(run.numbers()) == 1 else "recovered"


def ends_of_attempts(run: RunDirectory) -> list[str]:
    """Why each of them ended that could say so."""
    rows = (row for number in run.numbers() for row in rows_of(run.events(number)))
    return [row["reason"] for row in rows if row["event"] == "ending"]


def armed(strike: Strike) -> Strikes:
    """The strike, behind those that it counts from."""
    first = strike.first if isinstance(strike, After) else None
    return Strikes((strike,) if first is None else (first, strike))


def fault_of(folder: Path, point: Point) -> Strike:
    """Who strikes at the point, and whom."""
    return _in_ppo(folder, point) if point.run == PPO else _at(folder, point, PHASES[point.run][point.phase])


PHASES = {
    CHOOSING: CHOOSING_PHASES,
    LAYOUTS: LAYOUTS_PHASES,
    GENERATE: GENERATE_PHASES,
    EVALUATE: EVALUATE_PHASES,
}


def _at(folder: Path, point: Point, passage: Passage) -> Strike:
    """A strike where a process passes; of workers 3 and 5 the node is the second."""
    kind, _, rank = passage.who.rpartition("-")
    agent = "agent-0" if kind == "housekeeper" else "agent-1"
    target = {kind: "self", "agent": agent, "reward": f"reward-{rank}", "master": "master"}[point.role]
    if point.role == passage.who:
        target = "self"
    words = (folder, "strike", passage.who, passage.point, point.what, target, passage.nth)
    if passage.after is None:
        return Strike(*words)
    first = passage.after
    return After(*words, first=Strike(folder, "first", first.who, first.point, "MARK", "self", first.nth))


def _in_ppo(folder: Path, point: Point) -> Strike:
    if point.phase.startswith("master: "):
        name, nth = MASTER_PHASES[point.phase.removeprefix("master: ")]
        return Strike(folder, "strike", "master", name, point.what, "self", nth)
    if point.phase.startswith("housekeeper: "):
        name, nth = HOUSEKEEPER_PHASES[point.phase.removeprefix("housekeeper: ")]
        whom = {"housekeeper": "self", "agent": "agent-0", "master": "master"}[point.role]
        return Strike(folder, "strike", "housekeeper-0", name, point.what, whom, nth)
    if point.role == "reward":
        name = "reward.begin" if point.phase == "reward" else "reward.end"
        return Strike(folder, "strike", "worker-3", name, point.what, "reward-3")
    name, nth = WORKER_PHASES[point.phase]
    # The only file of so small an export falls to the first rank of its role.
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
