"""What a role's model is to algorithms, which see this file alone of all engines, and what it is to their host.

Shape legend: B sequences; L tokens of all of them; P labels of all of them (the tokens that are predicted).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
import torch

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import Between, ModelConfig, Offload, offload_of
from hpcrl.data.micro_batches import runs
from hpcrl.data.prefixes import prompt_numbers
from hpcrl.durable.shards import ShardFile
from hpcrl.engines.shard import CopiedShard, Shard
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.spaces import Space
from hpcrl.models.history import Generated
from hpcrl.models.kernels import Kernels
from hpcrl.models.output import Predictions
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.workers.host import Door
from hpcrl.workers.meter import Meter

Labelled = Literal["response", "response and after", "after"]
"""What of a row is predicted: its response, what comes after its text, or both."""


@dataclass(frozen=True, eq=False)
class Sequences:
    """Packed token sequences on the host; of sequence i the last `labels[i]` tokens are predicted. No padding.

    A label is predicted from the tokens before it: a model never reads the last token of a sequence. Knows nothing of
    roles: for PPO the labels are the response, for SFT the answer.
    """

    tokens: np.ndarray  # int [L]
    lengths: np.ndarray  # int64 [B]
    labels: np.ndarray  # int64 [B], 1 ≤ labels < lengths
    prompts: np.ndarray
    """int64 [B], 0 ≤ prompts < lengths: tokens of the prompt, which a model reads once for all that begin with it."""
    samples: np.ndarray
    """int64 [B]: the number, within a batch, of the sample that each sequence is of. Those of one sample are neighbours
    and are never parted."""
    counted: np.ndarray
    """bool [B]: sequences that count; those that don't have weight 0 in losses, denominators and statistics."""
    mask: np.ndarray
    """bool [P]: labels that count, as far as their sequences do."""

    def __post_init__(self) -> None:
        if self.tokens.shape != (int(self.lengths.sum()),):
            raise ValueError(f"tokens has shape {self.tokens.shape}, but the lengths add up to {self.lengths.sum()}")
        wrong = np.flatnonzero((self.labels < 1) | (self.labels >= self.lengths))
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(
                f"sequence {i} of {self.lengths[i]} tokens has {self.labels[i]} labels; it needs at least one label "
                "and, before it, at least one token to predict it from"
            )
        for name, array, count in (
            ("prompts", self.prompts, len(self)),
            ("samples", self.samples, len(self)),
            ("counted", self.counted, len(self)),
            ("mask", self.mask, int(self.labels.sum())),
        ):
            if array.shape != (count,):
                raise ValueError(f"{name} has shape {array.shape}; needed is ({count},)")
        if ((self.prompts < 0) | (self.prompts >= self.lengths)).any():
            raise ValueError(f"prompts of {self.prompts.tolist()} tokens do not fit {self.lengths.tolist()} tokens")
        if len(set(self.samples.tolist())) != len(runs(self.samples)):
            raise ValueError(f"sequences of one sample must be neighbours; those here are of {self.samples.tolist()}")

    def __len__(self) -> int:
        return len(self.lengths)

    @staticmethod
    def from_rows(
        prompts: Sequence[np.ndarray],
        responses: Sequence[np.ndarray],
        *,
        labelled: Labelled = "response",
        samples: Sequence[int] | np.ndarray | None = None,
        counted: Sequence[bool] | np.ndarray | None = None,
        mask: Sequence[np.ndarray] | None = None,
    ) -> "Sequences":
        """A sequence of each prompt and response: by default a sample of its own, of which everything counts.

        What comes after a text is one more label, whose token (0) no model reads: the value there is the one after the
        text, a reward model's score. `mask` has an array for each sequence, one number a label.
        """
        after = [np.zeros(0 if labelled == "response" else 1, np.int32)] * len(prompts)
        rows = [part for row in zip(prompts, responses, after, strict=True) for part in row]
        texts = np.array([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)], np.int64)
        labels = np.array([0 if labelled == "after" else len(response) for response in responses], np.int64)
        ends, count = np.array([len(end) for end in after], np.int64), len(prompts)
        everything = np.ones(int((labels + ends).sum()), np.bool_)
        return Sequences(
            tokens=np.concatenate(rows) if rows else np.zeros(0, np.int32),
            lengths=texts + ends,
            labels=labels + ends,
            prompts=np.array([len(prompt) for prompt in prompts], np.int64),
            samples=np.arange(count) if samples is None else np.asarray(samples, np.int64),
            counted=np.ones(count, np.bool_) if counted is None else np.asarray(counted, np.bool_),
            mask=everything if mask is None else np.concatenate([everything[:0], *mask]).astype(np.bool_),
        )

    @property
    def counting(self) -> np.ndarray:
        """bool [P]: the labels that count."""
        return self.mask & self.counted.repeat(self.labels)

    def prompt_numbers(self) -> np.ndarray:
        """int64 [B], equal for sequences that share their prompt."""
        return prompt_numbers(self.tokens, self.lengths, self.prompts)

    def select(self, rows: Sequence[int]) -> "Sequences":
        """These sequences, under the numbers of their samples."""
        where = np.asarray(rows, np.int64)
        return Sequences(
            tokens=take_rows(self.tokens, self.lengths, where),
            lengths=self.lengths[where],
            labels=self.labels[where],
            prompts=self.prompts[where],
            samples=self.samples[where],
            counted=self.counted[where],
            mask=take_rows(self.mask, self.labels, where),
        )


