"""Where everything in a run directory lies, and what its names say. Pure: touches no disk."""

import re
from pathlib import Path

from hpcrl.errors import ConfigurationError, InternalError

_ATTEMPT = re.compile(r"\d{3,}")
# A temporary name is the final one behind a dot; what follows the number may be anything, a host's name for instance.
_NUMBERED = re.compile(r"\.?[\w-]+(?:\.dp\d+)?\.a(?P<attempt>\d{3,})(?:\.|$)")
# Slurm reads % and \\ in the names of outputs as its own, and ends a line of options at a line break.
_UNUSABLE = re.compile(r"[%\\\x00-\x1f\x7f\udc80-\udcff]")
_STEP = re.compile(r"\.?step-(?P<step>\d{8,})(?:\.|$)")

STEPS_OF_A_FOLDER = 1000
"""Whose archives lie in one."""


class RunPaths:
    """The paths of one run. Attempts and steps are numbers, roles and calls names, a submission is its nonce."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def settings(self) -> Path:
        return self.root / "settings"

    @property
    def key_json(self) -> Path:
        return self.root / "key.json"

    @property
    def submission(self) -> Path:
        return self.root / "submission"

    @property
    def control(self) -> Path:
        return self.root / "control"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def spills(self) -> Path:
        return self.root / "spills"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def exports(self) -> Path:
        return self.root / "export"

    @property
    def exporting(self) -> Path:
        """What an `hpcrl export` that is under way needs: a folder each, which goes with it."""
        return self.root / "exporting"

    def mirror(self, kind: str) -> Path:
        """Files of another program, by its name; the log beside them is of the process that does it beside a master."""
        return self.root / "mirror" / kind

    @property
    def samples(self) -> Path:
        return self.root / "samples"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def inputs(self) -> Path:
        return self.root / "inputs"

    @property
    def indexes(self) -> Path:
        return self.root / "index"

    def inputs_json(self, number: int) -> Path:
        return self.inputs / f"{number:03d}.json"

    def place_in_order(self, number: int) -> Path:
        """Made exclusively by whoever records what it started: the order of submissions, whatever clocks say."""
        return self.submission / f"{number:03d}"

    def submission_json(self, nonce: str) -> Path:
        return self.submission / f"{nonce}.json"

    def successor_json(self, nonce: str, job: str) -> Path:
        return self.submission / f"{nonce}.{job}.json"

    def settings_json(self, version: int) -> Path:
        """Of version 1 and later; version 0 is `run_json`."""
        return self.settings / f"{version:03d}.json"

    def settings_of(self, nonce: str) -> Path:
        return self.submission / f"{nonce}.settings"

    def accepted(self, nonce: str) -> Path:
        return self.submission / f"{nonce}.accepted"

    def code_copy(self, number: int) -> Path:
        return self.code / f"{number:03d}"

    def early_verdict(self, nonce: str, attempt: int | None) -> Path:
        """Of a start that came to no attempt; `attempt` is the newest one that its submission had claimed before."""
        return self.submission / (f"{nonce}.verdict" if attempt is None else f"{nonce}.a{attempt:03d}.verdict")

    def submitit_folder(self, nonce: str) -> Path:
        return self.submission / nonce

    def command(self, name: str) -> Path:
        return self.control / f"{name}.json"

    def answer(self, name: str) -> Path:
        return self.control / f"{name}.answer"

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number:03d}"

    def claim(self, attempt: int) -> Path:
        return self.attempt(attempt) / "claim.json"

    def plan(self, attempt: int) -> Path:
        return self.attempt(attempt) / "plan.json"

    def adopted(self, attempt: int) -> Path:
        return self.attempt(attempt) / "adopted.json"

    def journal(self, attempt: int) -> Path:
        return self.attempt(attempt) / "journal.jsonl"

    def metrics(self, attempt: int) -> Path:
        return self.attempt(attempt) / "metrics.jsonl"

    def costs(self, attempt: int) -> Path:
        return self.attempt(attempt) / "costs.jsonl"

    def live(self, attempt: int) -> Path:
        """What its master has under way. Alone among all files it is replaced again and again, and not flushed."""
        return self.attempt(attempt) / "live.json"

    def events(self, attempt: int) -> Path:
        return self.attempt(attempt) / "events.jsonl"

    def logs(self, attempt: int) -> Path:
        return self.attempt(attempt) / "logs"

    def worker_log(self, attempt: int, name: str) -> Path:
        return self.logs(attempt) / f"{name}.jsonl"

    def trace(self, attempt: int, step: int, call: str, part: int, worker: int) -> Path:
        name = f"step-{step:08d}.{call}.dp{part:02d}.worker-{worker}.json.gz"
        return self.attempt(attempt) / "traces" / name

    def resources(self, attempt: int) -> Path:
        """A file per node."""
        return self.attempt(attempt) / "resources"

    def node_resources(self, attempt: int, node: int) -> Path:
        return self.resources(attempt) / f"node-{node}.jsonl"

    def stacks(self, attempt: int, name: str) -> Path:
        return self.logs(attempt) / f"{name}.stacks"

    def rendezvous(self, attempt: int) -> Path:
        return self.attempt(attempt) / "rendezvous"

    def closed(self, attempt: int) -> Path:
        return self.attempt(attempt) / "CLOSED"

    def verdict(self, attempt: int) -> Path:
        return self.attempt(attempt) / "verdict.json"

    def step_spills(self, step: int) -> Path:
        return self.spills / f"step-{step:08d}"

    def spill(self, step: int, call: str, part: int, attempt: int) -> Path:
        return self.step_spills(step) / f"{call}.dp{part:02d}.a{attempt:03d}.h5"

    def compacted(self, step: int, attempt: int) -> Path:
        return self.spills / f"step-{step:08d}.a{attempt:03d}.h5"

    def archive(self, step: int, attempt: int) -> Path:
        """In a folder for every thousand steps: an archive is never removed."""
        return self.samples / f"{step // STEPS_OF_A_FOLDER:05d}" / f"step-{step:08d}.a{attempt:03d}.h5"

    def checkpoint(self, step: int, attempt: int) -> Path:
        return self.checkpoints / f"step-{step:08d}.a{attempt:03d}"

    def manifest(self, step: int, attempt: int) -> Path:
        return self.checkpoint(step, attempt) / "MANIFEST.json"

    def export(self, role: str, step: int) -> Path:
        return self.exports / role / f"step-{step:08d}"

    def export_parts(self, role: str, step: int, attempt: int) -> Path:
        """Where an attempt puts together what becomes an export: a temporary folder, of which a later one knows whose
        litter it is."""
        return self.exports / role / f".step-{step:08d}.a{attempt:03d}.parts.tmp"

    def export_shards(self, role: str, step: int, attempt: int) -> Path:
        """The shards that an export is assembled from; they go before it is published."""
        return self.export_parts(role, step, attempt) / "shards"

    def renumbered(self, name: str, attempt: int) -> Path:
        """Where `attempt` keeps what another attempt calls `name` (a spill, or anything within a checkpoint)."""
        changed, count = re.subn(r"\.a\d{3,}(?=[./])", f".a{attempt:03d}", name, count=1)
        if not count:
            raise InternalError(f"{name} carries no attempt's number, so that no other attempt can take it over")
        return self.root / changed


def attempt_number(name: str) -> int | None:
    """The number that a directory in `attempts/` is named by."""
    return int(name) if _ATTEMPT.fullmatch(name) else None


def version_number(name: str) -> int | None:
    """The version that a file in `settings/` is named by."""
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "json" and _ATTEMPT.fullmatch(stem) else None


def attempt_of(name: str) -> int | None:
    """The attempt whose number a file or directory name carries; temporary names carry that of the final one."""
    found = _NUMBERED.match(name)
    return None if found is None else int(found["attempt"])


def step_of(name: str) -> int | None:
    """The step that the name of a spill, a compacted spill, a checkpoint or an export carries."""
    found = _STEP.match(name)
    return None if found is None else int(found["step"])


def refuse_unusable(root: Path) -> None:
    """No run's path holds what Slurm would read as something else, not even where the run begins without Slurm.

    Raises ConfigurationError, naming the first such character.
    """
    found = _UNUSABLE.search(str(root))
    if found is not None:
        character = found[0]
        kind = "a byte that is not UTF-8" if character >= "\udc80" else ascii(character)
        raise ConfigurationError(
            [f"the path of a run cannot have {kind} in it, as {str(root)!a} has: Slurm would read another path."],
            "Choose another --run-dir.",
        )


def is_document(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")
