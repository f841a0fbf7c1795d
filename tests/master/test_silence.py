"""A script that asks for nothing and waits for nothing is told of, with the line where it is, and may go on."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import sleeping_script
from support.chaos import begin, create_run, outputs, patient_experiment
from support.cluster import wait_until_gone

from hpcrl.config.control import Frequency
from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import decode
from hpcrl.events import CallStalled, CallWentOn
from hpcrl.inspect.views.why import cause_of

LIMIT_S = 0.2


def told(run: RunDirectory) -> list[CallStalled | CallWentOn]:
    found = (
        decode(line).event for line in run.events(0).read_bytes().splitlines(keepends=True) if line.endswith(b"\n")
    )
    return [event for event in found if isinstance(event, CallStalled | CallWentOn)]


def test_a_script_that_is_silent_is_stalled_until_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = tmp_path / "awaited"
    monkeypatch.setenv(sleeping_script.FILE, str(awaited))
    made = patient_experiment(steps=3)
    control = replace(made.control, script_timeout_s=LIMIT_S, evaluate=Frequency())
    run = create_run(
        tmp_path / "run", replace(made, algorithm=f"{sleeping_script.__file__}:ALGORITHM", control=control)
    )
    jobs = begin(run, "first")
    deadline = time.monotonic() + 60
    while not (run.events(0).exists() and len(told(run)) >= 2) and time.monotonic() < deadline:
        time.sleep(0.02)
    cause = cause_of(run, 0)
    awaited.touch()
    assert jobs.wait_for("master", 60) == 0, outputs(run)
    jobs.kill_all()
    wait_until_gone(run.root)
    first, second, *_, last = told(run)
    assert isinstance(first, CallStalled) and isinstance(second, CallStalled)
    assert (first.step, first.call, first.culprits) == (2, "script", (2,))
    assert first.seconds >= LIMIT_S and second.seconds >= 2 * LIMIT_S
    assert "sleeping_script.py" in first.stack and any("in asleep" in line for line in first.stack.splitlines())
    assert "controller" not in first.stack and "threading" not in first.stack
    assert isinstance(last, CallWentOn) and last.step == 2
    assert cause is not None and (cause.verdict, cause.who) == ("hang in script of step 2", "worker-2")
    assert "asks for nothing" in cause.said and "in asleep" in cause.frames
