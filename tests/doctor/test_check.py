"""What follows from facts: those that a doctor recorded on a real Slurm, and those that other sites would give."""

from dataclasses import replace as with_fields
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcrl.doctor.check import judge
from hpcrl.doctor.findings import Finding, Verdict, exit_status
from hpcrl.doctor.measurements import Facts, GpuFacts, JobFacts, Race, Replaced, Seen

TEXTS = Path(__file__).parent / "texts"
RECORDED = msgspec.json.decode((TEXTS / "doctor-facts.json").read_bytes(), type=Facts)


@pytest.fixture
def facts() -> Facts:
    """As recorded, but on two machines."""
    nodes = tuple(replace(node, boot_id=node.name) for node in RECORDED.nodes)
    return replace(RECORDED, nodes=nodes)


def of_site(facts: Facts, **fields: object) -> Facts:
    return replace(facts, slurm=replace(facts.slurm, site=with_fields(facts.slurm.site, **fields)))


def of_partition(facts: Facts, **fields: object) -> Facts:
    """Of the only partition that there is."""
    return of_site(facts, partitions={"gpu": with_fields(facts.slurm.site.partitions["gpu"], **fields)})


def of_pairs(facts: Facts, **fields: object) -> Facts:
    nodes = (replace(node, pairs=tuple(replace(pair, **fields) for pair in node.pairs)) for node in facts.nodes)
    return replace(facts, nodes=tuple(nodes))


def of_disk(facts: Facts, **fields: object) -> Facts:
    return replace(facts, disk=replace(facts.disk, **fields))


def of_second(facts: Facts, **fields: object) -> Facts:
    first, second = facts.nodes
    return replace(facts, nodes=(first, replace(second, **fields)))


def found(facts: Facts, what: str) -> Finding:
    (finding,) = [each for each in judge(facts) if each.what == what]
    return finding


def judged(facts: Facts, what: str) -> tuple[str, str]:
    """Verdict and what follows."""
    finding = found(facts, what)
    return str(finding.verdict), finding.follows


def test_a_cluster_as_it_should_be_has_exit_status_0(facts):
    findings = judge(facts)
    assert {finding.verdict for finding in findings} == {Verdict.OK}
    assert exit_status(findings) == 0


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [((), 0), (("ok", "note"), 0), (("warning", "note"), 1), (("problem", "ok", "warning"), 2)],
)
def test_the_exit_status_is_that_of_the_worst(verdicts, status):
    assert exit_status([Finding("", "", "", Verdict(name)) for name in verdicts]) == status


def test_every_finding_that_is_not_fine_says_what_follows(facts):
    worse = of_pairs(of_disk(facts, failed={"link": "no"}, link_exclusive=False), connect_s=None, clock_ahead_s=99.0)
    for each in (RECORDED, worse, replace(facts, slurm=None)):
        assert [finding for finding in judge(each) if finding.verdict is not Verdict.OK and not finding.follows] == []


def test_nodes_on_one_machine_prove_nothing_about_two(facts):
    assert judged(RECORDED, "machines")[0] == "note"


# Slurm


def test_without_slurm_runs_stay_on_this_machine(facts):
    alone = replace(facts, slurm=None, no_slurm="there is no scontrol in PATH", job=None, nodes=facts.nodes[:1])
    assert judged(alone, "Slurm") == ("note", "runs are started on this machine (cluster.type local)")


def test_a_silent_slurm_is_a_warning(facts):
    silent = replace(facts, slurm=None, slurm_silent=True, no_slurm="slurmctld does not answer", job=None)
    assert judged(silent, "Slurm")[0] == "warning"


def test_a_compute_node_need_not_have_scontrol(facts):
    assert "on a login node" in judged(replace(facts, slurm=None, no_slurm="no scontrol"), "Slurm")[1]


def test_without_accounting_the_journal_tells_how_jobs_ended(facts):
    verdict, follows = judged(of_site(facts, accounting=False), "accounting")
    assert verdict == "note" and "journal" in follows and "3600 s" in follows


def test_accounting_that_does_not_answer_is_a_warning(facts):
    silent = replace(facts, slurm=replace(facts.slurm, sacct=False, sacct_error="slurmdbd does not answer"))
    assert judged(silent, "accounting")[0] == "warning"


