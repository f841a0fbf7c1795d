"""A whole run in one sequential process over the real durable layer: generation in two parts, reward, two train steps.

Numbers depend on the parameters, on the step and on sample ids only, so that a run that was cut to pieces must end with
the bits of one that was left alone. Every execution is noted outside the run directory.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.durable.checkpoints import (
    DamagedCheckpointError,
    Manifest,
    checkpoint_damage,
    loading,
    read_shard,
    write_manifest,
    write_shard,
)
from hpcrl.durable.files import FileRef, no_fault
from hpcrl.durable.history import checkpoint_lines, read_history
from hpcrl.durable.journal import (
    Archived,
    Checkpointed,
    Closed,
    Compacted,
    Damaged,
    Done,
    Numerics,
    Opened,
    Pruned,
    Stopped,
    Trained,
)
from hpcrl.durable.metrics_log import MetricsLog
from hpcrl.durable.older_lines import FoldedJournal
from hpcrl.durable.records import KeyPair
from hpcrl.durable.recovery import Recorded, RecoveryPlan, UnitKey, plan_next_attempt, recover
from hpcrl.durable.retention import compact_step, prune, remove_parts
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import SpillRef, read_parts, read_spill, write_spill
from hpcrl.errors import HpcrlError, InternalError, StoppedError

TRAINED_BY = {"actor_train": "actor", "critic_train": "critic"}
PARTS = {"gen": 2, "rew": 1}
BATCH = 4
WIDTH = 3
STEPS = 4
NUMERICS = Numerics(1, ("Xeon",), ("numpy 2",), 1)
CHECKPOINT_STEPS = (1, 2, 4, 6, 8, 10, 12)
COMPACTED_STEPS = (1, 3)


def make_run(root: Path, fault: Callable[[str], None] = no_fault) -> RunDirectory:
    key = KeyPair("p" * 40, "s" * 40)
    return RunDirectory.create(root, experiment={"a": 1}, host="m:C", key=key, inputs={"data": "1"}, fault=fault)


class Miniature:
    """One attempt. `notes` gets a line for every unit that is executed. Knows nothing of processes or signals."""

    def __init__(self, run: RunDirectory, notes: Path) -> None:
        self._run = run
        self._notes = notes
        self._weights: dict[str, np.ndarray] = {}
        self._journal: FoldedJournal
        self._metrics: MetricsLog
        self._plan: RecoveryPlan
        self._checkpoints: list[Manifest] = []
        self._recorded: dict[UnitKey, Recorded] = {}

    def go(self, steps: int = STEPS) -> None:
        """From where older attempts left off to the end; as the master, it takes whatever fails once it is superseded
        (its temporary files vanish under its hands, for instance) for its way of noticing."""
        self.attempt = self._run.claim_attempt("s")
        try:
            self._go(steps)
        except (HpcrlError, OSError) as error:
            if self._run.superseded(self.attempt):
                raise StoppedError("superseded") from error
            raise

    def _found_damaged(self, what: str) -> None:
        """As the master: it writes it down, and the next attempt begins."""
        assert self._plan.checkpoint is not None
        step = self._plan.checkpoint.step
        [named] = [line for line in checkpoint_lines(read_history(self._run)) if line.step == step]
        self._append(Damaged(step, named.manifest, what))
        self._journal.close()
        self._metrics.close()
        self.go()

    def _go(self, steps: int) -> None:
        self._plan, self._journal = recover(self._run, self.attempt, TRAINED_BY)
        self._metrics = MetricsLog(self._run, self.attempt)
        self._metrics.append(row.metrics for row in self._plan.metrics)
        self._checkpoints = sorted(self._plan.kept, key=lambda manifest: manifest.step)
        self._recorded = dict(self._plan.recorded)
        try:
            self._load()
        except DamagedCheckpointError as error:
            return self._found_damaged(error.damage)
        for lines in self._plan.opened:
            self._step(lines.opened)
        first = 1 if self._plan.last_opened is None else self._plan.last_opened.step + 1
        for step in range(first, steps + 1):
            opened = _opened(step)
            self._append(opened)
            self._step(opened)
        self._append(Stopped("done"))
        self._metrics.close()
        self._journal.close()

    def _load(self) -> None:
        self._weights = {role: np.arange(WIDTH) + 0.5 for role in TRAINED_BY.values()}
        if self._plan.checkpoint is not None:
            for role, shards in self._plan.checkpoint.roles.items():
                with loading():
                    arrays, _ = read_shard(self._run.files.path(shards[0]))
                self._weights[role] = arrays["w"]
                if (digest := _digest(arrays["w"])) != self._plan.checkpoint.digests[role]:
                    raise DamagedCheckpointError(f"{shards[0].name} has digest {digest}")

    def _append(self, *events: object) -> None:
        if self._run.superseded(self.attempt):
            raise StoppedError("superseded")
        self._journal.append(events)  # type: ignore[arg-type]

    def _step(self, opened: Opened) -> None:
        step = opened.step
        outputs = [self._part(opened, UnitKey(step, call, part)) for call in PARTS for part in range(PARTS[call])]
        for call, role in TRAINED_BY.items():
            self._train(step, call, role, outputs)
        if step not in self._plan.closed:
            row = {"step": step, **{role: float(np.sum(self._weights[role])) for role in TRAINED_BY.values()}}
            self._append(Closed(step, row), Archived(step))
            self._metrics.append([row])
        self._tidy(opened)

    def _part(self, opened: Opened, unit: UnitKey) -> SequenceSample:
        held = self._recorded.get(unit)
        if held is not None:
            return read_spill(self._run.root / held.spill.path, held.spill.group)
        self._note("run", unit)
        ids = [opened.ids[i] for i in opened.partitions[str(PARTS[unit.call])][unit.part]]
        rows = [self._row(unit.step, unit.call, sample_id) for sample_id in ids]
        sample = SequenceSample.from_rows(ids, {unit.call: rows})
        spill = write_spill(self._run.files, self._run.spill(*unit, self.attempt), sample)
        done = Done(*unit, spill, None, {"sum": (float(sum(map(np.sum, rows))), len(rows))})
        self._append(done)
        self._recorded[unit] = Recorded(done, SpillRef(spill))
        return sample

    def _row(self, step: int, call: str, sample_id: str) -> np.ndarray:
        generator = np.random.default_rng(sample_seed(1, step, call, sample_id))
        length = int(generator.integers(1, 5))
        return np.resize(self._weights["actor"], length) + generator.standard_normal(length)

    def _train(self, step: int, call: str, role: str, outputs: list[SequenceSample]) -> None:
        replayed = [line for line in self._plan.replay if (line.step, line.call) == (step, call)]
        self._note("replay" if replayed else "run", UnitKey(step, call, 0))
        gradient = sum(float(np.sum(row)) for sample in outputs for key in sample.keys for row in sample.rows(key))
        before = _digest(self._weights[role])
        self._weights[role] = 0.9 * self._weights[role] + 0.01 * gradient / (1 + np.arange(WIDTH))
        digest = _digest(self._weights[role])
        if replayed and replayed[0].record["digest"] != digest:
            raise InternalError(f"step {step}, {call}: digest {digest}, recorded {replayed[0].record['digest']}")
        if not replayed:
            self._append(Trained(step, call, {"digest": digest}, {"loss": (gradient, 1.0)}, before, NUMERICS))

    def _tidy(self, opened: Opened) -> None:
        """Compact, checkpoint and prune, unless an older attempt has done so."""
        step = opened.step
        held = {key: recorded.spill for key, recorded in self._recorded.items() if key.step == step}
        if step in COMPACTED_STEPS and any(spill.group is None for spill in held.values()):
            parts = {(key.call, key.part): spill for key, spill in held.items()}
            self._append(
                Compacted(step, compact_step(self._run, self.attempt, step, read_parts(self._run.files, parts)))
            )
            remove_parts(self._run, self.attempt, step)
        if opened.checkpoint and all(manifest.step != step for manifest in self._checkpoints):
            self._checkpoint(opened)
        pruning = prune(self._run, self.attempt, self._whole(), 2)
        if pruning is not None:
            self._append(Pruned(pruning.before_step))

    def _whole(self) -> list[Manifest]:
        """The checkpoints that are as they were written."""
        roles = TRAINED_BY.values()
        return [each for each in self._checkpoints if not checkpoint_damage(self._run.files, each, roles)]

    def _checkpoint(self, opened: Opened) -> None:
        folder = self._run.checkpoint(opened.step, self.attempt)
        files = self._run.files
        roles: dict[str, tuple[FileRef, ...]] = {
            role: (write_shard(files, folder, role, 0, {"w": w}, {"step": opened.step}),)
            for role, w in self._weights.items()
        }
        digests = {role: _digest(w) for role, w in self._weights.items()}
        older = self._journal.older_than(opened.step, self._metrics.first)
        manifest = Manifest(opened.step, self.attempt, roles, opened.epoch, opened.cursor, digests, older)
        ref = write_manifest(files, self._run.manifest(opened.step, self.attempt), manifest)
        self._append(Checkpointed(opened.step, ref))
        self._checkpoints.append(manifest)
        self._checkpoints.sort(key=lambda manifest: manifest.step)

    def _note(self, what: str, unit: UnitKey) -> None:
        line = json.dumps([self.attempt, what, *unit]) + "\n"
        descriptor = os.open(self._notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, line.encode())
        os.close(descriptor)


def outcome(run: RunDirectory) -> Mapping[str, object]:
    """What a finished run amounts to, read from its directory: rows, order of samples, final parameters."""
    plan = plan_next_attempt(run, TRAINED_BY)
    assert plan.checkpoint is not None
    weights = {
        role: read_shard(run.files.path(shards[0]))[0]["w"].tobytes().hex()
        for role, shards in plan.checkpoint.roles.items()
    }
    return {"rows": [row.metrics for row in plan.metrics], "step": plan.checkpoint.step, "weights": weights}


def executions(notes: Path) -> list[tuple[int, str, UnitKey]]:
    """(attempt, "run" or "replay", unit) in the order of time."""
    lines = map(json.loads, notes.read_text().splitlines()) if notes.exists() else ()
    return [(attempt, what, UnitKey(*unit)) for attempt, what, *unit in lines]


def _digest(w: np.ndarray) -> str:
    return hashlib.blake2b(w.tobytes(), digest_size=8).hexdigest()


def _opened(step: int) -> Opened:
    ids = tuple(f"r{(step * BATCH + i) % 7}@{step}" for i in range(BATCH))
    every = tuple(range(BATCH))
    half = BATCH // 2
    return Opened(
        step=step,
        ids=ids,
        epoch=0,
        cursor=step * BATCH,
        calls=PARTS | dict.fromkeys(TRAINED_BY, 1),
        partitions={"1": (every,), "2": (every[:half], every[half:])},
        minibatches=(every,),
        seed=1,
        checkpoint=step in CHECKPOINT_STEPS,
        export=False,
    )


def claim_five(root: str) -> list[int]:
    """The numbers of five attempts, claimed in a process that is given paths only."""
    run = RunDirectory(Path(root))
    return [run.claim_attempt("s") for _ in range(5)]
