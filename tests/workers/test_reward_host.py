"""The host of CPU workers: it scores like the torch host, imports no torch, and has nothing to save."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.hosts import write_task
from support.rows import open_datasets
from support.tiny_ppo import tiny_ppo

from hpcrl.data.samples import SequenceSample
from hpcrl.errors import InternalError
from hpcrl.placement.plan import Plan, plan_for
from hpcrl.workers.host import HostContext, Work
from hpcrl.workers.model_worker import load_host

RESPONSES = ([1, 2, 1], [3], [1, 1])
SCORE = """
import sys
from pathlib import Path
import numpy as np
from hpcrl.data.datasets import open_datasets
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.samples import SequenceSample
from hpcrl.placement.plan import plan_from_json
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.workers.host import HostContext, Work
from hpcrl.workers.model_worker import load_host

plan = plan_from_json(Path(sys.argv[1]).read_bytes())
experiment = experiment_from(plan.experiment)
datasets = open_datasets(experiment, algorithm_of(experiment).rows, ScratchIndexes())
host = load_host(plan, HostContext(2, plan, Path(sys.argv[1]).parent, datasets))
assert host.prepare() == ""
host.load([""], {})
ids = datasets["train"].ids[:3]
rows = {"prompts": [np.array([1], np.int32)] * 3, "responses": [np.array(r, np.int32) for r in eval(sys.argv[2])]}
batch = SequenceSample.from_rows([f"{i}@0" for i in ids], rows)
print(host.execute(Work(1, "rew_inf", 0, batch)).sample.data["rewards"].tolist())
host.close()
print("torch" in sys.modules)
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    write_task(tmp_path)
    experiment = tiny_ppo(tmp_path, nodes=1)
    reward = dataclasses.replace(experiment.reward, workers=1)
    return plan_for(dataclasses.replace(experiment, reward=reward), 1)


def test_a_cpu_worker_scores_as_a_model_worker_does_and_never_imports_torch(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "plan.json").write_bytes(plan.to_json())
    command = [sys.executable, "-c", SCORE, str(tmp_path / "plan.json"), repr(RESPONSES)]
    scores, has_torch = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert has_torch == "False"
    assert scores == str(of_a_model_worker(tmp_path))


def of_a_model_worker(folder: Path) -> list[float]:
    """The same responses, scored where all roles are on one worker with torch."""
    experiment = tiny_ppo(folder, nodes=1, workers=1)
    plan = plan_for(experiment, 1)
    datasets = open_datasets(experiment)
    host = load_host(plan, HostContext(0, plan, folder, datasets))
    host.load([host.prepare()], {})
    rows = {"prompts": [np.array([1], np.int32)] * 3, "responses": [np.array(row, np.int32) for row in RESPONSES]}
    batch = SequenceSample.from_rows([f"{row}@0" for row in datasets["train"].ids[:3]], rows)
    made = host.execute(Work(1, "rew_inf", 0, batch)).sample
    host.close()
    assert made is not None
    return list(made.data["rewards"].tolist())


def test_what_has_no_state_is_not_saved(tmp_path: Path, plan: Plan) -> None:
    host = load_host(plan, HostContext(2, plan, tmp_path, {}))
    with pytest.raises(InternalError, match="reward has no state"):
        host.snapshot("reward")
