"""What both trees run: the toy and the demo's SFT and PPO, with settings that between them reach most of the code.

A case is one of BASE's examples plus settings that override it on the command line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Material:
    """What the runs read: the demo's data, its random model, and that model after some SFT."""

    data: Path
    model: Path
    sft_model: Path


@dataclass(frozen=True)
class Recipe:
    """An example and the settings of all its cases; `{data}`, `{model}` and `{sft_model}` are paths of the material."""

    example: str
    settings: str
    models: tuple[str, ...] = ()
    """The sections that take a `dtype`."""


@dataclass(frozen=True)
class Case:
    """One run on each tree.

    `killed`: a worker and later the master are killed, and the run is resumed. `racing`: roles train at the same time
    on workers of their own, so which one finishes first is a matter of timing.
    """

    name: str
    recipe: Recipe
    workers: int
    dtype: str = ""
    settings: str = ""
    killed: bool = False
    racing: bool = False

    def words(self, material: Material) -> list[str]:
        """The settings as command-line arguments."""
        dtypes = [f"{section}.dtype={self.dtype}" for section in self.recipe.models] if self.dtype else []
        settings = [f"cluster.workers_per_node={self.workers}", *dtypes, *self.settings.split()]
        return [f"--{word}" for word in (*shared_settings(self.recipe, material), *settings)]

    @property
    def needs_sft_model(self) -> bool:
        return "{sft_model}" in self.recipe.settings


def shared_settings(recipe: Recipe, material: Material) -> list[str]:
    """What all cases of the recipe set, as `key=value`."""
    paths = {"data": material.data, "model": material.model, "sft_model": material.sft_model}
    return [word.format(**paths) for word in recipe.settings.split()]


LOCAL = "cluster.type=local cluster.lost_after_s=60"
"""A busy machine may starve a process for long; losing it would start another attempt, which changes file names."""
TWELVE = (
    "control.steps=12 control.checkpoint.steps=4 control.checkpoint.seconds=null control.evaluate.steps=4 "
    "control.export.steps=6"
)
DATA = "data.train={data}/train.jsonl data.evaluate={data}/test.jsonl data.evaluate_rows=24"
SMALL = "data.batch_size=24 generation.slots=8"

TOY = Recipe("examples/toy/toy.yaml", f"{LOCAL} control.export.steps=20")
SFT = Recipe("examples/addition/sft.yaml", f"{LOCAL} {TWELVE} {DATA} {SMALL} actor.path={{model}}", ("actor",))
PPO = Recipe(
    "examples/addition/ppo.yaml",
    f"{LOCAL} {TWELVE} {DATA} {SMALL} actor.path={{sft_model}} critic.path={{sft_model}} reference.path={{sft_model}} "
    "ppo.kl.mode=reward ppo.kl.coef=0.05",
    ("actor", "critic", "reference"),
)
SFT_MODEL = Recipe(
    SFT.example,
    f"{LOCAL} {DATA} actor.path={{model}} control.steps=200 control.stop_when=null control.evaluate.steps=null "
    "control.checkpoint.seconds=null",
)
"""Trains the model that PPO starts from. It gets about one sum in five right, so rewards vary."""

ADAPTIVE = "ppo.kl.adaptive=true ppo.kl.horizon=500 ppo.value_norm=true"
STOPPING = "ppo.minibatches=3 ppo.early_stop_kl=0.002"
CUT = "generation.max_new_tokens=4 ppo.cut=penalty"
APART = "actor.mesh=0-1 critic.mesh=2 reference.mesh=2 reward.mesh=0"
PLAIN = "critic.optimizer.schedule=cosine ppo.whiten_advantages=false"
CASES: Sequence[Case] = (
    Case("toy", TOY, 2, settings="cluster.nodes=2"),
    Case("sft-dp1", SFT, 1, "fp32"),
    Case("sft-dp2-bf16", SFT, 2, "bf16", "actor.micro_batch_tokens=64"),
    Case("sft-dp3", SFT, 3, "fp32", "actor.micro_batch_tokens=64 control.compact=false"),
    Case("ppo-dp1", PPO, 1, "fp32", f"{STOPPING} ppo.epochs=2"),
    Case("ppo-dp1-bf16", PPO, 1, "bf16", f"{ADAPTIVE} data.samples_per_prompt=2 control.keep_checkpoints=9"),
    Case("ppo-dp2", PPO, 2, "fp32", f"{ADAPTIVE} actor.micro_batch_tokens=64 ppo.gae_lambda=0.95 ppo.discount=0.99"),
    Case("ppo-dp2-bf16", PPO, 2, "bf16", f"ppo.early_stop_ratio=1.01 {CUT}"),
    Case("ppo-dp3", PPO, 3, "fp32", "ppo.kl.estimator=k3 ppo.entropy_coef=0.01 control.compact=false"),
    Case("ppo-dp3-bf16", PPO, 3, "bf16", f"{ADAPTIVE} {STOPPING} ppo.aggregation=seq-mean-token-mean"),
    Case("ppo-apart", PPO, 3, "fp32", f"{APART} {CUT} {PLAIN}", racing=True),
    Case("ppo-killed", PPO, 2, "fp32", ADAPTIVE, killed=True),
)


def chosen(names: Sequence[str]) -> list[Case]:
    """The cases with these names; all of them if no names are given. Raises ValueError for an unknown name."""
    known = {case.name: case for case in CASES}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown case {', '.join(unknown)}; the cases are {', '.join(known)}")
    return [case for case in CASES if not names or case.name in names]
