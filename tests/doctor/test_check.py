"""What follows from measurements: recorded ones of a real Slurm, and what other sites would give."""

from dataclasses import replace as with_fields
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcrl.agent.torch_build import TorchBuild
from hpcrl.doctor.check import check
from hpcrl.doctor.findings import Finding, Severity
from hpcrl.doctor.measurements import GpuMeasurements, JobMeasurements, Measurements, Race, Replaced, Seen
from hpcrl.doctor.report import exit_status
from hpcrl.wire.address import InterfaceAddress

TEXTS = Path(__file__).parent / "texts"
RECORDED = msgspec.json.decode((TEXTS / "measurements.json").read_bytes(), type=Measurements)


@pytest.fixture
def measured() -> Measurements:
    """As recorded, but on two machines."""
    nodes = tuple(replace(node, boot_id=node.name) for node in RECORDED.nodes)
    return replace(RECORDED, nodes=nodes)


def of_site(measured: Measurements, **fields: object) -> Measurements:
    return replace(measured, slurm=replace(measured.slurm, site=with_fields(measured.slurm.site, **fields)))


def of_partition(measured: Measurements, **fields: object) -> Measurements:
    """Of the only partition that there is."""
    return of_site(measured, partitions={"gpu": with_fields(measured.slurm.site.partitions["gpu"], **fields)})


def of_pairs(measured: Measurements, **fields: object) -> Measurements:
    nodes = (replace(node, pairs=tuple(replace(pair, **fields) for pair in node.pairs)) for node in measured.nodes)
    return replace(measured, nodes=tuple(nodes))


def of_disk(measured: Measurements, **fields: object) -> Measurements:
    return replace(measured, disk=replace(measured.disk, **fields))


def of_second(measured: Measurements, **fields: object) -> Measurements:
    first, second = measured.nodes
    return replace(measured, nodes=(first, replace(second, **fields)))


def found(measured: Measurements, what: str) -> Finding:
    (finding,) = [each for each in check(measured) if each.what == what]
    return finding


def severity_and_advice(measured: Measurements, what: str) -> tuple[str, str]:
    """Severity and what follows."""
    finding = found(measured, what)
    return str(finding.severity), finding.follows


def test_a_cluster_as_it_should_be_has_exit_status_0(measured):
    findings = check(measured)
    assert {finding.severity for finding in findings} == {Severity.OK}
    assert exit_status(findings) == 0


@pytest.mark.parametrize(
    ("severities", "status"),
    [((), 0), (("ok", "note"), 0), (("warning", "note"), 1), (("problem", "ok", "warning"), 2)],
)
def test_the_exit_status_is_that_of_the_worst(severities, status):
    assert exit_status([Finding("", "", "", Severity(name)) for name in severities]) == status


def test_every_finding_that_is_not_fine_says_what_follows(measured):
    worse = of_pairs(of_disk(measured, failed={"link": "no"}, link_exclusive=False), connect_s=None, clock_ahead_s=99.0)
    for each in (RECORDED, worse, replace(measured, slurm=None)):
        assert [finding for finding in check(each) if finding.severity is not Severity.OK and not finding.follows] == []


def test_nodes_on_one_machine_prove_nothing_about_two(measured):
    assert severity_and_advice(RECORDED, "machines")[0] == "note"


# Slurm


def test_without_slurm_runs_stay_on_this_machine(measured):
    alone = replace(measured, slurm=None, no_slurm="there is no scontrol in PATH", job=None, nodes=measured.nodes[:1])
    assert severity_and_advice(alone, "Slurm") == ("note", "runs are started on this machine (cluster.type local)")


def test_a_silent_slurm_is_a_warning(measured):
    silent = replace(measured, slurm=None, slurm_silent=True, no_slurm="slurmctld does not answer", job=None)
    assert severity_and_advice(silent, "Slurm")[0] == "warning"


def test_a_compute_node_need_not_have_scontrol(measured):
    assert "on a login node" in severity_and_advice(replace(measured, slurm=None, no_slurm="no scontrol"), "Slurm")[1]


