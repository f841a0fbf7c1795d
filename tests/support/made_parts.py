"""What an attempt has executed, by its rows of costs and what was under way when its master wrote last."""

from hpcrl.costs import Made, UnderWay
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader


def made_in(run: RunDirectory, attempt: int = 0) -> list[Made]:
    """Parts of calls, and moves, in the order in which they ended."""
    reader = RunReader(run)
    made = reader.attempts[attempt].made() if attempt in reader.attempts else ()
    return sorted(made, key=lambda it: it.span.ended_s)


def under_way_in(run: RunDirectory, attempt: int = 0) -> tuple[UnderWay, ...]:
    reader = RunReader(run)
    return tuple(reader.attempts[attempt].activity.under_way) if attempt in reader.attempts else ()


def moves_in(run: RunDirectory, attempt: int = 0) -> list[str]:
    """`actor@1` for each move."""
    return [it.call for it in made_in(run, attempt) if "@" in it.call]
