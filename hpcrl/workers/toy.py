"""The smallest roles there are: vectors in numpy. They try a cluster's plumbing in seconds and carry the tests.

A trained role is a vector `w` with a momentum, of which each rank saves a slice. `generate` adds seeded noise to w,
inferences are fixed functions of rows, `train_step` moves w towards the mean of its minibatch: a stand-in for a model
whose arithmetic is exact to check.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.durable.keys import read_key
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import PeerLostError
from hpcrl.placement.plan import ModelName
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.toy import ToyExperiment
from hpcrl.wire.address import Network, listen
from hpcrl.workers.host import HostContext, Outcome, Snapshot, Work


class Exchange:
    """All-to-all of small byte strings between the ranks of the run, over authenticated sockets."""

    def __init__(self, rank: int, secret: bytes, network: Network) -> None:
        self._rank = rank
        self._secret = secret
        self._listener = listen(network)
        self._peers: dict[int, Connection] = {}
        self._number = 0

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def connect(self, addresses: Sequence[str]) -> None:
        """Every lower rank listens to every higher one."""
        with self._together("connecting", range(len(addresses))):
            for peer, address in enumerate(addresses[: self._rank]):
                host, port = address.split(":")
                self._peers[peer] = Client((host, int(port)), authkey=self._secret)
                self._peers[peer].send_bytes(str(self._rank).encode())
            for _ in addresses[self._rank + 1 :]:
                connection = Connection(self._listener.accept()[0].detach())
                deliver_challenge(connection, self._secret)
                answer_challenge(connection, self._secret)
                self._peers[int(connection.recv_bytes())] = connection

    def begin_unit(self) -> None:
        """Count operations anew: a unit of work begins."""
        self._number = 0

    def sum(self, mine: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
        """The sum of everybody's array, added in rank order."""
        total = np.zeros_like(mine)
        with self._together("sum", ranks):
            for peer in ranks:
                if peer != self._rank:
                    self._peers[peer].send_bytes(mine.tobytes())
            for peer in ranks:
                theirs = mine if peer == self._rank else np.frombuffer(self._peers[peer].recv_bytes(), mine.dtype)
                total += theirs.reshape(mine.shape)
        return total

    @contextmanager
    def _together(self, operation: str, ranks: Sequence[int]) -> Iterator[None]:
        self._number += 1
        try:
            yield
        except (EOFError, OSError, AuthenticationError) as error:
            raise PeerLostError(ranks, operation, self._number, self._rank, error) from error

    def close(self) -> None:
        for connection in self._peers.values():
            connection.close()
        self._listener.close()


class ToyRole:
    """A vector, its momentum, and how often it was trained."""

    def __init__(self, name: str, width: int) -> None:
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        self.w = np.random.default_rng(seed).standard_normal(width)
        self.momentum = np.zeros(width)
        self.version = 0

    def digest(self) -> str:
        state = hashlib.blake2b(self.w.tobytes() + self.momentum.tobytes(), digest_size=8)
        state.update(str(self.version).encode())
        return state.hexdigest()

    def move(self, gradient: np.ndarray, lr: float) -> None:
        self.momentum = 0.9 * self.momentum + gradient
        self.w = self.w - lr * self.momentum


