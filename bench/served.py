"""Responses from vLLM's server beside hpcrl's own: how fast they are made, what new weights cost, and a kill."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from duel import duel
from figures import Figure, median, spread
from recovery import ROOT, struck
from sides.shapes import limits, write_model

from hpcrl.agent.servers import Server, Where
from hpcrl.backends.backend import BACKENDS
from hpcrl.engines.flat import FlatParameters
from hpcrl.engines.servers.ask_vllm import Connection
from hpcrl.engines.vllm import WeightFiles
from hpcrl.models.pretrained import read_config, write_random_pretrained
from hpcrl.placement.servers import WEIGHTS, ServerPlan
from hpcrl.placement.shards import WHOLE
from hpcrl.plugins import find
from hpcrl.workers.host import nobody_is_told

CORE = 0
ROUNDS, LOADS = 5, 5
MADE = ROOT / ".vllm" / "bin" / "python"
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "blocks": 16, "heads": 16, "kv_heads": 4, "head_dim": 64}
"""250M parameters, 1 GB in fp32."""


def served(work: Path) -> list[Figure]:
    python = Path(os.environ.get("HPCRL_VLLM_PYTHON", MADE))
    if not python.exists():
        return [Figure("vLLM", None, "", detail="there is no environment with vLLM: make vllm")]
    small = work / "small"
    write_model(small)
    return [*_generation(python, small, work), _weights(python, small, work), _recovery(python, work)]


def _generation(python: Path, model: Path, work: Path) -> list[Figure]:
    found = []
    for dtype in ("fp32", "bf16"):
        for how in ("equal", "skewed"):
            arguments = [str(model), dtype, how, str(CORE)]
            sides = {
                "hpcrl": (Path(sys.executable), "generate_hpcrl.py", arguments),
                "vllm": (python, "generate_vllm.py", arguments),
            }
            facts, rounds = duel(sides, ROUNDS, work / "logs")
            assert {side["tokens"] for side in facts.values()} == {sum(limits(how))}, facts
            mine, theirs = (median([lap["wall_s"] for lap in rounds[name]]) for name in sides)
            detail = f"hpcrl {mine:.2f} s, vLLM {theirs:.2f} s"
            found.append(
                Figure(f"own generation against vLLM, {dtype}, {how} lengths", theirs / mine, "×", "≥ 1.2", detail)
            )
    return found


def _weights(python: Path, small: Path, work: Path) -> Figure:
    """A whole model given to a server, files and all, against one copy of it into a new file in shared memory."""
    config, folder = replace(read_config(small), **LARGE), work / "large"
    write_random_pretrained(folder, config, 0)
    server = Server(_told(python, folder), Where(False, {}, (), 1), work / "logs" / "server.out")
    try:
        asked = Connection(server.socket, 0, nobody_is_told)
        memory = FlatParameters(config, WHOLE, torch.float32, torch.device("cpu"), False)
        memory.data.normal_(std=0.02)
        files, copy = WeightFiles(server.socket.parent / WEIGHTS, config, "fp32"), server.socket.with_name("copy")
        given, copied = [], []
        for number in range(LOADS + 1):  # the first warms up
            begun = time.perf_counter()
            files.bring(memory, asked, str(number))
            given.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            memory.data.numpy().tofile(copy)
            copied.append(time.perf_counter() - begun)
            copy.unlink()
    finally:
        server.close()
    ratio = median(given[1:]) / median(copied[1:])
    size = memory.data.nbytes / 1e9
    detail = f"{size:.2f} GB: {spread(given[1:], 's')}; copied in {median(copied[1:]):.2f} s"
    return Figure("weights to vLLM ÷ copying them", ratio, "×", "≤ 3", detail)


def _told(python: Path, model: Path) -> ServerPlan:
    server = find(BACKENDS, "vllm", "backend").server
    assert server is not None
    settings = {
        "model": str(model),
        "tokenizer": "",
        "dtype": "float32",
        "tensor_parallel": 1,
        "longest": 256,
        "slots": 4,
        "prefill_tokens": 1024,
        "cache_bytes": 1 << 29,
    }
    return ServerPlan(
        "actor", 0, (0,), str(python), server.module, tuple(settings.items()), 1 << 30, server.folders, server.variables
    )


def _recovery(python: Path, work: Path) -> Figure:
    data = work / "addition"
    script = str(ROOT / "examples/addition/make_data.py")
    subprocess.run([sys.executable, script, "--out", str(data)], check=True, capture_output=True)
    calls = json.dumps({"actor_gen": {"backend": "vllm", "python": str(python)}})
    own = median([it["total"] for it in struck(work, data, data / "model")])
    with_vllm = struck(work, data, data / "model", "--calls", calls, "--data.max_prompt_tokens", "16")
    theirs = median([it["total"] for it in with_vllm])
    detail = f"medians of {len(with_vllm)} kills of a worker: {theirs:.1f} s, and {own:.1f} s where hpcrl generates"
    return Figure(
        "from SIGKILL of a worker to the next train step: more than with the own engine",
        theirs - own,
        "s",
        "≤ 1",
        detail,
    )
