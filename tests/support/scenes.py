"""Scenes for an imagined cluster: random graphs, parts, replicas, lags and choices."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import msgspec
from support.recipes import Recipe

from hpcrl.dataflow.graph import MFC, Rows, build_graph, lags_beyond_choice
from hpcrl.dataflow.tasks import Unit
from hpcrl.errors import ConfigurationError

ROWS: tuple[Rows, ...] = ("drawn", "chosen")


@dataclass
class Scene:
    """What is to be run: calls per step, and the samples of each of their parts.

    `rounds` maps a step that chooses to the round in which each part of its calls is told; in the last one it chooses,
    once the units of the calls that `decide` are recorded. `replicas` maps calls that are made elsewhere than at home
    to where.
    """

    recipe: Recipe
    window: int
    steps: list[dict[str, list[list[str]]]]
    rounds: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    decide: frozenset[str] = frozenset()

    @property
    def most_open(self) -> int:
        return self.window + max(mfc.lag for mfc in self.recipe.calls)

    @property
    def has_lags_apart(self) -> bool:
        """Whether training reads several versions of a role at a time."""
        trained = {mfc.role for mfc in self.recipe.calls if mfc.kind == "train_step"}
        reads = [mfc for mfc in self.recipe.calls if mfc.dataset == "train" and mfc.kind != "train_step"]
        return any(len({mfc.lag for mfc in reads if mfc.role == role}) > 1 for role in trained)

    def mfc(self, unit: Unit) -> MFC:
        return self._mfcs[unit.call]

    @cached_property
    def _mfcs(self) -> dict[str, MFC]:
        return {mfc.name: mfc for mfc in self.recipe.calls}

    def ids(self, unit: Unit) -> list[str]:
        parts = self.steps[unit.step][unit.call]
        return list(chain(*parts)) if self.mfc(unit).kind == "train_step" else parts[unit.part]

    def last_round(self, step: int) -> int:
        return max(chain(*self.rounds.get(step, {}).values()), default=0)

    def told(self, step: int, up_to: int) -> dict[str, list[list[str]]]:
        """Call → its parts that are told up to a round."""
        if step not in self.rounds:
            return self.steps[step]
        rounds = self.rounds[step]
        told = {
            call: [ids for ids, when in zip(parts, rounds[call], strict=True) if when <= up_to]
            for call, parts in self.steps[step].items()
        }
        return {call: parts for call, parts in told.items() if parts}

    def units(self, step: int, up_to: int | None = None) -> Iterator[Unit]:
        for call, parts in self.told(step, self.last_round(step) if up_to is None else up_to).items():
            filled = [part for part, ids in enumerate(parts) if ids]
            trains = self.mfc(Unit(step, call, 0)).kind == "train_step"
            yield from (Unit(step, call, part) for part in ([0] if trains else filled))

    def read_until(self, unit: Unit) -> int:
        """The last step whose calls may read what a train_step overwrites."""
        role = self.mfc(unit).role
        return unit.step + max(mfc.lag for mfc in self.recipe.calls if mfc.role == role)

    def version(self, unit: Unit) -> int:
        """What a unit that trains nothing reads, by the step that made it; 0 of a role that nobody trains."""
        mfc = self.mfc(unit)
        if not any(other.role == mfc.role and other.kind == "train_step" for other in self.recipe.calls):
            return 0
        return max(0, unit.step if mfc.dataset == "eval" else unit.step - 1 - mfc.lag)

    def trains(self, role: str) -> list[int]:
        """The steps in which `role` is trained."""
        return self._trains[role]

    @cached_property
    def _trains(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {mfc.role: [] for mfc in self.recipe.calls}
        for step in range(len(self.steps)):
            for mfc in map(self.mfc, self.units(step)):
                if mfc.kind == "train_step":
                    found[mfc.role].append(step)
        return found


def random_recipe(rng: random.Random) -> Recipe:
    """Calls of a few roles over random keys; every trained role has one train_step; maybe an evaluation."""
    roles = [f"role{i}" for i in range(rng.randint(1, 3))]
    trained = [role for role in roles if rng.random() < 0.7]
    keys, calls = ["x"], []
    for i in range(rng.randint(1, 4)):
        inputs = tuple(rng.sample(keys, rng.randint(1, min(2, len(keys)))))
        calls.append(MFC(f"call{i}", rng.choice(roles), "inference", inputs, (f"k{i}",)))
        keys.append(f"k{i}")
    for role in trained:
        calls.append(MFC(f"train_{role}", role, "train_step", tuple(rng.sample(keys, rng.randint(1, len(keys))))))
    eval_keys = ["eval_x"]
    for i in range(rng.randint(0, 2)):
        calls.append(MFC(f"eval{i}", rng.choice(roles), "generate", (eval_keys[-1],), (f"e{i}",), dataset="eval"))
        eval_keys.append(f"e{i}")
    build_graph(calls, ["x"], ["eval_x"])
    return Recipe(tuple(rng.sample(calls, len(calls))), ("x",), ("eval_x",))


def random_scene(seed: int, recipe: Recipe | None = None) -> Scene:
    """Some steps of a recipe, the first without training: roles with parts of their own, evaluation now and then.

    Every other recipe has calls elsewhere than at home.
    """
    rng = random.Random(f"scene {seed}")
    recipe = with_chosen(with_lags(recipe or random_recipe(rng), rng), rng)
    parts = {mfc.role: rng.randint(1, 3) for mfc in recipe.calls}
    steps = []
    elsewhere = [mfc.name for mfc in recipe.calls if mfc.kind != "train_step" and rng.random() < 0.6]
    replicas = {call: rng.randint(1, 2) for call in elsewhere} if rng.random() < 0.5 else {}
    for step in range(rng.randint(3, 6)):
        samples = {source: [f"{source}{i}@{step}" for i in range(rng.randint(1, 5))] for source in ("train", "eval")}
        evaluates, only_evaluates = rng.random() < 0.4, step == 0
        drawn = {
            mfc.name: cut(rng, samples[mfc.dataset], parts[mfc.role])
            for mfc in recipe.calls
            if (evaluates if mfc.dataset == "eval" else not only_evaluates)
        }
        steps.append(drawn)
    return with_rounds(Scene(recipe, rng.randint(1, 3), steps, replicas=replicas), parts, rng)


def with_rounds(scene: Scene, parts: dict[str, int], rng: random.Random) -> Scene:
    """Now and then steps that draw in up to four rounds, and choose some of the samples.

    Where calls are further behind than those that decide, which would never choose, all on drawn rows are as far.
    """
    makers = [mfc for mfc in scene.recipe.calls if mfc.precedes_choice]
    if not makers:
        return scene
    decides = rng.choice(makers)
    if any(lags_beyond_choice(scene.recipe.graph(), decides.outputs[0])):
        most = max(mfc.lag for mfc in scene.recipe.calls)
        alike = tuple(lagging(mfc, most) if mfc.precedes_choice else mfc for mfc in scene.recipe.calls)
        scene.recipe = replace(scene.recipe, calls=alike)
        assert not any(lags_beyond_choice(scene.recipe.graph(), decides.outputs[0]))
    scene.decide = frozenset([decides.name])
    for step, calls in enumerate(scene.steps):
        mfcs = [mfc for mfc in scene.recipe.calls if mfc.name in calls]
        if rng.random() < 0.6 or decides.name not in calls:
            continue
        rounds = rng.randint(1, 4)
        samples = [[f"train{i}@{step}.{turn}" for i in range(rng.randint(1, 3))] for turn in range(rounds)]
        chosen = [sample for sample in chain(*samples) if rng.random() < 0.6] or samples[0]
        scene.rounds[step] = {}
        for mfc in mfcs:
            cuts = [cut(rng, chosen, parts[mfc.role])] if mfc.dataset == "train" else [calls[mfc.name]]
            turns = [rounds]
            if mfc.precedes_choice:
                cuts, turns = [cut(rng, ids, parts[mfc.role]) for ids in samples], list(range(rounds))
            calls[mfc.name] = list(chain(*cuts))
            scene.rounds[step][mfc.name] = [turn for turn, of in zip(turns, cuts, strict=True) for _ in of]
    return scene


def with_lags(recipe: Recipe, rng: random.Random) -> Recipe:
    """No call behind, all calls on training data a version behind, or some of them up to two versions."""
    lags = rng.choice([(0,), (1,), (0, 1, 2), (0, 1, 2)])
    while True:
        drawn = replace(recipe, calls=tuple(lagging(mfc, rng.choice(lags)) for mfc in recipe.calls))
        with contextlib.suppress(ConfigurationError):
            drawn.graph()
            return drawn


def with_chosen(recipe: Recipe, rng: random.Random) -> Recipe:
    """Some inferences wait for the choice, where those that read of them wait too."""
    drawn = replace(recipe, calls=tuple(msgspec.structs.replace(mfc, rows=rng.choice(ROWS)) for mfc in recipe.calls))
    with contextlib.suppress(ConfigurationError):
        drawn.graph()
        return drawn
    return recipe


def lagging(mfc: MFC, lag: int) -> MFC:
    """The call, with a lag where it may have one."""
    return mfc if mfc.dataset == "eval" or mfc.kind == "train_step" else msgspec.structs.replace(mfc, lag=lag)


def cut(rng: random.Random, ids: list[str], parts: int) -> list[list[str]]:
    """Any division over the parts; some may be empty."""
    homes = [rng.randrange(parts) for _ in ids]
    return [[sample for sample, home in zip(ids, homes, strict=True) if home == part] for part in range(parts)]
