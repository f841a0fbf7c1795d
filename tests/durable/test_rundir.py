import os
import stat
from collections import Counter
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from support.formats import of_format
from support.kills import KillAt, Recorder, in_child
from support.miniature import claim_five, make_run

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.experiment import to_dict
from hpcrl.data.user_code import NO_CODE
from hpcrl.durable.journal import Adopted, encode_line
from hpcrl.durable.keys import read_key
from hpcrl.durable.records import FORMAT, KeyPair, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode, InternalError
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.toy import ToyExperiment

KEY = KeyPair("p" * 40, "s" * 40)


def publish_adopted(run: RunDirectory, attempt: int) -> None:
    run.files.publish(run.adopted(attempt), encode_line(Adopted((), {})), "adopted")


def test_created_run_is_read_back(root: Path) -> None:
    run = make_run(root / "run")
    record = RunDirectory.open(root / "run").read_run()
    assert (record.experiment, record.host, record.inputs) == ({"a": 1}, "m:C", {"data": "1"})
    assert read_key(run) == KEY


def test_run_is_readable_by_its_owner_only(root: Path) -> None:
    before = os.umask(0)
    try:
        run = make_run(root / "run")
        run.claim_attempt("s")
    finally:
        os.umask(before)
    for path in (run.root, *run.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_directory_that_holds_anything_does_not_become_a_run(root: Path) -> None:
    (root / "run").mkdir()
    (root / "run" / "thesis.tex").touch()
    with pytest.raises(ConfigurationError, match=r"already contains thesis\.tex\. Choose another --run-dir"):
        make_run(root / "run")
    (root / "file").touch()
    with pytest.raises(ConfigurationError, match="file cannot be made: File exists"):
        make_run(root / "file")
    (root / "empty").mkdir()
    make_run(root / "empty")


def test_run_killed_while_it_is_made_is_no_run_before_run_json_is_there(root: Path) -> None:
    recorder = Recorder()
    make_run(root / "whole", recorder)
    for number, point in enumerate(recorder.points):
        path = root / f"run{number}"
        assert in_child(lambda n=number, p=path: make_run(p, KillAt(n))) == -9
        if point == "run.published":
            RunDirectory.open(path).read_run()
        else:
            with pytest.raises(ConfigurationError, match=r"has no run\.json"):
                RunDirectory.open(path)


def test_damaged_run_json_is_noticed(root: Path) -> None:
    run = make_run(root / "run")
    whole = run.run_json.read_bytes()
    for damaged in (whole.replace(b'"a": 1', b'"a": 2'), whole[:40], b""):
        assert damaged != whole
        run.run_json.write_bytes(damaged)
        with pytest.raises(InternalError, match=r"run\.json is damaged"):
            run.read_run()


@pytest.mark.parametrize("found", [0, FORMAT - 1, FORMAT + 1])
def test_a_run_of_another_format_is_refused_by_name(root: Path, found: int) -> None:
    run = make_run(root / "run")
    of_format(run, found)
    for read in (run.read_run, lambda: RunDirectory.open(root / "run")):
        with pytest.raises(ConfigurationError) as refused:
            read()
        assert refused.value.exit_code == ExitCode.CONFIGURATION
        assert str(refused.value) == (
            f"{root / 'run'} has format {found}; this hpcrl reads and writes format {FORMAT} only. "
            "Resume it with the hpcrl that made it, or submit anew."
        )


def test_what_another_format_has_otherwise_is_not_taken_for_damage(root: Path) -> None:
    run = make_run(root / "run")
    run.run_json.write_text('{"format": 99, "config": "experiment.yaml", "digest": 12}')
    with pytest.raises(ConfigurationError, match="has format 99"):
        run.read_run()


def test_attempts_are_numbered_in_the_order_of_their_claims(root: Path) -> None:
    run = make_run(root / "run")
    assert run.newest_attempt() is None
    assert [run.claim_attempt(submission) for submission in ("a", "b", "a")] == [0, 1, 2]
    assert run.newest_attempt_of("a") == 2 and run.newest_attempt_of("b") == 1 and run.newest_attempt_of("c") is None
    claim = run.read_claim(1)
    assert claim is not None and claim.pid == os.getpid() and claim.pid_started > 0 and len(claim.boot_id) == 36


def test_numbers_go_on_beyond_three_digits(root: Path) -> None:
    run = make_run(root / "run")
    for number in (0, 7, 999, 1000):
        run.attempt(number).mkdir()
    (run.attempts / "lost+found").mkdir()
    assert run.numbers() == [0, 7, 999, 1000]
    assert run.claim_attempt("s") == 1001


def test_processes_that_race_for_attempts_get_different_numbers(root: Path) -> None:
    make_run(root / "run")
    with get_context("spawn").Pool(4) as pool:
        claimed = pool.map(claim_five, [str(root / "run")] * 8, chunksize=1)
    assert sorted(number for numbers in claimed for number in numbers) == list(range(40))
    run = RunDirectory(root / "run")
    assert Counter(run.read_claim(number) is not None for number in run.numbers()) == {True: 40}


def test_claim_killed_at_any_point_leaves_the_next_number_free(root: Path) -> None:
    run = make_run(root / "run")
    recorder = Recorder()
    RunDirectory(run.root, recorder).claim_attempt("s")
    for number in range(len(recorder.points)):
        assert in_child(lambda n=number: RunDirectory(run.root, KillAt(n)).claim_attempt("s")) == -9
    assert run.claim_attempt("s") == 1 + len(recorder.points)


def test_attempt_is_superseded_by_a_newer_one_that_has_adopted_not_by_one_that_has_not(root: Path) -> None:
    run = make_run(root / "run")
    for _ in range(3):
        run.claim_attempt("s")
    publish_adopted(run, 0)
    assert not run.superseded(0)
    publish_adopted(run, 2)
    assert run.superseded(0) and run.superseded(1) and not run.superseded(2)


def test_attempt_removes_own_and_older_names_only(root: Path) -> None:
    run = make_run(root / "run")
    for attempt in (0, 1, 2):
        run.files.publish(run.spill(3, "gen", 0, attempt), b"x", "spill")
        run.files.publish(run.checkpoint(3, attempt) / "actor.r000.safetensors", b"x", "shard")
    for attempt in (0, 1):
        assert run.remove(run.spill(3, "gen", 0, attempt), 1, "p")
        assert run.remove(run.checkpoint(3, attempt) / "actor.r000.safetensors", 1, "p")
    assert not run.remove(run.spill(3, "gen", 0, 1), 1, "p")
    for path in (run.spill(3, "gen", 0, 2), run.checkpoint(3, 2) / "actor.r000.safetensors", run.run_json):
        with pytest.raises(InternalError, match="attempt 1 must not remove"):
            run.remove(path, 1, "p")
        assert path.exists()


def test_verdict_and_submissions_are_read_back_and_damaged_ones_are_absent(root: Path) -> None:
    run = make_run(root / "run")
    run.claim_attempt("s")
    assert run.read_verdict(0) is None
    verdict = Verdict(0, "failed", int(ExitCode.INTERNAL), "worker-1: boom", "worker-1", "gen", "Traceback", 1.5)
    run.publish_verdict(0, verdict)
    run.record_submission("one", {"master": 1})
    run.record_submission("two", {"master": "12_0"})
    assert run.read_verdict(0) == verdict
    assert [submission.nonce for submission in run.submissions()] == ["one", "two"]
    run.verdict(0).write_bytes(b"{")
    run.claim(0).write_bytes(b"")
    assert run.read_verdict(0) is None and run.read_claim(0) is None and run.newest_attempt_of("s") is None


def made(root: Path) -> RunDirectory:
    values = to_dict(ToyExperiment())
    return RunDirectory.create(root / "run", experiment=values, host="m:C", key=KEY, inputs={"data.train": "1"})


def end(run: RunDirectory, submission: str, reason: str) -> None:
    """An attempt of this submission ends the run."""
    attempt = run.claim_attempt(submission)
    run.publish_verdict(attempt, Verdict(attempt, "done", 0, reason, None, None, None, 1.0))


def on_nodes(number: int) -> dict[str, Any]:
    return to_dict(replace(ToyExperiment(), cluster=ClusterConfig(nodes=number)))


def test_a_submission_runs_its_own_settings_whatever_comes_later(root: Path) -> None:
    run = made(root)
    assert experiment_from(run.configuration()) == ToyExperiment()
    run.record_submission("one", {"master": 1})
    version = run.add_settings(on_nodes(3), code=run.keep_code(NO_CODE))
    run.submit_settings("two", version)
    assert (run.versions(), run.version_of("one"), run.version_of("two")) == ([0, 1], 0, 1)
    assert run.configuration() == run.configuration("two") == on_nodes(3)
    assert experiment_from(run.configuration("one")) == ToyExperiment()
    assert [run.read_settings(version).code for version in run.versions()] == [0, 1]
    assert run.add_settings(on_nodes(4)) == 2 and run.configuration("two") == on_nodes(3)
    assert run.settings_json(2).stat().st_mode & 0o777 == 0o600


def test_of_two_that_write_the_next_settings_one_is_refused(root: Path) -> None:
    run = made(root)
    run.versions = lambda: [0]  # type: ignore[method-assign]  # as a network disk may list them
    run.add_settings(on_nodes(3))
    with pytest.raises(ConfigurationError, match="is being resumed with other settings by somebody else"):
        run.add_settings(on_nodes(4))
    assert experiment_from(run.read_settings(1).experiment).cluster.nodes == 3


@pytest.mark.parametrize("damaged", ["settings/001.json", "submission/s.settings"])
def test_damaged_settings_are_noticed_and_never_taken_for_older_ones(root: Path, damaged: str) -> None:
    run = made(root)
    run.submit_settings("s", run.add_settings(on_nodes(3)))
    path = run.root / damaged
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1).replace(b'"nodes": 3', b'"nodes": 4'))
    with pytest.raises(InternalError, match=rf"{path.name} is damaged: its content does not match its digest"):
        run.configuration("s")
    path.write_bytes(b"{")
    with pytest.raises(InternalError, match=rf"{path.name} is damaged"):
        run.configuration("s")


def test_a_run_that_was_done_under_older_settings_is_not_done_for_a_submission_of_newer_ones(root: Path) -> None:
    run = made(root)
    for nonce, version in (("old", 0), ("new", 1), ("newer", 2)):
        if version:
            run.submit_settings(nonce, run.add_settings(on_nodes(version + 1)))
    end(run, "old", "step 8 was the last")
    assert run.done("old") is not None and run.done("new") is None
    end(run, "new", "step 12 was the last")
    found = [run.done(nonce) for nonce in ("old", "new", "newer")]
    assert [verdict and verdict.reason for verdict in found] == ["step 12 was the last"] * 2 + [None]


def test_closing_an_attempt_is_seen(root: Path) -> None:
    run = make_run(root / "run")
    run.claim_attempt("s")
    assert not run.is_closed(0)
    run.close(0)
    assert run.is_closed(0)
