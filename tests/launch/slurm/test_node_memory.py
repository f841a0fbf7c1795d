"""What memory workers on Slurm will have: as the options say it, else as Slurm's own answers do."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.cli.main import main
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.slurm import SlurmConfig
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.launch.slurm.launcher import SlurmLauncher
from hpcrl.launch.slurm.node_memory import gpu_bytes, memory
from hpcrl.launch.slurm.site import NodeKind, parse_nodes
from hpcrl.placement.capacity import Capacity

GIB, MIB = 2**30, 2**20


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


@pytest.fixture
def ask(fake: FakeSlurm) -> Callable[..., Capacity]:
    """The capacity of workers on CPUs or GPUs with these options; two workers a node, of four CPUs each."""

    def found(device: str = "cpu", **options: object) -> Capacity:
        cluster = ClusterConfig(device=device, slurm=SlurmConfig(**options))  # type: ignore[arg-type]
        return memory(cluster, SlurmLauncher(fake.commands()))

    return found


@pytest.mark.parametrize(("said", "size"), [("24G", 24 * GIB), ("3000", 3000 * MIB), ("2T", 2048 * GIB)])
def test_a_node_has_what_is_asked_for_and_slurm_is_not_asked(fake, ask, said: str, size: int) -> None:
    found = ask(memory=said)
    assert (found.bytes, found.of) == (size, "node")
    assert fake.state["calls"] == []


def test_who_asks_for_nothing_gets_what_the_site_gives_for_its_cpus(fake, ask) -> None:
    found = ask(partition="low")
    assert (found.bytes, found.of) == (8 * 2000 * MIB, "node"), "DefMemPerCPU is 2000"
    assert "without cluster.slurm.memory a job gets, on partition low," in found.source
    assert "cluster.slurm.memory" in found.more


def with_partition(fake: FakeSlurm, tmp_path: Path, memory: str) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("config", "partition"):
        text = (Path(fake.state["texts"]) / f"{name}-22.05.txt").read_text()
        changed = text.replace("DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED", memory)
        (texts / f"{name}-22.05.txt").write_text(changed)
    fake.set(texts=str(texts))


def test_a_partitions_own_word_counts_before_the_sites(fake, ask, tmp_path: Path) -> None:
    with_partition(fake, tmp_path, "DefMemPerNode=5000 MaxMemPerNode=9000")
    assert ask(partition="low").bytes == 5000 * MIB
    assert ask(partition="low", memory="0").bytes == 9000 * MIB, "all that it may have"


def test_who_asks_for_all_has_what_the_largest_node_has(fake, ask) -> None:
    found = ask(partition="gpu", memory="0")
    assert (found.bytes, found.source) == (16000 * MIB, "a node of partition gpu has")
    fake.set(nodes={"low": ["2|16|16000|(null)", "4|16|64000|gpu:fake:2"]})
    found = ask(partition="low", flags=("--exclusive",))
    assert (found.bytes, found.source) == (64000 * MIB, "the largest node of partition low has")
    fake.set(nodes={"low": ["2|16|1|(null)"]})
    assert ask(partition="low", memory="0").bytes is None, "Slurm's word for a node of which it was told nothing"


@pytest.mark.parametrize("flag", ["--mem-per-cpu=4G", "--mem=3G"])
def test_what_sbatch_is_told_besides_is_not_guessed_at(ask, flag: str) -> None:
    assert ask(partition="gpu", flags=(flag,)).bytes is None


def test_a_slurm_that_does_not_answer_refuses_nothing(fake, ask) -> None:
    fake.away(1000)
    assert ask(partition="gpu", memory="0").bytes is None
    assert (ask("cuda").bytes, ask("cuda").of) == (None, "worker")


@pytest.mark.parametrize(
    ("kind", "gib"),
    [
        ("nvidia_a100_80gb_pcie", 80), ("a100-40g", 40), ("tesla_v100-sxm2-16gb", 16), ("nvidia_a100_1g.10gb", 10),
        ("a100", 80), ("H100", 96), ("v100", 32), ("l40s", 48), ("fake", None), ("a100-1g", 80), ("", None),
    ],
)  # fmt: skip
def test_the_name_of_a_gpus_type_says_at_most_what_it_has(kind: str, gib: int | None) -> None:
    assert gpu_bytes(kind) == (None if gib is None else gib * GIB)


def test_gpus_are_known_by_their_types_alone(fake, ask) -> None:
    assert ask("cuda", gpu_type="v100").bytes == 32 * GIB
    assert fake.state["calls"] == []
    assert ask("cuda", partition="gpu").bytes is None, "a type that nobody knows"
    fake.set(nodes={"gpu": ["3|16|16000|gpu:v100:4(S:0-1)", "1|16|16000|gpu:a100:8,shard:80"]})
    found = ask("auto", partition="gpu")
    assert (found.bytes, found.of) == (80 * GIB, "worker")
    assert found.source == "a GPU of type a100 or v100 has at most"
    fake.set(nodes={"gpu": ["3|16|16000|gpu:v100:4", "1|16|16000|gpu:8"]})
    assert ask("auto", partition="gpu").bytes is None


def test_what_waits_beside_gpus_has_the_memory_of_their_node_which_is_asked_for_later(fake, ask) -> None:
    found = ask("cuda", gpu_type="v100", partition="low")
    assert fake.state["calls"] == [] and found.host is not None
    assert (found.host().bytes, found.host().of) == (8 * 2000 * MIB, "node")
    assert fake.state["calls"] != []
    asked = ask("cuda", gpu_type="v100", memory="24G").host
    assert asked is not None and asked().bytes == 24 * GIB
    fake.away(1000)
    silent = ask("cuda", partition="gpu").host
    assert silent is not None and silent().bytes is None
    assert ask("cpu", memory="24G").host is None


def test_nodes_are_read_with_the_types_of_their_gpus() -> None:
    text = "2|16|16000|(null)\n4|128|512000+|gpu:a100:4(S:0-1),gpu:1,fpga:2\n"
    assert parse_nodes(text) == [NodeKind(2, 16, 16000 * MIB, ()), NodeKind(4, 128, 512000 * MIB, ("a100", ""))]


@pytest.mark.parametrize("command", [["plan"], ["submit", "--dry-run"], ["submit"]])
def test_a_model_that_the_nodes_of_a_partition_cannot_hold_is_refused_before_anything_is_made(
    fake, tmp_path: Path, monkeypatch, capsys, command: list[str]
) -> None:
    write_inputs(tmp_path)
    write_model(tmp_path / "model", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32)
    monkeypatch.chdir(tmp_path)
    for name in ("PATH", "FAKE_SLURM"):
        monkeypatch.setitem(os.environ, name, fake.environment[name])
    config = str(write_config(tmp_path / "ppo.yaml", ppo_values()))
    name, *options = command
    told = ["--cluster", "slurm", "--cluster.device", "cpu", "--cluster.slurm.partition", "low"]
    assert main([name, config, *options, *told]) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert "but without cluster.slurm.memory a job gets, on partition low, 15.6 GiB" in said
    assert not Path("runs").exists()
    asked = [" ".join(call[:3]) for call in fake.state["calls"]]
    assert asked == ["scontrol show config", "scontrol --all --oneliner"], "no call for this alone"


def test_memory_by_cpu_counts_those_of_cpu_workers_too(fake) -> None:
    cluster = ClusterConfig(device="cpu", slurm=SlurmConfig(partition="low"))
    assert memory(cluster, SlurmLauncher(fake.commands()), 1).bytes == 12 * 2000 * MIB


def test_cpu_workers_that_fit_no_node_of_the_partition_are_refused_by_name(fake, tmp_path: Path, monkeypatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path / "ppo.yaml", ppo_values())
    fits, too_many = (
        load_config(config, ["cluster.slurm.partition=low", "cluster.device=cpu", f"reward.workers={number}"])
        for number in (2, 3)
    )
    launcher = SlurmLauncher(fake.commands())
    assert launcher.prepare(fits).cluster.type == "slurm"
    with pytest.raises(ConfigurationError) as raised:
        launcher.prepare(too_many)
    assert str(raised.value) == (
        "cluster.slurm.cpus_per_worker · (cluster.workers_per_node + reward.workers) = 4 · (2 + 3) = 20 CPUs of each "
        "node, but the largest node of partition low has 16. Lower cluster.slurm.cpus_per_worker or reward.workers."
    )
