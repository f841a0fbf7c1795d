"""Drives one attempt of a script: makes the calls that it asks for, writes them down, and answers.

A turn of the script's loop is a step. Nothing is fixed when it opens but its samples: each call has a line of its own
(`Called`), which waits for the lines of all that the script had read by then; the call itself is sent at once. In an
attempt that goes on, the script runs from its first line, and begins with the turn after the checkpoint's: what it
asks for is compared with the lines, and what is recorded is answered at once, changes of roles being replayed behind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import assert_never

from hpcrl.dataflow.tasks import Task, Unit
from hpcrl.durable.journal import Called, Event, Trained
from hpcrl.durable.once import Once, Turn
from hpcrl.durable.recovery import UnitKey
from hpcrl.durable.step_lines import StepLines
from hpcrl.errors import InternalError
from hpcrl.master.ahead import Ahead, left_in
from hpcrl.master.attempt_records import AttemptRecords
from hpcrl.master.before_loop import BeforeLoop
from hpcrl.master.divergence import ScriptDiverged, recorded_of, refuse_other_version, unlike_end, unlike_logged
from hpcrl.master.driver import Driver
from hpcrl.master.jobs import Line
from hpcrl.master.numerics import Computing
from hpcrl.master.script_notes import of_silence, of_state
from hpcrl.master.stepping import StepSource
from hpcrl.master.surroundings import Surroundings
from hpcrl.master.turn import OpenTurn, Outside, consumed, keys_of
from hpcrl.master.turn_tasks import line_of, tasks_of
from hpcrl.placement.plan import Plan
from hpcrl.wire.holders import InSpill
from hpcrl.wire.script_messages import (
    CallAsked,
    CallExecuted,
    FromScript,
    LoopAt,
    LoopGoesOn,
    NextTurn,
    NoMoreTurns,
    OnceAnswered,
    OnceAsked,
    OnceDone,
    Prepared,
    ReadsAhead,
    RowsAsked,
    RowsAt,
    ScriptBegins,
    ScriptEnded,
    ScriptSilent,
    ToScript,
    TurnBegun,
    TurnEnded,
)

WINDOW = 2
"""Steps that are open at a time, with no step prepared ahead."""


class ScriptDriver(Driver):
    """From what was recovered to the end of the run."""

    writes_behind = True

    def __init__(
        self, attempt: AttemptRecords, plan: Plan, source: StepSource, around: Surroundings, computing: Computing
    ) -> None:
        super().__init__(attempt, plan, source, around, computing, WINDOW, self._may_change)
        recovery = attempt.recovery
        self._rank = plan.workers[-1].rank
        self._turns: dict[int, OpenTurn] = {}
        self._ahead = Ahead(self._turns)
        self._left = {lines.step: lines for lines in recovery.opened}
        """What older attempts have of steps that the script has yet to come to."""
        self._wanted: NextTurn | None = None
        self._has_returned = False
        self._loop_at: int | None = None
        """The step of a turn that is prepared, and wants to go on."""
        cut, before = (0, None) if recovery.checkpoint is None else (recovery.checkpoint.step, recovery.checkpoint.turn)
        self._oldest = {} if before is None else before.versions
        self._versions = Counter(self._oldest)
        """How many changes each role has had that were asked for."""
        self._before = BeforeLoop(cut, dict(self._oldest), plan, self._readiness, self.dispatcher)
        self._ahead.begin(recovery.checkpoint)
        earlier = () if recovery.checkpoint is None else recovery.checkpoint.earlier
        self._expect_replays()
        self._steps.last = recovery.last_opened
        self._source.look_ahead(recovery.last_opened)
        self._export_loaded()
        if self._source.schedule.has_stopped([row.metrics for row in recovery.metrics], len(earlier)):
            self._no_more_steps = True
        ends = () if before is None or attempt.loops_again else (*earlier, before)
        self._begins: ScriptBegins | None = ScriptBegins(
            cut + 1,
            None if before is None else before.state,
            tuple(turn.state for turn in earlier),
            left_in(cut, ends),
        )
        """What the script has yet to be told, by the thread that sends."""

    def _hear_script(self, body: FromScript) -> None:
        match body:
            case NextTurn():
                self._before.loop_begins()
                self._wanted, self._ahead.lag = body, body.lag
                self._readiness.window = WINDOW + body.lag
            case ReadsAhead():
                self._note_reads(body)
            case Prepared():
                self._turn(body.step).is_prepared()
            case LoopAt():
                self._loop_at = body.step
            case CallAsked(step=self._before.step):
                self._around.fault("master.ask")
                self._before.ask(body)
            case CallAsked():
                self._ask(self._turn(body.step), body)
            case OnceAsked():
                self._ask_once(self._turn(body.step), body)
            case OnceDone():
                self._done_once(self._turn(body.step), body)
            case TurnEnded():
                self._end(self._turn(body.step), body)
            case RowsAsked():
                self._tell_rows(body)
            case ScriptSilent():
                self._around.note(of_silence(body, self._rank))
                self._has_returned |= bool(body.stack) and super().finished
            case ScriptEnded():
                self._before.loop_begins()
                self._no_more_steps = self._has_returned = True
            case _:
                assert_never(body)

    def _note_reads(self, told: ReadsAhead) -> None:
        ahead = self._turn(told.step).ahead
        assert ahead is not None, "it is told before the step is prepared"
        ahead.reads = frozenset(told.roles)

    def _answer(self, body: ToScript) -> None:
        self._around.send(self._rank, body)

    def _turn(self, step: int) -> OpenTurn:
        turn = self._turns.get(step)
        if turn is None or turn.ended is not None:
            raise InternalError(f"the script asks for something in step {step}, which is not open.")
        return turn

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _go_on(self) -> None:
        if self._begins is not None:
            self._answer(self._begins)
            self._begins = None
        for turn in list(self._turns.values()):
            if turn.ended is not None and not turn.is_over and not any(turn.unexecuted.values()):
                self._over(turn)
        self._let_do()
        self._before.go_on()
        if self._wanted is not None and self._before.is_over and self._ahead.is_due(self._wanted.step):
            self._begin(self._wanted.step)
        at = self._loop_at
        if at is not None and all(turn.is_over for turn in self._turns.values() if turn.step < at):
            self._loop_at = None
            self._answer(LoopGoesOn(at))

    def _begin(self, step: int) -> None:
        """The script's next turn, if it may begin now."""
        if not self._readiness.can_open(step):
            return
        if (older := self._left.pop(step, None)) is not None:
            self._enter_turn(StepLines(older.opened), older)
            return
        schedule = self._source.schedule
        if schedule.waits_for_metrics and self._readiness.unclosed > self._ahead.lag:
            return
        if not self._no_more_steps and not self._source.is_ready():
            return
        if self._no_more_steps or not self._source.exists(step, self._steps.last):
            self._no_more_steps, self._wanted = True, None
            self._answer(NoMoreTurns(step))
        elif self.opens_steps:
            lines = self._append_opened(self._source.open(step, self._steps.last))
            self._source.look_ahead(lines)
            self._enter_turn(lines, None)

    def _enter_turn(self, lines: StepLines, older: StepLines | None) -> None:
        self._enter(lines)
        self._wanted, step, opened = None, lines.step, lines.opened
        closed = step in self._attempt.recovery.closed
        self._turns[step] = OpenTurn(lines, older, closed, self._ahead.read_by(step))
        self._ahead.newest = step
        self.dispatcher.open(step, [], more=True)
        recorded = [line.settings for line in older.asks] if older is not None else []
        if closed and older is not None and older.turn is not None:
            recorded.append(older.turn.settings)
        asks = () if older is None else older.asks
        parts = tuple(line.parts if isinstance(line, Called) else 0 for line in asks)
        settings = self._plan.settings
        self._answer(TurnBegun(step, opened.ids, opened.eval_ids, opened.epoch, settings, tuple(recorded), parts))

    def _end(self, turn: OpenTurn, ended: TurnEnded) -> None:
        was = turn.recorded.turn if turn.recorded is not None else None
        if found := unlike_end(turn, ended, was):
            raise ScriptDiverged(turn, found)
        turn.ended = ended
        if found := unlike_logged(ended, was):
            raise ScriptDiverged(turn, found, only_logs=True)

    def _over(self, turn: OpenTurn) -> None:
        """All that it asked for is executed: the roles are as they are after it."""
        self._around.fault("master.turn")
        step, ended = turn.step, turn.ended
        assert ended is not None, "a turn is over after its end"
        versions = {role: self._versions[role] for role in sorted(self._versions)}
        calls = turn.lines.asked
        value = Turn(ended.state, dict(ended.logged), calls, versions, self._plan.settings, ended.left)
        if note := of_state(step, self._ahead.ended.get(step - 1), value):
            self._around.note(note)
        self.dispatcher.metrics.log(step, ended.logged)
        self._steps.ended(step, value)
        self._ahead.ended[step] = value
        turn.lines, turn.is_over = self._steps[step], True
        for home in self._plan.changed:
            self._save_after(step, home.role)
        self.dispatcher.extend(step, [], more=False)
        if turn.closed:
            self._readiness.was_closed(step)
            self._saving.closed(step)
            del self._turns[step]

    @property
    def finished(self) -> bool:
        """What the script does after its loop is part of the run, until it is silent: it holds all workers."""
        return super().finished and self._has_returned

    @property
    def _all_closed(self) -> bool:
        """Steps that an older attempt has opened are to be gone through."""
        return super()._all_closed and not self._left and all(turn.is_over for turn in self._turns.values())

    @property
    def lag(self) -> int:
        return self._ahead.lag

    def _supports_cut(self, step: int) -> bool:
        """A turn begins when all of the one before is executed: only who prepares one ahead reads what is older."""
        return self._ahead.supports_cut(step, self._ends)

    def _may_change(self, task: Task) -> bool:
        return self._ahead.may_change(task, self._ends and not self._left)

    def _earlier(self, step: int) -> tuple[Turn, ...]:
        return self._ahead.before(step)

    def _changed(self, unit: Unit, role: str) -> None:
        """It is saved when the turn is over."""

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _ask(self, turn: OpenTurn, asked: CallAsked) -> None:
        self._around.fault("master.ask")
        recorded = recorded_of(turn, asked)
        assert not isinstance(recorded, Once), "an ask that is like what was recorded is of its kind"
        mfc = self._plan.call(asked.call)
        reads: Mapping[str, int] = self._versions if turn.ahead is None else turn.ahead.versions
        called = line_of(asked, mfc, reads, self._source, self._plan) if recorded is None else recorded
        refuse_other_version(turn, called, mfc.role, reads.get(mfc.role, 0) + bool(mfc.changes), asked.at)
        if mfc.changes:
            self._versions[mfc.changes] = called.version
        turn.lines = self._steps.follow(called)
        parts = self._source.parts(turn.lines, called.call)
        tasks = tasks_of(turn, called, mfc, parts, self._plan, self._versions, self._oldest)
        units = [(task.unit, called.ids if mfc.changes else parts[task.unit.part]) for task in tasks]
        turn.asked(called, units, asked.read, recorded is not None)
        pieces, told = keys_of(called.inputs, called.ids), called.arguments
        if mfc.changes:
            self._measure_read(turn, called)
        jobs = [
            self._job(turn.lines, task, mfc, tuple(parts[task.unit.part]), pieces, arguments=told) for task in tasks
        ]
        self.dispatcher.extend(turn.step, jobs, more=True)
        self._take_over(turn, called, [task.unit for task in tasks])
        if not turn.unexecuted[called.number]:
            self._tell_executed(turn, called.number)

    def _take_over(self, turn: OpenTurn, called: Called, units: Sequence[Unit]) -> None:
        """Of these units, what older attempts have recorded: rows are read, changes are replayed."""
        recovery, metrics = self._attempt.recovery, self.dispatcher.metrics
        makes_rows = not self._plan.call(called.call).dispatch.values
        for unit in units:
            if (told := recovery.returned.get(UnitKey(*unit))) is not None:
                self.dispatcher.restore_values(unit, told.values)
                turn.has(unit)
            elif (found := recovery.recorded.get(UnitKey(*unit))) is not None and makes_rows:
                metrics.put(unit, dict(found.done.stats), found.done.settings)
                metrics.refuse_dropped([found.done])
                self.dispatcher.restore({unit: InSpill(found.spill.path, found.spill.group)}, [])
                turn.has(unit)
            elif (line := self._drift.recorded(unit)) is not None:
                metrics.put(unit, dict(line.stats), line.settings)
                self.dispatcher.restore({}, [unit])
                turn.was_recorded(unit)
                self._tell_executed(turn, called.number)  # at once: it is replayed behind the script

    def _measure_read(self, turn: OpenTurn, called: Called) -> None:
        """How long the rows are of older attempts that a train_step is going to be given, by which it is shared out."""
        for unit in consumed(turn, called.inputs, called.ids):
            key = UnitKey(*unit)
            if key in self._attempt.recovery.recorded:
                self._measure(key)

    def _executed(self, task: Task) -> None:
        super()._executed(task)
        turn = self._turns.get(task.unit.step)
        if turn is None:
            self._executed_before(task.unit)
            return
        number = turn.executed(task.unit)
        if number is not None and self._drift.recorded(task.unit) is None:
            self._tell_executed(turn, number)

    def _executed_before(self, unit: Unit) -> None:
        if unit.step == self._before.step and (it := self._before.executed(unit)) is not None:
            self._answer(
                CallExecuted(unit.step, it.number, {}, self.dispatcher.rows.values(unit.step, it.call, it.ids))
            )

    def _tell_executed(self, turn: OpenTurn, number: int) -> None:
        step, it = turn.step, turn.lines.asks[number - 1]
        values = self.dispatcher.rows.values(step, it.call, it.ids) if isinstance(it, Called) else ()
        self._answer(CallExecuted(step, number, self.dispatcher.metrics.means(step, it.call), values))

    # ── outside of the run ────────────────────────────────────────────────────────────────────────────────────────────
    def _ask_once(self, turn: OpenTurn, asked: OnceAsked) -> None:
        self._around.fault("master.ask")
        recorded = recorded_of(turn, asked)
        if isinstance(recorded, Once):
            turn.lines = self._steps.follow(recorded)
            turn.unexecuted[asked.number] = turn.unrecorded[asked.number] = set()
            self._answer(OnceAnswered(turn.step, asked.number, recorded.result))
        else:
            turn.wants_once(asked)

    def _let_do(self) -> None:
        """The script may do what it is about to do once all is on disk on which that rests: what is sent out with one
        key is then always the same."""
        for turn in self._turns.values() if self._writing is None else ():
            first = turn.step if turn.ahead is None else turn.step - self._ahead.lag
            rests_on = (older for older in self._turns.values() if older.step < first)
            if turn.outside is not None and turn.may_do and all(older.is_recorded for older in rests_on):
                turn.outside = Outside(turn.outside.asked, is_begun=True)
                self._answer(OnceAnswered(turn.step, turn.outside.asked.number))

    def _done_once(self, turn: OpenTurn, done: OnceDone) -> None:
        self._around.fault("master.once")
        assert turn.outside is not None and turn.outside.is_begun, "it was told to do this"
        asked = turn.outside.asked
        line = Once(turn.step, asked.number, asked.call, asked.arguments, done.result, self._plan.settings, asked.at)
        turn.lines = self._steps.follow(line)
        turn.unexecuted[line.number] = set()
        turn.did(line)

    def _tell_rows(self, asked: RowsAsked) -> None:
        rows = self.dispatcher.rows
        found = (rows.sources(asked.step, keys, ids, self._rank) for keys, ids in keys_of(asked.inputs, asked.ids))
        self._answer(RowsAt(asked.token, tuple(chain.from_iterable(found))))

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _lines(self) -> list[Event]:
        """A call's other lines follow the line of the ask, which follows those of all that the script had read."""
        lines: list[Event] = []
        while True:
            asks = [line for turn in self._turns.values() for line in turn.writable()]
            found = self.dispatcher.lines(self._may_record)
            if not asks and not found:
                return lines
            lines += asks
            lines += found
            for line in found:
                self._note_recorded(line)

    def _may_record(self, unit: Unit) -> bool:
        return (turn := self._turns.get(unit.step)) is None or turn.may_record(unit)

    def _note_recorded(self, line: Line) -> None:
        if (turn := self._turns.get(line.step)) is not None:
            turn.was_recorded(Unit(line.step, line.call, 0 if isinstance(line, Trained) else line.part))

    def _written(self, lines: Sequence[Event]) -> None:
        """Closed turns are forgotten in `_close`."""
        for line in lines:
            if isinstance(line, Once):
                self._answer(OnceAnswered(line.step, line.number, line.result))
        if self.dispatcher.sends:
            self._let_do()

    def _close(self, step: int, row: Mapping[str, int | float]) -> None:
        super()._close(step, row)
        del self._turns[step]
        self._ahead.forget(self._steps.numbers)