def test_without_accounting_the_journal_tells_how_jobs_ended(measured):
    severity, follows = severity_and_advice(of_site(measured, accounting=False), "accounting")
    assert severity == "note" and "journal" in follows and "3600 s" in follows


def test_accounting_that_does_not_answer_is_a_warning(measured):
    silent = replace(measured, slurm=replace(measured.slurm, sacct=False, sacct_error="slurmdbd does not answer"))
    assert severity_and_advice(silent, "accounting")[0] == "warning"


@pytest.mark.parametrize(
    ("mode", "grace_s", "kill_wait_s", "severity", "advice"),
    [
        ("off", 0, 5, "ok", "scancel only"),
        ("requeue", 0, 30, "ok", "may be up to 25"),
        ("requeue", 0, 5, "note", "at most 1 "),
        ("requeue", 0, 20, "note", "at most 15 "),
        ("cancel", 0, 20, "note", "at most 15 "),
        ("requeue", 120, 30, "ok", "may be up to 145"),
    ],
)
def test_the_grace_of_a_drain_fits_into_what_slurm_gives(measured, mode, grace_s, kill_wait_s, severity, advice):
    site = of_site(of_partition(measured, preempt_mode=mode, grace_s=grace_s), kill_wait_s=kill_wait_s)
    assert severity_and_advice(site, "KillWait")[0] == severity
    assert advice in found(site, "KillWait").follows


def test_of_preemption_by_qos_the_partitions_grace_says_nothing(measured):
    site = of_site(of_partition(measured, grace_s=600), preempt_type="qos", preempt_mode="requeue", kill_wait_s=20)
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
def test_what_a_preemption_loses_is_said(measured, mode, grace_s, value, advice):
    finding = found(of_partition(measured, preempt_mode=mode, grace_s=grace_s), "preemption on gpu")
    assert (finding.severity, finding.value) == (Severity.NOTE, value)
    assert advice in finding.follows


def test_partitions_that_preempt_alike_have_one_line(measured):
    every = replace(measured, partition=None)
    lines = [finding.what for finding in check(every) if finding.what.startswith("preemption")]
    assert lines == [
        "preemption on cpu, gpu, high",
        "preemption on low",
        "preemption on lowgrace",
        "preemption on cancels",
    ]


def test_a_long_hold_wants_a_longer_wait_for_lost_nodes(measured):
    assert severity_and_advice(of_site(measured, requeue_hold_s=120.0), "hold of a requeued job")[0] == "ok"
    severity, follows = severity_and_advice(of_site(measured, requeue_hold_s=600.0), "hold of a requeued job")
    assert severity == "warning" and "cluster.replace_timeout_s to at least 1800" in follows


def test_limits_name_the_topology_that_keeps_within_them(measured):
    assert "at most 1001" in found(measured, "MaxArraySize").follows
    assert "colocated" in severity_and_advice(of_site(measured, disable_hetjob_steps=True), "steps of het jobs")[1]
    few = replace(measured, slurm=replace(measured.slurm, max_job_count=200))
    assert severity_and_advice(few, "MaxJobCount")[0] == "note"


def test_a_partition_that_does_not_exist_is_a_problem_and_the_others_are_named(measured):
    severity, follows = severity_and_advice(replace(measured, partition="gone"), "partition gone")
    assert severity == "problem" and "cpu, gpu, low" in follows


def test_a_partition_with_a_short_limit_keeps_less_for_the_end(measured):
    severity, follows = severity_and_advice(of_partition(measured, max_time_s=600.0), "partition gpu")
    assert severity == "note" and "cluster.slurm.signal_lead_s" in follows
    assert found(of_partition(measured, max_time_s=129600.0), "partition gpu").value.endswith("at most 1 d 12 h")
    assert severity_and_advice(of_partition(measured, state="DRAIN"), "partition gpu")[0] == "note"


# The disk


