"""Journals of imagined runs: event lists that a master with a window of two steps could have written, and attempts."""

from hypothesis import strategies as st

from hpcrl.durable.files import FileRef
from hpcrl.durable.history import History
from hpcrl.durable.journal import (
    Adopted,
    Checkpointed,
    Closed,
    Compacted,
    Done,
    Event,
    Journal,
    Numerics,
    Opened,
    Trained,
    encode_line,
    open_journal,
)
from hpcrl.durable.rundir import RunDirectory

CALLS = {"gen": 2, "rew": 1}
TRAINED_BY = {"actor_train": "actor", "critic_train": "critic"}
WINDOW = 2
NUMERICS = Numerics(2, ("Xeon", "Xeon"), ("numpy 2", "numpy 2"), 1)


def opened(step: int) -> Opened:
    ids = (f"a@{step}", f"b@{step}")
    calls = CALLS | dict.fromkeys(TRAINED_BY, 1)
    return Opened(step, ids, 2 * step, calls, {"2": ((0,), (1,))}, 0, ((0, 1),), 1, True, False)


def done(step: int, call: str, part: int, attempt: int = 0) -> Done:
    name = f"spills/step-{step:08d}/{call}.dp{part:02d}.a{attempt:03d}.h5"
    return Done(step, call, part, FileRef(name, 1, 1), None, {})


def trained(step: int, call: str) -> Trained:
    return Trained(step, call, {"digest": f"{call}{step}"}, {}, f"{call}{step - 1}", NUMERICS)


def compacted(step: int, attempt: int = 0) -> Compacted:
    return Compacted(step, FileRef(f"spills/step-{step:08d}.a{attempt:03d}.h5", 1, 1))


def checkpointed(step: int, attempt: int = 0) -> Checkpointed:
    return Checkpointed(step, FileRef(f"checkpoints/step-{step:08d}.a{attempt:03d}/MANIFEST.json", 1, 1))


def begin(run: RunDirectory, believing: History | None = None, count: int | None = None) -> Journal:
    """An attempt that believes a history (or nothing) and has begun its journal."""
    attempt = run.claim_attempt("s")
    history = History() if believing is None else believing
    adopted = Adopted(history.prefixes(len(history.lines) if count is None else count), {})
    run.files.publish(run.adopted(attempt), encode_line(adopted), "adopted")
    journal = open_journal(run.files, run.journal(attempt))
    journal.append([adopted])
    return journal


@st.composite
def journals(draw: st.DrawFn, steps: int = 5) -> list[Event]:
    """All events of a run of so many steps, in one of the orders that may happen, cut off anywhere."""
    events: list[Event] = []
    waiting: dict[int, list[Event]] = {}
    behind: list[Event] = []
    next_step, next_close = 1, 1
    while next_close <= steps or behind:
        choices = [("line", step) for step, lines in waiting.items() if lines and not _early(lines[0], events)]
        if next_step <= steps and next_step - next_close < WINDOW:
            choices.append(("open", next_step))
        if next_close in waiting and not waiting[next_close]:
            choices.append(("close", next_close))
        choices += [("behind", i) for i in range(len(behind))]
        what, which = draw(st.sampled_from(choices))
        if what == "line":
            events.append(waiting[which].pop(0))
        elif what == "open":
            events.append(opened(which))
            waiting[which] = _work(which)
            next_step += 1
        elif what == "close":
            events.append(Closed(which, {"step": which}))
            behind += [compacted(which), checkpointed(which)]
            next_close += 1
        else:
            events.append(behind.pop(which))
    return events[: draw(st.integers(0, len(events)))]


def _early(line: Event, events: list[Event]) -> bool:
    """Whether a train_step would make a version before the one that it changes."""
    return isinstance(line, Trained) and line.step > 1 and trained(line.step - 1, line.call) not in events


def _work(step: int) -> list[Event]:
    calls = [done(step, call, part) for call, parts in CALLS.items() for part in range(parts)]
    return [*calls, *(trained(step, call) for call in TRAINED_BY)]
