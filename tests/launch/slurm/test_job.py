"""What a job of a run says before all else."""

import pytest

from hpcrl.launch.slurm.job import begins

ON = {"SLURMD_NODENAME": "gpu7"}


@pytest.mark.parametrize(
    ("role", "environ", "said"),
    [
        ("master", {}, "the master begins on gpu7"),
        ("agent", {"SLURM_ARRAY_TASK_ID": "3"}, "agent 3 begins on gpu7"),
        (
            "agent",
            {"SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": "2"},
            "agent 0 begins on gpu7, start 3 of its job",
        ),
        ("agent", {"SLURM_PROCID": "3"}, ""),
    ],
)
def test_a_job_says_who_begins_where_and_for_which_time_once(role: str, environ: dict[str, str], said: str) -> None:
    assert begins(role, {**ON, **environ}) == said
