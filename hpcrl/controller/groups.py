"""Worker groups: a role on its workers, whose methods are the calls that the recipe declares of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpcrl.controller.computations import Computation, Computations, Function
from hpcrl.controller.conversation import Conversation
from hpcrl.controller.data_proto import Columns, DataProto, StandsForRows, in_script, not_a_batch, refuse_empty
from hpcrl.controller.declared import DeclaredCalls
from hpcrl.controller.json_values import arguments
from hpcrl.controller.results import CallRows, Changed, CustomRows, Future, Values, numbered, returned
from hpcrl.controller.user_code import listed, misuse, place, refuse_uncallable
from hpcrl.controller.ways import PLAIN, Ways, check_items, split_by
from hpcrl.data.batch import Batch
from hpcrl.data.form import Form
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.made import Made
from hpcrl.placement.plan import Plan, ReplicaPlan
from hpcrl.recipes.registered import Custom, Registered


@dataclass(frozen=True)
class RankInfo:
    """Where a worker is in the layout of a role."""

    rank: int
    node: int
    dp_rank: int
    dp_size: int
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    device: str
    """`cpu`, or `cuda:1` on the second GPU of the run on its node."""


@dataclass(frozen=True)
class Calls:
    """Asks for calls."""

    talk: Conversation
    declared: DeclaredCalls
    computations: Computations
    plan: Plan
    cutting: Callable[[], Batch]
    """How steps are cut under the settings in force."""

    def call(self, role: str, method: str, given: Sequence[Any], name: str | None, blocking: bool | None) -> Any:
        """What a method of a group asks for."""
        doing = f"{role}.{method}"
        it = self.declared.method(role, method)
        if it is None or it.takes_rows:
            self.talk.refuse_before(doing)
        if it is not None and not it.takes_rows:
            batch, rest = self._batch(None, doing), given
        else:
            batch, rest = self._batch(given[0] if given else None, doing), given[1:]
        call = self.declared.meant(role, method, batch.dataset if batch else "train", name)
        self.talk.refuse_ahead(role, bool(call.changes), doing)
        if it is not None:
            return self._registered(call, it, batch, rest, doing, blocking)
        if rest:
            raise misuse(f"{doing} takes a batch, and nothing else; it got {len(rest)} more.", "Leave them out.")
        if batch is None and call.inputs:
            raise misuse(f"{doing} needs a batch.", f"Give it one that has {listed(call.inputs)}.")
        if batch is not None:
            for each in self.declared.segments_before(call):
                batch = batch.union(self._ask(each, batch, doing, blocking=False))
        return self._ask(call, batch, doing, blocking)

    def _registered(
        self,
        call: MFC,
        it: Registered,
        batch: DataProto | None,
        rest: Sequence[Any],
        doing: str,
        blocking: bool | None,
    ) -> Any:
        """Ask for a registered method."""
        text, _ = arguments(call.name, rest)
        now = self.plan.units(call.name)
        parts = self.talk.parts or now
        if not it.takes_rows:
            check_items(it, rest, parts, now, doing)
            return self._ask(call, None, doing, blocking, text, ways=Ways(values=parts, single=it.is_single))
        if batch is None:
            raise misuse(f"{doing} needs a batch.", f"Give it one that has {listed(call.inputs)}.")
        if not isinstance(it.dispatch, Custom):
            return self._ask(call, batch, doing, blocking, text)
        pieces = split_by(it.dispatch, batch, parts, doing)
        ways = Ways(tuple(map(len, pieces)), it.dispatch.collect)
        filled = [piece for piece in pieces if len(piece)]
        whole = DataProto.concat(filled) if filled else batch[:0]
        return self._ask(call, whole, doing, blocking, text, ways=ways)

    def compute(
        self, function: Function, given: StandsForRows, args: Sequence[Any], name: str | None, blocking: bool
    ) -> Any:
        """Have the script's worker run a function on rows."""
        wanted = str(name or getattr(function, "__name__", type(function).__name__))
        refuse_uncallable(function, "run.compute")
        self.talk.refuse_before(f"run.compute({wanted})")
        batch = self._batch(given, f"run.compute({wanted})")
        if batch is None:
            raise not_a_batch(given, f"run.compute({wanted})")
        call = self.declared.computation(wanted, batch.dataset)
        text, values = arguments(call.name, args)
        return self._ask(call, batch, f"run.compute({wanted})", blocking, text, Computation(call, function, values))

    def _batch(self, given: object, doing: str) -> DataProto | None:
        if given is None:
            self.talk.current(self.talk.step or 0, doing)
            return None
        if not isinstance(given, StandsForRows):
            raise not_a_batch(given, doing)
        batch = given.as_batch()
        self.talk.current(batch.step, doing)
        return batch

    def _ask(
        self,
        call: MFC,
        batch: DataProto | None,
        doing: str,
        blocking: bool | None,
        text: str = "",
        computation: Computation | None = None,
        ways: Ways = PLAIN,
    ) -> Any:
        if batch is not None:
            refuse_empty(batch, doing)
        inputs = self._inputs(call, batch, doing) if batch is not None else {}
        ids = batch.ids if batch is not None else numbered(ways.values)
        step, name = self.talk.step, self.talk.next_name(call.name)
        assert step is not None
        if name != call.name:
            self._refuse_again(call, name, inputs, doing)
        if computation is not None:
            told = Computation(call, computation.function, computation.arguments, place())
            self.computations.register(step, name, told)
        number = self.talk.ask(call.name, ids, inputs, text, ways.cut)
        statistics = self.declared.statistics.get(call.name, ())
        it: CallRows | Changed | Values
        if call.dispatch.values:
            it = Values(self.talk, step, name, number, ways.single)
        elif call.changes or batch is None:
            it = Changed(self.talk, step, name, number, statistics)
        else:
            columns = dict.fromkeys(call.outputs, (Made(name, len(ids)),))
            rows = (step, ids, columns, call.dataset, self.talk, self.talk, name, number, statistics)
            it = CallRows(*rows) if ways.collect is None else CustomRows(*rows, ways.sizes, ways.collect)
        if blocking is None:
            # Whoever reads rows or statistics waits for them. A function of the script's own may not run beside it, and
            # before the loop all is done one after another.
            waits = isinstance(it, Values) or computation is not None or self.talk.turn is None
            return Future(it).result() if waits else returned(it)
        return Future(it).result() if blocking else Future(it)

    def _refuse_again(self, call: MFC, name: str, inputs: Columns, doing: str) -> None:
        """What an older attempt has recorded was asked for as it is; and of responses that were drawn since, an update
        is a first one."""
        if any(name == other.name for other in self.declared.calls):
            raise misuse(f"{name} is a call of the recipe, and what {call.name} is called here.", "Rename one.")
        why = self.cutting().once.get(call.name)
        if why is None or self.talk.parts is not None:
            return
        if not self.talk.are_newer([it.call for it in inputs.get("responses", ())], call.name):
            raise misuse(f"{doing} is asked for again in step {self.talk.step}: {why.text}", why.advice)

    def _inputs(self, call: MFC, batch: DataProto, doing: str) -> Columns:
        """Who made what it reads."""
        if missing := [key for key in call.inputs if key not in batch.columns]:
            made = self.declared.makers(missing)
            lacking = listed(in_script(key, call.dataset) for key in missing)
            raise misuse(
                f"{doing} reads {lacking}, which the batch has not; it has {listed(batch.keys)}."
                + (f" {made}." if made else ""),
                f"Put it into the batch: batch = batch.union({self.declared.making(missing)}).",
            )
        given = {key: batch.columns[key] for key in call.inputs}
        for key, was in ((key, run.key) for key, runs in given.items() for run in runs if run.key):
            own, other = self.computations.form(key), self.computations.form(was)
            if own is not None and other is not None and own != other:
                raise misuse(
                    f"{doing} reads {in_script(key, call.dataset)} of {_in_words(own)}, but in the batch that is the "
                    f"renamed {in_script(was, call.dataset)}, of {_in_words(other)}.",
                    "Rename a key of the same type.",
                )
        return given


