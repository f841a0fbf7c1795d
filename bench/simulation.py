"""What simulating a run costs: 100 steps of PPO on 1,024 workers, of which three nodes are lost on the way."""

import json
import shutil
import sys
from pathlib import Path

from children import cost_of
from figures import Figure

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.placement.costs import read_costs
from hpcrl.placement.data_sheets import rates_of_gpu
from hpcrl.placement.lengths import spread_lengths
from hpcrl.placement.workload import workload_of
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.simulation.disturbances import Disturbances, NodeLost, When
from hpcrl.simulation.durations import durations_of
from hpcrl.simulation.rows import drawn_rows
from hpcrl.simulation.simulate import simulate

NODES, SLOTS, STEPS, BATCH = 128, 8, 100, 4096
LOST = (NodeLost(17, When(step=20)), NodeLost(99, When(step=50)), NodeLost(3, When(step=80)))
SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def experiment(folder: Path, nodes: int = NODES, steps: int = STEPS, batch: int = BATCH) -> PPOExperiment:
    """7B models, each in d128t8 on all workers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    path, layout = str(folder), f"d{nodes}t{SLOTS}"
    return PPOExperiment(
        control=ControlConfig(steps=steps, checkpoint=Frequency(steps=10)),
        cluster=ClusterConfig(nodes=nodes, workers_per_node=SLOTS, device="cuda"),
        data=DataConfig(train=str(folder / "rows.jsonl"), batch_size=batch, max_prompt_tokens=1024),
        actor=TrainedModelConfig(path=path, layout=layout, dtype="bf16"),
        critic=CriticConfig(path=path, layout=layout, dtype="bf16"),
        reference=ReferenceConfig(path=path, layout=layout, dtype="bf16"),
        reward=RewardConfig(function="gsm8k"),
        generation=GenerationConfig(max_new_tokens=1024),
        ppo=PPOConfig(),
    )


def run_once(folder: Path) -> None:
    of = experiment(folder / "model")
    lengths = spread_lengths((256.0, 128.0), (512.0, 256.0), (1024, 1024))
    rates = rates_of_gpu("H100")
    assert rates is not None
    costs = read_costs(of, rates, workload_of(of, lengths))
    rows = drawn_rows(of, lengths, STEPS, 0)
    found = simulate(of, lambda plan: durations_of(costs, plan), rows, Disturbances(lost=LOST))
    assert found.ending.state == "done" and len(found.attempts) == len(LOST) + 1, found.endings
    closed = {row.step for attempt in found.attempts for row in attempt.costs()}
    assert closed == set(range(1, STEPS + 1)), closed


def simulations(work: Path) -> list[Figure]:
    shutil.rmtree(work, ignore_errors=True)
    cost = cost_of([sys.executable, __file__, str(work)])
    what = f"simulating {NODES * SLOTS:,} workers, {STEPS} PPO steps, {len(LOST)} lost nodes"
    return [
        Figure(what, cost.cpu_s, "s of CPU", "≤ 60"),
        Figure("its process's memory", cost.peak / 2**20, "MiB", "≤ 1024"),
    ]


if __name__ == "__main__":
    run_once(Path(sys.argv[1]))
