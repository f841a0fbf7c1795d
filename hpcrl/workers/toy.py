"""The smallest roles there are: vectors in numpy. They try a cluster's plumbing in seconds and carry the tests.

A trained role is a vector `w` with a momentum, cut over the ranks of each part of its layout; the momentum and `w` are
saved by one rank an element. `generate` adds seeded noise to w, inferences are fixed functions of rows, `train_step`
moves w towards the mean of its minibatch: a stand-in for a model whose arithmetic is exact to check. All ranks of a
part put w together and then do the same.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.data.sample_bytes import from_bytes, to_bytes
from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.checkpoints import DamagedCheckpointError, SavedRole, loading, read_shard
from hpcrl.durable.files import Files
from hpcrl.durable.keys import read_key
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError
from hpcrl.placement.plan import ModelName, Part, ReplicaPlan
from hpcrl.plugins import load
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.recipes.registered import registered
from hpcrl.recipes.toy import ToyExperiment
from hpcrl.workers.exchange import Exchange
from hpcrl.workers.host import Arrived, HostContext, Outcome, Snapshot, Work
from hpcrl.workers.pieces import Transfer, held, saved, transfers
from hpcrl.workers.registered import perform

EMPTY = -1
"""The version of a replica that has nothing yet."""


class ToyRole:
    """One rank's piece of a vector and of its momentum, and how often it was changed."""

    def __init__(self, at: ReplicaPlan, rank: int, width: int, exchange: Exchange) -> None:
        self.exchange = exchange
        seed = int.from_bytes(hashlib.blake2b(at.role.encode(), digest_size=8).digest(), "little")
        self.at = at
        self.index = at.ranks.index(rank)
        self.piece = held(at.arrangement, self.index, width)
        self.own = saved(at.arrangement, self.index, width)
        self.part = next(part for part in at.parts if rank in part.ranks)
        self.momentum = np.zeros(self.piece.size)
        if at.model.replica:
            self.w, self.version = np.full(self.piece.size, np.nan), EMPTY
        else:
            whole = np.random.default_rng(seed).standard_normal(width)
            self.w, self.version = whole[self.piece.first : self.piece.stop], 0

    @property
    def column(self) -> list[int]:
        """The ranks of all parts that have the same piece, in the order of the parts."""
        position = self.part.ranks.index(self.at.ranks[self.index])
        return [part.ranks[position] for part in self.at.parts]

    def update(self, gradient: np.ndarray, lr: float) -> None:
        self.momentum = 0.9 * self.momentum + gradient[self.piece.first : self.piece.stop]
        self.w = self.w - lr * self.momentum


