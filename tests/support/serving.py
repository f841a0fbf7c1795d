"""Runs whose responses a server makes: vLLM's, or the stand-in for it."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.hosts import write_task
from support.layout_runs import ppo

from hpcrl.agent.servers import PREFIX
from hpcrl.config.environment import EnvironmentConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.models.pretrained import read_config, write_random_pretrained
from hpcrl.placement.servers import LOG
from hpcrl.processes import SHARED, mapped_shared
from hpcrl.recipes.ppo import PPOExperiment

STAND_IN = Path(__file__).parent / "vllm_stand_in"
ROOT = Path(__file__).parents[2]
_MADE = ROOT / ".vllm" / "bin" / "python"
REAL = os.environ.get("HPCRL_VLLM_PYTHON") or (str(_MADE) if _MADE.exists() else None)
"""An interpreter that has vLLM, made by `make vllm`."""
MARK = "SERVERS_OF_TESTS_IN"
"""In the environment of all that this process starts, with its number: other tests of this user have servers, too."""
os.environ[MARK] = str(os.getpid())


def stand_in_python(folder: Path, faults: Path | None = None) -> str:
    """An interpreter whose vLLM is the stand-in; it dies where `faults` has a file that says so."""
    path = folder / "python"
    lines = ["#!/bin/sh", f'export PYTHONPATH="$PYTHONPATH:{STAND_IN}:{ROOT}"']
    lines += [f'export STAND_IN_FAULTS="{faults}"'] if faults else []
    path.write_text("\n".join([*lines, f'exec "{sys.executable}" "$@"', ""]))
    path.chmod(0o700)
    return str(path)


def write_served_task(folder: Path, **fields: Any) -> None:
    """As `write_task`, of a model with these fields that vLLM computes: its kernels for CPUs take no smaller heads."""
    write_task(folder)
    heads: dict[str, Any] = {"hidden_size": 64, "heads": 2, "kv_heads": 2, "head_dim": 32}
    config = replace(read_config(folder / "model"), **heads, **fields)
    (folder / "model").rename(folder / "tokenizer")
    write_random_pretrained(folder / "model", config, 3, tokenizer_from=folder / "tokenizer")


def served(task: Path, entry: dict[str, Any], layout: str = "d1", workers: int = 1) -> PPOExperiment:
    """PPO in fp32, whose training's responses are made as the entry says."""
    whole = ppo(task, layout, workers)
    roles: dict[str, Any] = {"dtype": "fp32"}
    return replace(
        whole,
        actor=replace(whole.actor, **roles),
        critic=replace(whole.critic, **roles),
        reference=replace(whole.reference, **roles),
        data=replace(whole.data, max_prompt_tokens=16),
        ppo=replace(whole.ppo, old_logprobs="recomputed"),
        calls={"actor_gen": entry},
    )


TOOL = """
def answer(messages, row):
    said = messages[-1]["content"]
    return "2", len(said) % 3 == 0, len(said) / 10
"""


def talking(made: PPOExperiment, task: Path, least: int = 0) -> PPOExperiment:
    """The same, but its responses have up to three turns, of which each is bounded by what is left."""
    (task / "tool.py").write_text(TOOL)
    return replace(
        made,
        environment=EnvironmentConfig(function=f"{task / 'tool.py'}:answer", max_turns=3),
        reward=RewardConfig(components={"tool": {"role": "environment"}}),
        generation=replace(made.generation, max_new_tokens=20, min_new_tokens=least),
    )


def shared(pid: int) -> Path:
    """What a stand-in has in shared memory."""
    return Path("/dev/shm", f"vllm-stand-in-{pid}")


def unmapped() -> set[Path]:
    """Files in shared memory that are vLLM's, and that no process of this machine has mapped."""
    mapped = set[int]().union(*(mapped_shared(int(it.name)) for it in Path("/proc").glob("[0-9]*")))
    files = (path for pattern in ("psm_*", "sem.mp-*", "vllm_*") for path in SHARED.glob(pattern))
    return {path for path in files if path.stat().st_ino not in mapped}


def folders_of(run: Path) -> list[Path]:
    """Of servers that have printed to below here."""
    return [path.parent for path in SHARED.glob(f"{PREFIX}*/{LOG}") if path.read_text().startswith(f"{run}/")]


def servers_alive() -> list[int]:
    """Processes that run a server's file and come of this one."""
    found, mark = [], f"{MARK}={os.getpid()}".encode()
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes() if process.name.isdigit() else b""
            if b"servers/serve_vllm.py" in command and mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found
