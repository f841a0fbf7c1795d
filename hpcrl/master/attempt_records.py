"""What an attempt keeps of itself and what older ones have left to it, whoever keeps it: files, or the memory of a
simulation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hpcrl.data.inputs import Inputs
from hpcrl.data.samples import SampleMeta
from hpcrl.durable.checkpoints import SavedRole
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Event
from hpcrl.durable.once import Turn
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.spills import SpillRef
from hpcrl.durable.step_lines import StepLines
from hpcrl.events import Event as LifeCycle
from hpcrl.master.chores import Crew
from hpcrl.placement.exporting import RoleExport
from hpcrl.placement.layouts import Ranks
from hpcrl.placement.plan import Plan
from hpcrl.progress import Progress
from hpcrl.whereabouts import Doing
from hpcrl.wire.chores import ChoreReport
from hpcrl.wire.messages import ShardsVerified, Verify

Whereabouts = Callable[[], Mapping[int, Doing]]
"""What each worker says that it does."""


class Appending(Protocol):
    """Events on their way to the disk."""

    @property
    def is_done(self) -> bool:
        """Whether they are there, or what has failed is known."""
        ...

    def finish(self) -> None:
        """Wait for it, once, and count them. Raises what was raised there."""


class Appended:
    """They are there. Fulfils `Appending`."""

    is_done = True

    def finish(self) -> None:
        """Nothing is left to do."""


class AttemptRecords(Protocol):
    """Of one attempt, for its course (`Attempt`) and its driver (`GraphDriver`). One thread calls it."""

    @property
    def number(self) -> int: ...

    @property
    def recovery(self) -> RecoveryPlan: ...

    @property
    def fault(self) -> Callable[[str], None]:
        """Told at each point where a test may strike."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing is done behind the work."""
        ...

    def refuse_superseded(self) -> None:
        """Raise SupersededError when a newer attempt counts."""

    def publish_plan(self, plan: Plan) -> None:
        """For the agents and workers of this attempt, before they are told to start."""

    def worker_log(self, rank: int) -> str:
        """What the log of a worker of this attempt is called."""
        ...

    def inputs(self) -> dict[str, str]:
        """Setting → fingerprint of what it names, as it was submitted or accepted since."""
        ...

    def refuse_changed(self, inputs: Inputs) -> None:
        """Raise DataError where files are not what they were."""

    def meta_of(self, spill: SpillRef) -> SampleMeta:
        """What is known of the rows of a unit that an older attempt finished."""
        ...

    def note(self, event: LifeCycle) -> object:
        """Write an event down, and count what it says."""
        ...

    def follow(self, progress: Progress) -> None:
        """Count what something cost."""

    def show(self) -> None:
        """What is under way, for those who look at the run: cheap, and to be called again and again."""

    def watch(self, whereabouts: Whereabouts) -> None:
        """From now on workers say what they do."""

    @property
    def loops_again(self) -> bool:
        """Whether a script's loop goes on after the checkpoint though it was left before: the run was done with it, or
        this is a fork from there."""
        ...

    def append(self, events: Sequence[Event]) -> None:
        """Make events durable. Raises SupersededError, with nothing written, when a newer attempt counts."""

    def append_behind(self, events: Sequence[Event]) -> Appending:
        """As `append`, beside what the caller does: whatever is appended before that is done follows it."""
        ...

    def saved_roles(self) -> dict[str, SavedRole]:
        """What the checkpoint has that this attempt starts from."""
        ...

    def damaged(self, what: str) -> None:
        """What was loaded is not what that checkpoint was: the next attempt takes the one before."""

    def checkpoint_digests(self) -> dict[str, str]:
        """Role → digest of its parameters in the checkpoint that this attempt starts from."""
        ...

    def has_checkpoint(self, step: int) -> bool: ...

    def has_export(self, step: int, role: str) -> bool: ...

    def checkpointed(
        self,
        of: StepLines,
        roles: Mapping[str, Sequence[FileRef]],
        digests: Mapping[str, str],
        earlier: tuple[Turn, ...] = (),
    ) -> None:
        """All shards of a cut are there and its step is closed: name it. `earlier` as in its manifest."""

    def verify(self, homes: Mapping[str, Ranks], order: Callable[[int, Verify], None]) -> None:
        """Have workers read the checkpoints back that are kept, each once; `homes` are the ranks of changed roles."""

    def verified(self, told: ShardsVerified) -> None:
        """A worker has read shards back: once all of what is kept was, drop what it makes superfluous."""

    def export(self, step: int, role: str, export: RoleExport, done: Callable[[], None]) -> None:
        """All files of an export are written that workers write: add the others and publish it, behind the work."""

    def begin_archives(self, experiment: Any, crew: Crew) -> None:
        """From now on these agents make the archives of all steps that have none yet."""

    def heard(self, agent: bytes, told: ChoreReport) -> None:
        """An agent tells of what it does behind the work. Raises what ends the attempt."""

    def closed(self, lines: StepLines, row: Mapping[str, float], seconds: float) -> None:
        """A step's closing line is written: show its rows; its archive is made, and its spills are merged, behind the
        work."""

    def tidy(self) -> None:
        """Journal what is done behind the work. Raises what was raised there."""
