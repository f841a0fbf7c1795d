"""What a backend costs: a step and its lasting bytes against hpcrl's own, a step against the library's own loop, a
checkpoint against torch's distributed checkpoints, what recompute gives for its time. Two processes, a thread each."""

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from figures import Figure, median, spread
from layouts import LARGE, SMALL, Batch, lesson, opened
from shares import MODEL
from torch import Tensor, nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.pool import RankPool, everyone, gloo_pool  # noqa: E402

from hpcrl.algos.sft import answer_loss  # noqa: E402
from hpcrl.data.micro_batches import micro_batches  # noqa: E402
from hpcrl.durable.checkpoints import write_shard  # noqa: E402
from hpcrl.durable.files import Files  # noqa: E402
from hpcrl.engines.engine import Columns, Objective, Sequences, Update  # noqa: E402
from hpcrl.engines.model import PackedModel  # noqa: E402
from hpcrl.families.reader import parameters_of  # noqa: E402
from hpcrl.models.output import Output, Predictions  # noqa: E402
from hpcrl.models.pretrained import load_pretrained, write_random_pretrained  # noqa: E402
from hpcrl.models.transformer import Transformer  # noqa: E402
from hpcrl.parallel.replica import ReplicaGroups, groups_of, sharing  # noqa: E402
from hpcrl.placement.layouts import parse_layout  # noqa: E402
from hpcrl.processes import keep_freed_memory  # noqa: E402

Side = Callable[[], Any]
Sides = Callable[..., Sequence[Side]]
BATCH = Batch()
BLOCKS = 12
"""Of the model whose blocks are computed again."""


def backends(work: Path, batch: Batch = BATCH) -> list[Figure]:
    shutil.rmtree(work, ignore_errors=True)
    model, deep = work / "model", work / "deep"
    write_random_pretrained(model, MODEL, seed=0)
    write_random_pretrained(deep, replace(MODEL, blocks=BLOCKS), seed=0)
    with gloo_pool(2) as pool:
        return [
            *_fsdp(pool, model, batch),
            *_zero(pool, model, batch),
            *_saving(pool, model, work, batch),
            *_recompute(pool, deep, batch),
        ]


def _fsdp(pool: RankPool, model: Path, batch: Batch) -> list[Figure]:
    figures = []
    for tokens, goal in ((SMALL, ""), (LARGE, "≤ 1.15")):
        of = replace(batch, micro_batch_tokens=tokens)
        native, fsdp, own_loop = _rounds(pool, training, model, of)
        micro = f", micro-batches of {tokens:,}"
        figures.append(_ratio(f"step of fsdp ÷ of native, d2{micro}", fsdp, native, goal))
        figures.append(_ratio(f"step of fsdp ÷ of FSDP2's own loop, d2{micro}", fsdp, own_loop, goal and "≤ 1.05"))
    (lasting, detail), *_ = pool.run(held, model, batch)
    return [*figures, Figure("lasting bytes a rank, fsdp ÷ native, d2, fp32", lasting, "×", "≤ 0.7", detail)]


def _zero(pool: RankPool, model: Path, batch: Batch) -> list[Figure]:
    figures = []
    for stage in (1, 2, 3):
        native, zero, own_loop = _rounds(pool, zero_training, model, replace(batch, micro_batch_tokens=LARGE), stage)
        name, micro = f"zero{stage}", f", micro-batches of {LARGE:,}"
        figures.append(_ratio(f"step of {name} ÷ of native, d2{micro}", zero, native, ""))
        figures.append(_ratio(f"step of {name} ÷ of DeepSpeed's own loop, d2{micro}", zero, own_loop, "≤ 1.05"))
    return figures


def _saving(pool: RankPool, model: Path, work: Path, batch: Batch) -> list[Figure]:
    ours, theirs = _rounds(pool, saving, model, work / "saved", batch)
    what = "checkpoint of fsdp, d2, fsynced: torch.distributed.checkpoint ÷ hpcrl"
    return [_ratio(what, theirs, ours, "≥ 1.5")]


def _recompute(pool: RankPool, deep: Path, batch: Batch) -> list[Figure]:
    plain, again = _rounds(pool, recomputing, deep, batch)
    (kept, detail), *_ = pool.run(activations, deep, batch)
    return [
        _ratio(f"recompute, {BLOCKS} blocks, d2: step ÷ without", again, plain, "≤ 1.35"),
        Figure(f"recompute, {BLOCKS} blocks: what a micro-batch keeps ÷ without", kept, "×", "≤ 0.25", detail),
    ]


def _ratio(what: str, one: Sequence[float], other: Sequence[float], goal: str) -> Figure:
    detail = f"{spread(one, 's')}; the other {spread(other, 's')}"
    return Figure(what, median(one) / median(other), "×", goal, detail)


def _rounds(pool: RankPool, sides: Sides, *given: Any) -> list[list[float]]:
    """The seconds of each round of each side, until both ranks had ended."""
    found = pool.run(timed, sides, given)
    return [[max(of_round) for of_round in zip(*of_ranks, strict=True)] for of_ranks in zip(*found, strict=True)]


