"""Whole runs of hosts without a master: calls in the order of the graph, rows handed over in memory."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

from support.chaos import create_run
from support.pool import RankPool
from support.rows import open_datasets
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC, topological_order
from hpcrl.durable.checkpoints import SavedRole, write_shard
from hpcrl.durable.files import FileRef, Files
from hpcrl.durable.journal import Ids
from hpcrl.durable.means import together
from hpcrl.families.config import DecoderConfig
from hpcrl.master.stepping import open_data, take
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.placement.exporting import export_of
from hpcrl.placement.plan import Plan, plan_for, plan_from_json
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.workers.host import Host, HostContext, Outcome, Work
from hpcrl.workers.model_worker import load_host

LETTERS = "0123456789+=# "
REWARD = """
def ones(prompt, response, row):
    return response.count("1") - 0.1 * len(response) + 0.5 * (response == row["answer"])
"""


def write_task(folder: Path, rows: int = 12) -> None:
    """model/, rows.jsonl, held_out.jsonl and reward.py: sums of two digits, and a model that knows nothing."""
    write_model(folder / "model", LETTERS, max_positions=64)
    sums = [{"prompt": f"{i % 10}+{i * 7 % 10}=", "answer": f"# {i % 10 + i * 7 % 10}"} for i in range(rows + 4)]
    for name, part in (("rows.jsonl", sums[:rows]), ("held_out.jsonl", sums[rows:])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "reward.py").write_text(REWARD)


def write_model(folder: Path, letters: str, max_positions: int, blocks: int = 2) -> None:
    """A random model whose tokens are letters and, last, an end of text."""
    config = DecoderConfig(
        family="qwen2",
        vocabulary_size=len(letters) + 1,
        hidden_size=16,
        intermediate_size=24,
        blocks=blocks,
        heads=4,
        kv_heads=2,
        head_dim=4,
        max_positions=max_positions,
        qkv_bias=True,
        tied=True,
        initializer_range=0.3,
    )
    write_random_pretrained(folder, config, seed=1)
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {"<eos>": len(letters)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))


@dataclass(frozen=True)
class Ranks:
    """The hosts of one run: in this process if it is one, else in a pool's."""

    hosts: list[Host]
    pool: RankPool | None

    def execute(self, works: Sequence[Work | None]) -> list[Outcome | None]:
        if self.pool is None:
            return [None if work is None else host.execute(work) for host, work in zip(self.hosts, works, strict=True)]
        return self.pool.run(execute_on_rank, works)

    def save(self, folder: Path, roles: Sequence[str]) -> None:
        if self.pool is None:
            save_host(self.hosts[0], folder, roles, rank=0)
        else:
            self.pool.run(save_on_rank, folder, roles)


@contextmanager
def run_of(
    experiment: ExperimentConfig, pool: RankPool | None = None, checkpoint: Mapping[str, SavedRole] | None = None
) -> Iterator["Conductor"]:
    """A `Conductor` over started hosts: one in this process, or one on each rank of a pool."""
    cluster = ClusterConfig(workers_per_node=1 if pool is None else pool.size, device="cpu")
    experiment = replace(experiment, cluster=cluster)
    plan = plan_for(experiment, nodes=1)
    with TemporaryDirectory() as folder:
        run_dir = create_run(Path(folder) / "run", experiment).root
        if pool is None:
            host = load_host(plan, HostContext(0, plan, run_dir, open_datasets(experiment)))
            host.load([host.prepare()], checkpoint or {})
            yield Conductor(plan, experiment, Ranks([host], None))
            host.close()
            return
        pool.run(load_on_rank, pool.run(make_on_rank, plan.to_json(), run_dir), checkpoint or {})
        yield Conductor(plan, experiment, Ranks([], pool))
        pool.run(close_on_rank)


def make_on_rank(context: Any, plan: bytes, run_dir: Path) -> str:
    """The pool's own process group makes way for the host's."""
    context.leave()
    made = plan_from_json(plan)
    datasets = open_datasets(experiment_from(made.experiment))
    context.host = load_host(made, HostContext(context.rank, made, run_dir, datasets))
    prepared: str = context.host.prepare()
    return prepared


def load_on_rank(context: Any, invitations: list[str], checkpoint: Mapping[str, SavedRole]) -> None:
    context.host.load(invitations, checkpoint)


def execute_on_rank(context: Any, works: Sequence[Work | None]) -> Outcome | None:
    work = works[context.rank]
    return None if work is None else context.host.execute(work)


def save_on_rank(context: Any, folder: Path, roles: Sequence[str]) -> None:
    save_host(context.host, folder, roles, context.rank)


def close_on_rank(context: Any) -> None:
    context.host.close()


def save_host(host: Host, folder: Path, roles: Sequence[str], rank: int) -> None:
    folder.mkdir(exist_ok=True)
    files = Files(folder)
    for role in roles:
        snapshot = host.snapshot(role)
        write_shard(files, folder, role, rank, snapshot.arrays, snapshot.state)


def export_role(experiment: ExperimentConfig, role: str, shards: Sequence[Path], folder: Path) -> None:
    """What a run would export of these shards."""
    export = export_of(experiment, role)
    folder.mkdir(exist_ok=True)
    for file in export.files:
        export.write_file(folder, file, shards)
    export.write_description(folder)


def ref_of(path: Path) -> FileRef:
    """A file as whoever has published it knows it, by its absolute name."""
    data = path.read_bytes()
    return FileRef(str(path), len(data), crc32(data))


