"""`hpcrl doctor` as it is typed: the table, the data, the exit status, the site's defaults."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.cli.main import main
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.slurm import SlurmConfig
from hpcrl.doctor.measure import read_site_file
from hpcrl.errors import ConfigurationError, ExitCode


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a disk: it is said of a folder in memory that nobody else sees it."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def site(monkeypatch, tmp_path):
    """A Slurm, and no defaults but those that a test writes."""
    fake = FakeSlurm(tmp_path / "slurm")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_CONF", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HPCRL_SITE", "")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path / "runs")
    return fake


def test_the_table_names_what_was_found_and_what_follows(site, capsys):
    assert main(["doctor", "--no-jobs", "--partition", "low"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "22.05.8",
        "GraceTime 0 s",
        "set cluster.grace_s to at most 1",
        "MaxArraySize",
        "0 problems, 0 warnings",
    ):
        assert text in shown
    assert not any(call[0] == "sbatch" for call in site.state["calls"])


def test_json_is_the_same_with_what_was_measured(site, capsys):
    assert main(["doctor", "--no-jobs", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["status"] == 0
    (found,) = (each for each in shown["findings"] if each["what"] == "KillWait")
    assert (found["area"], found["value"], found["severity"]) == ("Slurm", "5 s", "note") and found["follows"]
    assert shown["measurements"]["slurm"]["site"]["kill_wait_s"] == 5


def test_the_exit_status_is_that_of_the_worst_finding(site):
    assert main(["doctor", "--no-jobs", "--partition", "gone"]) == 2
    site.set(accounting=False)
    assert main(["doctor", "--no-jobs"]) == 1


def test_the_sites_defaults_are_used(site, monkeypatch, tmp_path, capsys):
    root = tmp_path / "elsewhere"
    root.mkdir()
    path = tmp_path / "site.yaml"
    path.write_text(f"run_root: {root}\ncluster:\n  slurm: {{account: lab, partition: low, time: '60'}}\n")
    monkeypatch.setenv("HPCRL_SITE", str(path))
    assert read_site_file() == (str(root), ClusterConfig(slurm=SlurmConfig(account="lab", partition="low", time="60")))
    assert main(["doctor", "--wait", "0", "--json"]) == 1
    (call,) = [call for call in site.state["calls"] if call[0] == "sbatch"]
    assert {"--account=lab", "--partition=low"} <= set(call)
    assert json.loads(capsys.readouterr().out)["measurements"]["disk"]["path"] == str(root)


def test_a_wrong_site_file_is_named(site, monkeypatch, tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text("cluster: {slurm: {cpus_per_worker: many}}\n")
    monkeypatch.setenv("HPCRL_SITE", str(path))
    with pytest.raises(ConfigurationError, match=r"cluster .*site\.yaml.*slurm.cpus_per_worker"):
        read_site_file()


@pytest.mark.parametrize("words", [["--in-job", "--no-jobs"], ["--nodes", "0"], ["--in-job"], ["--run-root", "/gone"]])
def test_what_cannot_be_is_the_users_error(site, words, capsys):
    assert main(["doctor", *words]) == ExitCode.CONFIGURATION
    assert "hpcrl: " in capsys.readouterr().err