@pytest.mark.parametrize("name", ["link", "O_EXCL", "mkdir", "rename", "chmod", "fsync"])
def test_an_operation_that_fails_is_named_with_what_the_system_said(measured, name):
    fields = {
        "link": "link_exclusive", "O_EXCL": "create_exclusive", "mkdir": "mkdir_exclusive",
        "rename": "rename_replaces", "chmod": "modes_kept",
    }  # fmt: skip
    broken = {fields[name]: False} if name in fields else {}
    finding = found(of_disk(measured, failed={name: "Operation not supported"}, **broken), name)
    assert finding.value == "Operation not supported"
    assert finding.severity is (Severity.WARNING if name == "chmod" else Severity.PROBLEM)


def test_a_link_that_two_can_have_is_a_problem_though_nothing_failed(measured):
    assert found(of_disk(measured, link_exclusive=False), "link").value == "not exclusive"


@pytest.mark.parametrize(("gib", "severity"), [(100, "ok"), (15, "warning"), (0.5, "problem")])
def test_room_for_checkpoints(measured, gib, severity):
    assert severity_and_advice(of_disk(measured, free_bytes=int(gib * 2**30)), "free space")[0] == severity


def test_memory_is_no_place_for_runs(measured):
    assert severity_and_advice(of_disk(measured, filesystem="tmpfs"), "filesystem")[0] == "warning"


@pytest.mark.parametrize(("seconds", "severity"), [(0.004, "ok"), (0.1, "note"), (0.8, "warning")])
def test_the_cost_of_a_durable_file(measured, seconds, severity):
    (here, *_) = [each for each in check(of_disk(measured, fsync_s=(seconds,) * 3)) if each.what == "a durable file"]
    assert here.severity == severity


# Nodes


def test_nodes_that_do_not_start_in_time_are_a_warning(measured):
    job = JobMeasurements(2, "7", "job 7 has not started within 120 s (Priority)", 120.0)
    severity, follows = severity_and_advice(replace(measured, job=job, nodes=()), "asked")
    assert severity == "warning" and "Priority" in follows and "--wait" in follows


def test_nodes_that_do_not_answer_are_a_problem_with_what_the_job_said(measured):
    job = JobMeasurements(2, "7", "job 7 has ended, and 1 of 2 nodes wrote no results", 9.0, "No module named hpcrl")
    severity, follows = severity_and_advice(replace(measured, job=job, nodes=measured.nodes[:1]), "asked")
    assert severity == "problem" and "No module named hpcrl" in follows


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"python": "3.12.1"}, "Python is 3.11.7 on gpu1, 3.12.1 on gpu2"),
        ({"packages": {"torch": "2.0"}}, "torch is 2.13.0+cpu on gpu1, 2.0 on gpu2"),
        ({"code": "12345678"}, "12345678) on gpu2"),
    ],
)
def test_nodes_with_different_software_are_a_problem(measured, fields, said):
    finding = found(of_second(measured, software=replace(measured.nodes[1].software, **fields)), "Python")
    assert finding.severity is Severity.PROBLEM
    assert said in finding.value


def test_jobs_that_would_run_another_hpcrl_are_a_warning(measured):
    other = replace(measured, here=replace(measured.here, code="12345678", folder="/home/me/hpcrl"))
    severity, follows = severity_and_advice(other, "hpcrl")
    assert severity == "warning" and "cluster.slurm.python" in follows


def test_few_open_files_limit_the_nodes(measured):
    assert "64 nodes" in severity_and_advice(of_second(measured, open_files=1024), "open files")[1]


def test_a_disk_that_is_worse_on_a_node_is_named_by_it(measured):
    full = of_second(measured, disk=replace(measured.disk, free_bytes=5 * 2**30))
    assert [each.area for each in check(full) if each.severity is Severity.WARNING] == ["disk, on gpu2"]


# Between nodes