def take_rows(packed: np.ndarray, lengths: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """The given rows of a packed array, one after another."""
    ends = np.cumsum(lengths)
    parts = [packed[ends[i] - lengths[i] : ends[i]] for i in rows]
    return np.concatenate(parts) if parts else packed[:0]


@dataclass(frozen=True)
class Columns:
    """What a loss is given beside predictions, by name; no name is in both."""

    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    """One number a label, [P] in the order of the sequences."""
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)
    """One number a sequence, [B]."""

    def __post_init__(self) -> None:
        if twice := sorted(self.labels.keys() & self.rows.keys()):
            raise ValueError(f"{', '.join(twice)} is a column of labels and one of rows; call one otherwise")


Statistic = tuple[torch.Tensor, torch.Tensor]
"""A sum and the weight that it is divided by: both are added up over micro-batches and ranks. Of tokens that count, of
sequences, of pairs: the loss says it by the weight."""

Loss = Callable[[Predictions, Mapping[str, torch.Tensor]], tuple[torch.Tensor, Mapping[str, Statistic]]]
"""(predictions, columns as tensors) of one micro-batch → (its share of the loss, statistics).

Shares add up over micro-batches and ranks, so the columns carry weights with global denominators. All sequences of a
sample are in one micro-batch, in their order. Of a rank without rows the loss is asked with P = B = 0.
"""

Totals = Mapping[str, tuple[float, float]]
"""name → (sum, weight) of a whole mini-batch, added up over micro-batches and ranks in float64."""


@dataclass(frozen=True)
class Objective:
    """What is minimised over a mini-batch, at the rollout's temperature."""

    loss: Loss
    temperature: float = 1.0
    with_entropy: bool = False
    """Whether predictions need entropies."""
    refuses: Callable[[Mapping[str, float]], bool] | None = None
    """Whether an update of statistics with these means has gone too far, and is not made."""


@dataclass(frozen=True)
class Update:
    """A place in the run: update `index` (from 0) of at most `of` in the training step `step` (from 1).

    Updates that an early stop leaves out count as passed.
    """

    step: int
    index: int
    of: int


@dataclass(frozen=True)
class Decision:
    """What was done with a mini-batch's gradient; in a replay, what is to be done.

    `refused` (by the objective), `skipped` (no finite gradient) and `empty` (nothing in it counts, so that no engine is
    asked) change neither parameters nor moments.
    """

    outcome: Literal["stepped", "refused", "skipped", "empty"]
    lr: float
    """The learning rate of the update, also of one that was not made."""


@dataclass(frozen=True)
class TrainResult:
    """What became of one mini-batch. `grad_norm` is that before clipping; None where no step was made."""

    loss: float
    totals: Totals
    decision: Decision
    grad_norm: float | None


@dataclass(frozen=True)
class EngineContext:
    """What an engine is told of its role. `groups` are this rank's in the role's replica; `role` is for messages."""

    role: str
    model: ModelConfig
    head: HeadKind
    """What the model ends with; a value head that its folder does not have is random from `seed`; so is
    a reward head that is trained."""
    seed: int
    groups: ReplicaGroups
    device: torch.device
    tokenizer: Path
    """The folder of the run's tokenizer, whose files go with an export."""
    eos_token_ids: tuple[int, ...]
    """The tokenizer's tokens that end a text; what the model's folder names ends it too."""
    steps: int | None
    """Training steps of the run; None for a role that is not trained."""
    blended: bool
    """Whether another role's parameters are blended into it, so that it has masters though it is not trained."""
    kernels: Kernels
    """This process's."""
    empty: bool
    """Whether it begins without numbers: a move will bring them."""
    told: Callable[[str], None]
    """Told how far loading is."""
    meter: Meter = field(default_factory=Meter)
    """Told what it does, in a call."""
    server: Door | None = None
    """Where what makes responses for this worker's part is reached, where its backend has a server of its own."""

    def told_of_padding(self, why: str) -> None:
        """Say why texts are padded, if they are."""
        if why:
            self.told(f"{self.role}: texts are padded, not packed ({why})")

    @property
    def offloaded(self) -> bool:
        """Whether what is kept up to date of it is in the host's memory."""
        return self.steps is not None and self.offload != "none"

    @property
    def offload(self) -> Offload:
        """What of it is in the host's memory where several workers have parts of it."""
        return offload_of(self.model)


