"""What a run reads may change under it: every attempt compares, says what differs, and goes no further.

With the torch host: the toy host reads no files.
"""

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import outputs, wait_until, workers_of
from support.cluster import alive_of
from support.hosts import write_task
from support.judged_run import hpcrl, submitted, written
from support.tiny_ppo import tiny_ppo

from hpcrl.config.experiment import to_dict
from hpcrl.data.contents import Contents
from hpcrl.data.datasets import open_datasets
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.inputs import fingerprints, input_files
from hpcrl.data.order import sample_ids
from hpcrl.data.user_code import NO_CODE, UserCode, code_places, collect_code
from hpcrl.durable.history import accepted_inputs, read_history
from hpcrl.durable.journal import Adopted, Opened, encode_line, open_journal
from hpcrl.durable.records import KeyPair, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import DataError, ExitCode, UserCodeError
from hpcrl.inspect.archives import Archives
from hpcrl.inspect.reader import merged_metrics
from hpcrl.inspect.views.why import newest_cause
from hpcrl.launch.next_code import next_code
from hpcrl.launch.next_inputs import next_inputs
from hpcrl.launch.submit import _inputs_to_come
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.recipes.ppo import PPOExperiment


def begun(folder: Path) -> RunDirectory:
    """A run after two steps, whose reward waits."""
    written(folder)
    shutil.copytree(folder / "model", folder / "reference")
    return submitted(folder, "--reference.path", "reference", "--ppo.kl.mode", "reward")


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


@pytest.mark.slow
def test_a_data_set_that_is_written_anew_ends_the_next_attempt_and_is_accepted(tmp_path: Path) -> None:
    run = begun(tmp_path)
    rows = tmp_path / "rows.jsonl"
    wait_until(lambda: Archives(run).archived >= {row["step"] for row in merged_metrics(run)}, 60, "all archives")
    os.utime(tmp_path / "reference/model.safetensors")  # whoever only touches a file has not changed it
    rows.write_text(rows.read_text().replace("# 1", "# 2") + "\n")
    verdict = verdict_of_the_next_attempt(run)
    assert verdict.exit_code == ExitCode.DATA, verdict.reason
    assert f"data.train: {rows} has {rows.stat().st_size} bytes and had {rows.stat().st_size - 1}" in verdict.reason
    cause = newest_cause(run)
    assert cause is not None and (cause.kind, cause.next.split()[-1]) == ("data", "data.train")
    done = hpcrl(tmp_path, *cause.next.split()[1:])
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr


def created(
    root: Path, experiment: PPOExperiment, inputs: Mapping[str, str] | None = None, code: UserCode = NO_CODE
) -> RunDirectory:
    inputs = inputs or fingerprints(input_files(experiment, algorithm_of(experiment).rows), Contents())
    key = KeyPair("", "")
    return RunDirectory.create(root, experiment=to_dict(experiment), host="", key=key, inputs=inputs, code=code)


def test_each_file_of_a_folder_is_compared_where_several_have_one_name(tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    one, two = (tmp_path / "task/set" / name for name in ("a/x.jsonl", "b/x.jsonl"))
    for file in (one, two):
        file.parent.mkdir(parents=True)
        shutil.copy(tmp_path / "task/rows.jsonl", file)
    experiment = tiny_ppo(tmp_path / "task")
    experiment = replace(experiment, data=replace(experiment.data, train=str(tmp_path / "task/set")))
    run = created(tmp_path / "run", experiment)
    assert next_inputs(run, experiment, (), ())[0] == {}
    for file in (one, two):
        turn_a_byte(file, 2)
        with pytest.raises(DataError, match=f"^data.train: {file} has other content"):
            next_inputs(run, experiment, (), ())
        turn_a_byte(file, 2)
    turned = {key: "/".join(reversed(re.split("(?<!/)/(?!/)", text))) for key, text in run.read_run().inputs.items()}
    other = created(tmp_path / "other", experiment, turned)
    with pytest.raises(DataError, match=r"data\.train: its files are read in another order"):
        next_inputs(other, experiment, (), ())


def opened(run: RunDirectory, experiment: PPOExperiment) -> Sequence[str]:
    """All ids of the training rows; a step with the first and the last of them is open."""
    ids = open_datasets(experiment, algorithm_of(experiment).rows, ScratchIndexes())["train"].ids
    number, adopted = run.claim_attempt("s0"), Adopted((), {})
    run.files.publish(run.adopted(number), encode_line(adopted), "adopted")
    line = Opened(1, sample_ids((ids[0], ids[-1]), 0), 2, {}, {}, 0, (), 0, False, False)
    with contextlib.closing(open_journal(run.files, run.journal(number))) as journal:
        journal.append([adopted, line])
    return ids


def test_rows_that_an_open_step_needs_cannot_be_accepted_away(tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    experiment, file = tiny_ppo(tmp_path / "task"), tmp_path / "task/rows.jsonl"
    run = created(tmp_path / "open", experiment)
    ids = opened(run, experiment)
    lines = file.read_text().splitlines(True)
    file.write_text("".join(lines[:-1]))
    with pytest.raises(DataError, match=f"row {ids[-1]} of step 1, which is open .* is gone from the train data"):
        next_inputs(run, experiment, ("data.train",), ())
    file.write_text("".join([lines[0], *lines[:-2], lines[-1]]))
    accepted, _ = next_inputs(run, experiment, ("data.train",), ())
    assert list(accepted) == ["data.train"]


def test_new_code_of_data_row_must_make_the_rows_that_an_open_step_needs(tmp_path: Path) -> None:
    write_task(tmp_path / "task", rows=10)
    code, plain = tmp_path / "rows.py", tiny_ppo(tmp_path / "task")
    makes = "def make(row):\n    return {{**row, 'id': f\"{}{{row['prompt']}}\"}}\n"
    code.write_text(makes.format("a"))
    experiment = replace(plain, data=replace(plain.data, row=f"{code}:make", evaluate=None))
    run = created(tmp_path / "open", experiment, code=collect_code(code_places(experiment), ()))
    recorded = experiment_from(run.configuration())
    ids = opened(run, recorded)
    assert ids[0].startswith("a")
    code.write_text(makes.format("b"))
    accepted, (kept, lost) = ("data.row",), (next_code(run, recorded, names) for names in ((), ("data.row",)))
    assert [f"{code} changed" in notice for notice in kept.notices()] == [True]
    assert _inputs_to_come(run, recorded, kept, ())[0] == {}
    with pytest.raises(DataError, match=rf"^row {re.escape(ids[0])} of step 1, .*, as data\.row makes them now\."):
        _inputs_to_come(run, recorded, lost, accepted)
    code.write_text(makes.format("a").replace("row,", "row, 'more': 1,"))
    assert _inputs_to_come(run, recorded, next_code(run, recorded, accepted), accepted)[0] == {}
    code.write_text("def make(row):\n    return None\n")
    with pytest.raises(UserCodeError, match=r"data\.row returns NoneType"):
        _inputs_to_come(run, recorded, next_code(run, recorded, accepted), accepted)
