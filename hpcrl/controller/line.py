"""What a script's side asks through: the run's master, or a stand-in for it in a rehearsal or a test."""

from collections.abc import Sequence
from typing import Protocol

from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import Total
from hpcrl.wire.holders import RowSource
from hpcrl.wire.script_messages import FromScript, ToScript


class Line(Protocol):
    """Used by the script's thread alone."""

    def ask(self, message: FromScript) -> None:
        """Say it; answers are heard later."""

    def hear(self) -> ToScript:
        """The next answer, in the order in which they were given; waits for it."""
        ...

    def rows(self, ids: Sequence[str], sources: Sequence[RowSource]) -> SequenceSample:
        """The rows of these samples, in this order, from whoever has them; waits for them."""
        ...

    def totals(self, sources: Sequence[RowSource]) -> Sequence[Total]:
        """What the numbers of each source add up to, as they are held, by whoever has them; waits for them."""
        ...
