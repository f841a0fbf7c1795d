"""How long a run is, and what it does besides training."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, Natural, Positive
from hpcrl.config.fields import ChangeClass

MirrorProgram = Literal["tensorboard", "wandb"]
"""Programs into whose files a run's curves can be written."""


@dataclass(frozen=True, kw_only=True)
class Frequency:
    """Every so many steps, epochs or seconds, whichever comes first; all null is never."""

    changes: ClassVar[ChangeClass] = ChangeClass.PLACEMENT

    steps: Count | None = None
    """Every so many steps."""
    epochs: Count | None = None
    """Every so many passes over the training rows."""
    seconds: Positive | None = None
    """When so many seconds have passed since the last time."""


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """What is recorded operation by operation, by torch.profiler: these calls of these steps, on every worker. Each
    leaves a trace in the attempt's `traces/`. It changes no number, and takes time."""

    changes: ClassVar[ChangeClass] = ChangeClass.PLACEMENT

    steps: tuple[Natural, ...] = ()
    """The steps; none: nothing is recorded."""
    calls: tuple[str, ...] = ()
    """The calls, by name; none: all of these steps."""

    def wants(self, step: int, call: str) -> bool:
        """Whether a call of a step is recorded."""
        return step in self.steps and (not self.calls or call in self.calls)


@dataclass(frozen=True, kw_only=True)
class ControlConfig:
    """The length of a run and the rhythm of its checkpoints, evaluations and exports."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    steps: Count | None = None
    """Stop after so many steps; set either this or epochs."""
    epochs: Count | None = None
    """Stop after so many passes over the training rows; set either this or steps."""
    stop_when: str | None = None
    """Stop when a metric gets there, e.g. "eval_rew/accuracy >= 0.35"."""
    checkpoint: Frequency = Frequency(seconds=600.0)
    """When to write parameters and optimizer. Between two checkpoints, finished calls are on disk all the same. A run
    that trains nothing goes on from its last closed step, whatever is set here."""
    keep_checkpoints: Annotated[
        int, Meta(ge=2, description="at least 2: the newest may turn out to be damaged"), ChangeClass.PLACEMENT
    ] = 2
    """How many checkpoints to keep."""
    evaluate: Frequency = Frequency()
    """When to evaluate."""
    export: Frequency = Frequency()
    """When to write trained roles in Hugging Face format; a run always exports at its end."""
    profile: ProfileConfig = ProfileConfig()
    """What torch.profiler records."""
    mirror: Annotated[MirrorProgram | None, ChangeClass.PLACEMENT] = None
    """Write the run's curves into the files of another program too, beside the master: in RUN/mirror, offline. `hpcrl
    mirror` does so afterwards."""
    rehearse: Annotated[bool, ChangeClass.PLACEMENT] = True
    """Before a run is submitted whose algorithm is a script, try the script: three steps on made-up rows, and two of
    them once more, as after a kill."""
    script_timeout_s: Annotated[Positive, ChangeClass.PLACEMENT] = 600.0
    """A script that asks for nothing and waits for nothing for so long is reported as stalled, with the line where it
    is. Nothing is ended."""
    check_digests: Annotated[bool, ChangeClass.PLACEMENT] = False
    """Compare what each worker has of a role's parameters before and after each registered method that does not change
    them, which takes time. What a method remembers is compared always."""
    compact: Annotated[bool, ChangeClass.PLACEMENT] = True
    """Merge the spill files of a closed step into one."""
