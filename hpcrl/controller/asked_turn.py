"""What a script has asked for in a turn, what of it is answered, and what it must not ask for there. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpcrl.controller.user_code import misuse
from hpcrl.errors import UserCodeError
from hpcrl.wire.script_messages import CallExecuted, TurnBegun


@dataclass
class AskedTurn:
    """What has been asked in the turn that is open, and answered."""

    begun: TurnBegun
    asks: int = 0
    times: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, int] = field(default_factory=dict)
    """Call, as asked for → its number."""
    executed: dict[int, CallExecuted] = field(default_factory=dict)
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
    is_before: bool = False
    """It is what comes before the loop, and no turn: nothing of it is recorded. Its step is that before the first."""

    def say_read(self) -> tuple[int, ...]:
        """The asks whose rows or statistics the script has read since its last, for its next."""
        read = tuple(sorted(self.unsaid))
        self.unsaid.clear()
        return read

    def name_of(self, call: str, time: int) -> str:
        """What a call is called where it is asked for the first time, the second …"""
        return call if time == 1 else f"{call}_{time}"

    def are_newer(self, makers: Iterable[str], call: str) -> bool:
        """Whether all of these were asked for after this call was asked for last; so none is of no maker."""
        last = self.numbers.get(self.name_of(call, self.times[call]), 0)
        return min((self.numbers.get(maker, 0) for maker in makers), default=0) > last

    def refuse_before(self, doing: str) -> None:
        """Raises UserCodeError where only what belongs to no step may be asked for."""
        if self.is_before:
            raise outside_a_turn(
                f"{doing}: the loop has not begun. Before it a script may only ask for registered methods without "
                "samples."
            )

    def refuse_other(self, step: int, doing: str) -> None:
        """Raises UserCodeError where this is not the turn of a step, or does something outside of the run."""
        if self.begun.step != step:
            raise misuse(
                f"{doing}: it is of step {step}, and step {self.begun.step} has begun.",
                "Rows, futures and statistics live in the turn that made them; keep numbers in run.state.",
            )
        if self.is_outside:
            raise misuse(
                f"{doing}: run.once is not over.",
                "Ask before it, and give its function what it needs as arguments.",
            )

    def takes(self, role: str) -> None:
        """The group of a role is taken."""
        if self.reads is None or role in self.reads:
            return
        if self.asks:
            raise misuse(
                f"{role} is taken after step {self.begun.step} has asked for calls ahead.",
                "Take all groups in the first lines of prepare: others wait for those that it may still ask.",
            )
        self.reads.append(role)

    def refuse_ahead(self, role: str, changes: bool, doing: str) -> None:
        """Raises UserCodeError where the step is prepared, and this must not be done there."""
        if self.reads is None:
            return
        if changes:
            raise misuse(
                f"{doing} changes {role} while step {self.begun.step} is prepared.",
                "Change roles in the loop: what is prepared ahead reads them as an older step left them.",
            )
        if role not in self.reads:
            raise misuse(
                f"{doing}: prepare has not taken the group of {role}.",
                "Take all groups by the run that prepare is given: actor, reward = run.groups(…).",
            )


def outside_a_turn(text: str) -> UserCodeError:
    """Something is asked for that belongs into the loop."""
    return misuse(text, "Calls belong into the loop: for step in run.steps(): batch = step.batch().")
