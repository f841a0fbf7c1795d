"""The toy host's layouts: whatever they are, the numbers are those of one rank, to the bit."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.chaos import create_run, toy_experiment
from support.hosts import ref_of

from hpcrl.config.ema import EMAConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import SavedRole, read_shard, write_shard
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.plan import ModelName, Plan, ReplicaPlan, WorkerPlan, plan_for
from hpcrl.workers.host import HostContext, Outcome, Work
from hpcrl.workers.toy import ToyHost

ACTOR, ELSEWHERE, REFERENCE = ModelName("actor"), ModelName("actor", 1), ModelName("reference")
LAYOUTS = ["d1", "t2", "p2", "d2", "d2t2", "d2p2", "t2p2"]
WIDTH = 7
IDS = ("a", "b", "c", "d")
Places = Mapping[ModelName, tuple[str, tuple[int, ...]]]


def plan_of(places: Places) -> Plan:
    """Actor and reference where they are said to be, all else on rank 0; generation is at the actor's replica."""
    toy = toy_experiment()
    small = dataclasses.replace(toy.toy, width=WIDTH, reference_ema=EMAConfig(decay=0.9))
    plan = plan_for(dataclasses.replace(toy, toy=small), 1)
    whole = {ModelName(role): ("d1", (0,)) for role in ("critic", "reward", "reference")} | dict(places)
    return msgspec.structs.replace(
        plan,
        at={call.name: ModelName(call.role) for call in plan.calls} | {"eval_gen": ELSEWHERE},
        replicas=tuple(
            ReplicaPlan(model, layout, ranks[: parse_layout(layout).size], model == ACTOR)
            for model, (layout, ranks) in whole.items()
        ),
        workers=tuple(WorkerPlan(rank, 0, rank, "hpcrl.workers.toy:ToyHost") for rank in range(8)),
    )


class Ranks:
    """Eight hosts in as many threads."""

    def __init__(self, run: RunDirectory, plan: Plan, checkpoint: Mapping[str, SavedRole]) -> None:
        self.plan = plan
        self.hosts = [ToyHost(HostContext(rank, plan, run.root, {})) for rank in range(8)]
        self._pool = ThreadPoolExecutor(8)
        addresses = [host.prepare() for host in self.hosts]
        self.all(range(8), lambda host: host.load(addresses, checkpoint))

    def all(self, ranks: Any, do: Callable[[ToyHost], Any]) -> list[Any]:
        return [done.result(30) for done in [self._pool.submit(do, self.hosts[rank]) for rank in ranks]]

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        self._pool.shutdown()

    def train(self, version: int = 1) -> list[Outcome]:
        """A step of two minibatches; part d trains on every dp-th sample."""
        parts = self.plan.parts("actor_train")
        part_of = {rank: part for part in parts for rank in part.ranks}

        def train(host: ToyHost) -> Outcome:
            part = part_of[self.hosts.index(host)]
            ids = IDS[part.index :: len(parts)]
            batch = host.share(part, rows(ids)) if len(part.ranks) > 1 else rows(ids)
            return host.execute(Work(1, "actor_train", 0, batch, (IDS[:2], IDS[2:]), version=version))

        return self.all(part_of, train)

    def move(self, version: int) -> tuple[set[str], set[str]]:
        home, replica = self.plan.home("actor"), self.plan.placed(ELSEWHERE)
        arrived = self.all({*home.ranks, *replica.ranks}, lambda host: host.move(ELSEWHERE, version))
        return {one.home for one in arrived} - {""}, {one.replica for one in arrived} - {""}


def rows(ids: tuple[str, ...]) -> SequenceSample:
    made = {
        key: [np.random.default_rng(ord(i) * 7 + n).standard_normal(WIDTH) for i in ids] for n, key in enumerate("yzvx")
    }
    return SequenceSample.from_rows(ids, made | {"r": [np.array([0.25 * ord(i)]) for i in ids]})


@contextmanager
def hosts(folder: Path, places: Places, checkpoint: Mapping[str, SavedRole] | None = None) -> Iterator[Ranks]:
    folder.mkdir(exist_ok=True)
    run = create_run(folder / "run", toy_experiment())
    ranks = Ranks(run, plan_of(places), checkpoint or {})
    try:
        yield ranks
    finally:
        ranks.close()


