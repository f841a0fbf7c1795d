"""Runs that go on with other workers than they began with, and what is left of them to compare nearly."""

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from support.chaos import MOST_RESUMES, begin, outputs, rows_of
from support.cluster import Jobs, no_fault

from hpcrl.config.changes import changes
from hpcrl.config.experiment import to_dict
from hpcrl.config.model import PlacementConfig
from hpcrl.durable.checkpoints import read_shard
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Opened, Trained, decode_line, encode_line
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import steps_in
from hpcrl.inspect.reader import merged_metrics
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.toy import ToyExperiment
from hpcrl.workers import model_worker
from hpcrl.workers.exchange import Exchange
from hpcrl.workers.host import Outcome, Work
from hpcrl.workers.toy import ToyHost, ToyRole

if TYPE_CHECKING:
    from hpcrl.engines.engine import Decision, Update

Place = tuple[int, int]
"""(training step, update)."""
Shape = tuple[int, int]
"""(nodes, workers per node)."""


def placed(experiment: ToyExperiment, shape: Shape) -> ToyExperiment:
    """On so many nodes and workers: actor and reference on all, the critic on the last, the reward on the first."""
    nodes, workers = shape
    cluster = dataclasses.replace(experiment.cluster, nodes=nodes, workers_per_node=workers)
    last = PlacementConfig(mesh=str(nodes * workers - 1), layout="d1")
    return dataclasses.replace(experiment, cluster=cluster, critic=last, reward=PlacementConfig(mesh="0", layout="d1"))


def place(run: RunDirectory, nonce: str, experiment: Any) -> None:
    """As `hpcrl resume` does, before anything is started."""
    version = run.versions()[-1]
    if changes(experiment_from(run.configuration()), experiment):
        version = run.add_settings(to_dict(experiment))
    if version:
        run.submit_settings(nonce, version)


def begin_on(run: RunDirectory, nonce: str, experiment: Any, fault: Callable[[str], None] = no_fault) -> Jobs:
    """Start a submission with this placement."""
    place(run, nonce, experiment)
    jobs = begin(run, nonce, fault, nodes=experiment.cluster.nodes)
    run.record_submission(nonce, {name: jobs.pid(name) for name in jobs.processes})
    return jobs


def finish_on(run: RunDirectory, experiment: Any, prefix: str = "last", timeout_s: float = 90.0) -> None:
    """Resume with this placement until the run is done."""
    for number in range(MOST_RESUMES):
        jobs = begin_on(run, f"{prefix}{number}", experiment)
        code = jobs.wait_for("master", timeout_s)
        if code == 0:
            jobs.wait(timeout_s)
            return
        jobs.kill_all()
    raise AssertionError(f"not done after {MOST_RESUMES} submissions\n{outputs(run)}")


@dataclass(frozen=True)
class Whole:
    """A finished run without its layout: arrays put together, state as any rank has it, rows, ids per step."""

    arrays: dict[str, np.ndarray]
    state: dict[str, Any]
    metrics: list[dict[str, Any]]
    ids: dict[int, tuple[str, ...]]


def whole(run: RunDirectory) -> Whole:
    experiment = experiment_from(run.configuration())
    recovery = plan_next_attempt(run, plan_for(experiment).changes)
    assert recovery.checkpoint is not None and not recovery.damage, recovery.describe()
    arrays: dict[str, np.ndarray] = {}
    state: dict[str, Any] = {}
    for role, refs in recovery.checkpoint.roles.items():
        shards = [read_shard(run.files.path(ref)) for ref in refs]
        shards.sort(key=lambda shard: shard[1].get("offset", 0))
        for name in shards[0][0]:
            arrays[f"{role}.{name}"] = np.concatenate([held[name] for held, _ in shards])
        state[role] = shards[0][1]
    steps = steps_in(line.event for line in read_history(run).lines if line.event is not None)
    # To go on elsewhere is a version of the settings too.
    rows = [{name: value for name, value in row.items() if name != "settings"} for row in merged_metrics(run)]
    return Whole(arrays, state, rows, {step: lines.ids for step, lines in steps.items()})


