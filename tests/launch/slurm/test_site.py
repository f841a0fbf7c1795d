"""What a Slurm is, from the texts of several versions, and what its preemption means in words."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.fields import settings
from hpcrl.launch.slurm.site import (
    SlurmSite,
    describe_preemption,
    describe_too_long_a_grace,
    duration_s,
    parse_partitions,
    read_site,
)
from hpcrl.recipes.toy import ToyExperiment

TEXTS = Path(__file__).parent / "texts"


def site_of(version: str, partitions: str = "partition") -> SlurmSite:
    return read_site((TEXTS / f"config-{version}.txt").read_text(), (TEXTS / f"{partitions}-{version}.txt").read_text())


def test_the_site_of_22_05() -> None:
    site = site_of("22.05")
    assert site.version == (22, 5, 8)
    assert site.kill_wait_s == 5
    assert (site.preempt_type, site.preempt_mode) == ("partition_prio", "requeue")
    assert site.send_user_signal, "preempt_send_user_signal of SlurmctldParameters"
    assert site.accounting
    assert not site.accounting_comments
    assert site.requeue_hold_s == 7, "cred_expire of AuthInfo"
    assert site.max_array_size == 1001
    assert not site.disable_hetjob_steps
    assert list(site.partitions) == ["cpu", "gpu", "low", "lowgrace", "cancels", "high"]


def test_partitions_are_the_same_in_one_line_and_in_several() -> None:
    assert site_of("22.05") == site_of("22.05", "partition-oneline")


def test_the_partitions_of_22_05() -> None:
    partitions = site_of("22.05").partitions
    assert partitions["cpu"].default
    assert not partitions["gpu"].default
    assert partitions["lowgrace"].grace_s == 20
    assert partitions["gpu"].gpus == 8
    assert partitions["cpu"].gpus is None
    assert partitions["cpu"].max_time_s is None
    assert partitions["gpu"].nodes == "gpu[1-4]"
    assert {name: each.preempt_mode for name, each in partitions.items()} == {
        "cpu": "off", "gpu": "off", "low": "requeue", "lowgrace": "requeue", "cancels": "cancel", "high": "off",
    }  # fmt: skip


def test_the_site_of_23_11() -> None:
    site = site_of("23.11")
    assert site.version == (23, 11, 4)
    assert site.preempt_mode == "suspend"
    assert site.send_user_signal, "send_user_signal of PreemptParameters"
    assert site.preempt_exempt_s == 3600
    assert site.accounting_comments
    assert site.disable_hetjob_steps
    assert site.max_array_size == 4001
    assert site.requeue_hold_s == 120
    batch, scavenge = site.partitions.values()
    assert (batch.max_time_s, batch.grace_s, batch.preempt_mode) == (172800, 120, "suspend")
    assert (scavenge.max_time_s, scavenge.gpus, scavenge.preempt_mode) == (30600, 8, "requeue")


def test_the_site_of_24_11() -> None:
    site = site_of("24.11")
    assert site.version == (24, 11, 0)
    assert (site.preempt_type, site.preempt_mode) == ("qos", "cancel")
    assert not site.accounting
    assert not site.send_user_signal
    assert site.requeue_hold_s == 60
    assert site.partitions["old"].state == "DRAIN"
    assert site.partitions["gpu"].total_nodes == 3


def test_the_site_of_25_05() -> None:
    site = site_of("25.05")
    assert site.preempt_type == "none", "(null) since 25.05"
    assert site.requeue_hold_s == 20, "requeue_delay of SchedulerParameters"
    assert site.partitions["gpu"].nodes == ""
    assert site.partitions["gpu"].gpus is None


def test_of_nothing_a_site_with_slurms_defaults_is_read() -> None:
    site = read_site("", "")
    assert (site.version, site.cluster, site.kill_wait_s, site.requeue_hold_s) == ((), "", 30, 120)
    assert (site.preempt_type, site.preempt_mode) == ("none", "off")
    assert site.partition(None) is None
    assert describe_preemption(site) == "Jobs are not preempted."


def test_a_partition_without_a_mode_of_its_own_has_the_clusters() -> None:
    (partition,) = parse_partitions("PartitionName=a GraceTime=5 State=UP", "cancel")
    assert partition.preempt_mode == "cancel"


def test_of_several_partitions_the_first_that_exists_counts() -> None:
    site = site_of("22.05")
    assert site.partition(None) is site.partitions["cpu"]
    assert site.partition("gone,low") is site.partitions["low"]
    assert site.partition("gone") is None


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("60", 3600), ("10:30", 630), ("08:30:00", 30600), ("1-00:00:00", 86400), ("2-12", 216000), ("1-02:30", 95400),
        ("UNLIMITED", None), ("INFINITE", None), ("", None), ("NONE", None),
    ],
)  # fmt: skip
def test_slurms_times_are_read(written: str, seconds: float | None) -> None:
    assert duration_s(written) == seconds


@pytest.mark.parametrize(
    ("version", "partition", "sentence"),
    [
        (
            "22.05",
            "low",
            "GraceTime is 0: about 5 s until SIGKILL; safe, at most the calls in flight are lost. "
            "Slurm queues the job again, to start after 7 s at the earliest.",
        ),
        (
            "22.05",
            "lowgrace",
            "GraceTime is 20 s: calls in flight have about 25 s to finish until SIGKILL; safe, at most the calls in "
            "flight are lost. Slurm queues the job again, to start after 7 s at the earliest.",
        ),
        (
            "22.05",
            "cancels",
            "GraceTime is 0: about 5 s until SIGKILL; safe, at most the calls in flight are lost. "
            "A preempted job is cancelled here, so hpcrl submits a successor.",
        ),
        ("22.05", "gpu", "Jobs on partition gpu are not preempted."),
        ("22.05", None, "Jobs on partition cpu are not preempted."),
        (
            "23.11",
            "batch",
            "Jobs on partition batch are suspended while others need the nodes. With cluster.topology array, "
            "nodes that are suspended one by one count as lost after cluster.lost_after_s: set it to colocated, so "
            "that all stop together.",
        ),
        (
            "24.11",
            "gpu",
            "The QOS may give a GraceTime (sacctmgr show qos); where it gives none, GraceTime is 0: about 120 s until "
            "SIGKILL; safe, at most the calls in flight are lost. A preempted job is cancelled here, so hpcrl submits "
            "a successor. (Never in the first 10 min of a job.)",
        ),
        ("25.05", "gpu", "Jobs on partition gpu are not preempted."),
    ],
)
def test_a_preemption_is_said_in_plain_words(version: str, partition: str | None, sentence: str) -> None:
    assert describe_preemption(site_of(version), partition) == sentence


@pytest.mark.parametrize(
    ("version", "partition", "grace_s", "given", "most"),
    [
        ("22.05", "low", 25.0, 5, 0),
        ("22.05", "low", 0.5, 5, 0),
        ("22.05", "cancels", 25.0, 5, 0),
        ("22.05", "lowgrace", 25.0, 25, 20),
        ("22.05", "lowgrace", 20.5, 25, 20),
        ("24.11", "gpu", 200.0, 120, 115),
    ],
)
def test_a_grace_that_a_preemption_does_not_give_is_told_with_what_to_set(
    version: str, partition: str, grace_s: float, given: int, most: int
) -> None:
    said = describe_too_long_a_grace(site_of(version), partition, grace_s)
    assert f"cluster.grace_s = {grace_s:g} and 5 s to write and leave are more than these {given} s" in said
    assert said.endswith(f"Set cluster.grace_s to {f'at most {most}' if most else '0'}.")
    [setting] = [each for each in settings(ToyExperiment) if each.key == "cluster.grace_s"]
    assert setting.broken_bound(float(most)) is None


@pytest.mark.parametrize(
    ("version", "partition", "grace_s"),
    [
        ("22.05", "low", 0.0),
        ("22.05", "lowgrace", 20.0),
        ("22.05", "gpu", 500.0),
        ("22.05", None, 500.0),
        ("23.11", "batch", 500.0),
        ("24.11", "gpu", 115.0),
        ("25.05", "gpu", 500.0),
    ],
)
def test_a_grace_that_fits_or_is_never_cut_off_is_not_mentioned(
    version: str, partition: str | None, grace_s: float
) -> None:
    assert describe_too_long_a_grace(site_of(version), partition, grace_s) == ""


def test_slurms_default_kill_wait_fits_the_default_grace() -> None:
    site = replace(site_of("22.05"), kill_wait_s=30.0)
    assert describe_too_long_a_grace(site, "low", ClusterConfig().grace_s) == ""