@pytest.mark.parametrize(
    ("mode", "grace_s", "kill_wait_s", "verdict", "advice"),
    [
        ("off", 0, 5, "ok", "scancel only"),
        ("requeue", 0, 30, "ok", "may be up to 25"),
        ("requeue", 0, 5, "note", "at most 1 "),
        ("requeue", 0, 20, "note", "at most 15 "),
        ("cancel", 0, 20, "note", "at most 15 "),
        ("requeue", 120, 30, "ok", "may be up to 145"),
    ],
)
def test_the_grace_of_a_drain_fits_into_what_slurm_gives(facts, mode, grace_s, kill_wait_s, verdict, advice):
    site = of_site(of_partition(facts, preempt_mode=mode, grace_s=grace_s), kill_wait_s=kill_wait_s)
    assert judged(site, "KillWait")[0] == verdict
    assert advice in found(site, "KillWait").follows


def test_of_preemption_by_qos_the_partitions_grace_says_nothing(facts):
    site = of_site(of_partition(facts, grace_s=600), preempt_type="qos", preempt_mode="requeue", kill_wait_s=20)
    assert "at most 15 " in found(site, "KillWait").follows
    assert "sacctmgr show qos" in found(site, "preemption on gpu").follows


@pytest.mark.parametrize(
    ("mode", "grace_s", "value", "advice"),
    [
        ("requeue", 0, "requeue, GraceTime 0 s", "at most the calls in flight are lost"),
        ("requeue", 60, "requeue, GraceTime 60 s", "to finish until SIGKILL"),
        ("cancel", 0, "cancel, GraceTime 0 s", "submits a successor"),
        ("suspend", 0, "suspend", "cluster.lost_after_s"),
    ],
)
def test_what_a_preemption_loses_is_said(facts, mode, grace_s, value, advice):
    finding = found(of_partition(facts, preempt_mode=mode, grace_s=grace_s), "preemption on gpu")
    assert (finding.verdict, finding.value) == (Verdict.NOTE, value)
    assert advice in finding.follows


def test_partitions_that_preempt_alike_have_one_line(facts):
    every = replace(facts, partition=None)
    lines = [finding.what for finding in judge(every) if finding.what.startswith("preemption")]
    assert lines == [
        "preemption on cpu, gpu, high",
        "preemption on low",
        "preemption on lowgrace",
        "preemption on cancels",
    ]


def test_where_requeueing_is_forbidden_there_are_successors(facts):
    verdict, follows = judged(of_site(facts, requeue_allowed=False), "requeue")
    assert verdict == "note" and "successor" in follows


def test_a_long_hold_wants_a_longer_wait_for_lost_nodes(facts):
    assert judged(of_site(facts, requeue_hold_s=120.0), "hold of a requeued job")[0] == "ok"
    verdict, follows = judged(of_site(facts, requeue_hold_s=600.0), "hold of a requeued job")
    assert verdict == "warning" and "cluster.replace_timeout_s to at least 1800" in follows


def test_limits_name_the_topology_that_keeps_within_them(facts):
    assert "at most 1001" in found(facts, "MaxArraySize").follows
    assert "colocated" in judged(of_site(facts, disable_hetjob_steps=True), "steps of het jobs")[1]
    few = replace(facts, slurm=replace(facts.slurm, max_job_count=200))
    assert judged(few, "MaxJobCount")[0] == "note"


def test_a_partition_that_does_not_exist_is_a_problem_and_the_others_are_named(facts):
    verdict, follows = judged(replace(facts, partition="gone"), "partition gone")
    assert verdict == "problem" and "cpu, gpu, low" in follows


def test_a_partition_with_a_short_limit_keeps_less_for_the_end(facts):
    verdict, follows = judged(of_partition(facts, max_time_s=600.0), "partition gpu")
    assert verdict == "note" and "cluster.slurm.signal_lead_s" in follows
    assert found(of_partition(facts, max_time_s=129600.0), "partition gpu").value.endswith("at most 1 d 12 h")
    assert judged(of_partition(facts, state="DRAIN"), "partition gpu")[0] == "note"


# The disk


@pytest.mark.parametrize("name", ["link", "O_EXCL", "mkdir", "rename", "chmod", "fsync"])
def test_an_operation_that_fails_is_named_with_what_the_system_said(facts, name):
    fields = {
        "link": "link_exclusive", "O_EXCL": "create_exclusive", "mkdir": "mkdir_exclusive",
        "rename": "rename_replaces", "chmod": "modes_kept",
    }  # fmt: skip
    broken = {fields[name]: False} if name in fields else {}
    finding = found(of_disk(facts, failed={name: "Operation not supported"}, **broken), name)
    assert finding.value == "Operation not supported"
    assert finding.verdict is (Verdict.WARNING if name == "chmod" else Verdict.PROBLEM)


