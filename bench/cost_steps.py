"""A whole step of PPO on two workers against what `hpcrl plan` expects of it, by a profile of the same minutes: the
commands that a user types, a real run, its rows of costs."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from demo_runs import environment, hpcrl
from figures import Figure, median
from shares import write_inputs

from hpcrl.cli.settings import read_experiment
from hpcrl.costs import StepCost
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader
from hpcrl.placement.costs import read_costs
from hpcrl.placement.placing import Placed
from hpcrl.placement.plan import plan_for
from hpcrl.placement.search_inputs import lengths_asked, rates_asked
from hpcrl.placement.step_times import expected_step
from hpcrl.placement.workload import workload_of

STEPS = 8
MINUTES = 0.7
"""For the profile."""
MODEL = {"path": "model", "dtype": "fp32", "micro_batch_tokens": 1024}
VALUES: dict[str, Any] = {
    "algorithm": "ppo",
    "cluster": {"type": "local", "workers_per_node": 2, "device": "cpu"},
    "control": {"steps": STEPS, "epochs": None, "checkpoint": {"seconds": None}},
    "data": {"train": "rows.jsonl", "batch_size": 32, "prompt_template": "{prompt}", "max_prompt_tokens": 64},
    "actor": MODEL,
    "critic": MODEL,
    "reference": MODEL,
    "reward": {"function": "gsm8k"},
    "generation": {"max_new_tokens": 64, "slots": 16},
    "ppo": {"minibatches": 4, "kl": {"mode": "reward"}},
}


def stepped(work: Path) -> list[Figure]:
    """A profile, then the run, of which the first step is left out."""
    shutil.rmtree(work, ignore_errors=True)
    write_inputs(work)
    (work / "ppo.yaml").write_text(json.dumps(VALUES))  # JSON is YAML
    _make(work, "profile", "ppo.yaml", "--out", "profile.json", "--minutes", str(MINUTES))
    _make(work, "submit", "ppo.yaml", "--run-dir", "run")
    rows = RunReader(RunDirectory.open(work / "run")).attempts[0].costs()
    measured = [row.at_s - before.at_s for before, row in pairwise(rows)]
    with contextlib.chdir(work):
        experiment = read_experiment("ppo.yaml", ["search.profile=profile.json", "search.lengths=run"])
        expected = expected_step(experiment, 1)
        assert expected is not None, "a step of PPO is reckoned"
        told = ", ".join(_calls(experiment, rows[1:]))
    error = expected.seconds / median(measured) - 1
    detail = (
        f"{error:+.0%}: {expected.seconds:.2f} s expected, {median(measured):.2f} s taken, {min(measured):.2f} … "
        f"{max(measured):.2f} s in {len(measured)} steps; {told}"
    )
    return [Figure("a step of PPO on two workers: error", 100 * abs(error), "%", "≤ 15", detail)]


def _make(work: Path, *command: str) -> None:
    subprocess.run(hpcrl(*command), cwd=work, env=environment(), check=True, stdout=subprocess.DEVNULL)


def _calls(experiment: Any, rows: Sequence[StepCost]) -> Iterator[str]:
    """Each call's error: by the longest of its parts, in the median of steps."""
    costs = read_costs(experiment, rates_asked(experiment), workload_of(experiment, lengths_asked(experiment)))
    plan = plan_for(experiment, 1)
    for call in plan.calls:
        replica = plan.replica(call.name)
        expected = costs.call_nanoseconds(call, Placed(replica.arrangement, replica.ranks, replica.backend)) / 1e9
        taken = median([max(span.seconds for span in row.calls[call.name].spans) for row in rows])
        yield f"{call.name} {expected:.3f} for {taken:.3f} s"
