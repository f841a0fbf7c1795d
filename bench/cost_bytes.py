"""Bytes of tensors of each worker in each kind of call, against what the cost model says: exact, whatever else the
machine does. Micro-batches and slots are full, as the cost model takes them to be."""

import ctypes
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from figures import Figure, median
from profiles import TRAINED, groups_in, timer_of
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.experiments import load_config, ppo_values, write_config  # noqa: E402
from support.pool import RankPool  # noqa: E402

from hpcrl.algos.profile_subject import Subject, opened  # noqa: E402
from hpcrl.config.model import ModelConfig  # noqa: E402
from hpcrl.families.config import DecoderConfig  # noqa: E402
from hpcrl.placement.costs import CostModel  # noqa: E402
from hpcrl.placement.data_sheets import CPU_CORE  # noqa: E402
from hpcrl.placement.layouts import parse_layout  # noqa: E402
from hpcrl.placement.lengths import spread_lengths  # noqa: E402
from hpcrl.placement.placing import Placed  # noqa: E402
from hpcrl.placement.workload import workload_of  # noqa: E402
from hpcrl.recipes.algorithm import algorithm_of  # noqa: E402

TOKENS, PROMPT, RESPONSE, TEXTS, SLOTS, ROUNDS = 1024, 4, 252, 8, 4, 8
"""A micro-batch is 4 texts, and so are the slots: each part has one of both, or two. Generation goes on from whole
texts for so many rounds."""
FREED_S = 0.002
"""In which a thread frees what it has exchanged."""
LAYOUTS = ("d1", "d2", "t2", "p2")
CALLS: Mapping[str, str] = {"ref_inf": "inference", "actor_train": "train_step", "actor_gen": "generate"}


class Bytes(NamedTuple):
    """Of one worker in one call, as torch counts its tensors, and as they were predicted."""

    model: str
    kind: str
    layout: str
    rank: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Above 0: predicted too high."""
        return self.predicted / self.measured - 1


class _InUse(ctypes.Structure):
    """What glibc's mallinfo2 gives."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "mapped", "usmblks", "fsmblks", "in_arenas", "free", "top")
    ]


class _Watch(TorchDispatchMode):
    """The most bytes that the C library had given out after any operation, in all threads: those that exchange free
    what they have sent, which torch's own account of a thread does not see. They are given the time to: how late they
    come to it is no affair of a model's."""

    def __init__(self) -> None:
        super().__init__()
        self._has_exchanged = False
        self._asked = ctypes.CDLL(None).mallinfo2
        self._asked.restype = _InUse
        self.before = self.most = self._in_use()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._has_exchanged:
            time.sleep(FREED_S)
        made = func(*args, **(kwargs or {}))
        self._has_exchanged = func.namespace == "c10d"
        self.most = max(self.most, self._in_use())
        return made

    def _in_use(self) -> int:
        now = self._asked()
        return int(now.mapped + now.in_arenas)


def taken(context: Any, config: DecoderConfig, layout: str, kind: str, folder: Path) -> float:
    """On a rank: the most bytes that it takes, the model's own with them."""
    timer, groups = timer_of(context, cpu=False), groups_in(context, parse_layout(layout))
    timer.until = 0.0  # whoever disturbs it, it takes as many bytes
    settings = TRAINED if kind == "train_step" else ModelConfig(path="")
    texts = range(TEXTS // groups.dp.size)

    def most_in_call(number: int) -> float:
        place = folder / f"{layout}-{kind}-{context.rank}-{number}"
        engine = opened(place, config, settings, groups, timer, TOKENS)
        subject = Subject(engine, timer, config.vocabulary_size, repeats=1)
        gc.collect()
        lasting = sum(engine.held().values())
        with _Watch() as watch:
            if kind == "generate":
                subject.generate([PROMPT + RESPONSE] * len(texts), texts, ROUNDS, ROUNDS, SLOTS)
            else:
                getattr(subject, kind)([PROMPT] * len(texts), [RESPONSE] * len(texts))
        return float(lasting + watch.most - watch.before)

    most_in_call(0)  # what libraries take once, for ever, is no call's
    return most_in_call(1)


def experiment_in(work: Path) -> Any:
    """Of which stages are predicted."""
    values = ppo_values() | {
        "cluster": {"device": "cpu", "workers_per_node": 2},
        "generation": {"max_new_tokens": ROUNDS, "slots": SLOTS},
    }
    values["data"] |= {"max_prompt_tokens": PROMPT + RESPONSE}
    for role in ("actor", "critic", "reference"):
        values[role] = {"path": str(work / "model"), "micro_batch_tokens": TOKENS}
    return load_config(write_config(work / "ppo.yaml", values), [f"data.train={work / 'rows.jsonl'}"])


def bytes_of(
    pool: RankPool, work: Path, name: str, config: DecoderConfig, layouts: Sequence[str] = LAYOUTS
) -> list[Bytes]:
    """Of one model, in layouts of the pool's ranks."""
    experiment, folder = experiment_in(work), work / name
    folder.mkdir()
    lengths = spread_lengths((PROMPT, 1), (RESPONSE, 1), (PROMPT, RESPONSE))
    costs = CostModel(
        experiment, dict.fromkeys(("actor", "reference"), config), CPU_CORE, workload_of(experiment, lengths)
    )
    calls = {call.name: call for call in algorithm_of(experiment).calls(experiment)}
    found = []
    for layout in layouts:
        shape = parse_layout(layout)
        place = Placed(shape, tuple(range(shape.size)), "native")
        for call, kind in CALLS.items():
            stages, ranks = costs.stages(calls[call], place, TOKENS), pool.run(taken, config, layout, kind, folder)
            for rank in place.ranks:
                stage = stages[rank // (shape.dp * shape.tp)]
                found.append(Bytes(name, kind, layout, rank, ranks[rank], stage.lasting + stage.passing))
    return found


def figures(found: Sequence[Bytes]) -> list[Figure]:
    most, least = max(found, key=lambda it: abs(it.error)), min(found, key=lambda it: it.error)
    whole = f"{len(found)} workers' calls, median {100 * median([abs(it.error) for it in found]):.1f} %"
    return [
        Figure("bytes per worker and call: worst error", 100 * abs(most.error), "%", "≤ 10", f"{_told(most)}; {whole}"),
        Figure("bytes per worker and call: most too low", max(0.0, -100 * least.error), "%", "≤ 3", _told(least)),
    ]


def _told(it: Bytes) -> str:
    return (
        f"{it.kind} of {it.model} in {it.layout}, rank {it.rank}: {it.predicted / 1e6:.2f} MB predicted, "
        f"{it.measured / 1e6:.2f} MB taken"
    )
