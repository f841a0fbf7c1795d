"""What went wrong first: the earliest failure by time, since one death makes its peers fail too."""

import msgspec

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.lines import Row, Tail
from hpcrl.inspect.logs import MASTER

ENDS = ("failed", "worker ended")


class Failure(msgspec.Struct, frozen=True):
    """The first failure of an attempt: who, in which call, what, and where to read on."""

    attempt: int
    time: float
    process: str
    call: str
    error: str
    traceback: str
    log: str

    def render(self) -> str:
        call = f" in {self.call}" if self.call else ""
        text = f"{self.process}{call}: {self.error}"
        if self.traceback:
            text += "\n" + self.traceback.rstrip()
        return f"{text}\nlog: {self.log}"


def first_failure(run: RunDirectory, attempt: int | None = None) -> Failure | None:
    """The first failure of an attempt (of the newest one that has any), by the clocks of those who saw it."""
    attempts = sorted(run.numbers(), reverse=True) if attempt is None else [attempt]
    for number in attempts:
        found = sorted(_failures(run, number), key=lambda failure: failure.time)
        if found:
            return _best(found)
    return None


def _failures(run: RunDirectory, attempt: int) -> list[Failure]:
    """What the master was told, and what workers wrote down themselves, which survives a dead master."""
    found = [_of_row(run, attempt, MASTER, row) for row in Tail(run.events(attempt)).rows() if row.get("event") in ENDS]
    logs = run.logs(attempt)
    for path in sorted(logs.glob("*.jsonl")) if logs.is_dir() else ():
        rows = Tail(path).rows()
        found += [_of_row(run, attempt, path.stem, row) for row in rows if row.get("event") in ENDS]
    return found


def _of_row(run: RunDirectory, attempt: int, writer: str, row: Row) -> Failure:
    process = f"worker-{row['rank']}" if "rank" in row else writer
    log = row.get("log") or str(run.worker_log(attempt, process).with_suffix(".err").relative_to(run.root))
    return Failure(
        attempt=attempt,
        time=float(row.get("time", 0.0)),
        process=process,
        call=str(row.get("what", "")),
        error=str(row.get("error") or row.get("how") or ""),
        traceback=str(row.get("traceback", "")),
        log=str(run.root / log),
    )


def _best(found: list[Failure]) -> Failure:
    """The first failure, in the words of whoever told most of it."""
    first = found[0]
    told = [failure for failure in found if (failure.process, failure.call) == (first.process, first.call)]
    return max(told, key=lambda failure: (bool(failure.traceback), -failure.time))
