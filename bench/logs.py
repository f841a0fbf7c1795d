"""`hpcrl logs` of a large run against one pass of msgspec over the lines of its logs; `hpcrl inspect RUN why` too.

The run is made: its files are what 128 workers, their agents and the master write, in the order of time.
"""

import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from children import cost_of
from figures import Figure, median

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import to_dict
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry, encode
from hpcrl.events import (
    AttemptBegun,
    CallFailed,
    Event,
    NotDeterministic,
    StepClosed,
    StepOpened,
    WorkerEnded,
    WorkersReady,
)
from hpcrl.inspect.lines import Tail
from hpcrl.member_events import MemoryHeld
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

WORKERS = 128
BYTES = 1_000_000_000
ROUNDS = 3
BEGAN = 1_700_000_000.0
CALLS = ("actor_gen", "rew_inf", "ref_inf", "critic_inf", "actor_train", "critic_train")
CALL_S = 7.0
SAYS = "step %d: reward of 64 answers in %.3f s, 3 without a number; longest 512 tokens\n"


def logs(work: Path, size: int = BYTES) -> list[Figure]:
    run = made_run(work / "run", size)
    files = sorted(path for path in run.attempt(0).rglob("*") if path.suffix in (".jsonl", ".out", ".err"))
    size = sum(path.stat().st_size for path in files)
    passes, shown, explained = [], [], []
    for _ in range(ROUNDS):
        passes.append(cost_of([sys.executable, __file__, *map(str, files)]).cpu_s)
        shown.append(cost_of([sys.executable, "-m", "hpcrl", "logs", str(run.root)]))
        explained.append(cost_of([sys.executable, "-m", "hpcrl", "inspect", str(run.root), "why"]).cpu_s)
    shutil.rmtree(run.root)
    base, ours, why = median(passes), median([cost.cpu_s for cost in shown]), median(explained)
    what = f"{size / 1e9:.2g} GB of logs of {WORKERS} workers"
    return [
        Figure(
            f"`hpcrl logs` of {what}, in passes of msgspec", ours / base, "×", "≤ 2.5", f"{ours:.1f} and {base:.1f} s"
        ),
        Figure("its memory", max(cost.peak for cost in shown) / 2**20, "MiB", "≤ 200"),
        Figure(f"`hpcrl inspect RUN why` of {what}, in passes of msgspec", why / base, "×", "≤ 0.3", f"{why:.2f} s"),
    ]


def one_pass(paths: Sequence[str]) -> None:
    """Each line of events decoded once, into a dictionary; of other files the lines alone are read."""
    import msgspec

    decode = msgspec.json.Decoder().decode
    for path in paths:
        events = path.endswith(".jsonl")
        for block in Tail(Path(path)).blocks(1 << 20):
            for line in block.split(b"\n")[:-1]:
                if events:
                    decode(line)


def made_run(root: Path, size: int) -> RunDirectory:
    """A run whose last step was ended by a worker's failure."""
    shutil.rmtree(root, ignore_errors=True)
    experiment = SFTExperiment(data=DataConfig(train="none.jsonl"), actor=SFTModelConfig(path="none"))
    run = RunDirectory.create(root, experiment=to_dict(experiment), host="", key=KeyPair("p" * 40, "s" * 40), inputs={})
    assert run.claim_attempt("submission") == 0
    run.adopted(0).write_bytes(b"{}")
    steps = size // (WORKERS * _bytes_of_step())
    _write(run.events(0), _of_master(steps))
    for rank in range(WORKERS):
        path = run.worker_log(0, f"worker-{rank}")
        _write(path, _of_worker(rank, steps))
        dice = random.Random(rank)
        with path.with_suffix(".out").open("w") as out:
            out.writelines(SAYS % (step, dice.random()) for step in range(steps))
    return run


def _bytes_of_step() -> int:
    return sum(len(encode(Entry(BEGAN, event, BEGAN, 10_000))) for event in _calls(random.Random(0), 10_000)) + len(
        SAYS
    )


def _write(path: Path, events: Iterator[tuple[float, Event]]) -> None:
    with path.open("wb") as file:
        file.writelines(
            encode(Entry(BEGAN + after_s, event, after_s, number)) for number, (after_s, event) in enumerate(events)
        )


def _of_worker(rank: int, steps: int) -> Iterator[tuple[float, Event]]:
    dice, now = random.Random(rank), 0.0
    for step in range(steps):
        now = step * len(CALLS) * CALL_S
        for number, event in enumerate(_calls(dice, step)):
            yield now + number * CALL_S / 2 + dice.random(), event
    if rank == 7:
        yield now + len(CALLS) * CALL_S, CallFailed(7, f"step {steps - 1} actor_train", "ValueError: 1", "Traceback\n")


def _calls(dice: random.Random, step: int) -> Iterator[Event]:
    for call in CALLS:
        yield NotDeterministic(step, call, "index_add")
        held = {f"actor.{kind}": (dice.getrandbits(34),) * 3 for kind in ("parameters", "gradients", "optimizer")}
        yield MemoryHeld(step, call, 3, held, dice.random())


def _of_master(steps: int) -> Iterator[tuple[float, Event]]:
    yield 0.0, AttemptBegun(0, "starts from the base weights", paused=False, steps=steps)
    yield 0.0, WorkersReady(WORKERS)
    for step in range(steps):
        now = step * len(CALLS) * CALL_S
        yield now, StepOpened(step, 0, 1024)
        yield now + len(CALLS) * CALL_S, StepClosed(step, len(CALLS) * CALL_S)
    yield steps * len(CALLS) * CALL_S + 1, WorkerEnded(7, 0, "exit code 1", exit_code=1)


if __name__ == "__main__":
    one_pass(sys.argv[1:])
