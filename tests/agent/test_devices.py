"""Which devices a job may use, on nodes as they are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.gpus import inventory_of

from hpcrl.agent.devices import assign, hides_all, names_exactly, promised, usable, visible_devices
from hpcrl.agent.nvml import Device
from hpcrl.errors import ConfigurationError

A100 = ("GPU-b614723c", "GPU-e52dfcc4", "GPU-2812eb50", "GPU-c78d556a")


def devices(node: str) -> tuple[Device, ...]:
    return usable(inventory_of(node).devices)


def seen(environ: dict[str, str], there: tuple[Device, ...]) -> list[str]:
    """The beginnings of the UUIDs that the job may use."""
    return [device.uuid[:12] for device in visible_devices(environ, there)]


def masked(mask: str, there: tuple[Device, ...]) -> list[str]:
    return seen({"CUDA_VISIBLE_DEVICES": mask}, there)


# ── what can be computed on ───────────────────────────────────────────────────────────────────────────────────────────
def test_instances_take_the_place_of_a_split_gpu_and_a_split_gpu_without_any_is_not_usable():
    there = devices("mig")
    assert [(device.uuid[:12], device.index, device.pci) for device in there] == [
        ("MIG-dc34c2fd", 0, "0000:07:00.0"),
        ("MIG-ec4c3916", 1, "0000:0b:00.0"),
        ("MIG-676485be", 1, "0000:0b:00.0"),
        ("GPU-c78d556a", 3, "0000:4c:00.0"),
    ]
    assert there[0].mig == "GPU-b614723c-e261-4605-066e-79daab4c00ff" and there[3].mig is None


def test_instances_of_the_first_drivers_are_named_by_their_gpu():
    parts = devices("mig of the first drivers")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": parts[1].uuid}, parts) == (parts[1],)


@pytest.mark.parametrize("node", ["fallen", "lost"])
def test_a_gpu_that_fell_off_its_bus_leaves_a_gap(node):
    there = devices(node)
    assert [device.index for device in there] == [0, 1, 3]
    assert masked("0,3", there) == [A100[0], A100[3]]
    assert masked("0,2,3", there) == [A100[0]]


# ── what the job may use ──────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("0,1", A100[:2]),
        ("2,0", (A100[2], A100[0])),
        (" 3 , 1 ", (A100[3], A100[1])),
        ("0,2,-1,1", (A100[0], A100[2])),
        ("0,9,1", A100[:1]),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,1", ()),
        ("GPU-2812eb50-852a-8049-1257-d447ce043b27", A100[2:3]),
        ("GPU-c78,GPU-e5", (A100[3], A100[1])),
        ("GPU-b6,GPU-b614", ()),
        ("GPU-", ()),
        ("GPU-00000000,GPU-b6", ()),
        ("GPU-b6,1", A100[:1]),
        ("1,GPU-b6", A100[1:2]),
        ("b614723c-e261-4605-066e-79daab4c00ff", ()),
        ("1f93c2", ()),
        ("all", ()),
    ],
)
def test_a_mask_is_read_as_cuda_reads_it(mask, expected):
    assert masked(mask, devices("a100")) == list(expected)


# All are there: torch does not know which numbers are, and looks for repeated names beyond one that is not.
ENTRIES = st.sampled_from(["0", "1", "2", "3", "-1", "", "NoDevFiles", "GPU-b6", "GPU-b614723c", "GPU-e5"])


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_a_mask_is_read_as_torch_reads_it(entries):
    there = devices("a100")
    mask = ",".join(entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", mask)
        parsed = torch.cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        parsed = torch.cuda._transform_uuid_to_ordinals(parsed, [device.uuid for device in there])
    assert masked(mask, there) == [A100[number] for number in parsed]


def test_without_a_mask_everything_is_there():
    assert seen({}, devices("a100")) == list(A100)


def test_instances_are_named_by_uuid_or_as_the_first_of_their_gpu():
    there = devices("mig")
    assert masked("MIG-676485be,MIG-dc34c2fd-4bd7-52ad-a6d0-645dcd1794e4", there) == ["MIG-676485be", "MIG-dc34c2fd"]
    assert masked("1", there) == ["MIG-ec4c3916"]
    assert masked("MIG-6,3", there) == ["MIG-676485be"]


def test_a_cgroup_numbers_anew_whatever_slurm_calls_the_hardware():
    there = devices("in a cgroup")
    slurm = {"SLURM_STEP_GPUS": "2,3", "SLURM_JOB_GPUS": "2,3"}
    assert seen(slurm | {"CUDA_VISIBLE_DEVICES": "0,1"}, there) == list(A100[2:])
    assert seen(slurm, there) == list(A100[2:])


def test_slurms_numbers_narrow_only_what_nothing_else_has():
    there = devices("a100")
    assert seen({"SLURM_JOB_GPUS": "2,3"}, there) == list(A100[2:])
    assert seen({"SLURM_STEP_GPUS": "3", "SLURM_JOB_GPUS": "2,3"}, there) == [A100[3]]
    assert seen({"SLURM_JOB_GPUS": "gpu:a100:2"}, there) == list(A100)
    assert seen({"SLURM_JOB_GPUS": "4,5"}, there) == list(A100)
    assert seen({"SLURM_JOB_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0"}, there) == [A100[0]]
    assert len(seen({"SLURM_JOB_GPUS": "0"}, devices("mig"))) == 4


@pytest.mark.parametrize(
    ("environ", "hidden", "said"),
    [
        ({}, False, False),
        ({"CUDA_VISIBLE_DEVICES": ""}, True, False),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_JOB_GPUS": "0"}, True, False),
        ({"CUDA_VISIBLE_DEVICES": "-1,0"}, True, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, False, True),
        ({"SLURM_STEP_GPUS": "0"}, False, True),
    ],
)
def test_what_was_promised_and_what_was_hidden(environ, hidden, said):
    assert hides_all(environ) == hidden and promised(environ) == said


@pytest.mark.parametrize(
    ("environ", "there", "exact"),
    [
        ({}, "a100", True),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "a100", True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-e5"}, "a100", True),
        ({"CUDA_VISIBLE_DEVICES": "2,9"}, "a100", False),
        ({"CUDA_VISIBLE_DEVICES": "2, 0"}, "a100", False),
        ({"SLURM_JOB_GPUS": "1"}, "a100", False),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, "fallen", False),
    ],
)
def test_cuda_is_left_to_itself_only_where_it_means_the_same(environ, there, exact):
    found = devices(there)
    assert names_exactly(environ, visible_devices(environ, found), found) == exact


# ── who gets which ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_slots_get_devices_in_order():
    there = devices("a100")
    assert assign(there, 2, {}) == there[:2]
    assert assign(there, 2, {}, first=2) == there[2:]


def test_too_few_devices_are_refused_with_value_expectation_and_knob():
    environ = {"CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_GPUS": "7"}
    visible = visible_devices(environ, devices("a100"))
    with pytest.raises(ConfigurationError) as refused:
        assign(visible, 2, environ, said="the driver says boo")
    said = str(refused.value)
    for part in ("cluster.workers_per_node = 2", "GPU-c78d556a", "CUDA_VISIBLE_DEVICES=3", "SLURM_JOB_GPUS=7", "boo"):
        assert part in said
    assert "SLURM_STEP_GPUS unset" in said and "Lower cluster.workers_per_node" in said