def assert_nearly_equal(run: RunDirectory, reference: Whole, rtol: float = 1e-9, atol: float = 1e-9) -> None:
    """The same up to rounding; ids, steps and counts exactly."""
    found = whole(run)
    assert found.ids == reference.ids
    assert found.arrays.keys() == reference.arrays.keys()
    for name, array in reference.arrays.items():
        np.testing.assert_allclose(found.arrays[name], array, rtol=rtol, atol=atol, err_msg=name)
    assert found.state.keys() == reference.state.keys()
    for role, state in reference.state.items():
        mine, theirs = dict(_numbers(found.state[role])), dict(_numbers(state))
        assert mine.keys() == theirs.keys()
        np.testing.assert_allclose(list(mine.values()), list(theirs.values()), rtol=rtol, atol=atol, err_msg=str(mine))
    assert len(found.metrics) == len(reference.metrics)
    for row, expected in zip(found.metrics, reference.metrics, strict=True):
        assert list(row) == list(expected)
        np.testing.assert_allclose(list(row.values()), list(expected.values()), rtol=rtol, atol=atol, err_msg=str(row))


def _numbers(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a shard's state but its place among the shards."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and name not in ("offset", "length"):
            yield prefix + name, value


def drifts(run: RunDirectory) -> list[dict[str, Any]]:
    """Replays that gave other bits than were recorded."""
    return [row for number in run.numbers() for row in rows_of(run.events(number)) if row["event"] == "replay_drift"]


def opened_parts(run: RunDirectory) -> dict[int, int]:
    """Step → parts of its generation."""
    events = [line.event for line in read_history(run).lines]
    return {event.step: event.calls["actor_gen"] for event in events if isinstance(event, Opened) and event.ids}


def add_up_wrongly(factor: float, _rank: int, of: str = "") -> None:
    """In a worker: sums over ranks are so many times what they are, of each role that is trained or of this one."""
    rightly, train = Exchange.sum, ToyHost.train_step
    trained = [""]

    def train_step(self: ToyHost, work: Work, role: ToyRole) -> Outcome:
        trained[0] = role.at.role
        return train(self, work, role)

    def add_up(*arguments: Any) -> np.ndarray:
        return (factor if of in ("", trained[0]) else 1.0) * rightly(*arguments)

    ToyHost.train_step = train_step  # type: ignore[method-assign]
    Exchange.sum = add_up  # type: ignore[method-assign, assignment]


def spoil_gradients(places: Mapping[Place, float], rank: int) -> None:
    """In a worker: rank 1's gradient has a number that is not finite at some (training step, update) of the actor.

    Where a replay decides nothing, the gradient stays as it is.
    """
    from hpcrl.engines.updater import Updater

    decide = Updater.decide

    def spoiled(self: Any, at: "Update", refused: bool) -> "Decision":
        if rank == 1 and self._role == "actor" and (at.step, at.index) in places:
            self._gradient[7] = places[at.step, at.index]
        return decide(self, at, refused)

    Updater.decide = spoiled  # type: ignore[method-assign]


def compute_on_b_and_a(rank: int) -> None:
    """In a worker: rank 0 has a B, rank 1 an A."""
    model_worker.hardware_of = lambda device, uuid: "BA"[rank]


def differ(named: bool, _rank: int) -> None:
    """In a worker: an operation of every block differs from call to call by rounding; torch refuses it if `named`."""
    import torch

    from hpcrl.models import layers

    exactly = layers.ACTIVATIONS["swiglu"]

    def swiglu(x: torch.Tensor) -> torch.Tensor:
        if named:
            torch.zeros(1).put_(torch.tensor([0]), torch.ones(1))
        return exactly(x) * (1.0 + 1e-6 * random.random())

    layers.ACTIVATIONS = {"swiglu": swiglu}


def attend_by_products(_rank: int) -> None:
    """As where nothing merges what texts see of their prefix and of themselves."""
    from hpcrl.models import attention

    chosen = attention.choose_kernel
    attention.choose_kernel = lambda capability, half, head_dim, _shares, **more: chosen(
        capability, half, head_dim, **more
    )


def tell_of_another_digest(run: RunDirectory, call: str, **numerics: Any) -> None:
    """Have the first line of a call say that it gave another digest, and was made over these numerics."""
    path = run.journal(0)
    lines = path.read_bytes().splitlines(keepends=True)
    number, event = next(
        (i, event)
        for i, line in enumerate(lines)
        if isinstance(event := decode_line(line), Trained) and event.call == call
    )
    lines[number] = encode_line(
        msgspec.structs.replace(
            event,
            record=event.record | {"digest": "forged"},
            numerics=msgspec.structs.replace(event.numerics, **numerics),
        )
    )
    path.write_bytes(b"".join(lines))
