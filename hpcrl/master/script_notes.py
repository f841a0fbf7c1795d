"""What a script's turns tell besides calls, as events. Pure."""

from hpcrl.durable.once import MOST_STATE, Turn
from hpcrl.events import CallStalled, CallWentOn, StateGrows
from hpcrl.recipes.algorithm import SCRIPT
from hpcrl.wire.script_messages import ScriptSilent


def of_silence(told: ScriptSilent, rank: int) -> CallStalled | CallWentOn:
    """The script, which this worker runs, is silent, or is no longer."""
    at, who = (told.step, SCRIPT, 0), (rank,)
    if not told.stack:
        return CallWentOn(*at, told.seconds)
    why = "the script asks for nothing and waits for nothing"
    return CallStalled(*at, who, told.seconds, culprits=who, why=why, executing=who, stack=told.stack)


def of_state(step: int, before: Turn | None, ended: Turn) -> StateGrows | None:
    """In the turn of this step `run.state` came to more than half of what it may be; None where it did not."""
    half = MOST_STATE // 2
    if len(ended.state) <= half or (before is not None and len(before.state) > half):
        return None
    return StateGrows(step, len(ended.state), MOST_STATE)
