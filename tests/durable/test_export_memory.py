"""What an export holds at once: in a run, by the thread that saves, and offline. numpy reports each of its arrays."""

import filecmp
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos import create_run
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model

from hpcrl.durable.shards import span_state
from hpcrl.families.places import Span
from hpcrl.families.reader import parameters_of, read_config
from hpcrl.launch.export import ExportPlan
from hpcrl.placement.exporting import export_of
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.shards import cut_of, held
from hpcrl.wire.messages import Assemble, Save
from hpcrl.workers.host import Snapshot
from hpcrl.workers.writers import Writers

SIZES = {"vocab_size": 2048, "hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 2}
MIB = 1 << 20
BESIDE = 2.1
"""Parameters: two, and what they are rounded through."""
DIGEST = 8 * MIB
"""What the digest of the shards is taken through, of models of any size."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 58 MiB in float32, the largest of whose parameters has 16."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    write_model(folder / "model", **SIZES)
    return folder


@pytest.fixture(params=["fp32", "bf16"])
def experiment(request: pytest.FixtureRequest, inputs: Path) -> Any:
    actor = {"path": str(inputs / "model"), "dtype": request.param}
    path = write_config(inputs / f"{request.param}.yaml", ppo_values() | {"actor": actor})
    return load_config(path, checks=())


def snapshots(folder: Path) -> Iterator[Snapshot]:
    """What the two workers of t2 save."""
    numbers = np.random.default_rng(1)
    for rank in range(2):
        spans: list[Span] = []
        count = 0
        for part in held(read_config(folder), cut_of(parse_layout("t2"), rank)):
            spans += [span.moved(count) for span in part.spans if span.owned]
            count += part.parameter.numel
        arrays = {"master": numbers.random(count, np.float32)}
        yield Snapshot(arrays, {"spans": span_state(spans), "updates": 1, "algorithm": {}})


def most_beside(work: Callable[[], Any]) -> int:
    """Bytes of arrays that were there at the same time, beside those from before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_export_holds_no_more_than_two_parameters_beside_the_model(
    experiment: Any, inputs: Path, tmp_path: Path
) -> None:
    run = create_run(tmp_path / "run", experiment)
    raised: list[tuple[str, Exception]] = []
    saved = list(snapshots(inputs / "model"))

    def behind_the_work(write: Callable[[Writers], None]) -> int:
        def work() -> None:
            writers = Writers(run, experiment, 1, 0, lambda _: None, lambda *error: raised.append(error))
            write(writers)
            writers.close()

        return most_beside(work)

    largest = 4 * max(parameter.numel for parameter in parameters_of(read_config(inputs / "model")))
    assert largest == 16 * MIB
    save, order = Save(7, "actor", checkpoint=False, export=True), Assemble(7, "actor")
    for index, snapshot in enumerate(saved):
        assert behind_the_work(partial(Writers.save, save=save, index=index, snapshot=snapshot)) < MIB
    made = behind_the_work(partial(Writers.assemble, order=order, index=0, of=1))
    assert not raised
    assert largest < made < BESIDE * largest, made / largest
    shards = run.export_shards("actor", 7, 1)
    plan = ExportPlan(
        run=run,
        role="actor",
        step=7,
        export=export_of(experiment, "actor"),
        shards=tuple(sorted(shards.iterdir())),
        digest=None,
        folder=tmp_path / "out",
        inside=False,
    )
    offline = most_beside(lambda: plan.write(lambda _: None))
    assert largest < offline < BESIDE * largest + DIGEST, offline / largest
    assert filecmp.cmp(shards.parent / "model.safetensors", tmp_path / "out" / "model.safetensors", shallow=False)