def test_a_closed_port_is_a_problem_that_names_both_ends(measured):
    finding = next(
        each for each in check(of_pairs(measured, connect_s=None, connect_error="10.0.0.2:41: timed out"))
        if each.what == "TCP"
    )  # fmt: skip
    assert finding.severity is Severity.PROBLEM
    assert finding.value == "gpu1 cannot reach gpu2: 10.0.0.2:41: timed out"


def test_a_node_that_only_knows_its_loopback_is_a_problem(measured):
    assert severity_and_advice(of_second(measured, address="127.0.0.1"), "TCP")[0] == "problem"


def test_a_folder_that_is_not_shared_is_a_problem(measured):
    severity, follows = severity_and_advice(of_second(measured, absent=(0,)), "greetings")
    assert severity == "problem" and "/shared/runs" in follows
    assert found(of_second(measured, absent=(0,)), "greetings").value == "gpu2 never saw gpu1"


@pytest.mark.parametrize(
    ("seconds", "severity", "advice"),
    [
        ((0.01, 0.2), "ok", ""),
        ((0.01, 3.0), "note", "keep it above 90"),
        ((30.0,), "warning", "cluster.start_timeout_s to at least 360"),
        ((None,), "problem", "run_root"),
    ],
)
def test_a_late_listing_wants_a_longer_start(measured, seconds, severity, advice):
    late = of_pairs(measured, seen=(Seen("list", seconds),))
    assert severity_and_advice(late, "a new file in a listing")[0] == severity
    assert advice in found(late, "a new file in a listing").follows


@pytest.mark.parametrize("seconds", [(60.0,), (None,)])
def test_a_remembered_missing_name_does_not_matter(measured, seconds):
    late = of_pairs(measured, seen=(Seen("open", seconds),))
    severity, follows = severity_and_advice(late, "a new file by its name")
    assert severity == "note" and "lists before it opens" in follows


def test_late_appends_make_the_status_trail(measured):
    late = of_pairs(measured, seen=(Seen("append", (3.0,)),))
    assert severity_and_advice(late, "what was appended to a file") == (
        "note",
        "`hpcrl status` and `hpcrl logs` show what was up to 3 s ago",
    )


@pytest.mark.parametrize(("how", "what"), [("link", "link"), ("create", "O_EXCL"), ("mkdir", "mkdir")])
def test_two_winners_of_a_race_are_a_problem(measured, how, what):
    finding = found(of_pairs(measured, races=(Race(how, 39, 0, 1),)), f"{what} from two nodes at once")
    assert finding.severity is Severity.PROBLEM
    assert finding.value == "of 80 tries two winners in 2, none in 0"


def test_no_winner_and_no_links_are_problems_too(measured):
    lost = of_pairs(measured, races=(Race("link", 39, 1, 0),))
    refused = of_pairs(measured, races=(Race("link", 0, 0, 0, "Operation not permitted"),))
    assert found(lost, "link from two nodes at once").severity is Severity.PROBLEM
    assert found(refused, "link from two nodes at once").value == "Operation not permitted"


@pytest.mark.parametrize(
    ("met", "severity"),
    [
        (Replaced(900, 0, 0, 0, 0), "ok"),
        (Replaced(900, 3, 0, 0, 0), "note"),
        (Replaced(900, 3, 2, 0, 1), "warning"),
        (Replaced(900, 0, 0, 1, 0), "problem"),
    ],
)
def test_stale_handles_matter_where_trying_again_does_not_help(measured, met, severity):
    assert severity_and_advice(of_pairs(measured, replaced=met), "reading what is being replaced")[0] == severity


@pytest.mark.parametrize(("ahead", "severity"), [(0.2, "ok"), (-4.0, "note"), (100.0, "warning")])
def test_of_clocks_that_differ_only_logs_suffer(measured, ahead, severity):
    finding = found(of_pairs(measured, clock_ahead_s=ahead), "clocks")
    assert finding.severity == severity
    assert ("merged logs" in finding.follows) == (severity != "ok")


