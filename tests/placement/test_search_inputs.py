"""What a search is given from outside, and what is said of a file that is something else."""

from pathlib import Path

import msgspec
import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model

from hpcrl.errors import ConfigurationError
from hpcrl.families.reader import read_config
from hpcrl.placement.data_sheets import CPU_CORE
from hpcrl.placement.rates import Ran, rates_from_json
from hpcrl.placement.search_inputs import lengths_asked, rates_asked, read_profile

WHOLE = CPU_CORE.to_json()


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_bytes(WHOLE)
    assert read_profile(tmp_path / "profile.json", "search.profile") == CPU_CORE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no profile: it is empty."),
        (b" \n", "is no profile: it is empty."),
        (b"\x89HDF\r\n\x1a\n\x00\x00", "is no profile: it is not text."),
        (b"\xff\xfe{", "is no profile: it is not text."),
        (b"algorithm: ppo\nactor: {path: model}\n", "is no profile: it is not JSON."),
        (b'{"time": 3}\n', "is no profile: it is JSON of something else (Object missing required field `source`)."),
        (WHOLE.replace(b'"bytes_per_s": ', b'"bytes_per_s": -'), "is no profile: it is JSON of something else ("),
        (WHOLE.replace(b'"latency_ns": ', b'"latency_ns": -'), "is no profile: it is JSON of something else ("),
        (
            WHOLE.replace(b'"texts": []', b'"texts": [[3, 0]]'),
            "is no profile: it is JSON of something else (Expected `int`",
        ),
        (WHOLE[:-40], "is no profile: it is not whole."),
        (WHOLE.replace(b":", b";", 1), "is no profile: it is damaged JSON ("),
        (None, "cannot be read: Is a directory."),
    ],
)
def test_a_file_that_is_no_profile_is_told_what_it_is(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "given"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_profile(path, "search.profile")
    assert f"search.profile = {path} {said}" in str(refused.value)
    assert refused.value.advice == ("Give the JSON file that `hpcrl profile` writes: of a CONFIG, or --from RUN.",)


@pytest.mark.parametrize(
    ("device", "asked", "said"),
    [
        ("NVIDIA H100 80GB HBM3", "cluster.slurm.gpu_type=a100", "it is of NVIDIA H100 80GB HBM3, but"),
        ("NVIDIA H100 80GB HBM3", "search.device=v100", "it is of NVIDIA H100 80GB HBM3, but search.device = v100."),
        ("NVIDIA H100 80GB HBM3", "cluster.slurm.gpu_type=h100", ""),
        ("NVIDIA H100 PCIe", "cluster.slurm.gpu_type=H100", ""),
    ],
)
def test_a_profile_is_of_the_gpu_that_is_named_besides(
    device: str, asked: str, said: str, tmp_path: Path, monkeypatch
) -> None:
    write_inputs(tmp_path)
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    rates = msgspec.structs.replace(CPU_CORE, device=device)
    Path("p.json").write_bytes(rates.to_json())
    experiment = load_config(write_config(Path("ppo.yaml"), ppo_values()), ["search.profile=p.json", asked])
    if not said:
        assert rates_asked(experiment) == rates
        return
    with pytest.raises(ConfigurationError, match=said):
        rates_asked(experiment)


def test_a_part_of_a_gpu_needs_a_profile(tmp_path: Path, monkeypatch) -> None:
    write_inputs(tmp_path)
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    typed = ["cluster.device=cuda", "cluster.slurm.gpu_type=a100_3g.20gb"]
    experiment = load_config(write_config(Path("ppo.yaml"), ppo_values()), typed)
    with pytest.raises(ConfigurationError) as refused:
        rates_asked(experiment)
    assert "cluster.slurm.gpu_type = a100_3g.20gb is a part of a GPU (MIG)" in str(refused.value)
    assert refused.value.advice == ("Set search.profile to what `hpcrl profile` measures on such parts.",)
    rates = msgspec.structs.replace(CPU_CORE, device="NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    Path("p.json").write_bytes(rates.to_json())
    experiment = load_config(Path("ppo.yaml"), [*typed, "search.profile=p.json"])
    assert rates_asked(experiment) == rates


def test_texts_are_as_long_as_those_of_the_runs_that_a_profile_was_taken_from(tmp_path: Path, monkeypatch) -> None:
    write_inputs(tmp_path)
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {role: {"path": "model"} for role in ("actor", "critic", "reference")}
    experiment = load_config(write_config(Path("ppo.yaml"), values), ["search.profile=p.json"])
    rates = msgspec.structs.replace(CPU_CORE, ran=Ran(texts=((3, 4), (5, 10**6))))
    found = lengths_asked(experiment, rates_from_json(rates.to_json()))
    longest = experiment.generation.max_new_tokens
    assert (found.prompts.tolist(), found.responses.tolist()) == ([3, 5], [4, longest])
    assert found.source.startswith("as of the runs of ") and found.source.endswith("p.json")
    guessed = lengths_asked(experiment, CPU_CORE)
    assert guessed.source.startswith("taken to be half of what may be")
    positions = read_config(Path("model")).max_positions
    assert (guessed.prompts + longest).max() <= positions < 1024
    Path("lengths.jsonl").write_text('{"prompt": 7, "response": 2}')
    given = load_config(Path("ppo.yaml"), ["search.lengths=lengths.jsonl"])
    assert lengths_asked(given, rates).prompts.tolist() == [7]


def test_texts_are_as_long_as_a_mean_and_a_spread_say(tmp_path: Path, monkeypatch) -> None:
    write_inputs(tmp_path)
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {role: {"path": "model"} for role in ("actor", "critic", "reference")}
    path = write_config(Path("ppo.yaml"), values | {"data": values["data"] | {"max_prompt_tokens": 400}})
    found = lengths_asked(load_config(path, ["search.prompts=[60, 20]", "search.responses=[4, 1.5]"]), CPU_CORE)
    assert (found.prompts.mean(), found.prompts.std()) == pytest.approx((60, 20), rel=0.03)
    assert (found.responses.mean(), found.responses.std()) == pytest.approx((4, 1.5), rel=0.1)
    assert found.source == "by search.prompts and search.responses"
    ran = msgspec.structs.replace(CPU_CORE, ran=Ran(texts=((3, 4),)))
    half = lengths_asked(load_config(path, ["search.prompts=[60, 0]"]), ran)
    assert set(half.prompts.tolist()) == {60} and half.responses.std() > 0
    assert half.source == "prompts by search.prompts, responses taken to be half of what may be"
    cut = lengths_asked(load_config(path, ["search.prompts=[900, 0]"]), CPU_CORE)
    assert set(cut.prompts.tolist()) == {400}, "they are as long as the settings let them"


def test_lengths_that_are_said_twice_or_make_no_sense_are_refused(tmp_path: Path, monkeypatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values())
    (tmp_path / "lengths.jsonl").write_text('{"prompt": 7, "response": 2}')
    both = load_config(path, [f"search.lengths={tmp_path}/lengths.jsonl", "search.responses=[4, 1]"])
    with pytest.raises(ConfigurationError, match=r"says how long texts are, and so does search\.responses") as refused:
        lengths_asked(both, CPU_CORE)
    assert refused.value.advice == ("Set one of them to null.",)
    given = ["search.responses=[4, 1]", "search.lengths=null"]
    assert lengths_asked(load_config(path, given), CPU_CORE).source.startswith("responses by search.responses")
    with pytest.raises(ConfigurationError, match="a mean of at least 1 and a standard deviation of at least 0"):
        load_config(path, ["search.responses=[0.5, 1]"])
