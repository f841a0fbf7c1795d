"""What a script that runs again must do as it did, and what becomes of a run whose script was changed. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence

from hpcrl.durable.journal import Called, Ids
from hpcrl.durable.made import Made
from hpcrl.durable.once import Once, SetAside, Turn
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.step_lines import StepLines
from hpcrl.errors import DataError, HpcrlError
from hpcrl.master.turn import OpenTurn
from hpcrl.wire.script_messages import CallAsked, OnceAsked, TurnEnded

CORRECT_IT = (
    "Correct the script: what decides what it asks for has to be in run.state, and what it logs has to follow from "
    "that, from rows and from statistics. Then resume with --accept-changed algorithm."
)


OF_OTHER_WORKERS = (
    "Resume with as many workers as the step began with: cluster.nodes and layouts say how many. A script must not "
    f"decide by the world_size, layout or ranks of a group. If it differs all the same: {CORRECT_IT}"
)


class ScriptDiverged(DataError):
    """A script that ran again asked for something else than it had, or `only_logs` something else."""

    def __init__(self, turn: OpenTurn, how: str, advice: str = CORRECT_IT, only_logs: bool = False) -> None:
        super().__init__(f"step {turn.step}: the script does not do as it did: {how}.", advice)
        self.turn, self.how, self.only_logs = turn, how, only_logs

    @property
    def step(self) -> int:
        return self.turn.step


class ScriptChanged(HpcrlError):
    """The script was changed, and asks for something else than the one before had: the next attempt can go on.

    `aside` are the lines that go before it. It runs `under` this version of the settings, whose script only closes what
    is open; None: the submission's own.
    """

    def __init__(self, text: str, aside: tuple[SetAside, ...], under: int | None = None) -> None:
        super().__init__(text)
        self.aside, self.under = aside, under


def by_a_change(
    diverged: ScriptDiverged, recovery: RecoveryPlan, others: Collection[int], units: Callable[[str], int]
) -> ScriptDiverged | ScriptChanged | None:
    """What follows where the script asks for something else, if it does because it was changed: nothing where it only
    logs something else in a step whose row is written.

    `others` are the versions of the settings that have another script. A step in which a role has changed, and all
    before it, are ended by the script that they were begun with; what later ones have recorded is set aside, what was
    prepared of them ahead, too. That is prepared anew from parameters no older than the checkpoint's. `units` tells in
    how many parts a call is made now.
    """
    versions = [version for version in _asked_under(diverged.turn.recorded) if version in others]
    if not versions:
        return _among_others(diverged, units)
    if diverged.only_logs:
        return None
    closing = max((*recovery.closed, *(line.step for line in recovery.replay)), default=0)
    free = max(closing + 1, diverged.step)
    aside = (SetAside(free),) if any(opened.step >= free for opened in recovery.opened) else ()
    said = f"step {diverged.step}: the script was changed: {diverged.how}."
    if diverged.step > closing:
        return ScriptChanged(f"{said} What this step had recorded is set aside; it begins anew.", aside)
    upto = f"steps up to {closing} are" if closing > diverged.step else "this step is"
    return ScriptChanged(f"{said} As roles have changed, {upto} ended by the script as it was.", aside, max(versions))


def _among_others(diverged: ScriptDiverged, units: Callable[[str], int]) -> ScriptDiverged:
    """The same; where the number of workers has changed, it says so."""
    recorded = diverged.turn.recorded
    for line in () if recorded is None else recorded.called:
        if (now := units(line.call)) != line.parts:
            moved = (
                f"The number of workers has changed: {line.call} was made in {line.parts} parts, and now it is in {now}"
            )
            return ScriptDiverged(diverged.turn, f"{diverged.how}. {moved}", OF_OTHER_WORKERS)
    return diverged


def _asked_under(lines: StepLines | None) -> list[int]:
    """The versions of the settings under which a step was made."""
    if lines is None:
        return []
    return [*(line.settings for line in lines.asks), *(() if lines.turn is None else (lines.turn.settings,))]


def recorded_of(turn: OpenTurn, asked: CallAsked | OnceAsked) -> Called | Once | None:
    """The line of this ask, if an older attempt has one. Raises ScriptDiverged where it is of another."""
    recorded = turn.of_older(asked.number)
    if turn.closed and recorded is None:
        raise ScriptDiverged(turn, f"{asked.at or 'it'} asks for {asked.call} where the turn had ended")
    if found := unlike_ask(recorded, asked):
        raise ScriptDiverged(turn, found)
    return recorded


def refuse_other_version(turn: OpenTurn, called: Called, role: str, version: int, at: str) -> None:
    """Raises ScriptDiverged where a call that is recorded had another version of its role."""
    if called.version != version:
        had = f"had version {called.version} of {role} before"
        raise ScriptDiverged(turn, f"{at or 'it'} asks for {called.call} of version {version}, which {had}")


def unlike_ask(recorded: Called | Once | None, asked: CallAsked | OnceAsked) -> str:
    """How an ask is another than the one that was recorded in its place; "" where it is the same, or none was."""
    if recorded is None:
        return ""
    where, before = asked.at or "its script", recorded.at or "the script"
    if asked.call != recorded.call or isinstance(asked, OnceAsked) != isinstance(recorded, Once):
        return f"{where} asks for {_named(asked)} where {before} had asked for {_named(recorded)}"
    if isinstance(asked, OnceAsked) or isinstance(recorded, Once):
        return _unlike_arguments(recorded, asked)
    if asked.ids != recorded.ids:
        return (
            f"{where} asks for {asked.call} on {_some(asked.ids)} where it had been asked for on {_some(recorded.ids)}"
        )
    if asked.inputs != recorded.inputs:
        key = next(
            key for key in {**asked.inputs, **recorded.inputs} if asked.inputs.get(key) != recorded.inputs.get(key)
        )
        made = _makers(asked.inputs.get(key, ())), _makers(recorded.inputs.get(key, ()))
        return f"{where} gives {asked.call} the {key} of {made[0]} where they had been of {made[1]}"
    return _unlike_arguments(recorded, asked)


def unlike_end(turn: OpenTurn, ended: TurnEnded, recorded: Turn | None) -> str:
    """How the end of a turn is another than the one that was recorded; "" where it is the same, or nothing was."""
    before = () if turn.recorded is None else turn.recorded.asks
    asked = turn.lines.asked
    if asked < len(before):
        lacking = before[asked]
        return f"the turn ends where {lacking.at or 'the script'} had asked for {_named(lacking)}"
    if recorded is None:
        return ""
    if asked > recorded.calls:
        more = turn.lines.asks[recorded.calls]
        return f"{more.at or 'the script'} asks for {_named(more)} where the turn had ended"
    if ended.state != recorded.state:
        return f"run.state ends as {ended.state} where it had ended as {recorded.state}"
    if recorded.left and not ended.left:
        return "the loop goes on where it had been left"
    return ""


def unlike_logged(ended: TurnEnded, recorded: Turn | None) -> str:
    """How a turn logs something else than was recorded; "" where it logs the same, or nothing was."""
    if recorded is None:
        return ""
    for name in sorted({*ended.logged, *recorded.logged}):
        now, had = _logged(ended.logged, name), _logged(recorded.logged, name)
        if now != had:
            return f"{ended.at or 'the script'} ends it with {name} logged as {now} where it had been {had}"
    return ""


def _logged(numbers: Mapping[str, float], name: str) -> str:
    """In words, which are one for all NaN."""
    return repr(numbers[name]) if name in numbers else "nothing"


def _unlike_arguments(recorded: Called | Once, asked: CallAsked | OnceAsked) -> str:
    if asked.arguments == recorded.arguments:
        return ""
    does = "does" if isinstance(asked, OnceAsked) else "computes"
    where = asked.at or "its script"
    return f"{where} {does} {asked.call} with {asked.arguments} where it had been with {recorded.arguments}"


def _named(ask: Called | Once | CallAsked | OnceAsked) -> str:
    return f"run.once({ask.call})" if isinstance(ask, Once | OnceAsked) else ask.call


def _makers(pieces: Sequence[Made]) -> str:
    said = (f"{of.key} of {of.call or 'the data set'}" if of.key else of.call or "the data set" for of in pieces)
    return ", ".join(dict.fromkeys(said)) or "nobody"


def _some(ids: Ids, shown: int = 3) -> str:
    more = ", …" if len(ids) > shown else ""
    return f"{len(ids)} samples ({', '.join(ids[:shown])}{more})"
