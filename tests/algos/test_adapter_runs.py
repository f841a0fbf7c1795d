"""Runs that train low-rank adapters, on real processes: whose reference they are, who has them merged, and kills."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.adapter_runs import BLOWS, LORA, adapted
from support.chaos import remains, whole_run
from support.exported import check_exports, contents
from support.foreign_models import write_foreign_task
from support.hosts import write_task
from support.made_parts import moves_in
from support.struck_layouts import check_struck, exported

from hpcrl.cli.main import main
from hpcrl.config.ema import EMAConfig
from hpcrl.data.contents import Contents
from hpcrl.data.inputs import fingerprints, input_files
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.recipes.algorithm import algorithm_of


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), adapted(task))


@pytest.mark.slow
def test_a_reference_that_is_the_actor_without_adapters_has_the_bits_of_one_of_its_own(
    undisturbed: RunDirectory, task: Path, tmp_path: Path
) -> None:
    """What it says of each response counts in every reward."""
    apart = adapted(task)
    reference = replace(apart.reference, of=None, layout="t2", micro_batch_tokens=24)
    own = whole_run(tmp_path, replace(apart, reference=reference))
    assert remains(own) == remains(undisturbed)
    assert exported(own) == exported(undisturbed)


def test_its_checkpoints_give_the_same_exports_offline(undisturbed: RunDirectory, tmp_path: Path) -> None:
    assert check_exports(undisturbed, tmp_path / "offline")


def test_adapters_are_merged_into_no_weights_but_those_that_they_were_trained_with(
    undisturbed: RunDirectory,
    task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    experiment = adapted(task)
    inputs = fingerprints(input_files(experiment, algorithm_of(experiment).rows), Contents())
    record = msgspec.structs.replace(undisturbed.read_run(), inputs=inputs)
    monkeypatch.setattr(RunDirectory, "read_run", lambda _: record)

    def exporting(out: str) -> tuple[int, str]:
        code = main(["export", str(undisturbed.root), "--role", "actor", "--out", str(tmp_path / out)])
        return code, capsys.readouterr().err

    code, said = exporting("as it was")
    assert code == ExitCode.DONE and "actor.path" not in said and "data.tokenizer" not in said
    weights, added = task / "model" / "model.safetensors", task / "model" / "added_tokens.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, said = exporting("other weights")
    assert code == ExitCode.DATA and f"actor.path: {weights} has other content" in said and "Put it back." in said
    assert not (tmp_path / "other weights").exists()
    weights.write_bytes(whole)
    added.write_text("{}")
    code, said = exporting("another tokenizer")
    added.unlink()
    assert code == ExitCode.DONE and "what is exported has it as it is now" in said
    assert f"data.tokenizer: {added} is new. The run had it otherwise" in said
    assert contents(tmp_path / "as it was").items() <= contents(tmp_path / "another tokenizer").items()


def test_adapters_alone_are_trained(undisturbed: RunDirectory, task: Path) -> None:
    """Every pair has moved; a norm of the merged model is that of the base."""
    (folder,) = sorted((undisturbed.exports / "actor").iterdir())[-1:]
    ups = {name: up for name, up in load_file(folder / "adapter" / "adapter_model.safetensors").items() if "_B" in name}
    assert ups and all(up.any() for up in ups.values())
    base, merged = (load_file(file / "model.safetensors") for file in (task / "model", folder))
    for name, tensor in base.items():
        same = np.array_equal(tensor, merged[name].astype(tensor.dtype))
        assert same is not name.endswith("proj.weight"), name


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOWS)
def test_a_run_with_adapters_that_is_struck_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, adapted(task), BLOWS[name], undisturbed)


@pytest.mark.slow
def test_a_run_that_begins_from_adapters_and_is_struck_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path
) -> None:
    """After all of it is killed it reads them again."""
    (folder,) = sorted((undisturbed.exports / "actor").iterdir())[-1:]
    begun = adapted(task)
    begun = replace(begun, actor=replace(begun.actor, lora=replace(LORA, path=str(folder / "adapter"))))
    (tmp_path / "whole").mkdir()
    whole = whole_run(tmp_path / "whole", begun)
    assert remains(whole).metrics[0] != remains(undisturbed).metrics[0]
    check_struck(tmp_path, begun, BLOWS["all"], whole)


@pytest.mark.slow
def test_models_of_transformers_that_are_struck_end_with_the_same_bits_whosever_the_reference(tmp_path: Path) -> None:
    """That of the run that is struck has a model of its own. What is exported PEFT loads, too."""
    from peft import AutoPeftModelForCausalLM

    (tmp_path / "task").mkdir()
    task = write_foreign_task(tmp_path / "task", "gpt_neox", intermediate_size=24, max_position_embeddings=64)
    shared = adapted(task, "d2")
    critic = replace(shared.critic, lora=replace(LORA, targets=("dense", "query_key_value")))
    shared = replace(shared, critic=critic)
    (tmp_path / "shared").mkdir()
    undisturbed = whole_run(tmp_path / "shared", shared)
    reference = replace(shared.reference, of=None, layout="d2", micro_batch_tokens=24)
    check_struck(tmp_path, replace(shared, reference=reference), BLOWS["in a backward pass"], undisturbed)
    (folder,) = sorted((undisturbed.exports / "actor").iterdir())[-1:]
    loaded = AutoPeftModelForCausalLM.from_pretrained(folder / "adapter")
    assert type(loaded.base_model.model).__name__ == "GPTNeoXForCausalLM"


def test_copies_elsewhere_have_merged_weights_and_the_digest_that_the_home_says(
    undisturbed: RunDirectory, task: Path, tmp_path: Path
) -> None:
    """What they generate and predict is what the home does, up to rounding."""
    calls = {"actor_gen": {"layout": "d2", "mesh": "0-1"}, "critic_inf": {"layout": "d1", "mesh": 1}}
    run = whole_run(tmp_path, adapted(task, calls=calls))
    ours, theirs = remains(run), remains(undisturbed)
    assert ours.ids == theirs.ids
    for row, reference in zip(ours.metrics, theirs.metrics, strict=True):
        np.testing.assert_allclose(list(row.values()), list(reference.values()), rtol=1e-7, atol=1e-9)
    assert moves_in(run) and "drift" not in run.events(0).read_text()


@pytest.mark.slow
def test_a_reference_of_its_own_follows_the_merged_actor(task: Path, tmp_path: Path) -> None:
    """On other workers than the actor is, and on its own."""
    whole = adapted(task, "d2")
    kl = replace(whole.ppo.kl, reference_ema=EMAConfig(decay=0.5))
    found = []
    for name, mesh, layout in (("apart", "1", "d1"), ("beside", None, "d2")):
        (tmp_path / name).mkdir()
        reference = replace(whole.reference, of=None, layout=layout, mesh=mesh, micro_batch_tokens=24)
        followed = replace(whole, reference=reference, ppo=replace(whole.ppo, kl=kl))
        found.append(remains(whole_run(tmp_path / name, followed)).trained)
    assert found[0] == found[1]
