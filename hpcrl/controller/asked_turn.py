"""What a script has asked for in a turn, and what of it is answered. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from hpcrl.wire.script_messages import TurnBegun


@dataclass
class AskedTurn:
    """What has been asked in the turn that is open, and answered."""

    begun: TurnBegun
    asks: int = 0
    times: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, int] = field(default_factory=dict)
    """Call, as asked for → its number."""
    executed: dict[int, dict[str, float]] = field(default_factory=dict)
    once: dict[int, str | None] = field(default_factory=dict)
    """What was done outside of the run, by ask → what came of it; None where it is to be done."""
    unsaid: set[int] = field(default_factory=set)
    """Asks whose rows or statistics the script has read since its last."""
    is_outside: bool = False
    """The script does something outside of the run."""
    last_place: str = ""
    reads: list[str] | None = None
    """The roles whose groups it has taken to be prepared; None where it is not being prepared."""
    is_ahead: bool = False
