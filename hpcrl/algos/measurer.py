"""What a worker does in a step of a profile: one thing is measured, by all workers at once, and all know the result."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.profile_links import copy_speed, disk, host_copies, links, memory_speed, product_rates
from hpcrl.algos.profile_rounds import points_of
from hpcrl.algos.profile_subject import WHOLE, Subject, Timer, opened
from hpcrl.config.model import ModelConfig, OptimizerConfig, TrainedModelConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.archives import text_row
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.profile_points import FEW, MANY, Timed
from hpcrl.placement.profile_tasks import ProfiledModel, Task, Told, models_in, task_in
from hpcrl.placement.rates import Link, Links
from hpcrl.workers.host import Outcome, Work


class Measurer:
    """Measures; keeps nothing between two steps."""

    def __init__(self, at: Builder[Any]) -> None:
        self.experiment = at.experiment
        self._at = at
        self._models = models_in(at.experiment.measured.models)

    def join(self, everyone: Group, groups: Mapping[int, ReplicaGroups], nodes: Sequence[int], folder: Path) -> None:
        """`groups`: tensor ranks → those of a layout with so many over all workers; `folder` is on the run's disk."""
        self._folder = folder
        self._groups = groups
        self._nodes = nodes
        self._timer = Timer([everyone], self._at.device, self._at.meter)

    def inference(self, work: Work, call: MFC) -> Outcome:
        tasks = self.experiment.measured.tasks
        told = msgspec.json.encode(self._told(task_in(tasks[work.step - 1]))) if work.step <= len(tasks) else b""
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"measured": [text_row(told) for _ in work.batch.ids]}))

    def close(self) -> None:
        pass

    def _told(self, task: Task) -> Told:
        match task.what:
            case "node":
                return self._node()
            case "links":
                return Told("links", links=self._links(), disturbed=self._timer.disturbed)
            case _:
                with TemporaryDirectory() as folder:
                    points = self._points(task, self._models[task.model], Path(folder))
                self._forget()
                return Told(task.what, task.model, task.tp, tuple(points), disturbed=self._timer.disturbed)

    def _node(self) -> Told:
        device, timer = self._at.device, self._timer
        is_gpu = device.type == "cuda"
        return Told(
            "node",
            links={"host": host_copies(timer), "disk": disk(timer, self._folder)},
            products={it.dtype: product_rates(timer, it.dtype) for it in self._models.values()},
            bytes_per_s=memory_speed(timer),
            copied_per_s=copy_speed(timer),
            memory=torch.cuda.get_device_properties(device).total_memory if is_gpu else 0,
            device=torch.cuda.get_device_name(device) if is_gpu else "cpu",
            software=f"torch {torch.__version__}",
            disturbed=timer.disturbed,
        )

    def _links(self) -> dict[str, Link]:
        """Between two workers of a node, and between those of the same place on all nodes."""
        found: dict[str, Link] = {}
        slots = self._nodes.count(0)
        if 2 in self._groups:
            near = self._groups[2].tp
            found |= _named("near", links(self._timer, near))
        if self._nodes[-1] > 0:
            far = self._groups[slots].dp
            found |= _named("far", links(self._timer, far))
        return found

    def _points(self, task: Task, model: ProfiledModel, folder: Path) -> list[Timed]:
        budget = 60 * self.experiment.measured.minutes / len(self.experiment.measured.tasks)
        subjects = [self._subject(model, task, folder / str(blocks), blocks) for blocks in (FEW, MANY)]
        timer, sides = self._timer, model.sides
        timer.until = timer.spent + budget
        explore = partial(points_of, subjects, timer)
        match task.what:
            case "predict":
                return explore(budget, Subject.predicted, sides.tokens, sides.lengths, passes=True)
            case "train":
                return explore(budget, Subject.trained, sides.tokens, sides.lengths, passes=True)
            case _:
                read = explore(budget / 2, Subject.read, sides.tokens, sides.lengths)
                return read + explore(budget / 2, Subject.decoded, sides.rows, sides.contexts, unit=1)

    def _subject(self, model: ProfiledModel, task: Task, folder: Path, blocks: int) -> Subject:
        config = replace(model.model, blocks=blocks)
        engine = opened(folder, config, settings_of(model, task), alone(self._groups[task.tp]), self._timer, WHOLE)
        return Subject(engine, self._timer, config.vocabulary_size, shortest=model.sides.lengths[0])

    def _forget(self) -> None:
        gc.collect()
        if self._at.device.type == "cuda":
            torch.cuda.empty_cache()


def settings_of(model: ProfiledModel, task: Task) -> ModelConfig:
    common: dict[str, Any] = {"path": "", "dtype": model.dtype, "backend": model.backend, "family": model.family}
    if task.what != "train":
        return ModelConfig(**common)
    return TrainedModelConfig(**common, optimizer=OptimizerConfig(lr=1e-5))


def alone(groups: ReplicaGroups) -> ReplicaGroups:
    """The same of a model that its tensor ranks have by themselves."""
    rank = groups.tp.ranks[groups.tp.index]
    single = Group((rank,), rank, groups.tp.device)
    return replace(groups, dp=single, pp=single)


def _named(side: str, found: Links) -> dict[str, Link]:
    """As `Told` has them."""
    return {f"{side}_{name}": link for name, link in msgspec.structs.asdict(found).items()}
