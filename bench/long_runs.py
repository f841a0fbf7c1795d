"""What an attempt reads of a long run before it goes on: 10,000 steps of PPO, whose calls are made in 128 parts.

The run is made: its journal and metrics are what a master writes, with checkpoints in between that have no shards.
"""

import json
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from children import cost_of
from figures import Figure, median
from msgspec.structs import replace

from hpcrl.durable.attempts import attempts_without_progress, broken_operations
from hpcrl.durable.checkpoints import Manifest, write_manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import (
    Adopted,
    Archived,
    Checkpointed,
    Closed,
    Compacted,
    Done,
    Event,
    Numerics,
    Opened,
    Pruned,
    Trained,
    encode_line,
)
from hpcrl.durable.metrics_log import MetricsLog
from hpcrl.durable.older_lines import OlderFold
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.master.attempt_files import begin_attempt

STEPS, PARTS, SAMPLES, RANKS = 10_000, 128, 512, 128
EVERY = 10
"""Steps from one checkpoint to the next."""
WITH_FILES = 2 * EVERY + 1
"""Of so many steps, the last ones, there are spills."""
CALLS = ("actor_gen", "rew_inf", "ref_inf", "critic_inf")
CHANGING = {"actor_train": "actor", "critic_train": "critic"}
NUMERICS = Numerics(RANKS, ("NVIDIA H100 80GB HBM3",) * RANKS, ("torch 2.9.0",) * RANKS, 1)
ROUNDS = 3
SHORT = 200
"""Steps of a run of which all lines are parsed."""


def long_runs(work: Path) -> list[Figure]:
    shutil.rmtree(work, ignore_errors=True)
    costs = [
        _begun(made_run(work / "run", STEPS) if i == 0 else RunDirectory.open(work / "run")) for i in range(ROUNDS)
    ]
    journal = RunDirectory.open(work / "run").journal(0).stat().st_size
    shutil.rmtree(work / "run")
    short = made_run(work / "short", SHORT)
    begun = time.process_time()
    lines = len(read_history(short).lines)
    each_s = (time.process_time() - begun) / lines
    shutil.rmtree(work / "short")
    walls, cpus, peaks = (list(of_each) for of_each in zip(*costs, strict=True))
    what = f"a new attempt's reading of a run of {STEPS:,} steps in {PARTS} parts"
    each = f"all lines parsed take {each_s * 1e6:.0f} µs each"
    return [
        Figure(what, median(cpus), "s of CPU", "≤ 2", f"{journal / 1e9:.2g} GB of journal; {each}"),
        Figure("the same, wall time", median(walls), "s"),
        Figure("its process's memory", max(peaks) / 2**20, "MiB", "≤ 300"),
    ]


def _begun(run: RunDirectory) -> tuple[float, float, int]:
    """Seconds that an attempt takes to take the run over, those of CPU in them, and the peak of its process."""
    told = run.root.parent / "told.json"
    cost = cost_of([sys.executable, __file__, str(run.root), str(told)])
    wall, cpu = json.loads(told.read_text())
    return wall, cpu, cost.peak


def begin(root: str, told: str) -> None:
    """What a master does before its attempt begins."""
    run = RunDirectory.open(Path(root))
    begun = time.perf_counter(), time.process_time()
    attempts_without_progress(run, "n"), broken_operations(run, "n")
    files = begin_attempt(run, CHANGING, "n", 2, True)
    seconds = time.perf_counter() - begun[0], time.process_time() - begun[1]
    recovery = files.recovery
    assert len(recovery.metrics) == STEPS - 1 and recovery.checkpoint is not None and not recovery.damage
    assert len(recovery.recorded) == PARTS * (len(CALLS) * (EVERY - 1) + 1), len(recovery.recorded)
    files.close()
    Path(told).write_text(json.dumps(seconds))


