"""What a run's script and its master say to one another: names and numbers, no rows. Producer → consumer above each.

A turn of the script's loop is a step. Its asks are numbered from 1: the calls in the order in which it asks for them,
and its end last.
"""

import msgspec

from hpcrl.durable.journal import Cuts
from hpcrl.durable.made import Made
from hpcrl.wire.holders import RowSource

Inputs = dict[str, tuple[Made, ...]]
"""Key of the graph → who made its rows, along the ids."""


# ── script → master ───────────────────────────────────────────────────────────────────────────────────────────────────
class NextTurn(msgspec.Struct, frozen=True, tag=True):
    """The script is at the top of its loop. With a `lag` it is about to prepare this step, beside the loop's turn so
    many steps before."""

    step: int
    lag: int = 0


class ReadsAhead(msgspec.Struct, frozen=True, tag=True):
    """The script is going to ask for calls of these roles, and of no others, before this step is prepared."""

    step: int
    roles: tuple[str, ...]


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The script has asked for all by which it prepares this step."""

    step: int


class LoopAt(msgspec.Struct, frozen=True, tag=True):
    """The script is at the top of its loop, and has prepared this step."""

    step: int


class CallAsked(msgspec.Struct, frozen=True, tag=True):
    """Make this call on these samples.

    `call` is a call of the recipe; asked for again in a step it is `<call>_2`, `<call>_3`, … `arguments` are those of a
    computation or a registered method, as JSON. `cut` are the samples of each part, as positions in `ids`; without it
    the master cuts them. `read` are the asks of this turn whose rows or statistics the script has read since its last
    ask, `at` is where it asks: `file.py:12`.
    """

    step: int
    number: int
    call: str
    ids: tuple[str, ...]
    inputs: Inputs
    arguments: str = ""
    read: tuple[int, ...] = ()
    at: str = ""
    cut: Cuts = ()


class OnceAsked(msgspec.Struct, frozen=True, tag=True):
    """The script is about to do something outside of the run. `call` is the function's name, counted on as a call's.
    May it?"""

    step: int
    number: int
    call: str
    arguments: str
    read: tuple[int, ...] = ()
    at: str = ""


class OnceDone(msgspec.Struct, frozen=True, tag=True):
    """It has done it; `result` is JSON."""

    step: int
    number: int
    result: str


class TurnEnded(msgspec.Struct, frozen=True, tag=True):
    """The turn is over: what lives from step to step, as JSON with sorted keys, and the numbers that it logs. `left`:
    the loop is left in it, or was in one before."""

    step: int
    number: int
    state: str
    logged: dict[str, float]
    read: tuple[int, ...] = ()
    at: str = ""
    left: bool = False


class RowsAsked(msgspec.Struct, frozen=True, tag=True):
    """Where are these rows? Only of calls of this turn that are executed, or the data's."""

    step: int
    token: int
    ids: tuple[str, ...]
    inputs: Inputs


class ScriptSilent(msgspec.Struct, frozen=True, tag=True):
    """For so long it has asked for nothing and waited for nothing, in the turn of this step; `stack` is where it is.
    Without one, that is over."""

    step: int
    seconds: float
    stack: str = ""


class ScriptEnded(msgspec.Struct, frozen=True, tag=True):
    """It has returned, after so many turns in this attempt or before it."""

    step: int


# ── master → script ───────────────────────────────────────────────────────────────────────────────────────────────────
class ScriptBegins(msgspec.Struct, frozen=True, tag=True):
    """Begin. The first turn is `step`; `state` is that after the step before, None where that has none."""

    step: int
    state: str | None = None
    earlier: tuple[str, ...] = ()
    """Those after the steps before that one, from which later ones are prepared."""
    left: int | None = None
    """The step in whose turn the script has left its loop, which has no further turns then."""


class TurnBegun(msgspec.Struct, frozen=True, tag=True):
    """The turn has these samples, and evaluates on those of `eval_ids`, if there are any.

    `recorded` are the versions of the run's settings under which its first asks were made in an older attempt, the
    turn's end among them; further asks are made under `settings`. `parts` are those in which these asks were made.
    """

    step: int
    ids: tuple[str, ...]
    eval_ids: tuple[str, ...]
    epoch: int
    settings: int
    recorded: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()


class LoopGoesOn(msgspec.Struct, frozen=True, tag=True):
    """The turn of this step, which is prepared, may go on."""

    step: int


class NoMoreTurns(msgspec.Struct, frozen=True, tag=True):
    """The run has no step after this one."""

    step: int


class CallExecuted(msgspec.Struct, frozen=True, tag=True):
    """Its rows are there, or its role has changed. `stats` are means over its samples, or tokens. `values` are what a
    method of JSON has returned, in the order of its samples."""

    step: int
    number: int
    stats: dict[str, float]
    values: tuple[str, ...] = ()


class OnceAnswered(msgspec.Struct, frozen=True, tag=True):
    """It is done, and the line of it is on disk. None: it is to be done; all that the script has read is on disk."""

    step: int
    number: int
    result: str | None = None


class RowsAt(msgspec.Struct, frozen=True, tag=True):
    """Answers `RowsAsked`."""

    token: int
    sources: tuple[RowSource, ...]


FromScript = (
    NextTurn
    | ReadsAhead
    | Prepared
    | LoopAt
    | CallAsked
    | OnceAsked
    | OnceDone
    | TurnEnded
    | RowsAsked
    | ScriptSilent
    | ScriptEnded
)
ToScript = ScriptBegins | TurnBegun | LoopGoesOn | NoMoreTurns | CallExecuted | OnceAnswered | RowsAt