class Conductor:
    """Runs steps as the master and its workers would. Roles are split by data only."""

    def __init__(self, plan: Plan, experiment: Any, ranks: Ranks) -> None:
        self.plan = plan
        self._experiment = experiment
        self.ranks = ranks
        self._data = open_data(experiment, ScratchIndexes())
        self._forms = algorithm_of(experiment).forms(experiment)

    def export(self, role: str, folder: Path) -> None:
        """The role as it is now, in the format of its exports."""
        with TemporaryDirectory() as shards:
            self.ranks.save(Path(shards), [role])
            export_role(self._experiment, role, sorted(Path(shards).iterdir()), folder)

    @property
    def trained(self) -> list[str]:
        return sorted(replica.role for replica in self.plan.trained)

    def save(self, folder: Path) -> dict[str, SavedRole]:
        """A checkpoint, as `TorchHost.load` takes it."""
        self.ranks.save(folder, self.trained)
        ranks = self.plan.peers(0)
        return {
            role: SavedRole(tuple(ref_of(folder / f"{role}.r{rank:03d}.safetensors") for rank in ranks), "")
            for role in self.trained
        }

    def batch(self, step: int, size: int | None = None) -> SequenceSample:
        """The rows of a step, or the first so many of them."""
        order, cursor = self._data.order, 0
        for _ in range(1, step):
            cursor = order.batch_at(cursor).next_cursor
        return self._data.datasets["train"].rows(order.batch_at(cursor).ids[:size])

    def step(
        self,
        step: int,
        records: Mapping[str, Any] | None = None,
        known: SequenceSample | None = None,
        size: int | None = None,
    ) -> "Done":
        """One training step. In replay, the rows are `known` and only train_steps are run, by their records."""
        rows = self.batch(step, size) if known is None else known
        outcomes: dict[str, Outcome] = {}
        for call in self._in_order("train"):
            training = bool(call.changes)
            if known is None or training:
                record = None if records is None else records[call.name]
                outcomes[call.name], rows = self._call(step, call, rows, record)
        return Done(rows, outcomes)

    def evaluate(self, step: int) -> "Done":
        rows = self._data.datasets["eval"].rows(self._data.eval_ids)
        outcomes: dict[str, Outcome] = {}
        for call in self._in_order("eval"):
            outcomes[call.name], rows = self._call(step, call, rows, None)
        return Done(rows, outcomes)

    def _in_order(self, source: str) -> list[MFC]:
        calls = map(self.plan.call, topological_order(self.plan.graph()))
        return [call for call in calls if call.dataset == source]

    def _call(self, step: int, call: MFC, rows: SequenceSample, record: Any) -> tuple[Outcome, SequenceSample]:
        if call.blends:
            return self._blend(step, call, record), rows
        training = call.kind == "train_step"
        inputs = rows.select_keys(call.inputs).remap(call.input_remap)
        workers = self.plan.replica(call.name).ranks
        minibatches, cut = self._data.divide(call.dataset, rows.ids, len(workers))
        updates, parts = (
            (take(rows.ids, minibatches), self._shares(rows, call)) if training else ((), take(rows.ids, cut))
        )
        nothing = SequenceSample.empty({key: self._forms[key] for key in call.inputs}).remap(call.input_remap)
        works: list[Work | None] = [None] * len(self.plan.workers)
        for part, (worker, ids) in enumerate(zip(workers, parts, strict=True)):
            if ids or training:
                share = inputs.select(ids) if ids else nothing
                number = 0 if training else part
                now = step - (call.dataset == "train" and not training)
                version = now if call.role in self.plan.changes.values() else 0
                works[worker] = Work(step, call.name, number, share, updates, record, version=version)
        outcomes = [outcome for outcome in self.ranks.execute(works) if outcome is not None]
        if training:
            assert all(outcome == outcomes[0] for outcome in outcomes)
            return outcomes[0], rows
        made = SequenceSample.gather([outcome.sample for outcome in outcomes if outcome.sample is not None])
        made = made.remap(call.output_remap).select_keys(call.outputs)
        assert not made.meta.misfit(self._forms)
        stats = {name: together(outcome.stats[name] for outcome in outcomes) for name in outcomes[0].stats}
        return Outcome(made, stats), rows.merge(made)

    def _blend(self, step: int, call: MFC, record: Any) -> Outcome:
        workers = self.plan.replica(call.name).ranks
        work = Work(step, call.name, 0, SequenceSample.empty({}), (), record, version=step)
        outcomes = self.ranks.execute([work if rank in workers else None for rank in range(len(self.plan.workers))])
        made = [outcome for outcome in outcomes if outcome is not None]
        assert all(outcome == made[0] for outcome in made)
        return made[0]

    def _shares(self, rows: SequenceSample, call: MFC) -> tuple[Ids, ...]:
        """The samples of each part of a train_step."""
        totals = [rows.meta.keys[key].totals for key in call.inputs if key not in self.plan.dataset_keys]
        made = [max(of_sample) for of_sample in zip(*totals, strict=True)] or [0] * len(rows.ids)
        minibatches, _ = self._data.divide("train", rows.ids, 1)
        return self._data.share_out(rows.ids, minibatches, made, len(self.plan.parts(call.name)))


@dataclass(frozen=True)
class Done:
    """All rows of a step, and what each call came to."""

    rows: SequenceSample
    outcomes: Mapping[str, Outcome]

    @property
    def records(self) -> dict[str, Any]:
        """As they come out of a journal."""
        return {
            name: json.loads(json.dumps(outcome.record))
            for name, outcome in self.outcomes.items()
            if outcome.record is not None
        }

    def mean(self, metric: str) -> float:
        call, _, name = metric.partition("/")
        total, weight, *_ = self.outcomes[call].stats[name]
        return total / weight