def timed(
    context: Any, make: Callable[..., Sequence[Side]], given: Sequence[Any], rounds: int = 5
) -> list[list[float]]:
    """On a rank: the seconds of each side in each round, the sides in turn."""
    keep_freed_memory()  # as a worker does
    together, sides = everyone(context), make(_groups(context), *given)
    seconds: list[list[float]] = [[] for _ in sides]
    for turn in range(-1, rounds):
        for side, of_side in zip(sides, seconds, strict=True):
            together.total(torch.zeros(1))
            begun = time.perf_counter()
            side()
            if turn >= 0:  # once before they are timed
                of_side.append(time.perf_counter() - begun)
    return seconds


def _groups(context: Any) -> ReplicaGroups:
    mesh, layout = everyone(context).ranks, parse_layout("d2")
    context.form(sharing(layout, mesh))
    return groups_of(context, layout, mesh)


def training(groups: ReplicaGroups, model: Path, batch: Batch) -> Sequence[Side]:
    """A step of native, of fsdp, and of FSDP2 as its own documentation has it."""
    own, columns = lesson(groups, batch)
    sides = [
        *(_step(opened(model, groups, batch, backend=name), own, columns) for name in ("native", "fsdp")),
        _Loop(model, groups).over(own, columns, batch.micro_batch_tokens),
    ]
    for _ in range(2):  # the second loss tells what the first step has done
        losses = [side() for side in sides]
        assert max(losses) - min(losses) < 1e-5 * max(losses), losses
    return sides


def zero_training(groups: ReplicaGroups, model: Path, batch: Batch, stage: int) -> Sequence[Side]:
    """A step of native, of a stage of ZeRO, and of DeepSpeed's own engine at this stage."""
    own, columns = lesson(groups, batch)
    sides = [
        *(_step(opened(model, groups, batch, backend=name), own, columns) for name in ("native", f"zero{stage}")),
        _ZeroLoop(model, groups, stage).over(own, columns, batch.micro_batch_tokens),
    ]
    for _ in range(2):  # the second loss tells what the first step has done
        losses = [side() for side in sides]
        assert max(losses) - min(losses) < 1e-5 * max(losses), losses
    return sides


def recomputing(groups: ReplicaGroups, model: Path, batch: Batch) -> Sequence[Side]:
    own, columns = lesson(groups, batch)
    return [_step(opened(model, groups, batch, recompute=again), own, columns) for again in (False, True)]


def saving(groups: ReplicaGroups, model: Path, folder: Path, batch: Batch) -> Sequence[Side]:
    """A checkpoint of two ranks: hpcrl's shards of a role under fsdp, and torch's own of the same state."""
    import torch.distributed.checkpoint as dcp

    own, columns = lesson(groups, batch)
    engine, loop = opened(model, groups, batch, backend="fsdp"), _Loop(model, groups)
    _step(engine, own, columns)()
    loop.over(own, columns, batch.micro_batch_tokens)()
    saved = iter(range(10**6))

    def ours() -> None:
        place = folder / "hpcrl" / f"{next(saved)}"
        place.mkdir(parents=True, exist_ok=True)
        shard = engine.snapshot()
        write_shard(Files(place), place, "actor", groups.dp.index, shard.arrays, {})

    def theirs() -> None:
        state = {"model": loop.state_dict(), "optimizer": loop.optimizer.state_dict()}
        dcp.save(state, checkpoint_id=folder / "dcp" / f"{next(saved)}", process_group=groups.dp.process_group)

    return [ours, theirs]


def _step(engine: Any, own: Sequences, columns: Columns) -> Side:
    return lambda: engine.train_batch(own, columns, Objective(answer_loss), Update(1, 0, 1)).loss


class _Plain(Transformer):
    """Over parameters that nobody holds but FSDP."""

    shares_prefixes = True