def test_a_measurement_that_broke_off_is_a_warning(measured):
    lines = [each for each in check(of_pairs(measured, error="timed out")) if each.what == "broken off"]
    assert [each.severity for each in lines] == [Severity.WARNING] * 2


# GPUs


def with_gpus(measured: Measurements, *gpus: GpuMeasurements) -> Measurements:
    return replace(
        measured, nodes=tuple(replace(node, gpus=each) for node, each in zip(measured.nodes, gpus, strict=True))
    )


def test_nodes_without_gpus_say_why(measured):
    none = with_gpus(measured, GpuMeasurements(complaint="NVML: Driver Not Loaded"), GpuMeasurements())
    assert [each.value for each in check(none) if each.area == "GPUs"] == ["none (NVML: Driver Not Loaded)"]
    none = with_gpus(measured, GpuMeasurements(), GpuMeasurements())
    assert [each.value for each in check(none) if each.area == "GPUs"] == ["none"]


def test_linked_gpus_are_fine(measured):
    two = GpuMeasurements(("H100",) * 2, {"0-1": "NV18"})
    lines = [each for each in check(with_gpus(measured, two, two)) if each.area == "GPUs"]
    linked = "2 × H100; linked by NV18"
    assert [(each.what, each.value) for each in lines] == [("gpu1", linked), ("gpu2", linked)]
    assert {each.severity for each in lines} == {Severity.OK}


@pytest.mark.parametrize(
    ("links", "advice"),
    [({"0-1": "PIX", "0-2": "SYS", "1-2": "SYS"}, "0-2, 1-2 meet only"), ({"0-1": "SYS"}, "prefer data parallelism")],
)
def test_gpus_that_meet_through_cpus_are_named(measured, links, advice):
    gpus = GpuMeasurements(("A40",) * 3, links)
    lines = [each for each in check(with_gpus(measured, gpus, gpus)) if each.area == "GPUs"]
    assert all(each.severity is Severity.NOTE and advice in each.follows for each in lines)


def test_nodes_with_other_gpus_are_noted(measured):
    mixed = with_gpus(measured, GpuMeasurements(("A100",)), GpuMeasurements(("H100",)))
    assert any(each.value == "differ in their GPUs" for each in check(mixed))


def test_a_node_that_cannot_listen_where_it_should_is_a_problem(measured):
    complaint = "cluster.interface = ib1, but n2 has no such interface. It has lo (127.0.0.1)."
    broken = of_second(measured, complaint=complaint)
    assert severity_and_advice(broken, measured.nodes[1].name) == ("problem", complaint)


def test_a_torch_that_does_not_compute_on_a_nodes_gpus_is_a_problem_with_the_line_that_installs_one(measured):
    gpus = GpuMeasurements(
        ("NVIDIA H100",),
        capabilities=((9, 0),),
        driver="550.54",
        cuda=(12, 4),
        torch=TorchBuild("python", "2.13.0+cpu"),
    )
    broken = of_second(measured, gpus=gpus)
    severity, advice = severity_and_advice(broken, "torch")
    assert severity == "problem" and "https://download.pytorch.org/whl/cu126" in advice
    assert measured.nodes[1].name in found(broken, "torch").value
    newer = replace(gpus, torch=TorchBuild("python", "2.11.0+cu128", "12.8", None, ("sm_90",)))
    assert severity_and_advice(of_second(measured, gpus=newer), "torch")[0] == "note"
    fine = replace(newer, driver="580.65", cuda=(13, 0))
    assert severity_and_advice(of_second(measured, gpus=fine), "torch") == ("ok", "")


def test_a_quicker_network_that_is_not_used_is_noted(measured):
    others = (InterfaceAddress("docker0", "172.17.0.1"), InterfaceAddress("ib0", "10.10.0.7"))
    severity, advice = severity_and_advice(of_second(measured, others=others), measured.nodes[1].name)
    assert severity == "note" and "ib0 (10.10.0.7)" in advice and "docker0" not in advice
    assert "set cluster.interface" in advice
