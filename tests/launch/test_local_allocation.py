"""What a master on one machine is told of the agents that it misses."""

import subprocess
import sys
from pathlib import Path

from support.chaos import create_run, toy_experiment

from hpcrl.launch.local_allocation import LocalAllocation


def test_of_missing_agents_those_that_were_killed_are_named(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy_experiment(nodes=3))
    allocation, missing = LocalAllocation(run.root, "one"), {0: None, 1: None}
    assert allocation.ends() == {}
    assert allocation.replace_missing(missing) == {}, "nobody has written down what was started"
    command = [sys.executable, "-c", "import time; time.sleep(60)", str(run.submitit_folder("one"))]
    agents = [subprocess.Popen(command) for _ in range(3)]
    try:
        run.record_submission("one", {f"agent-{node}": agent.pid for node, agent in enumerate(agents)})
        assert allocation.replace_missing(missing) == {}, "both are running"
        for agent in agents[1:]:
            agent.kill()
            agent.wait()
        (node, absence), *others = allocation.replace_missing(missing).items()
        assert (node, absence.standing, others) == (1, "ended", [])
        assert absence.what.startswith("agent-1 ended before it met the master (killed?)")
        assert allocation.replace_missing({1: (0, 0)})[1].what.startswith("agent-1 ended (killed?)")
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
