"""What turns a mini-batch's gradient into new parameters: the schedule of learning rates, AdamW, its masters."""

import math
from typing import NoReturn

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.checksum import checksum
from hpcrl.engines.engine import Decision, Update
from hpcrl.engines.masters import Copied, MasterState
from hpcrl.engines.memory import ParameterMemory
from hpcrl.engines.release import on_host
from hpcrl.engines.schedule import learning_rate
from hpcrl.engines.shard import CopiedShard, Shard
from hpcrl.errors import InternalError
from hpcrl.parallel.replica import ReplicaGroups


class Updater(MasterState):
    """Owns the optimizer of one role in a run of `steps` training steps; the gradient is the model's memory's.

    Knows nothing of losses and micro-batches.
    """

    def __init__(
        self,
        role: str,
        memory: ParameterMemory,
        groups: ReplicaGroups,
        config: OptimizerConfig,
        steps: int,
        optimizer: type[ShardedAdamW] = ShardedAdamW,
    ) -> None:
        if memory.grad is None:
            raise ValueError(f"{role}'s model was built without gradients; build it with trainable=True")
        self._optimizer = optimizer(role, memory.slice(groups.dp), groups, config)
        super().__init__(role, memory, self._optimizer)
        self._gradient = memory.grad
        self._config = config
        self._steps = steps
        self._skipped_in_a_row = 0

    def settle(self, config: OptimizerConfig, steps: int) -> None:
        """Make updates from now on as these settings say, in a run of so many training steps."""
        self._config, self._steps = config, steps
        self._optimizer.settle(config)

    def decide(self, at: Update, refused: bool) -> Decision:
        """What is done with the gradient at this place of the run. The rate follows from the place alone."""
        rate = learning_rate(self._config, (at.step - 1) * at.of + at.index, self._steps * at.of)
        return Decision("refused" if refused else "stepped", rate)

    def clear(self) -> None:
        """Begin a mini-batch's gradient."""
        self._memory.zero_grad()

    def gradient_bits(self) -> int:
        """A checksum of this rank's gradient."""
        return checksum(self._gradient)

    def follow(self, decision: Decision, in_replay: bool) -> tuple[Decision, float | None]:
        """Do what was decided; what was done, and the norm of the gradients of all ranks before clipping.

        An update whose gradient is not finite is skipped, on all ranks; a replay skips what was skipped.

        Raises:
            InternalError: too many in a row were skipped, or a replay has no finite gradient where the first time had.
        """
        if decision.outcome == "stepped":
            norm = self._optimizer.step(self._gradient, decision.lr)
            if math.isfinite(norm):
                self._skipped_in_a_row = 0
                return decision, norm
            if in_replay:
                raise InternalError(
                    f"{self._role}: the gradient of update {self._optimizer.updates} has norm {norm} in a replay, and "
                    "was finite the first time."
                )
            decision = Decision("skipped", decision.lr)
        if decision.outcome == "skipped":
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row > self._config.max_skipped and not in_replay:
                self._raise_diverged()
        return decision, None

    def _raise_diverged(self) -> NoReturn:
        setting = f"{self._role}.optimizer"
        raise InternalError(
            f"{self._role}: {self._skipped_in_a_row} updates in a row had a gradient that is not finite, and "
            f"{setting}.max_skipped = {self._config.max_skipped} may be skipped.",
            f"Raise {setting}.max_skipped; or, where the model has diverged, begin from a checkpoint before that: "
            f"`hpcrl fork RUN --step N`, with a lower {setting}.lr or {setting}.grad_clip.",
        )

    def snapshot(self, copied: Copied = on_host) -> CopiedShard:
        return super().snapshot(copied).with_state(skipped_in_a_row=self._skipped_in_a_row)

    def _checked(self, shard: Shard) -> Shard:
        self._skipped_in_a_row = shard.state["skipped_in_a_row"]
        return super()._checked(shard)
