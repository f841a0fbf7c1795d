"""What a script asks for before its loop: calls that belong to no step, have no lines, and are made in each attempt."""

from hpcrl.dataflow.graph import MFC
from hpcrl.dataflow.readiness import Readiness
from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.errors import InternalError
from hpcrl.master.dispatcher import Dispatcher
from hpcrl.master.jobs import Job
from hpcrl.placement.plan import Plan
from hpcrl.wire.script_messages import CallAsked


class BeforeLoop:
    """Of one attempt, until the script comes to its loop and all is executed.

    Units are told as of the step after which the attempt begins, which is closed and has no others. They read roles as
    that has left them; nothing else runs beside them.
    """

    def __init__(
        self, step: int, versions: dict[str, int], plan: Plan, readiness: Readiness, dispatcher: Dispatcher
    ) -> None:
        """`versions` count the changes that each role has had by then."""
        self.step = step
        self.is_over = False
        self._versions = versions
        self._plan = plan
        self._readiness = readiness
        self._dispatcher = dispatcher
        self._asked: list[tuple[CallAsked, set[Unit]]] = []
        """With the units of each that are not executed."""
        self._loops = False

    def ask(self, asked: CallAsked) -> None:
        """The script has asked for a call."""
        mfc = self._plan.call(asked.call)
        if self._loops or not mfc.dispatch.values:
            raise InternalError(
                f"the script asks for {asked.call} {'after' if self._loops else 'before'} its loop began"
            )
        if not self._asked:
            self._dispatcher.open(self.step, [], more=True)
        jobs = [self._job(asked, mfc, part) for part in range(len(asked.cut))]
        self._asked.append((asked, {job.task.unit for job in jobs}))
        self._dispatcher.extend(self.step, jobs, more=True)

    def executed(self, unit: Unit) -> CallAsked | None:
        """The ask of which this unit was the last."""
        asked, left = next((asked, units) for asked, units in self._asked if unit in units)
        left.discard(unit)
        return None if left else asked

    def loop_begins(self) -> None:
        """The script asks for nothing more that comes before it."""
        self._loops = True

    def go_on(self) -> None:
        """It is over where all is executed and the script asks for nothing more."""
        if self.is_over or not self._loops or any(units for _, units in self._asked):
            return
        self.is_over = True
        if self._asked:
            self._dispatcher.extend(self.step, [], more=False)
            self._readiness.was_closed(self.step)

    def _job(self, asked: CallAsked, mfc: MFC, part: int) -> Job:
        plan = self._plan
        replica, in_step = plan.replica(asked.call).model.replica, plan.in_step(asked.call)
        changes = any(home.role == mfc.role for home in plan.changed)
        reads = Version(mfc.role, self._versions.get(mfc.role, 0), replica) if changes or replica else None
        return Job(
            Task(Unit(self.step, asked.call, part), reads=reads, in_step=bool(in_step), leaves_line=False),
            inputs=(),
            outputs=mfc.outputs,
            ranks=plan.ranks(asked.call, part),
            heads=tuple(it.head for it in plan.working(asked.call, part)),
            ids=tuple(asked.ids[at] for at in asked.cut[part]),
            settings=plan.settings,
            in_step=in_step,
            arguments=asked.arguments,
        )
