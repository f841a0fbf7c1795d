"""How far a script prepares its steps ahead of its loop: what that reads, and who waits for it. Pure.

With a lag of n a step is prepared beside the loop's turn n steps before it, from the roles and the state that the turn
before that one left. Without one it is prepared at its own turn's beginning, as a part of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from hpcrl.dataflow.tasks import Task
from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.once import Turn
from hpcrl.master.turn import OpenTurn, PreparedFrom


def left_in(step: int, turns: Sequence[Turn]) -> int | None:
    """The step in whose turn a loop was left, by how turns up to that of `step` ended; None where it was not left."""
    since = len([*takewhile(lambda turn: turn.left, reversed(turns))])
    return step + 1 - since if since else None


@dataclass
class Ahead:
    """Of one attempt. `ended` are turns that have, by step, those before the attempt among them."""

    turns: Mapping[int, OpenTurn]
    """Those that are open."""
    lag: int = 0
    newest: int = 0
    """The newest step that the script has come to."""
    ended: dict[int, Turn] = field(default_factory=dict)

    def begin(self, checkpoint: Manifest | None) -> None:
        """Know how the turns ended that a checkpoint was taken after."""
        if checkpoint is not None and checkpoint.turn is not None:
            self.newest = checkpoint.step
            turns = (*checkpoint.earlier, checkpoint.turn)
            self.ended.update(enumerate(turns, checkpoint.step + 1 - len(turns)))

    def is_due(self, step: int) -> bool:
        """Whether the turn is over from which this step is prepared."""
        return all(turn.is_over for turn in self.turns.values() if turn.step < step - self.lag)

    def read_by(self, step: int) -> PreparedFrom | None:
        """What this step is prepared from, ahead; None where it is not."""
        before = step - 1 - self.lag
        if not self.lag:
            return None
        return PreparedFrom(self.ended[before].versions if before > 0 else {})

    def may_change(self, task: Task, ends: bool) -> bool:
        """Whether nobody is still to ask for what this change overwrites. `ends`: no further step is begun."""
        for step in range(task.unit.step + 1, task.unit.step + self.lag + 1):
            turn = self.turns.get(step)
            if turn is None and step > self.newest and not ends:
                return False
            if turn is not None and turn.may_read(task.changes):
                return False
        return True

    def supports_cut(self, step: int, ends: bool) -> bool:
        """Whether all is on disk that is made from older parameters than those that a step has left."""
        later = range(step + 1, step + self.lag + 1)
        if self.newest < step + self.lag and not ends:
            return False
        return all(self.turns[each].is_prepared_on_disk for each in later if each in self.turns)

    def before(self, step: int) -> tuple[Turn, ...]:
        """How as many turns ended before that of a step as are prepared from: what its checkpoint keeps of them."""
        return tuple(self.ended[each] for each in range(step - self.lag, step) if each in self.ended)

    def forget(self, steps: Iterable[int]) -> None:
        """Keep what checkpoints of these steps, and of later ones, need."""
        oldest = min(steps, default=self.newest) - 1 - self.lag
        self.ended = {step: turn for step, turn in self.ended.items() if step >= oldest}