def _in_words(form: Form) -> str:
    return " × ".join(map(str, (form.dtype, *form.trailing)))


class WorkerGroup:
    """A role on its workers. Its methods are its calls: `group.generate(batch, name=None, blocking=None)`, and the
    registered methods of its class, with further arguments.

    A call that makes rows or changes the role gives them at once, and whoever reads them waits; one of JSON waits for
    its values. All wait with `blocking=True`, and with `blocking=False` all give a future."""

    def __init__(self, role: str, plan: Plan, calls: Calls) -> None:
        self.role = role
        self._plan = plan
        self._calls = calls

    @property
    def _home(self) -> ReplicaPlan:
        return self._plan.home(self.role)

    @property
    def world_size(self) -> int:
        """How many workers it has, where it is trained and saved."""
        return len(self._home.ranks)

    @property
    def layout(self) -> str:
        """Data, tensor and pipeline parallelism: `d2t2p1`."""
        return self._home.layout

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its workers, in the order of its layout."""
        return tuple(self._home.ranks)

    def info(self, rank: int) -> RankInfo:
        """Where one of `ranks` is."""
        home = self._home
        if rank not in home.places:
            raise misuse(f"{self.role} has no worker {rank!r}; it has {listed(home.ranks)}.")
        layout, at = home.arrangement, home.places[rank]
        rest, tensor = divmod(at, layout.tp)
        stage, part = divmod(rest, layout.dp)
        worker, device = self._plan.workers[rank], self._plan.experiment["cluster"]["device"]
        device = device if device == "cpu" else f"cuda:{worker.slot}"
        return RankInfo(rank, worker.node, part, layout.dp, tensor, layout.tp, stage, layout.pp, device)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        declared = self._calls.declared
        if method.startswith("_"):
            raise AttributeError(method)
        if not declared.knows(self.role, method):
            raise misuse(
                f"{self.role} has no call {method!r}. The recipe has of it: {declared.of_role(self.role)}.",
                "Use one of these, or declare another: settings may leave a call out.",
            )
        return partial(self._call, method)

    def _call(
        self, method: str, *given: Any, name: str | None = None, blocking: bool | None = None, **others: Any
    ) -> Any:
        if others:
            raise misuse(
                f"{self.role}.{method} takes name= and blocking= by name, and got {listed(f'{it}=' for it in others)}.",
                f"Give all else by position: {self.role}.{method}(batch, 1.0)."
                if self._calls.declared.method(self.role, method)
                else "Leave it to the settings: generation.* and generation.evaluation.* say how responses are drawn.",
            )
        return self._calls.call(self.role, method, given, name, blocking)

    def __repr__(self) -> str:
        return f"WorkerGroup({self.role}, {self.layout} on workers {listed(self.ranks)})"