class _Tensors(Output):
    """What it predicts as tensors: DeepSpeed finds them in a tuple alone, to know when a backward pass comes to a
    module."""

    def forward(self, *given: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        it = super().forward(*given)
        return it.log_probs, it.entropy, it.values, it.cu_labels


class _Told(nn.Module):
    def __init__(self, tensors: _Tensors) -> None:
        super().__init__()
        self.tensors = tensors

    def forward(self, *given: Any) -> Predictions:
        return Predictions(*self.tensors(*given))


class _Loop(nn.Module):
    """The same model under FSDP2, torch's AdamW and its clipping, and nothing of hpcrl's engines."""

    def __init__(self, folder: Path, groups: ReplicaGroups) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        config, tensors = load_pretrained(folder)
        views = {of.name: nn.Parameter(torch.empty(of.shape)) for of in parameters_of(config)}
        for name, tensor in tensors:
            views[name].data.copy_(tensor)
        self.transformer = _Plain(config, views)
        self.ranks = groups.dp.size
        self.group = groups.dp
        mesh = DeviceMesh.from_group(groups.dp.process_group, "cpu")
        for module in (*self.transformer.blocks, self):
            fully_shard(module, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-5, weight_decay=0.01)

    def forward(self, model: PackedModel, rows: Sequences) -> Tensor:
        return model.forward(rows, 1.0, False).log_probs.clone()

    def over(self, own: Sequences, columns: Columns, micro_batch_tokens: int) -> Side:
        """A step on these texts; what FSDP averages over ranks is added up."""
        model = PackedModel("actor", self.transformer)
        batches = list(micro_batches(own.lengths, own.samples, own.prompts, own.prompt_numbers(), micro_batch_tokens))
        count = int(self.group.gathered(torch.tensor([len(batches)])).max())
        assert len(batches) == count, "the ranks' texts make equally many micro-batches"
        weights = [model.columns(columns, own, rows)["weights"] for rows in batches]

        def step() -> float:
            self.optimizer.zero_grad()
            total = torch.zeros(1, dtype=torch.float64)
            for number, rows in enumerate(batches):
                self.set_requires_gradient_sync(number == len(batches) - 1)
                log_probs = self(model, own.select(rows))
                loss = -(log_probs * weights[number]).sum()
                (self.ranks * loss).backward()
                total += loss.detach()
            norm = nn.utils.clip_grad_norm_(self.parameters(), 1.0)
            assert math.isfinite(float(norm.full_tensor()))
            self.optimizer.step()
            return float(self.group.total(total))

        return step


class _ZeroLoop(nn.Module):
    """The same model in DeepSpeed's engine, with torch's AdamW and its clipping, and nothing of hpcrl's engines."""

    def __init__(self, folder: Path, groups: ReplicaGroups, stage: int) -> None:
        import deepspeed
        from deepspeed.utils import set_z3_leaf_module

        super().__init__()
        self.group = groups.dp
        os.environ["LOCAL_RANK"] = str(groups.dp.index)  # DeepSpeed asks for it
        config, tensors = load_pretrained(folder)
        views = {of.name: nn.Parameter(torch.empty(of.shape)) for of in parameters_of(config)}
        for name, tensor in tensors:
            views[name].data.copy_(tensor)
        self.transformer = _Plain(config, views)
        self.transformer.output = _Told(_Tensors(config, views, self.transformer.vocabulary))  # type: ignore[assignment]
        for block in self.transformer.blocks:
            set_z3_leaf_module(block, True)
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-5, weight_decay=0.01)
        options = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": sum(it.numel() for it in views.values())},
        }
        self.engine = deepspeed.initialize(model=self, optimizer=optimizer, config=options, dist_init_required=False)[0]

    def forward(self, model: PackedModel, rows: Sequences) -> Tensor:
        return model.forward(rows, 1.0, False).log_probs

    def over(self, own: Sequences, columns: Columns, micro_batch_tokens: int) -> Side:
        """A step on these texts; what DeepSpeed averages over ranks is added up."""
        model = PackedModel("actor", self.transformer)
        batches = list(micro_batches(own.lengths, own.samples, own.prompts, own.prompt_numbers(), micro_batch_tokens))
        weights = [model.columns(columns, own, rows)["weights"] for rows in batches]

        def step() -> float:
            total = torch.zeros(1, dtype=torch.float64)
            for number, rows in enumerate(batches):
                self.engine.set_gradient_accumulation_boundary(number == len(batches) - 1)
                log_probs = self.engine(model, own.select(rows))
                loss = -(log_probs * weights[number]).sum()
                self.engine.backward(self.group.size * loss)
                self.engine.step()
                total += loss.detach()
            return float(self.group.total(total))

        return step


def held(context: Any, model: Path, batch: Batch) -> tuple[float, str]:
    """On a rank: what fsdp holds in what native does."""
    groups = _groups(context)
    fsdp, native = (sum(opened(model, groups, batch, backend=of).held().values()) for of in ("fsdp", "native"))
    return fsdp / native, f"{fsdp:,} and {native:,} bytes"


def activations(context: Any, model: Path, batch: Batch) -> tuple[float, str]:
    """On a rank: what a micro-batch keeps for its backward pass with and without recompute."""
    groups = _groups(context)
    own, _ = lesson(groups, batch)
    plain, again = (_kept(opened(model, groups, batch, recompute=of), own) for of in (False, True))
    return again / plain, f"{again:,} and {plain:,} bytes"


def _kept(engine: Any, own: Sequences) -> int:
    """Bytes of all storages that a backward pass needs, parameters apart."""
    storages, model = {}, engine._model
    rows = next(iter(micro_batches(own.lengths, own.samples, own.prompts, own.prompt_numbers(), SMALL)))

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        predictions = model.forward(own.select(rows), 1.0, with_entropy=False)
    assert predictions.log_probs.requires_grad
    parameters = model.transformer.memory.data.untyped_storage().data_ptr()
    return sum(size for place, (size, _) in storages.items() if place != parameters)