def test_a_link_that_two_can_have_is_a_problem_though_nothing_failed(facts):
    assert found(of_disk(facts, link_exclusive=False), "link").value == "not exclusive"


@pytest.mark.parametrize(("gib", "verdict"), [(100, "ok"), (15, "warning"), (0.5, "problem")])
def test_room_for_checkpoints(facts, gib, verdict):
    assert judged(of_disk(facts, free_bytes=int(gib * 2**30)), "free space")[0] == verdict


def test_memory_is_no_place_for_runs(facts):
    assert judged(of_disk(facts, filesystem="tmpfs"), "filesystem")[0] == "warning"


@pytest.mark.parametrize(("seconds", "verdict"), [(0.004, "ok"), (0.1, "note"), (0.8, "warning")])
def test_the_cost_of_a_durable_file(facts, seconds, verdict):
    (here, *_) = [each for each in judge(of_disk(facts, fsync_s=(seconds,) * 3)) if each.what == "a durable file"]
    assert here.verdict == verdict


# Nodes


def test_nodes_that_do_not_start_in_time_are_a_warning(facts):
    job = JobFacts(2, "7", "job 7 has not started within 120 s (Priority)", 120.0)
    verdict, follows = judged(replace(facts, job=job, nodes=()), "asked")
    assert verdict == "warning" and "Priority" in follows and "--wait" in follows


def test_nodes_that_do_not_answer_are_a_problem_with_what_the_job_said(facts):
    job = JobFacts(2, "7", "job 7 has ended, and 1 of 2 nodes wrote no results", 9.0, "No module named hpcrl")
    verdict, follows = judged(replace(facts, job=job, nodes=facts.nodes[:1]), "asked")
    assert verdict == "problem" and "No module named hpcrl" in follows


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"python": "3.12.1"}, "Python is 3.11.7 on gpu1, 3.12.1 on gpu2"),
        ({"packages": {"torch": "2.0"}}, "torch is 2.13.0+cpu on gpu1, 2.0 on gpu2"),
        ({"code": "12345678"}, "12345678) on gpu2"),
    ],
)
def test_nodes_with_different_software_are_a_problem(facts, fields, said):
    finding = found(of_second(facts, software=replace(facts.nodes[1].software, **fields)), "Python")
    assert finding.verdict is Verdict.PROBLEM
    assert said in finding.value


def test_jobs_that_would_run_another_hpcrl_are_a_warning(facts):
    other = replace(facts, here=replace(facts.here, code="12345678", folder="/home/me/hpcrl"))
    verdict, follows = judged(other, "hpcrl")
    assert verdict == "warning" and "cluster.slurm.python" in follows


def test_few_open_files_limit_the_nodes(facts):
    assert "64 nodes" in judged(of_second(facts, open_files=1024), "open files")[1]


def test_a_disk_that_is_worse_on_a_node_is_named_by_it(facts):
    full = of_second(facts, disk=replace(facts.disk, free_bytes=5 * 2**30))
    assert [each.area for each in judge(full) if each.verdict is Verdict.WARNING] == ["disk, on gpu2"]


# Between nodes


def test_a_closed_port_is_a_problem_that_names_both_ends(facts):
    finding = next(
        each for each in judge(of_pairs(facts, connect_s=None, connect_error="10.0.0.2:41: timed out"))
        if each.what == "TCP"
    )  # fmt: skip
    assert finding.verdict is Verdict.PROBLEM
    assert finding.value == "gpu1 cannot reach gpu2: 10.0.0.2:41: timed out"


def test_a_node_that_only_knows_its_loopback_is_a_problem(facts):
    assert judged(of_second(facts, address="127.0.0.1"), "TCP")[0] == "problem"


def test_a_folder_that_is_not_shared_is_a_problem(facts):
    verdict, follows = judged(of_second(facts, absent=(0,)), "greetings")
    assert verdict == "problem" and "/shared/runs" in follows
    assert found(of_second(facts, absent=(0,)), "greetings").value == "gpu2 never saw gpu1"


@pytest.mark.parametrize(
    ("seconds", "verdict", "advice"),
    [
        ((0.01, 0.2), "ok", ""),
        ((0.01, 3.0), "note", "keep it above 90"),
        ((30.0,), "warning", "cluster.start_timeout_s to at least 360"),
        ((None,), "problem", "run_root"),
    ],
)
def test_a_late_listing_wants_a_longer_start(facts, seconds, verdict, advice):
    late = of_pairs(facts, seen=(Seen("list", seconds),))
    assert judged(late, "a new file in a listing")[0] == verdict
    assert advice in found(late, "a new file in a listing").follows


