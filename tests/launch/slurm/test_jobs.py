"""Texts of squeue and sacct of several versions → values; odd ones warn and never raise."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.launch.slurm.jobs import (
    ENDED,
    SACCT_FIELDS,
    SEPARATOR,
    SQUEUE_FORMAT,
    JobId,
    State,
    parse_id,
    parse_ids,
    parse_sacct,
    parse_squeue,
    parse_state,
)

TEXTS = Path(__file__).parent / "texts"
VERSIONS = ("22.05", "23.11", "24.11", "25.05")


def text(name: str) -> str:
    return (TEXTS / name).read_text()


@pytest.mark.parametrize(
    ("written", "job"),
    [
        ("123", JobId(123)),
        (" 123\n", JobId(123)),
        ("123_4", JobId(123, element=4)),
        ("123+1", JobId(123, component=1)),
        ("123;cluster", JobId(123)),
    ],
)
def test_an_id_of_one_job_is_read(written: str, job: JobId) -> None:
    assert parse_id(written) == job


@pytest.mark.parametrize(
    "written", ["", "123.batch", "123_4.0", "123+1.extern", "123_[0-3]", "x", "123_", "-1", "1_2+3"]
)
def test_what_is_no_id_of_one_job_is_refused_with_its_text(written: str) -> None:
    with pytest.raises(ValueError, match="is not the id of one job"):
        parse_id(written)


@pytest.mark.parametrize(
    ("written", "indices"),
    [
        ("9_[0-3]", [0, 1, 2, 3]),
        ("9_[0-3,7%2]", [0, 1, 2, 3, 7]),
        ("9_[5]", [5]),
        ("9_[0-10:5]", [0, 5, 10]),
        ("9_[1,3,5-6%1]", [1, 3, 5, 6]),
        ("9_[0-2,8-9,...]", [0, 1, 2, 8, 9]),
        ("9_[0-2,8,...", [0, 1, 2, 8]),
        ("9_4", [4]),
    ],
)
def test_elements_that_wait_together_are_named_one_by_one(written: str, indices: list[int]) -> None:
    assert parse_ids(written) == tuple(JobId(9, element) for element in indices)


@pytest.mark.parametrize("written", ["12", "12+0", "12_*"])
def test_a_single_id_is_a_range_of_one(written: str) -> None:
    assert parse_ids(written) == (parse_id(written.removesuffix("_*")),)


def test_a_range_of_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="0x1F"):
        parse_ids("9_[0x1F]")


@given(st.integers(1, 2**31), st.none() | st.integers(0, 4000000), st.none() | st.integers(0, 127))
def test_an_id_is_read_as_it_is_written(job: int, element: int | None, component: int | None) -> None:
    written = JobId(job, element, None if element is not None else component)
    assert parse_id(str(written)) == written


WORDS = [
    ("PENDING", State.PENDING), ("PD", State.PENDING), ("RUNNING", State.RUNNING), ("R", State.RUNNING),
    ("SUSPENDED", State.SUSPENDED), ("S", State.SUSPENDED), ("STOPPED", State.SUSPENDED), ("ST", State.SUSPENDED),
    ("COMPLETING", State.ENDING), ("CG", State.ENDING), ("STAGE_OUT", State.ENDING), ("SO", State.ENDING),
    ("COMPLETED", State.COMPLETED), ("CD", State.COMPLETED), ("FAILED", State.FAILED), ("F", State.FAILED),
    ("CANCELLED", State.CANCELLED), ("CA", State.CANCELLED), ("CANCELLED by 1000", State.CANCELLED),
    ("CANCELLED by alice", State.CANCELLED), ("CANCELLED+", State.CANCELLED), ("REVOKED", State.CANCELLED),
    ("PREEMPTED", State.PREEMPTED), ("PR", State.PREEMPTED), ("NODE_FAIL", State.NODE_FAIL), ("NF", State.NODE_FAIL),
    ("BOOT_FAIL", State.BOOT_FAIL), ("BF", State.BOOT_FAIL), ("TIMEOUT", State.TIMEOUT), ("TO", State.TIMEOUT),
    ("DEADLINE", State.TIMEOUT), ("DL", State.TIMEOUT), ("OUT_OF_MEMORY", State.OUT_OF_MEMORY),
    ("OOM", State.OUT_OF_MEMORY), ("OUT_OF_ME+", State.OUT_OF_MEMORY), ("REQUEUED", State.REQUEUED),
    ("RQ", State.REQUEUED), ("REQUEUE_FED", State.REQUEUED), ("EXPEDITING", State.REQUEUED),
    ("REQUEUE_HOLD", State.HELD), ("RH", State.HELD), ("SPECIAL_EXIT", State.HELD), ("SE", State.HELD),
    ("RESV_DEL_HOLD", State.HELD), ("CONFIGURING", State.STARTING), ("CF", State.STARTING),
    ("RESIZING", State.RUNNING), ("RS", State.RUNNING), ("SIGNALING", State.RUNNING), ("SI", State.RUNNING),
    ("LAUNCH_FAILED", State.FAILED), ("RECONFIG_FAIL", State.FAILED), ("running", State.RUNNING),
    ("RUNNING,COMPLETING", State.ENDING), ("FAILED,COMPLETING", State.ENDING), ("PREEMPTED COMPLETING", State.ENDING),
    ("PENDING REQUEUED", State.REQUEUED), ("PENDING,COMPLETING", State.REQUEUED),
    ("PENDING,REQUEUED,COMPLETING", State.REQUEUED), ("PENDING,REQUEUE_HOLD", State.HELD),
    ("PENDING,LAUNCH_FAILED,REQUEUE_HOLD", State.HELD), ("RUNNING,CONFIGURING", State.STARTING),
    ("RUNNING,CONFIGURING,POWER_UP_NODE", State.STARTING), ("RUNNING,STOPPED", State.SUSPENDED),
    ("RUNNING,SIGNALING", State.RUNNING), ("COMPLETED,UPDATE_DB", State.COMPLETED),
    ("CANCELLED by 1000,COMPLETING", State.ENDING), ("PENDING,LAUNCH_FAILED", State.PENDING),
]  # fmt: skip


@pytest.mark.parametrize(("word", "state"), WORDS)
def test_every_word_of_every_version_has_a_meaning(word: str, state: State) -> None:
    found = parse_state(word)
    assert (found.state, found.word, found.unknown) == (state, word, ())


@pytest.mark.parametrize("state", State)
def test_a_job_is_alive_or_has_ended(state: State) -> None:
    alive = {"pending", "starting", "running", "suspended", "ending", "requeued", "held", "unknown"}
    assert (state not in ENDED) == (state.value in alive)


@pytest.mark.parametrize(
    ("word", "state", "unknown"),
    [
        ("HIBERNATING", State.UNKNOWN, ("HIBERNATING",)),
        ("RUNNING,HIBERNATING", State.RUNNING, ("HIBERNATING",)),
        ("?", State.UNKNOWN, ("?",)),
        ("", State.UNKNOWN, ()),
        ("S+", State.UNKNOWN, ("S+",)),
    ],
)
def test_an_unknown_word_is_kept_and_counts_as_alive(word: str, state: State, unknown: tuple[str, ...]) -> None:
    found = parse_state(word)
    assert (found.state, found.word, found.unknown, found.is_alive) == (state, word, unknown, True)


@given(st.text())
def test_no_state_raises(word: str) -> None:
    assert isinstance(parse_state(word).state, State)


def test_squeue_of_22_05() -> None:
    jobs = parse_squeue(text("squeue-22.05.txt"))
    assert len(jobs) == len(text("squeue-22.05.txt").splitlines())
    assert all(not job.state.unknown for job in jobs)
    assert all(job.comment == "" and job.reason != "None" for job in jobs)


def test_squeue_of_23_11_names_each_waiting_element() -> None:
    jobs = {str(job.id): job for job in parse_squeue(text("squeue-23.11.txt"))}
    assert list(jobs) == ["812_3", "812_4", "812_5", "812_9", "812_2", "812_1", "812_0", "800"]
    assert jobs["812_2"].number == 815
    assert jobs["812_9"].state.state is State.PENDING
    assert jobs["812_1"].state.state is State.ENDING
    assert jobs["812_0"].state.state is State.HELD
    assert jobs["812_0"].reason == "job requeued in held state"
    assert jobs["800"].comment == 'hpcrl:n1:master mail|me, "now"'
    assert jobs["800"].partition == "cpu,gpu"


def test_squeue_of_24_11_has_components_and_odd_comments() -> None:
    jobs = {str(job.id): job for job in parse_squeue(text("squeue-24.11.txt"))}
    assert list(jobs) == ["90+0", "90+1", "95", "96", "97"]
    assert jobs["90+1"].number == 91
    assert not jobs["95"].state.is_alive
    assert jobs["96"].comment == "two"
    assert jobs["97"].comment == ""


def test_squeue_of_25_05_has_a_state_that_nobody_knows() -> None:
    jobs = parse_squeue(text("squeue-25.05.txt"))
    assert [job.state.state for job in jobs] == [State.REQUEUED, State.UNKNOWN, State.RUNNING, State.HELD]
    assert [job.state.unknown for job in jobs] == [(), ("HIBERNATING",), (), ()]


def test_sacct_of_22_05_has_incarnations_in_their_order() -> None:
    jobs = parse_sacct(text("sacct-22.05.txt"))
    states = {job.job: [each.state.state for each in incarnations] for job, incarnations in jobs.items()}
    assert states[325099] == [State.PREEMPTED, State.CANCELLED]
    assert states[325103] == [State.REQUEUED, State.CANCELLED]
    assert states[325104] == [State.NODE_FAIL, State.CANCELLED]
    assert jobs[JobId(325108)][-1].exit_code == 3
    assert jobs[JobId(325104)][0].nodes == "cpu1"


def test_sacct_of_23_11_has_the_newest_incarnation_last() -> None:
    jobs = parse_sacct(text("sacct-23.11.txt"))
    assert [str(job) for job in jobs] == ["812_0", "812_1", "812_3", "812_4", "812_5", "812_9"]
    first, last = jobs[JobId(812, 0)]
    assert (first.state.state, last.state.state, last.nodes, last.ended) == (State.PREEMPTED, State.RUNNING, "g4", "")
    assert jobs[JobId(812, 1)][-1].signal == 15
    assert jobs[JobId(812, 9)][-1].started == ""
    assert jobs[JobId(812, 9)][-1].comment == "hpcrl:n1:workers"


def test_sacct_of_24_11_leaves_steps_out() -> None:
    jobs = parse_sacct(text("sacct-24.11.txt"))
    assert [str(job) for job in jobs] == ["90+0", "90+1", "95"]
    assert [each.state.state for each in jobs[JobId(90, component=0)]] == [State.NODE_FAIL, State.REQUEUED]
    assert jobs[JobId(95)][0].folder == "/runs/odd|name"
    assert jobs[JobId(95)][0].signal == 125


def test_incarnations_are_ordered_by_submission_however_they_are_listed() -> None:
    lines = text("sacct-23.11.txt").splitlines()
    assert parse_sacct("\n".join(reversed(lines))) == parse_sacct("\n".join(lines))


def test_a_record_that_has_started_replaces_the_one_that_waited() -> None:
    def record(state: str, start: str) -> str:
        fields = ["5", "5", state, "0:0", "2024-01-01T00:00:00", start, "Unknown", "", "name", "/", ""]
        return SEPARATOR.join(fields)

    text = "\n".join([record("RUNNING", "2024-01-01T00:00:09"), record("PENDING", "Unknown")])
    assert parse_sacct(text)[JobId(5)][-1].state.state is State.RUNNING


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_yields_a_value_for_each_line(version: str) -> None:
    assert parse_squeue(text(f"squeue-{version}.txt"))
    assert parse_sacct(text(f"sacct-{version}.txt"))


@given(st.text(alphabet=st.sampled_from("0123456789_[]-,%+.:|\x1f\nRUNING (nul)")))
def test_no_text_of_squeue_or_sacct_raises(said: str) -> None:
    parse_squeue(said)
    parse_sacct(said)


def test_the_formats_ask_for_what_is_parsed() -> None:
    assert SQUEUE_FORMAT.split(SEPARATOR)[-1] == "%k"
    assert SACCT_FIELDS[-1] == "Comment"
