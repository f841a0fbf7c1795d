"""The archive of a step of this process, made as an agent's housekeeper makes it, of spills that are read for it."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrl.agent.archive import Archive
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.archives import write_archive
from hpcrl.durable.journal import Opened
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import read_groups, write_groups
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.shown import kept_samples


class Rows:
    """A data set of which there are only rows."""

    def __init__(self, batch: SequenceSample) -> None:
        self._batch = batch

    def rows(self, samples: Sequence[str]) -> SequenceSample:
        return self._batch.select(samples)

    def text(self, sample: str) -> Mapping[str, Any]:
        return {"prompt": f"the prompt of {sample}, as the data set has it"}


class Archiver:
    """Of one run directory; a step has a number only once."""

    def __init__(self, experiment: ExperimentConfig, root: Path, batch: SequenceSample) -> None:
        key = KeyPair("p" * 40, "s" * 40)
        self._run = RunDirectory.create(root, experiment=to_dict(experiment), host="", key=key, inputs={})
        self._attempt = self._run.claim_attempt("submission")
        self._experiment = experiment
        self._archive = Archive(experiment, {"train": Rows(batch)})
        self._step = 0

    def keep(self, made: Mapping[str, SequenceSample]) -> dict[str, float]:
        """What the calls of a step have made; the seconds of its archive, the bytes of that, and its rows."""
        self._step += 1
        run, step, ids = self._run, self._step, next(iter(made.values())).ids
        spills = {call: run.spill(step, call, 0, self._attempt) for call in made}
        for call, sample in made.items():
            write_groups(run.files, spills[call], {call: sample}, "spill")
        lines = StepLines(Opened(step, tuple(ids), 0, {}, {}, 0, (), step, checkpoint=False, export=False))
        begun = time.perf_counter()
        read = {(call, 0): read_groups(path)[call] for call, path in spills.items()}
        kept = self._archive.of(kept_samples(self._experiment, lines), read, [])
        file = write_archive(run, self._attempt, self._archive.about(step), kept)
        seconds = time.perf_counter() - begun
        return {"archive_s": seconds, "archive_bytes": file.size, "archive_rows": len(kept["train"].ids)}