ALL, UPPER = tuple(range(8)), (4, 5, 6, 7, 0, 1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """dp → the records of train_steps and blends of one rank a part."""
    found = {}
    for dp in (1, 2):
        layout = f"d{dp}"
        places = {ACTOR: (layout, ALL), REFERENCE: (layout, ALL), ELSEWHERE: ("d1", UPPER)}
        with hosts(tmp_path_factory.mktemp(layout), places) as ranks:
            found[dp] = everything(ranks)
    return found


def everything(ranks: Ranks) -> dict[str, Any]:
    """What a train_step, a blend, a move and a generation give, each the same on all ranks that give it."""
    trained = [outcome.record for outcome in ranks.train()]
    both = {*ranks.plan.home("actor").ranks, *ranks.plan.home("reference").ranks}
    blends = ranks.all(both, lambda host: host.execute(Work(1, "ref_blend", 0, rows(()), version=1)))
    blended = [outcome.record for outcome in blends if outcome.record is not None]
    assert len(blended) == len(ranks.plan.home("reference").ranks)
    home, replica = ranks.move(1)
    part = ranks.plan.parts("eval_gen")[0]
    made = ranks.all(part.ranks, lambda host: host.execute(Work(1, "eval_gen", 0, rows(IDS), version=1)))
    samples = {outcome.sample.data["y"].tobytes() for outcome in made}
    assert all(len(alike) == 1 for alike in (home, replica, samples)) and home == replica
    assert home == {record["parameters"] for record in trained}
    assert trained == trained[:1] * len(trained) and blended == blended[:1] * len(blended)
    return {"trained": trained[0], "blended": blended[0], "moved": home, "made": samples}


@pytest.mark.parametrize(
    ("home", "replica", "reference"),
    [(home, LAYOUTS[-1 - i], LAYOUTS[(i + 3) % 7]) for i, home in enumerate(LAYOUTS)],
)
def test_in_any_layouts_the_numbers_are_those_of_one_rank_a_part(
    tmp_path: Path, alone: dict[int, Any], home: str, replica: str, reference: str
) -> None:
    places = {ACTOR: (home, ALL), ELSEWHERE: (replica, UPPER), REFERENCE: (reference, (2, 3, 4, 5))}
    with hosts(tmp_path, places) as ranks:
        assert everything(ranks) == alone[parse_layout(home).dp]


def test_what_one_layout_has_saved_another_loads(tmp_path: Path) -> None:
    with hosts(tmp_path / "before", {ACTOR: ("d2t2", ALL), ELSEWHERE: ("p2", UPPER)}) as ranks:
        ranks.train()
        digest = ranks.train(version=2)[0].record
        run, paths = RunDirectory(tmp_path / "before" / "run"), []
        for index, rank in enumerate(ranks.plan.home("actor").ranks):
            shard = ranks.hosts[rank].snapshot("actor")
            ref = write_shard(run.files, run.checkpoint(2, 0), "actor", index, shard.arrays, shard.state)
            paths.append(ref_of(run.files.path(ref)))
    assert sum(len(read_shard(Path(ref.name))[0]["w"]) for ref in paths) == WIDTH
    saved = SavedRole(tuple(paths), digest["digest"])
    for layout in ("d1", "p3", "d2p2", "t4"):
        places = {ACTOR: (layout, UPPER), ELSEWHERE: ("d1", ALL)}
        with hosts(tmp_path / layout, places, {"actor": saved}) as ranks:
            home, replica = ranks.move(2)
            assert home == replica == {digest["parameters"]}


def test_a_replica_has_nothing_before_its_first_move_and_home_gives_the_version_that_it_has(tmp_path: Path) -> None:
    with hosts(tmp_path, {ACTOR: ("t2", ALL), ELSEWHERE: ("d1", UPPER)}) as ranks:
        with pytest.raises(InternalError, match=r"actor@1 has version -1 where eval_gen is about 0"):
            ranks.all([4], lambda host: host.execute(Work(1, "eval_gen", 0, rows(IDS))))
        with pytest.raises(InternalError, match=r"version 3 is to be moved to actor@1, but home has 0"):
            ranks.move(3)