class ToyHost:
    """Holds the toy roles of one worker."""

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._experiment: ToyExperiment = experiment_from(context.plan.experiment)
        self._plan = context.plan
        secret = read_key(RunDirectory(context.run_dir)).secret.encode()
        self._exchange = Exchange(context.rank, hashlib.blake2b(secret).digest(), context.network)
        self._roles: dict[ModelName, ToyRole] = {}

    @property
    def software(self) -> str:
        return f"numpy {np.__version__}"

    def prepare(self) -> str:
        return self._exchange.address

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, Sequence[Path]]) -> None:
        from hpcrl.durable.checkpoints import read_shard

        self._exchange.connect(peers)
        for replica in self._plan.replicas:
            if self._context.rank not in replica.ranks:
                continue
            role = self._roles[replica.model] = ToyRole(replica.role, self._experiment.toy.width)
            if replica in self._plan.changed and replica.role in checkpoint:
                shards = [read_shard(path) for path in checkpoint[replica.role]]
                role.momentum = np.concatenate([arrays["momentum"] for arrays, _ in shards])
                role.w, role.version = shards[0][0]["w"], shards[0][1]["version"]

    def execute(self, work: Work) -> Outcome:
        self._exchange.begin_unit()
        call = self._plan.call(work.call)
        if self._experiment.toy.delay_s:
            time.sleep(self._experiment.toy.delay_s)
        return getattr(self, call.method or call.kind)(work, self._roles[self._plan.at[call.name]])

    def generate(self, work: Work, role: ToyRole) -> Outcome:
        rows = []
        for sample_id, x in zip(work.batch.ids, work.batch.rows("x"), strict=True):
            seed = sample_seed(self._experiment.seed, work.step, work.call, sample_id)
            rows.append(np.resize(x, role.w.shape) + role.w + np.random.default_rng(seed).standard_normal(role.w.shape))
        stats = {"norm": (float(sum(np.abs(row).sum() for row in rows)), float(len(rows)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"y": rows}), stats)

    def inference(self, work: Work, role: ToyRole) -> Outcome:
        call = self._plan.call(work.call)
        output = {"reward": "r", "reference": "z", "critic": "v"}[call.role]
        rows = [
            np.array([(y @ role.w) * 0.01]) if output == "r" else 0.5 * y + 0.1 * role.w for y in work.batch.rows("y")
        ]
        made = {output: rows}
        if "s" in call.outputs:
            made["s"] = [np.floor(4 * y[:1]) % 2 for y in work.batch.rows("y")]
        stats = {output: (float(sum(row.sum() for row in rows)), float(len(rows)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, made), stats)

    def train_step(self, work: Work, role: ToyRole) -> Outcome:
        ranks, lr = self._plan.replica(work.call).ranks, (work.experiment or self._experiment).toy.lr
        run, losses = len(work.minibatches), []
        if work.record is not None:
            run = work.record["minibatches"]
        mine = set(work.batch.ids)
        for minibatch in work.minibatches[:run]:
            here = [sample_id for sample_id in minibatch if sample_id in mine]
            target = np.zeros_like(role.w)
            if here:
                rows = work.batch.select(here)
                for y, z, v, r in zip(rows.rows("y"), rows.rows("z"), rows.rows("v"), rows.rows("r"), strict=True):
                    target += 0.5 * (y + z + v) + r[0]
            gradient = role.w - self._exchange.sum(target, ranks) / len(minibatch)
            role.move(gradient, lr)
            losses.append(float(gradient @ gradient))
        role.version += 1
        record: dict[str, Any] = {"minibatches": run, "lr": lr, "losses": losses, "digest": role.digest()}
        return Outcome(stats={"loss": (sum(losses), float(len(losses)))}, record=record)

    def blend(self, work: Work, role: ToyRole) -> Outcome:
        settings = (work.experiment or self._experiment).toy.reference_ema
        decay = settings.at(work.step) if work.record is None else work.record["decay"]
        source = self._roles[self._plan.home(self._plan.call(work.call).blends).model]
        role.w = decay * role.w + (1.0 - decay) * source.w
        role.version += 1
        return Outcome(record={"decay": decay, "digest": role.digest()})

    def snapshot(self, role: str) -> Snapshot:
        home = self._plan.home(role)
        held, ranks = self._roles[home.model], home.ranks
        own = np.array_split(held.momentum, len(ranks))[ranks.index(self._context.rank)]
        return Snapshot({"w": held.w.copy(), "momentum": own.copy()}, {"version": held.version})

    def exporter(self, role: str) -> Callable[[Path], None] | None:
        home = self._plan.home(role)
        if home.ranks[0] != self._context.rank:
            return None
        w = self._roles[home.model].w.copy()
        return lambda folder: np.save(folder / "w.npy", w, allow_pickle=False)

    def close(self) -> None:
        self._exchange.close()