# ── the run ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def made_run(root: Path, steps: int) -> RunDirectory:
    root.parent.mkdir(parents=True, exist_ok=True)
    run = RunDirectory.create(root, experiment={}, host="m:C", key=KeyPair("p" * 40, "s" * 40), inputs={})
    attempt = run.claim_attempt("n")
    adopted = Adopted((), {})
    run.files.publish(run.adopted(attempt), encode_line(adopted), "adopted")
    metrics, fold = MetricsLog(run, attempt), OlderFold(None)
    fold.begin(attempt)
    with run.journal(attempt).open("wb", buffering=1 << 20) as journal:

        def write(event: Event, line: bytes | None = None) -> None:
            line = encode_line(event) if line is None else line
            journal.write(line)
            fold.feed(event, line)

        write(adopted)
        for step in range(1, steps + 1):
            for event, line in _step(run, attempt, step, with_files=step > steps - WITH_FILES, is_open=step == steps):
                write(event, line)
                if isinstance(event, Closed):
                    metrics.append([event.metrics])
            if step % EVERY == 0 and step < steps:
                older = fold.older_than(step, metrics.first)
                cut = Manifest(step, attempt, {"actor": (), "critic": ()}, 0, step, {}, older)
                write(Checkpointed(step, write_manifest(run.files, run.manifest(step, attempt), cut)))
                if step > 2 * EVERY:
                    shutil.rmtree(run.checkpoint(step - 2 * EVERY, attempt))
                    write(Pruned(step - EVERY))
    metrics.close()
    return run


def _step(
    run: RunDirectory, attempt: int, step: int, with_files: bool, is_open: bool
) -> Iterator[tuple[Event, bytes | None]]:
    yield _opened(step), None
    for call in CALLS[: 1 if is_open else None]:
        line = encode_line(_done(run, attempt, step, call, PARTS - 1, with_files=False))
        for part in range(PARTS):
            if is_open:
                yield _done(run, attempt, step, call, part, with_files), None
            else:
                yield _DONE, _of_part(line, part)
    if is_open:
        return
    yield from ((Trained(step, call, _record(step), _stats(), "0" * 40, NUMERICS, 0, step), None) for call in CHANGING)
    yield Closed(step, {"step": step, "epoch": 0, "samples": SAMPLES, **_row(step)}), None
    merged = run.files.publish(run.compacted(step, attempt), b"all", "spill") if with_files else FileRef("x", 3, 1)
    yield Archived(step, FileRef(run.files.name(run.archive(step, attempt)), 1_000_000, 1)), None
    yield Compacted(step, replace(merged, name=run.files.name(run.compacted(step, attempt)))), None


def _opened(step: int) -> Opened:
    ids = tuple(f"{step * SAMPLES + i}@0" for i in range(SAMPLES))
    each = SAMPLES // PARTS
    parts = tuple(tuple(range(part * each, (part + 1) * each)) for part in range(PARTS))
    calls = dict.fromkeys(CALLS, PARTS) | dict.fromkeys(CHANGING, 1)
    return Opened(step, ids, step, calls, {str(PARTS): parts}, 0, (tuple(range(SAMPLES)),), 1, step % EVERY == 0, False)


def _done(run: RunDirectory, attempt: int, step: int, call: str, part: int, with_files: bool) -> Done:
    path = run.spill(step, call, part, attempt)
    spill = run.files.publish(path, b"part", "spill") if with_files else FileRef(run.files.name(path), 4, 1)
    return Done(step, call, part, spill, None, _stats())


_DONE = Done(0, "", 0, FileRef("", 0, 0), None, {})


def _of_part(line: bytes, part: int) -> bytes:
    """The line of the last part, as that of another."""
    last = PARTS - 1
    payload = line[line.index(b'"event":') + 8 : -2]
    payload = payload.replace(b'"part":%d,' % last, b'"part":%d,' % part).replace(b".dp%d." % last, b".dp%02d." % part)
    return b'{"crc":"%08x","event":%b}\n' % (zlib.crc32(payload), payload)


def _stats() -> dict[str, tuple[float, ...]]:
    return {"tokens": (2048.0, 4.0), "reward": (1.2345678901234, 4.0)}


def _record(step: int) -> dict[str, Any]:
    return {"digest": f"{step:040x}", "minibatches": [{"lr": 1e-6, "kl": 0.01, "stepped": True}] * 4}


def _row(step: int) -> dict[str, float]:
    return {f"actor_train/statistic_{i}": step / (i + 3) for i in range(30)}


if __name__ == "__main__":
    begin(*sys.argv[1:])
