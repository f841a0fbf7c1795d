"""What `why` says of runs on the test cluster beside what was done to them, and how often it is right."""

import json
import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from markupsafe import escape
from support.chaos import wait_until
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.verdicts import Kind
from hpcrl.inspect.views.why import Cause, cause_of, causes_of

LEAST = 0.95
START = -1
"""In the place of an attempt: of a start that came to none, or of what a run waits for."""


@dataclass(frozen=True)
class Case:
    """`kind` is "" of an attempt of which nothing is to be said; `wrong` is what is wrong with what was said."""

    name: str
    kind: Kind | str
    who: str
    told: Cause | None
    wrong: str


@dataclass
class Told:
    """The cases of scenes that run at the same time."""

    cases: list[Case] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def see(
        self, run: SlurmRun, name: str, attempt: int, kind: Kind | str, who: str | None = "", mentions: str = ""
    ) -> Cause | None:
        """Judge what is said of an attempt. `who` None: anybody."""
        told = told_of(run.run, attempt)
        case = Case(name, kind, who or "", told, _wrong(run.run, told, kind, who, mentions))
        with self._lock:
            self.cases.append(case)
        return told

    def assert_right(self) -> None:
        """Precision over all that was said, recall over all that was to be said; prints what was missed."""
        said = [case for case in self.cases if case.told is not None]
        failures = [case for case in self.cases if case.kind]
        right = [case for case in failures if not case.wrong]
        precision, recall = len(right) / max(1, len(said)), len(right) / max(1, len(failures))
        figures = f"{len(failures)} failures on Slurm: precision {precision:.3f}, recall {recall:.3f}"
        print(figures, *self.lines(), sep="\n")
        missed = [f"{case.name}: {case.wrong}" for case in self.cases if case.wrong]
        assert min(precision, recall) >= LEAST, "\n\n".join([figures, *missed])

    def lines(self) -> list[str]:
        """A table of the cases, misses marked."""
        return [f"  {case.kind or 'nothing':<18} {case.name} {case.wrong and f'✗ {case.wrong}'}" for case in self.cases]


def told_of(run: RunDirectory, attempt: int) -> Cause | None:
    if attempt != START:
        return cause_of(run, attempt)
    return next((cause for cause in causes_of(run) if cause.attempt is None), None)


def _wrong(run: RunDirectory, told: Cause | None, kind: str, who: str | None, mentions: str) -> str:
    if told is None or not kind:
        return f"expected {kind or 'nothing'}, got {told}" if told is not None or kind else ""
    if told.kind != kind or who not in (None, told.who):
        return f"expected {kind} by {who!r}, got {told}"
    if mentions not in f"{told.said}\n{told.frames}\n{told.where}":
        return f"{mentions!r} is not in {told}"
    return _wrong_evidence(run, told)


def _wrong_evidence(run: RunDirectory, told: Cause) -> str:
    """Each piece is in the file, on the line that is named; only of a run that waits there is none."""
    if not told.evidence and told.kind != "waiting for Slurm":
        return f"no evidence for {told}"
    for it in told.evidence:
        lines = (run.root / it.file).read_text(errors="replace").splitlines()
        text = lines[it.line - 1] if it.line else "\n".join(lines)
        if it.text not in text and it.text.replace(" ", "_") not in text:
            return f"{it.file}:{it.line} does not say {it.text!r}"
    return ""


# ── scenes ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass
class Scene:
    """A run of its own, in a folder of its own, beside other scenes."""

    slurm: SlurmCluster
    told: Told
    name: str
    _run: SlurmRun | None = None

    @property
    def run(self) -> SlurmRun:
        assert self._run is not None, "nothing was submitted"
        return self._run

    def submit(self, values: dict[str, Any], *words: str) -> SlurmRun:
        self._run = SlurmRun.submit(self.slurm, values, *words)
        return self._run

    @property
    def newest(self) -> int:
        found = self.run.run.newest_attempt()
        assert found is not None
        return found

    def after(self, kind: Kind, who: str | None, act: Callable[[], object], what: str = "") -> None:
        """Disturb the newest attempt, let the run recover, and see what is said of that attempt."""
        number = self.newest
        act()
        wait_until(lambda: self.newest > number, 120, f"{self.name}: an attempt after {number}")
        self.run.wait_steps(1, timeout_s=120)
        self.see(what, number, kind, who)

    def see(self, what: str, attempt: int, kind: Kind | str, who: str | None = "", mentions: str = "") -> Cause | None:
        return self.told.see(self.run, f"{self.name}: {what}", attempt, kind, who, mentions)

    def wait_over(self, timeout_s: float = 120.0) -> None:
        """Until no job of the run is left, nor any process of one."""
        jobs = [job for name in ("master", "workers", "run") for job in self.run.jobs(name)]
        self.slurm.wait_ended(*jobs, timeout_s=timeout_s)
        ids = set(jobs)
        self.slurm.wait(
            lambda: not any(process.job_id in ids for process in self.slurm.job_processes()), "all have gone", 30
        )

    def wait_done(self) -> None:
        self.wait_over()
        assert self.run.verdict == "done", self.run.picture()

    def follow(self, told: Cause | None, *more: str, drop: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Type the command that is advised, with other words in the place of its examples."""
        assert told is not None and told.next, f"nothing is advised: {told}"
        words = [word for word in shlex.split(told.next) if word not in drop]
        done = hpcrl(self.slurm, *words[1:], *more) if words[0] == "hpcrl" else self.slurm.run([*words, *more])
        assert done.returncode == ExitCode.DONE, done.stderr
        return done

    def assert_agree(self) -> None:
        """`status` and the report say of the newest start what `why` says."""
        root = str(self.run.run.root)
        (first, *_) = self._json("inspect", root, "why")["causes"]
        assert self._json("status", root)["cause"] == first
        page = self.slurm.directory / "report.html"
        hpcrl(self.slurm, "inspect", root, "report", "--html", str(page))
        assert f"cause: {escape(first['verdict'])} (" in page.read_text()
        assert f"cause    {first['verdict']}" in hpcrl(self.slurm, "inspect", root).stdout

    def _json(self, *words: str) -> Any:
        return json.loads(hpcrl(self.slurm, *words, "--json").stdout)


def played(slurm: SlurmCluster, *scenes: Callable[[Scene], None], told: Told | None = None) -> Told:
    """All of these at the same time; raises what the first of them raises that fails."""
    told = told or Told()

    def play(scene: Callable[[Scene], None]) -> None:
        name = scene.__name__.replace("_", " ")
        folder = slurm.directory / scene.__name__
        folder.mkdir()
        scene(Scene(SlurmCluster(slurm.root, folder), told, name))

    with ThreadPoolExecutor(len(scenes)) as pool:
        playing = [pool.submit(play, scene) for scene in scenes]
    failed = [error for each in playing if isinstance(error := each.exception(), Exception)]
    if failed:
        print(*told.lines(), sep="\n")
        raise ExceptionGroup("scenes that did not come to their ends", failed)
    return told
