"""What a run reads may change under it: every attempt compares, says what differs, and goes no further.

With the torch host: the toy host reads no files.
"""

import os
import shutil
import signal
from pathlib import Path

from support.chaos import outputs, wait_until, workers_of
from support.cluster import alive_of
from support.judged_run import hpcrl, submitted, written

from hpcrl.durable.history import accepted_inputs, read_history
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode


def begun(folder: Path) -> RunDirectory:
    """A run after two steps, whose reward waits."""
    written(folder)
    shutil.copytree(folder / "model", folder / "reference")
    return submitted(folder, "--reference.path", "reference")


def verdict_of_the_next_attempt(run: RunDirectory) -> Verdict:
    """What a run says that lost its worker."""
    os.kill(workers_of(run)[0], signal.SIGKILL)
    verdict = wait_until(lambda: run.verdict_of(run.submissions()[-1].nonce), 120, "the verdict")
    (run.root.parent / "hold").unlink()
    wait_until(lambda: alive_of(run.root) == [], 60, "the end of all processes")
    return verdict


def turn_a_byte(path: Path, at: int) -> None:
    """Size and times stay, but for the time of the change itself."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_another_reference_model_ends_the_next_attempt_and_resume_until_it_is_accepted(tmp_path: Path) -> None:
    run = begun(tmp_path)
    weights = tmp_path / "reference/model.safetensors"
    turn_a_byte(weights, -6)
    verdict = verdict_of_the_next_attempt(run)
    assert len(run.numbers()) == 2, outputs(run)
    assert verdict.exit_code == ExitCode.DATA and verdict.attempt == 1
    said = f"reference.path: {weights} has other content"
    accept = f"Put it back, or accept it: hpcrl resume {run.root} --accept-changed reference.path"
    assert said in verdict.reason and accept in verdict.reason

    files = set(run.root.rglob("*"))
    for words in (["--dry-run"], []):
        refused = hpcrl(tmp_path, "resume", "run", *words)
        assert refused.returncode == ExitCode.DATA, refused.stdout
        assert said in refused.stderr and accept in refused.stderr
    misspelt = hpcrl(tmp_path, "resume", "run", "--dry-run", "--accept-changed", "reference")
    assert misspelt.returncode == ExitCode.CONFIGURATION and "reference.path" in misspelt.stderr
    dry = hpcrl(tmp_path, "resume", "run", "--dry-run", "--accept-changed", "reference.path")
    assert dry.returncode == ExitCode.DONE, dry.stderr
    assert set(run.root.rglob("*")) == files

    done = hpcrl(tmp_path, "resume", "run", "--accept-changed", "reference.path")
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    assert list(accepted_inputs(read_history(run))) == ["reference.path"]


def test_a_data_set_that_is_written_anew_ends_the_next_attempt_by_name(tmp_path: Path) -> None:
    run = begun(tmp_path)
    rows = tmp_path / "rows.jsonl"
    os.utime(tmp_path / "reference/model.safetensors")  # whoever only touches a file has not changed it
    rows.write_text(rows.read_text().replace("# 1", "# 2") + "\n")
    verdict = verdict_of_the_next_attempt(run)
    assert verdict.exit_code == ExitCode.DATA, verdict.reason
    assert f"data.train: {rows} has {rows.stat().st_size} bytes and had {rows.stat().st_size - 1}" in verdict.reason
