"""Files of Weights & Biases, offline: nothing is sent to anybody, until a user runs `wandb sync`.

A run's id is made from the run, so that all that mirrors wrote of it becomes one there. Each process writes a folder of
its own. W&B has another process write the file, in records with checksums; what got as far as that is read back.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.archives import Sample
from hpcrl.inspect.mirrors.mirror import MirroredStep
from hpcrl.inspect.mirrors.wandb_files import records
from hpcrl.inspect.shown_settings import shown_settings

STEP = "step"
"""The axis of all curves."""
COLUMNS = ("data", "row", "prompt", "response", "reward", "length", "ended")


class Wandb:
    """Fulfils `Mirror`."""

    shows_samples = True

    def __init__(self, run: RunDirectory, folder: Path) -> None:
        for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):  # it would use folders of the user's home
            os.environ[f"WANDB_{name}"] = str(folder)
        os.environ.pop("WANDB_SERVICE", None)  # another program's, which may still hold a run that was killed
        import wandb

        self._wandb = wandb
        self._run_directory, self._folder = run, folder
        self._run: Any = None
        self.how_to_look = f"wandb sync {folder}/wandb/offline-run-*   (sends it to your account)"
        self.steps = {step for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")) for step in _steps_in(path)}

    def write(self, step: MirroredStep) -> None:
        if self._run is None:
            self._run = self._begun()
        values: dict[str, Any] = {STEP: step.step, **{k: v for k, v in step.values.items() if math.isfinite(v)}}
        if step.samples:
            values["samples"] = self._wandb.Table(columns=list(COLUMNS), data=[_row(it) for it in step.samples])
        self._run.log(values, step=step.step, commit=True)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._wandb.teardown()

    def _begun(self) -> Any:
        run = self._run_directory
        quiet = self._wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
        )
        begun = self._wandb.init(
            mode="offline",
            project="hpcrl",
            id=hashlib.blake2b(run.run_json.read_bytes(), digest_size=8).hexdigest(),
            name=run.root.name,
            dir=self._folder,
            config=shown_settings(run),
            settings=quiet,
        )
        begun.define_metric(STEP)
        begun.define_metric("*", step_metric=STEP)
        return begun


MIRROR = Wandb


def _row(sample: Sample) -> list[Any]:
    figures, texts = sample.figures, sample.texts
    said = texts.get("prompt", ""), texts.get("response", "")
    return [sample.data_set, sample.row, *said, figures.get("reward"), figures.get("length"), sample.ended]


def _steps_in(path: Path) -> Iterator[int]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    for data in records(path):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = ((item.key or ".".join(item.nested_key), item.value_json) for item in record.history.item)
            yield from (int(float(value)) for name, value in items if name == STEP)