@pytest.mark.parametrize("seconds", [(60.0,), (None,)])
def test_a_remembered_missing_name_does_not_matter(facts, seconds):
    late = of_pairs(facts, seen=(Seen("open", seconds),))
    verdict, follows = judged(late, "a new file by its name")
    assert verdict == "note" and "lists before it opens" in follows


def test_late_appends_make_the_status_trail(facts):
    late = of_pairs(facts, seen=(Seen("append", (3.0,)),))
    assert judged(late, "what was appended to a file") == (
        "note",
        "`hpcrl status` and `hpcrl logs` show what was up to 3 s ago",
    )


@pytest.mark.parametrize(("how", "what"), [("link", "link"), ("create", "O_EXCL"), ("mkdir", "mkdir")])
def test_two_winners_of_a_race_are_a_problem(facts, how, what):
    finding = found(of_pairs(facts, races=(Race(how, 39, 0, 1),)), f"{what} from two nodes at once")
    assert finding.verdict is Verdict.PROBLEM
    assert finding.value == "of 80 tries two winners in 2, none in 0"


def test_no_winner_and_no_links_are_problems_too(facts):
    lost = of_pairs(facts, races=(Race("link", 39, 1, 0),))
    refused = of_pairs(facts, races=(Race("link", 0, 0, 0, "Operation not permitted"),))
    assert found(lost, "link from two nodes at once").verdict is Verdict.PROBLEM
    assert found(refused, "link from two nodes at once").value == "Operation not permitted"


@pytest.mark.parametrize(
    ("met", "verdict"),
    [
        (Replaced(900, 0, 0, 0, 0), "ok"),
        (Replaced(900, 3, 0, 0, 0), "note"),
        (Replaced(900, 3, 2, 0, 1), "warning"),
        (Replaced(900, 0, 0, 1, 0), "problem"),
    ],
)
def test_stale_handles_matter_where_trying_again_does_not_help(facts, met, verdict):
    assert judged(of_pairs(facts, replaced=met), "reading what is being replaced")[0] == verdict


@pytest.mark.parametrize(("ahead", "verdict"), [(0.2, "ok"), (-4.0, "note"), (100.0, "warning")])
def test_of_clocks_that_differ_only_logs_suffer(facts, ahead, verdict):
    finding = found(of_pairs(facts, clock_ahead_s=ahead), "clocks")
    assert finding.verdict == verdict
    assert ("merged logs" in finding.follows) == (verdict != "ok")


def test_a_measurement_that_broke_off_is_a_warning(facts):
    lines = [each for each in judge(of_pairs(facts, error="timed out")) if each.what == "broken off"]
    assert [each.verdict for each in lines] == [Verdict.WARNING] * 2


# GPUs


def with_gpus(facts: Facts, *gpus: GpuFacts) -> Facts:
    return replace(facts, nodes=tuple(replace(node, gpus=each) for node, each in zip(facts.nodes, gpus, strict=True)))


def test_linked_gpus_are_fine(facts):
    two = GpuFacts(True, ("H100",) * 2, {"0-1": "NV18"})
    lines = [each for each in judge(with_gpus(facts, two, two)) if each.area == "GPUs"]
    linked = "2 × H100; linked by NV18"
    assert [(each.what, each.value) for each in lines] == [("gpu1", linked), ("gpu2", linked)]
    assert {each.verdict for each in lines} == {Verdict.OK}


@pytest.mark.parametrize(
    ("links", "advice"),
    [({"0-1": "PIX", "0-2": "SYS", "1-2": "SYS"}, "0-2, 1-2 meet only"), ({"0-1": "SYS"}, "prefer data parallelism")],
)
def test_gpus_that_meet_through_cpus_are_named(facts, links, advice):
    gpus = GpuFacts(True, ("A40",) * 3, links)
    lines = [each for each in judge(with_gpus(facts, gpus, gpus)) if each.area == "GPUs"]
    assert all(each.verdict is Verdict.NOTE and advice in each.follows for each in lines)


def test_nodes_with_other_gpus_are_noted(facts):
    mixed = with_gpus(facts, GpuFacts(True, ("A100",)), GpuFacts(True, ("H100",)))
    assert any(each.value == "differ in their GPUs" for each in judge(mixed))
