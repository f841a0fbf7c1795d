"""The line of a call that a script has asked for, and its units: what each consumes, reads and changes. Pure."""

from collections.abc import Mapping, Sequence

from hpcrl.dataflow.graph import MFC
from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.durable.journal import Called, Ids
from hpcrl.durable.made import at
from hpcrl.master.stepping import StepSource
from hpcrl.master.turn import OpenTurn, consumed
from hpcrl.placement.plan import Plan
from hpcrl.wire.script_messages import CallAsked


def line_of(asked: CallAsked, mfc: MFC, reads: Mapping[str, int], source: StepSource, plan: Plan) -> Called:
    """Of one that has none yet; `reads` counts the changes of roles as it reads them."""
    parts, partitions, minibatches = source.cut_call(mfc, asked.ids, asked.cut)
    return Called(
        step=asked.step,
        number=asked.number,
        call=asked.call,
        ids=asked.ids,
        inputs=asked.inputs,
        parts=parts,
        partitions=partitions,
        minibatches=minibatches,
        version=reads.get(mfc.role, 0) + bool(mfc.changes),
        settings=plan.settings,
        arguments=asked.arguments,
        at=asked.at,
    )


def tasks_of(
    turn: OpenTurn,
    called: Called,
    mfc: MFC,
    parts: Sequence[Ids],
    plan: Plan,
    versions: Mapping[str, int],
    oldest: Mapping[str, int],
) -> list[Task]:
    """What changes a role is one unit; the others read their role as the line says. No version is older than those of
    `oldest`, with which the attempt began; a blend takes in a role as the last change in `versions` leaves it."""
    step = turn.step
    if mfc.changes:
        reads = Version(mfc.blends, versions.get(mfc.blends, 0)) if mfc.blends else None
        makers, unit = consumed(turn, called.inputs, called.ids), Unit(step, called.call, 0)
        return [Task(unit, makers, reads, mfc.changes, read_until=step - 1, makes=called.version)]
    replica = plan.replica(called.call).model.replica
    changes = any(home.role == mfc.role for home in plan.changed)
    version = max(called.version, oldest.get(mfc.role, 0))
    reads = Version(mfc.role, version, replica) if changes or replica else None
    rows = dict(zip(called.ids, range(len(called.ids)), strict=True))
    tasks = []
    for part, ids in enumerate(parts):
        if ids:
            where = [rows[sample] for sample in ids]
            inputs = {key: at(pieces, where) for key, pieces in called.inputs.items()}
            tasks.append(Task(Unit(step, called.call, part), consumed(turn, inputs, tuple(ids)), reads))
    return tasks
