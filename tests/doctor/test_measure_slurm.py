"""What Slurm says of itself."""

import pytest
from support.fake_slurm.cluster import VERSIONS, FakeSlurm

from hpcrl.doctor.measure_slurm import ask_slurm


@pytest.fixture
def fake(tmp_path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_asked(tmp_path, version):
    slurm = FakeSlurm(tmp_path / version, version).commands()
    found = ask_slurm(slurm)
    assert found.sacct and found.max_job_count >= 1000
    assert slurm.rpcs == 3


def test_accounting_that_is_away_is_told(fake):
    fake.set(accounting=False)
    found = ask_slurm(fake.commands())
    assert not found.sacct and found.sacct_error == "Slurm accounting storage is disabled"