class ToyHost:
    """Holds the toy roles of one worker."""

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._experiment: ToyExperiment = experiment_from(context.plan.experiment)
        self._algorithm = algorithm_of(self._experiment)
        self._forms = self._algorithm.forms(self._experiment)
        self._plan = context.plan
        secret = read_key(RunDirectory(context.run_dir)).secret.encode()
        self._exchange = Exchange(context.rank, hashlib.blake2b(secret).digest(), context.network)
        self._roles: dict[ModelName, ToyRole] = {}

    @property
    def software(self) -> str:
        return f"numpy {np.__version__}"

    @property
    def attention(self) -> Mapping[str, str]:
        return {}

    @property
    def speeds(self) -> Mapping[str, float]:
        return {}

    def prepare(self) -> str:
        return self._exchange.address

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, SavedRole]) -> None:
        self._exchange.connect(peers)
        for replica in self._plan.replicas:
            if self._context.rank not in replica.ranks:
                continue
            maker = load(self._algorithm.roles[replica.role].maker)
            role = maker(replica, self._context.rank, self._experiment.toy.width, self._exchange)
            self._roles[replica.model] = role
            if replica in self._plan.changed and replica.role in checkpoint:
                self._resume(role, checkpoint[replica.role])

    def share(self, part: Part, batch: SequenceSample) -> SequenceSample:
        self._exchange.begin_unit()
        mine = to_bytes(batch) if self._context.rank == part.head else b""
        return from_bytes(self._exchange.broadcast(mine, part.head, part.ranks))

    def execute(self, work: Work) -> Outcome:
        self._exchange.begin_unit()
        call = self._plan.call(work.call)
        if self._experiment.toy.delay_s:
            time.sleep(self._experiment.toy.delay_s)
        role = self._roles.get(self._plan.at[call.name])
        if role is not None and role.version != work.version - bool(call.changes):
            raise InternalError(
                f"{role.at.model} has version {role.version} where {call.name} is about {work.version}."
            )
        if call.kind == "blend":
            return self._blend(work)
        if role is not None and registered(getattr(type(role), call.method or call.kind, None)) is not None:
            return self._registered(work, role, call)
        return getattr(self, call.method or call.kind)(work, role)

    def _registered(self, work: Work, role: ToyRole, call: MFC) -> Outcome:
        checks = self._experiment.control.check_digests
        outcome = perform(role, work, call, self._forms, role.w.tobytes if checks else None)
        if outcome.record is None:
            return outcome
        role.version += 1
        return replace(outcome, record={**outcome.record, **self._digests(role)})

    def generate(self, work: Work, role: ToyRole) -> Outcome:
        rows, w = [], self._whole(role, role.w)
        if self._plan.call(work.call).in_rounds:
            return self._round(work, w)
        for sample_id, x in zip(work.batch.ids, work.batch.rows("x"), strict=True):
            seed = sample_seed(self._experiment.seed, work.step, work.call, sample_id)
            rows.append(np.resize(x, w.shape) + w + np.random.default_rng(seed).standard_normal(w.shape))
        stats = {"norm": (float(sum(np.abs(row).sum() for row in rows)), float(len(rows)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"y": rows}), stats)

    def _round(self, work: Work, w: np.ndarray) -> Outcome:
        """`n` [1] counts the rounds of a row that has not ended from below 0 up: a row has one to three."""
        begun = dict(zip(work.batch.ids, work.batch.rows("y"), strict=True)) if "y" in work.batch.keys else {}
        counts = dict(zip(work.batch.ids, work.batch.rows("n"), strict=True)) if begun else {}
        rows, ends = [], []
        for sample_id, x in zip(work.batch.ids, work.batch.rows("x"), strict=True):
            rng = np.random.default_rng(sample_seed(self._experiment.seed, 0, "rounds", sample_id))
            y, n = np.resize(x, w.shape), -float(rng.integers(1, 4))
            if len(begun.get(sample_id, ())):
                y, n = begun[sample_id], float(counts[sample_id][0])
            if n < 1:
                drawn = np.random.default_rng(sample_seed(self._experiment.seed, int(-n), "drawn", sample_id))
                y, n = y + w + drawn.standard_normal(w.shape), n + 1 if n < -1 else 1.0
            rows.append(y)
            ends.append(np.array([n]))
        stats = {"norm": (float(sum(np.abs(row).sum() for row in rows)), float(len(rows)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"y": rows, "n": ends}), stats)

    def inference(self, work: Work, role: ToyRole) -> Outcome:
        call, w = self._plan.call(work.call), self._whole(role, role.w)
        output = {"reward": "r", "reference": "z", "critic": "v"}[call.role]
        rows = [np.array([(y @ w) * 0.01]) if output == "r" else 0.5 * y + 0.1 * w for y in work.batch.rows("y")]
        made = {output: rows}
        if "s" in call.outputs:
            made["s"] = [np.floor(4 * y[:1]) % 2 for y in work.batch.rows("y")]
        stats = {output: (float(sum(row.sum() for row in rows)), float(len(rows)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, made), stats)

    def train_step(self, work: Work, role: ToyRole) -> Outcome:
        lr = (work.experiment or self._experiment).toy.lr
        run, losses = len(work.whole), []
        if work.record is not None:
            run = work.record["minibatches"]
        mine, targets = set(work.batch.ids), _targets(work.batch)
        for minibatch, size in zip(work.minibatches[:run], work.whole, strict=False):
            here = [sample_id for sample_id in minibatch if sample_id in mine]
            w = self._whole(role, role.w)
            target = np.zeros_like(w)
            for sample_id in here:
                target += targets[sample_id]
            gradient = w - self._exchange.sum(target, role.column) / size
            role.update(gradient, lr)
            losses.append(float(gradient @ gradient))
        role.version += 1
        record: dict[str, Any] = {"minibatches": run, "lr": lr, "losses": losses, **self._digests(role)}
        shown = [targets[sample_id] for sample_id in work.shown]
        sample = SequenceSample.from_rows(work.shown, {"t": shown}) if shown else None
        return Outcome(sample, {"loss": (sum(losses), float(len(losses)))}, record)

    def move(self, replica: ModelName, version: int) -> Arrived:
        self._exchange.begin_unit()
        home, target = self._plan.home(replica.role), self._plan.placed(replica)
        w = self._bring(home, target)
        source, role = self._roles.get(home.model), self._roles.get(replica)
        if source is not None and source.version != version:
            raise InternalError(f"version {version} is to be moved to {replica}, but home has {source.version}.")
        if role is not None:
            role.w, role.version = w, version
        return Arrived(*("" if held is None else self._digests(held)["parameters"] for held in (source, role)))

    def let_go(self, replica: ModelName) -> None:
        """Whoever reads it all the same gets what is no number."""
        self._roles[replica].w = np.full_like(self._roles[replica].w, np.nan)

    def snapshot(self, role: str) -> Snapshot:
        held = self._roles[self._plan.home(role).model]
        own = slice(held.own.first - held.piece.first, held.own.stop - held.piece.first)
        state = {"version": held.version, "offset": held.own.first}
        return Snapshot({"w": held.w[own].copy(), "momentum": held.momentum[own].copy()}, state)

    def close(self) -> None:
        self._exchange.close()

    def _blend(self, work: Work) -> Outcome:
        """Among the ranks of both roles; one that does not have the role only gives its piece of the other."""
        call, settings = self._plan.call(work.call), work.experiment or self._experiment
        keeps = algorithm_of(settings).roles[call.role].decay
        assert keeps is not None, "the check of a declaration refuses a blended role without"
        decay = keeps(settings, work.step) if work.record is None else work.record["decay"]
        home = self._plan.home(call.role)
        source = self._bring(self._plan.home(call.blends), home)
        if self._context.rank not in home.ranks:
            return Outcome()
        role = self._roles[home.model]
        role.w = decay * role.w + (1.0 - decay) * source
        role.version += 1
        return Outcome(record={"decay": decay, **self._digests(role)})

    def _resume(self, role: ToyRole, of: SavedRole) -> None:
        """Read what the shards, of any layout, have of this rank's piece."""
        of.compare_share(Files(self._context.run_dir), role.index, len(role.at.ranks))
        for shard in of.shards:
            with loading():
                arrays, state = read_shard(self._context.run_dir / shard.name)
            role.version, first = state["version"], state["offset"]
            for name, mine in (("w", role.w), ("momentum", role.momentum)):
                common = role.piece.common(role.piece._replace(first=first, stop=first + len(arrays[name])))
                theirs = arrays[name][common.first - first : common.stop - first]
                mine[common.first - role.piece.first : common.stop - role.piece.first] = theirs
        if of.digest not in ("", digest := self._digests(role)["digest"]):
            raise DamagedCheckpointError(f"saved with digest {of.digest}, and loaded with {digest}")

    def _whole(self, role: ToyRole, mine: np.ndarray) -> np.ndarray:
        """All pieces of an array, on all ranks of a part."""
        return mine if len(role.part.ranks) == 1 else self._exchange.gather(mine, role.part.ranks)

    def _digests(self, role: ToyRole) -> dict[str, str]:
        """Of all state, and of the parameters, whatever the layout."""
        w, momentum = self._whole(role, role.w), self._whole(role, role.momentum)
        parameters = hashlib.blake2b(w.tobytes(), digest_size=8).hexdigest()
        return {"digest": _digest(w, momentum, role.version), "parameters": parameters}

    def _bring(self, source: ReplicaPlan, target: ReplicaPlan) -> np.ndarray:
        """The source's elements that this rank's piece of the target has; none where it has no part in the target."""
        rank, width = self._context.rank, self._experiment.toy.width
        ranks = tuple(dict.fromkeys((*source.ranks, *target.ranks)))
        due = transfers(source, target, width)
        have = self._roles.get(source.model)

        def data(one: Transfer) -> bytes:
            assert have is not None, one
            return have.w[one.piece.first - have.piece.first : one.piece.stop - have.piece.first].tobytes()

        sends = [(one.target, data(one)) for one in due if one.source == rank != one.target]
        mine = [one for one in due if one.target == rank]
        arrived = iter(self._exchange.swap(sends, [one.source for one in mine if one.source != rank], ranks))
        pieces = [data(one) if one.source == rank else next(arrived) for one in mine]
        return np.concatenate([np.zeros(0), *map(np.frombuffer, pieces)])


def _targets(batch: SequenceSample) -> dict[str, np.ndarray]:
    """Sample → what a train_step moves the vector towards."""
    columns = zip(batch.ids, *map(batch.rows, ("y", "z", "v", "r")), strict=True)
    return {sample_id: 0.5 * (y + z + v) + r[0] for sample_id, y, z, v, r in columns}


class ToyExport:
    """A toy role's vector as a file of numpy's. Fulfils `hpcrl.placement.exporting.RoleExport`."""

    arrays, files = ("w",), ("w.npy",)

    def __init__(self, experiment: ToyExperiment, role: str) -> None:
        """Of any role alike."""

    def write_file(self, folder: Path, file: str, shards: Sequence[Path]) -> None:
        np.save(folder / file, _whole_vector(shards, "w"), allow_pickle=False)

    def digest(self, shards: Sequence[Path]) -> str:
        _, state = read_shard(shards[0])
        return _digest(_whole_vector(shards, "w"), _whole_vector(shards, "momentum"), state["version"])

    def write_description(self, folder: Path) -> None:
        """There is none."""


def _digest(w: np.ndarray, momentum: np.ndarray, version: int) -> str:
    """Of all state of a role."""
    state = hashlib.blake2b(w.tobytes() + momentum.tobytes(), digest_size=8)
    state.update(str(version).encode())
    return state.hexdigest()


def _whole_vector(shards: Sequence[Path], array: str) -> np.ndarray:
    pieces = {state["offset"]: arrays[array] for arrays, state in map(read_shard, shards)}
    return np.concatenate([pieces[first] for first in sorted(pieces)])
