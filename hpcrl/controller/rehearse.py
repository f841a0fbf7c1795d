"""`python -m hpcrl.controller.rehearse FOLDER`: a script's rehearsal, in a process of its own.

FOLDER/order.json says which turns, from which state; the answer is FOLDER/trace.msgpack. Nothing else of the folder is
touched, and what the script prints goes where the process was told to.
"""

import faulthandler
import os
import random
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.controller.clocks import Clocks
from hpcrl.controller.computations import Computations
from hpcrl.controller.computed_rows import RowsComputed, read_computed, write_computed
from hpcrl.controller.run import World, follow
from hpcrl.controller.stand_in import StandIn
from hpcrl.controller.user_code import keep_exits
from hpcrl.errors import HpcrlError
from hpcrl.placement.plan import plan_for
from hpcrl.processes import die_with_parent
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.wire.script_messages import CallAsked, OnceAsked, TurnEnded

Asked = CallAsked | RowsComputed | OnceAsked | TurnEnded

ORDER, TRACE = "order.json", "trace.msgpack"


# ── submit → its rehearsal ────────────────────────────────────────────────────────────────────────────────────────────
class Order(msgspec.Struct, frozen=True):
    """Rehearse the turns from `first` to `last`, none where that is before the first."""

    experiment: dict[str, Any]
    parent: int
    first: int
    last: int
    states: tuple[str, ...]
    """Those after the turns before `first`, as far back as its script may need them; none: as a run begins."""
    number: int
    """Of the rehearsal: which clocks, and which order of sets, it has."""
    limit_s: float
    computed: str
    """The file of the rows that the script computes: written by the first rehearsal, and read, those of its first step,
    by one from a state."""


# ── rehearsal → submit ────────────────────────────────────────────────────────────────────────────────────────────────
class Trace(msgspec.Struct, frozen=True):
    """What the script asked for, what it would have done elsewhere, how its turns ended; and what it failed with."""

    asked: tuple[Asked, ...]
    error: str = ""
    advice: tuple[str, ...] = ()
    looked: bool = False
    """Whether it has looked at a clock, at its process, or drawn numbers that no seed decides."""


def main(folder: Path) -> None:
    """Rehearse; whatever the script raises is an answer."""
    order = msgspec.json.decode((folder / ORDER).read_bytes(), type=Order)
    die_with_parent(order.parent)
    faulthandler.dump_traceback_later(order.limit_s, exit=True)
    sys.dont_write_bytecode = True
    keep_exits()
    clocks = Clocks(order.number)
    clocks.show()
    random.seed(0)
    found: list[Trace] = []
    # In a run, too, the main thread is not the script's: signals and event loops are not its own.
    script = threading.Thread(target=lambda: found.append(rehearse(order)), name="script")
    script.start()
    script.join()
    for trace in found:
        traced = msgspec.structs.replace(trace, looked=clocks.looked)
        (folder / TRACE).write_bytes(msgspec.msgpack.encode(traced))
    with suppress(ValueError):  # the script has closed them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0 if found else 1)  # threads that the script has left run no longer


def rehearse(order: Order) -> Trace:
    """Follow the script beside a stand-in."""
    stand_in: StandIn | None = None
    try:
        experiment = experiment_from(order.experiment)
        algorithm = algorithm_of(experiment)
        assert algorithm.script is not None
        computations = Computations(algorithm.forms(experiment))
        recorded = read_computed(Path(order.computed), order.first) if order.states else {}
        stand_in = StandIn(algorithm, experiment, computations, order.first, order.last, order.states, recorded)
        world = World(algorithm, plan_for(experiment), {0: experiment}, computations, rehearses=True)
        follow(algorithm.script, stand_in, world)
    except HpcrlError as error:
        text = str(error)
        for advice in error.advice:
            text = text.removesuffix(advice).rstrip()
        return Trace(_asked(stand_in), text, error.advice)
    if not order.states:
        write_computed(Path(order.computed), stand_in.computed)
    return Trace(_asked(stand_in))


def _asked(stand_in: StandIn | None) -> tuple[Asked, ...]:
    return tuple(it for it in stand_in.asked if isinstance(it, Asked)) if stand_in else ()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