class Engine(Protocol):
    """All that an algorithm may ask of a role's model. Hides layout, precision, micro-batches and optimizer.

    All ranks of the role call the same methods in the same order, all ranks of a data-parallel part with its rows; they
    get the same.
    """

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        """The sum of a float64 vector over all data-parallel parts, added up in rank order.

        All ranks of a part have the same one, and all of the role get the sum."""
        ...

    def forward(self, sequences: Sequences, temperature: float = 1.0) -> np.ndarray:
        """Log-probabilities (of a critic: values) of all labels, [P], float64 of a model in fp64 and else float32. A
        value is that *before* its label."""
        ...

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        seeds: Sequence[int],
        config: GenerationConfig,
        begun: Sequence[np.ndarray] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Generated:
        """One response to each prompt; what is drawn for a prompt follows from its seed alone.

        `begun` are the first tokens of each, drawn before; what is returned follows them as if all were drawn at once,
        but for rounding. `limits` bounds the tokens of each, those begun among them."""
        ...

    def train_batch(
        self,
        sequences: Sequences,
        columns: Columns,
        objective: Objective,
        at: Update,
        decided: Decision | None = None,
    ) -> TrainResult:
        """Gradients of the loss over the mini-batch of all ranks (here is this rank's share), then one update.

        The update is made, refused by the objective, or skipped where the gradient is not finite; in replay `decided`
        is followed and nothing is judged. Raises InternalError where too many in a row were skipped.
        """
        ...


Kind = Literal["parameters", "gradients", "optimizer"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""What an engine has on its device."""
Held = Mapping[Kind, int]
"""Bytes of each kind."""


class SharedParts(Sized, Iterable[Shard], Protocol):
    """Parts of shards, one after another."""

    def digest(self) -> str:
        """As `digest_of` the shards, once all ranks are through; known where something of it was rounded."""
        ...


class EngineState(Protocol):
    """What the host, and no algorithm, asks of an engine. All but `attention`, `parameters_digest`, `release`,
    `held` and `cut` are of roles that change."""

    @property
    def space(self) -> Space:
        """That in which its parameters have their names: snapshots and digests are of it."""
        ...

    @property
    def attention(self) -> str:
        """The kernels that may compute its attention here, by name. Of every role."""
        ...

    def snapshot(self) -> CopiedShard:
        """A copy of what this rank owns of parameters and optimizer. Asks no other rank."""
        ...

    def shared(self, shards: Sequence[ShardFile]) -> SharedParts:
        """What this rank is to `load` of all shards of a cut in this space: all of the role's ranks go through it, each
        reads some, and sends them to others that have them too."""
        ...

    def load(self, shards: Iterable[Shard]) -> bool:
        """Take over what `snapshot` gave on all ranks of any layout in this space, reading what this rank has and
        nothing else.

        Returns whether nothing had to be rounded: if so, `digest` is what it was.
        """
        ...

    def settle(self, model: ModelConfig, steps: int) -> None:
        """Make updates from now on as these settings say, in a run of so many training steps."""
        ...

    def blend(self, theirs: torch.Tensor, decay: float) -> None:
        """Keep `decay` of the own masters, and take the rest of another role's, which lie as the own ones do."""
        ...

    def masters(self) -> tuple[DecoderConfig, torch.Tensor]:
        """The whole model's shape, and this rank's slice of the parameters in at least fp32, as `placement.slices`
        says."""
        ...

    def digest(self) -> str:
        """Checksum of masters, moments and number of updates, equal on all ranks and in any layout."""
        ...

    def digest_of(self, shards: Sequence[Shard]) -> str:
        """As `digest`, of what all shards of a cut hold, of whatever space; ranks share the reading."""
        ...

    def parameters_digest(self) -> str:
        """Checksum of the parameters as the model computes with them, over a block; equal in any layout. Also of a
        role that does not change."""
        ...

    def flat(self) -> tuple[DecoderConfig, torch.Tensor]:
        """The whole model's shape, and the 1-D buffer on the device where this rank has its share of the parameters, as
        `placement.holdings` says: to be moved from or to."""
        ...

    def release(self, between: Mapping[Kind, Between]) -> None:
        """Let these kinds wait in host memory, or go, until a call needs them: then they come back by themselves. What
        has gone comes back as zeros: gradients are cleared before they are used. A snapshot brings nothing back."""
        ...

    def held(self) -> Held:
        """What is on the device now."""
        ...

    def cut(self, micro_batch_tokens: int) -> None:
        """Have at most so many tokens in each forward pass from now on."""
        ...
