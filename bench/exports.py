"""An export out of a checkpoint against a copy of its bytes, in turn on the same disk; wall time, and its memory."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from figures import Figure, median

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import to_dict
from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.digests import digest_of
from hpcrl.durable.files import Files
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.shards import open_shard, span_state
from hpcrl.families.config import DecoderConfig
from hpcrl.families.places import Span
from hpcrl.families.reader import config_to_json, parameters_of
from hpcrl.launch.export import ExportPlan
from hpcrl.placement.exporting import export_of
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.shards import cut_of, held
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

ROUNDS = 5
PIECE = 1 << 20  # fastest: what is read stays in a cache until it is written
RANKS = 2
CONFIG = DecoderConfig(
    family="qwen2",
    vocabulary_size=16384,
    hidden_size=768,
    intermediate_size=3072,
    blocks=12,
    heads=12,
    kv_heads=12,
    head_dim=64,
    max_positions=512,
    qkv_bias=True,
    tied=True,
)


def exports(work: Path) -> list[Figure]:
    return [figure for dtype in ("fp32", "bf16") for figure in _export(work, dtype)]


def _export(work: Path, dtype: str) -> list[Figure]:
    """In a process of its own, whose memory is nobody else's."""
    command = [sys.executable, __file__, str(work / dtype), dtype]
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    ours, same, copies = (_median(told[name]) for name in ("ours", "same", "copies"))
    ratios = [one[0] / other[0] for one, other in zip(told["ours"], told["same"], strict=True)]
    read = f"{told['shards'] / 1e6:.0f} MB of shards"
    detail = (
        f"{ours.wall:.2f} s and {same.wall:.2f} s, of which CPU {ours.cpu:.2f} s and {same.cpu:.2f} s, medians of "
        f"{ROUNDS}; of pairs {min(ratios):.2f} … {max(ratios):.2f}"
    )
    memory = (
        f"beside {told['before'] / 2**20:.0f} MiB before it; the largest parameter has {told['largest'] / 1e6:.0f} MB"
    )
    size = f"{told['bytes'] / 1e6:.0f} MB in {dtype}"
    return [
        Figure(
            f"export of {size}: {read} read, and this written, with nothing made of them",
            median(ratios),
            "×",
            "≤ 1.5",
            detail,
        ),
        Figure(
            f"export of {size} in copies of its folder",
            ours.wall / copies.wall,
            "×",
            "",
            f"which take {copies.wall:.2f} s each",
        ),
        Figure(f"memory that an export of {size} takes", (told["peak"] - told["before"]) / 2**20, "MiB", "", memory),
    ]


def _measure(work: Path, dtype: str) -> dict[str, object]:
    shutil.rmtree(work, ignore_errors=True)
    plan = _plan(work, dtype)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _resident("VmRSS")
    ours, same, copies = [], [], []
    for _ in range(ROUNDS + 1):
        ours.append(_seconds(lambda: plan.write(lambda _: None)))
        size = sum(path.stat().st_size for path in plan.folder.iterdir())
        same.append(_seconds(lambda size=size: _same_bytes(plan.shards, size, work / "same")))
        copies.append(_seconds(lambda: _copy(plan.folder, work / "copy")))
        (work / "same").unlink()
        shutil.rmtree(work / "copy")
        shutil.rmtree(plan.folder)
    shards = sum(path.stat().st_size for path in plan.shards)
    peak, largest = _resident("VmHWM"), 4 * max(parameter.numel for parameter in parameters_of(CONFIG))
    shutil.rmtree(work)
    told = {"ours": ours[1:], "same": same[1:], "copies": copies[1:], "bytes": size, "shards": shards}
    return told | {"before": before, "peak": peak, "largest": largest}


def _plan(work: Path, dtype: str) -> ExportPlan:
    """Of a checkpoint that two tensor-parallel workers have saved."""
    model = work / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(config_to_json(CONFIG, "float32")))
    experiment = SFTExperiment(data=DataConfig(train="none.jsonl"), actor=SFTModelConfig(path=str(model), dtype=dtype))
    key = KeyPair("p" * 40, "s" * 40)
    run = RunDirectory.create(work / "run", experiment=to_dict(experiment), host="", key=key, inputs={})
    draw = np.random.default_rng(0)
    shards = tuple(run.files.path(_shard(run.files, run.checkpoint(1, 0), rank, draw)) for rank in range(RANKS))
    digest = digest_of([open_shard(path) for path in shards])
    return ExportPlan(
        run=run,
        role="actor",
        step=1,
        export=export_of(experiment, "actor"),
        shards=shards,
        digest=digest,
        folder=work / "exported",
        inside=False,
    )


def _shard(files: Files, folder: Path, rank: int, draw: np.random.Generator):
    spans: list[Span] = []
    count = 0
    for part in held(CONFIG, cut_of(parse_layout(f"t{RANKS}"), rank)):
        spans += [span.moved(count) for span in part.spans if span.owned]
        count += part.parameter.numel
    arrays = {name: draw.standard_normal(count, np.float32) for name in ("master", "first", "second")}
    return write_shard(
        files, folder, "actor", rank, arrays, {"spans": span_state(spans), "updates": 1, "algorithm": {}}
    )


def _same_bytes(shards: Sequence[Path], size: int, target: Path) -> None:
    """Read the shards, and write and flush as many bytes as are exported: what cannot be had for less."""
    buffer = memoryview(bytearray(PIECE))
    with target.open("wb", buffering=0) as out:
        for shard in shards:
            with shard.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    written = min(count, size)
                    out.write(buffer[:written])
                    size -= written
        os.fsync(out.fileno())


def _copy(source: Path, target: Path) -> None:
    """All files of a folder, flushed."""
    shutil.copytree(source, target)
    for path in target.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


class Seconds(NamedTuple):
    """Of all threads together."""

    wall: float
    cpu: float


def _seconds(action: Callable[[], object]) -> Seconds:
    begun, cpu = time.perf_counter(), time.process_time()
    action()
    return Seconds(time.perf_counter() - begun, time.process_time() - cpu)


def _median(rounds: Sequence[Sequence[float]]) -> Seconds:
    return Seconds(*(median(column) for column in zip(*rounds, strict=True)))


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]), sys.argv[2])))
