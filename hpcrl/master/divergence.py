"""What a script that runs again must do as it did. Pure."""

from collections.abc import Sequence

from hpcrl.durable.journal import Called, Ids, Made, Turn
from hpcrl.durable.once import Once
from hpcrl.errors import DataError
from hpcrl.master.turn import OpenTurn
from hpcrl.wire.script_messages import CallAsked, OnceAsked, TurnEnded

AS_IT_WAS = "Resume with the script as it was: what decides what it asks for has to be in run.state."


class ScriptDiverged(DataError):
    """A script that ran again asked for something else than it had."""

    def __init__(self, step: int, how: str) -> None:
        super().__init__(f"step {step}: the script does not do as it did: {how}.", AS_IT_WAS)


def recorded_of(turn: OpenTurn, asked: CallAsked | OnceAsked) -> Called | Once | None:
    """The line of this ask, if an older attempt has one. Raises ScriptDiverged where it is of another."""
    recorded = turn.of_older(asked.number)
    if turn.closed and recorded is None:
        raise ScriptDiverged(turn.step, f"{asked.at or 'it'} asks for {asked.call} where the turn had ended")
    if found := unlike_ask(recorded, asked):
        raise ScriptDiverged(turn.step, found)
    return recorded


def refuse_other_version(step: int, called: Called, role: str, version: int, at: str) -> None:
    """Raises ScriptDiverged where a call that is recorded had another version of its role."""
    if called.version != version:
        had = f"had version {called.version} of {role} before"
        raise ScriptDiverged(step, f"{at or 'it'} asks for {called.call} of version {version}, which {had}")


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
    asked = len(turn.lines.asks)
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
    return ""


def _unlike_arguments(recorded: Called | Once, asked: CallAsked | OnceAsked) -> str:
    if asked.arguments == recorded.arguments:
        return ""
    does = "does" if isinstance(asked, OnceAsked) else "computes"
    where = asked.at or "its script"
    return f"{where} {does} {asked.call} with {asked.arguments} where it had been with {recorded.arguments}"


def _named(ask: Called | Once | CallAsked | OnceAsked) -> str:
    return f"run.once({ask.call})" if isinstance(ask, Once | OnceAsked) else ask.call


def _makers(pieces: Sequence[Made]) -> str:
    return ", ".join(dict.fromkeys(piece.call or "the data set" for piece in pieces)) or "nobody"


def _some(ids: Ids, shown: int = 3) -> str:
    more = ", …" if len(ids) > shown else ""
    return f"{len(ids)} samples ({', '.join(ids[:shown])}{more})"
