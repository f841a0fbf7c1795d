"""Whole steps through TorchHost, on one rank and on two: learn alike, save, load, continue and replay."""

import errno
import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest
import torch
from support import toy_family
from support.forged import flip, last_element
from support.hosts import LETTERS, run_of, write_task
from support.pool import gloo_pool
from support.rows import open_datasets, training_steps
from support.tiny import flat

from hpcrl.algos.host import TorchHost
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency, ProfileConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.checkpoints import DamagedCheckpointError
from hpcrl.durable.files import Files
from hpcrl.durable.rundir import RunDirectory
from hpcrl.engines.flat import new_model
from hpcrl.engines.pipeline import Pipeline
from hpcrl.errors import ConfigurationError, DataError, UserCodeError
from hpcrl.families.config import DecoderConfig
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.placement.plan import ModelName, plan_for
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig
from hpcrl.workers.host import HostContext, Work

OPTIMIZER = OptimizerConfig(lr=0.01, schedule="cosine", warmup_steps=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("task")
    write_task(path)
    return path


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


def data(folder, **options):
    rows, held_out = str(folder / "rows.jsonl"), str(folder / "held_out.jsonl")
    return DataConfig(train=rows, evaluate=held_out, batch_size=5, **options)


def ppo(folder, dtype="fp64", steps=4, function="reward.py:ones", **options):
    model = {"path": str(folder / "model"), "dtype": dtype}
    return PPOExperiment(
        control=ControlConfig(steps=steps, evaluate=Frequency(steps=1)),
        data=data(folder, samples_per_prompt=2),
        actor=TrainedModelConfig(optimizer=OPTIMIZER, micro_batch_tokens=30, **model),
        critic=CriticConfig(optimizer=OPTIMIZER, **model),
        reference=ReferenceConfig(**model),
        reward=RewardConfig(function=str(folder / function)),
        generation=GenerationConfig(max_new_tokens=8, temperature=0.9, slots=4),
        ppo=PPOConfig(
            minibatches=2,
            epochs=2,
            value_norm=True,
            entropy_coef=0.01,
            cut="penalty",
            cut_penalty=0.5,
            kl=KLConfig(mode="reward", coef=0.1, adaptive=True, target=0.05, horizon=100.0),
            **options,
        ),
    )


def sft(folder, dtype="fp64", steps=4):
    return SFTExperiment(
        control=ControlConfig(steps=steps, evaluate=Frequency(steps=1)),
        data=data(folder),
        actor=SFTModelConfig(path=str(folder / "model"), dtype=dtype, optimizer=OPTIMIZER),
        generation=GenerationConfig(max_new_tokens=6),
    )


def three_steps(experiment, pool):
    with run_of(experiment, pool) as conductor:
        return [conductor.step(step) for step in (1, 2, 3)]


@pytest.mark.parametrize("make", [ppo, sft])
def test_two_ranks_learn_as_one_in_float64(folder, pool, make):
    alone, together = (three_steps(make(folder), ranks) for ranks in (None, pool))
    for left, right in zip(alone, together, strict=True):
        assert left.outcomes.keys() == right.outcomes.keys()
        for call, outcome in left.outcomes.items():
            for name, (total, weight) in outcome.stats.items():
                assert right.outcomes[call].stats[name] == (pytest.approx(total, rel=1e-9, abs=1e-11), weight), name
        for key in ("responses", "rewards") if make is ppo else ("answers",):
            rows = right.rows.select(left.rows.ids).rows(key)
            assert all(np.array_equal(a, b) for a, b in zip(left.rows.rows(key), rows, strict=True))


def test_a_call_may_have_micro_batches_of_its_own(folder, monkeypatch):
    bounds = []
    cut = Pipeline._cut
    monkeypatch.setattr(Pipeline, "_cut", lambda it, *given: bounds.append(it.micro_batch_tokens) or cut(it, *given))
    usual = three_steps(ppo(folder), None)[2]
    assert set(bounds) == {30, CriticConfig.micro_batch_tokens}
    bounds.clear()
    own = three_steps(replace(ppo(folder), calls={"critic_inf": {"micro_batch_tokens": 17}}), None)[2]
    assert set(bounds) == {30, CriticConfig.micro_batch_tokens, 17} and bounds.count(17) == 3
    for metric in ("actor_train/loss", "critic_train/loss"):
        assert own.mean(metric) == pytest.approx(usual.mean(metric), rel=1e-9, abs=1e-12)


def test_roles_on_different_workers_compute_what_they_do_together(folder, pool):
    whole = ppo(folder)
    apart = replace(whole, critic=replace(whole.critic, mesh="1"), reference=replace(whole.reference, mesh="0"))
    together, spread = (three_steps(experiment, pool) for experiment in (whole, apart))
    for left, right in zip(together, spread, strict=True):
        for metric in ("actor_train/loss", "critic_train/loss", "actor_train/kl", "rew_inf/reward"):
            assert left.mean(metric) == pytest.approx(right.mean(metric), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("make", "world"), [(ppo, 1), (ppo, 2), (sft, 1)])
def test_a_run_continued_from_its_checkpoint_is_bit_identical(folder, pool, tmp_path, make, world, dtype):
    experiment, ranks = make(folder, dtype), pool if world == 2 else None
    with run_of(experiment, ranks) as conductor:
        conductor.step(1)
        checkpoint = conductor.save(tmp_path)
        through = conductor.step(2)
    with run_of(experiment, ranks, checkpoint) as conductor:
        resumed = conductor.step(2)
    assert resumed.records == through.records
    assert all(np.array_equal(resumed.rows.data[key], through.rows.data[key]) for key in through.rows.keys)


def test_calls_that_are_recorded_leave_traces_and_change_no_bit(folder):
    plain, done = ppo(folder, "fp32"), []
    wanted = ProfileConfig(steps=(2,), calls=("actor_gen", "actor_train"))
    for experiment in (plain, replace(plain, control=replace(plain.control, profile=wanted))):
        with run_of(experiment) as conductor:
            done.append([conductor.step(step) for step in (1, 2)])
            [host] = conductor.ranks.hosts
            run = RunDirectory(host._context.run_dir)
            found = {path.name: gzip.decompress(path.read_bytes()) for path in run.attempt(0).glob("traces/*")}
    for without, recorded in zip(*done, strict=True):
        assert recorded.records == without.records
        assert all(np.array_equal(recorded.rows.data[key], without.rows.data[key]) for key in without.rows.keys)
    assert sorted(found) == [f"step-00000002.{call}.dp00.worker-0.json.gz" for call in ("actor_gen", "actor_train")]
    for trace in map(json.loads, found.values()):
        assert any(event.get("name") == "aten::index_select" for event in trace["traceEvents"])


def test_a_trace_that_finds_no_room_ends_no_call(folder, capfd):
    plain = sft(folder)
    with run_of(replace(plain, control=replace(plain.control, profile=ProfileConfig(steps=(1,))))) as conductor:
        full = OSError(errno.ENOSPC, "No space left on device")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Files, "publish", mock.Mock(side_effect=full))
            assert conductor.step(1).records
    assert "no trace was written to step-00000001.actor_train" in capfd.readouterr().err


def test_what_was_loaded_has_the_digest_that_was_saved_or_is_refused(folder, tmp_path):
    experiment = sft(folder)
    with run_of(experiment) as conductor:
        records, saved = conductor.step(1).records, conductor.save(tmp_path)
    (actor,) = saved.values()
    checkpoint = {"actor": msgspec.structs.replace(actor, digest=records["actor_train"]["digest"])}
    with run_of(experiment, checkpoint=checkpoint) as conductor:
        conductor.step(2)
    shard = Path(actor.shards[0].name)
    for at, why in (
        (last_element(shard), r"actor was saved with digest .*, and loaded with"),
        (20, "is no shard any more"),
    ):
        flip(shard, at)
        with pytest.raises(DamagedCheckpointError, match=why):
            run_of(experiment, checkpoint=checkpoint).__enter__()


@pytest.mark.parametrize(("role", "remembered"), [("actor", "kl_coef"), ("critic", "square_sum")])
def test_what_an_algorithm_remembers_is_loaded_as_it_was_saved_or_refused(folder, tmp_path, role, remembered):
    experiment = ppo(folder)
    with run_of(experiment) as conductor:
        records, saved = conductor.step(1).records, conductor.save(tmp_path)
    checkpoint = {
        name: msgspec.structs.replace(of, digest=records[f"{name}_train"]["digest"]) for name, of in saved.items()
    }
    with run_of(experiment, checkpoint=checkpoint) as conductor:
        conductor.step(2)
    path = Path(saved[role].shards[0].name)
    data = bytearray(path.read_bytes())
    found = re.search(rf'{remembered}\\": [0-9.]*'.encode(), data)
    data[found.end() - 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match=f"{role} was saved with digest .*, and loaded with"):
        run_of(experiment, checkpoint=checkpoint).__enter__()


@pytest.mark.parametrize(("make", "early_stop"), [(ppo, {}), (ppo, {"early_stop_kl": 1e-4}), (sft, {})])
def test_a_replay_of_recorded_steps_is_bit_identical(folder, pool, make, early_stop):
    experiment = make(folder, "fp32", **early_stop)
    with run_of(experiment, pool) as conductor:
        done = [conductor.step(step) for step in (1, 2)]
        third = conductor.step(3)
    with run_of(experiment, pool) as conductor:
        for step, first in enumerate(done, start=1):
            again = conductor.step(step, first.records, first.rows)
            assert again.records == first.records
            for call, outcome in again.outcomes.items():
                assert outcome.stats == first.outcomes[call].stats
        assert conductor.step(3).records == third.records
    if early_stop:
        assert any(record["outcomes"][-1] == "refused" for record in first.records.values())


def test_a_checkpoint_of_two_ranks_loads_on_one_and_back(folder, pool, tmp_path):
    experiment = ppo(folder)
    with run_of(experiment, pool) as conductor:
        conductor.step(1)
        of_two = conductor.save(tmp_path / "two")
        expected = conductor.step(2)
    with run_of(experiment, None, of_two) as conductor:
        on_one = conductor.step(2)
        of_one = conductor.save(tmp_path / "one")
        expected_third = conductor.step(3)
    with run_of(experiment, pool, of_one) as conductor:
        third = conductor.step(3)
    for left, right in ((expected, on_one), (expected_third, third)):
        for metric in ("actor_train/loss", "critic_train/loss", "actor_train/grad_norm", "rew_inf/reward"):
            assert left.mean(metric) == pytest.approx(right.mean(metric), rel=1e-9, abs=1e-12)


def test_supervised_training_learns_the_answers(folder):
    slow = sft(folder, "fp32", steps=60)
    fast = replace(
        slow,
        data=DataConfig(train=slow.data.train, evaluate=slow.data.train, batch_size=12),
        actor=replace(slow.actor, optimizer=OptimizerConfig(lr=0.03)),
    )
    with run_of(fast) as conductor:
        assert conductor.evaluate(0).mean("eval_rew/accuracy") == 0.0
        losses = [conductor.step(step).mean("actor_train/loss") for step in range(1, 61)]
        assert losses[-1] < 0.1 * losses[0]
        evaluated = conductor.evaluate(60)
        assert evaluated.mean("eval_rew/accuracy") > 0.8
        assert evaluated.mean("eval_loss/loss") == pytest.approx(losses[-1], rel=0.5)


@pytest.mark.slow
def test_policy_optimisation_raises_the_reward(folder):
    plain = ppo(folder, "fp32", steps=40)
    keen = replace(
        plain,
        data=replace(plain.data, samples_per_prompt=6),
        ppo=PPOConfig(minibatches=2, kl=KLConfig()),
    )
    with run_of(keen) as conductor:
        rewards = [conductor.step(step).mean("rew_inf/reward") for step in range(1, 31)]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 1.0


def test_evaluation_is_greedy_and_changes_nothing(folder):
    with run_of(ppo(folder, "fp32")) as conductor:
        first, second = conductor.evaluate(1), conductor.evaluate(2)
        assert np.array_equal(first.rows.data["eval_responses"], second.rows.data["eval_responses"])
        assert first.outcomes["eval_rew"].stats.keys() == {"reward", "accuracy", "dropped", "not_scorable"}
        sampled = [conductor.ranks.hosts[0].execute(work) for work in conductor_works(conductor)]
    assert not np.array_equal(sampled[0].sample.data["responses"], sampled[1].sample.data["responses"])


def test_a_greedy_call_draws_nothing_on_training_data_too(folder):
    with run_of(ppo(folder)) as conductor:
        host, call = conductor.ranks.hosts[0], conductor.plan.call("actor_gen")
        role, greedy = host._roles[conductor.plan.at["actor_gen"]], msgspec.structs.replace(call, greedy=True)
        made = [role.generate(work, greedy).sample.data["responses"] for work in conductor_works(conductor)]
    assert np.array_equal(*made)


def conductor_works(conductor):
    """The same samples in two steps."""
    batch = conductor.batch(1)
    return [Work(step, "actor_gen", 0, batch) for step in (1, 2)]


def test_another_seed_of_the_run_draws_other_responses(folder):
    drawn = []
    for seed in (1, 1, 2):
        with run_of(replace(ppo(folder), data=data(folder, shuffle=False), seed=seed)) as conductor:
            made = conductor.ranks.hosts[0].execute(Work(1, "actor_gen", 0, conductor.batch(1))).sample
        drawn.append(made.data["responses"].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_responses_do_not_depend_on_who_else_is_in_the_batch(folder):
    with run_of(ppo(folder)) as conductor:
        host, batch = conductor.ranks.hosts[0], conductor.batch(1)
        whole = host.execute(Work(1, "actor_gen", 0, batch)).sample
        for sample_id in batch.ids[:3]:
            alone = host.execute(Work(1, "actor_gen", 0, batch.select([sample_id]))).sample
            assert np.array_equal(alone.data["responses"], whole.select([sample_id]).data["responses"])


def test_generated_log_probabilities_equal_those_of_training(folder):
    with run_of(ppo(folder)) as conductor:
        done = conductor.step(1)
        np.testing.assert_allclose(done.rows.data["logprobs"], done.rows.data["ref_logprobs"], rtol=1e-5, atol=1e-6)
        assert done.mean("actor_train/kl") == pytest.approx(0.0, abs=1e-6)


def test_the_first_update_begins_where_the_rollout_was_drawn(folder):
    """Catches responses drawn from, or scored under, another distribution than training has."""
    once = ppo(folder)
    once = replace(once, ppo=replace(once.ppo, minibatches=1, epochs=1))
    with run_of(once) as conductor:
        done = conductor.step(1)
    assert done.mean("actor_train/ratio") == pytest.approx(1.0, abs=1e-6)
    assert done.mean("actor_train/approx_kl") == pytest.approx(0.0, abs=1e-9)


def test_exports_are_the_trained_weights_in_hugging_face_format(folder, tmp_path):
    with run_of(ppo(folder, "fp32")) as conductor:
        conductor.step(1)
        host = conductor.ranks.hosts[0]
        for role in ("actor", "critic"):
            exported = flat(host._roles[ModelName(role)].engine)
            conductor.export(role, tmp_path / role)
            assert torch.equal(new_model(tmp_path / role).memory.data, exported)
    assert (tmp_path / "actor" / "tokenizer.json").is_file()


@pytest.fixture
def split(folder, tmp_path):
    """A run whose tokenizer has a folder of its own, and whose model's folder names another token that ends texts."""
    shutil.copytree(folder / "model", tmp_path / "model")
    tokenizer, model = tmp_path / "tokenizer", tmp_path / "model"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).rename(tokenizer / name)
    (model / "tokenizer_config.json").write_text("{}")
    fields = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(fields | {"eos_token_id": 3}))
    experiment = ppo(folder, "fp32")
    roles = {role: replace(getattr(experiment, role), path=str(model)) for role in ("actor", "critic", "reference")}
    return replace(experiment, data=replace(experiment.data, tokenizer=str(tokenizer)), **roles)


def test_exports_take_along_the_tokenizer_of_the_run(split, tmp_path):
    with run_of(split) as conductor:
        for role in ("actor", "critic"):
            conductor.export(role, tmp_path / role)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                assert (tmp_path / role / name).read_bytes() == (tmp_path / "tokenizer" / name).read_bytes()


def test_a_text_ends_with_the_tokenizers_end_or_the_models(split):
    with run_of(split) as conductor:
        rows = conductor.step(1).rows
    responses = rows.rows("responses")
    for response, [finished] in zip(responses, rows.rows("finished"), strict=True):
        assert finished == (response[-1] in (3, len(LETTERS)))
        assert not {3, len(LETTERS)} & set(response[:-1].tolist())
    assert any(response[-1] == 3 for response in responses)


def test_a_crashed_reward_ends_the_run(folder):
    (folder / "crash.py").write_text("def crash(prompt, response, row):\n    raise RuntimeError('no')\n")
    with run_of(ppo(folder, function="crash.py:crash")) as conductor, pytest.raises(UserCodeError, match="crash"):
        conductor.step(1)


def test_the_length_of_a_run_counts_epochs_once(folder):
    experiment = sft(folder)
    in_epochs = replace(experiment, control=ControlConfig(epochs=3))
    assert training_steps(experiment) == 4
    assert training_steps(in_epochs) == 3 * 3


def test_a_folder_that_is_no_model_for_its_role_is_refused_naming_the_role(folder, tmp_path):
    with run_of(ppo(folder, "fp32")) as conductor:
        conductor.export("critic", tmp_path / "critic")
    plain = ppo(folder, "fp32")
    swapped = replace(plain, actor=replace(plain.actor, path=str(tmp_path / "critic")))
    message = rf"actor\.path = {tmp_path}/critic is no model(?s:.*)architectures names a model with a value head"
    with pytest.raises(DataError, match=message), run_of(swapped):
        pass
    (tmp_path / "critic" / "model.safetensors").unlink()
    headless = replace(plain, critic=replace(plain.critic, path=str(tmp_path / "critic")))
    with pytest.raises(DataError, match=r"critic\.path = .*(?s:.*)has neither model\.safetensors"), run_of(headless):
        pass


@pytest.fixture
def numerics():
    """What a host settles for its whole process is put back."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("default")
    yield
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode(mode)
    torch.utils.deterministic.fill_uninitialized_memory = filled


@pytest.mark.parametrize(("deterministic", "mode"), [(True, 1), (False, 0)])
def test_a_host_has_the_threads_and_the_determinism_of_the_configuration(folder, numerics, deterministic, mode):
    cluster = ClusterConfig(workers_per_node=1, device="cpu", threads_per_worker=3)
    experiment = replace(sft(folder), cluster=cluster, deterministic=deterministic)
    host = TorchHost(HostContext(0, plan_for(experiment, nodes=1), folder, open_datasets(experiment)))
    host.close()
    assert host.software == f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    assert torch.get_num_threads() == 3
    assert torch.get_deterministic_debug_mode() == mode


def test_a_layout_that_the_backend_cannot_split_is_refused(folder, monkeypatch):
    experiment = sft(folder)
    monkeypatch.setattr("hpcrl.algos.host.axes_of", lambda role, section, without_model: ("dp",))
    split = replace(
        experiment, actor=replace(experiment.actor, layout="t1p2"), cluster=ClusterConfig(workers_per_node=2)
    )
    host = TorchHost(HostContext(0, plan_for(split, nodes=1), folder, open_datasets(split)))
    host._parallel.join = lambda invitation: None
    with pytest.raises(
        ConfigurationError, match=r"actor.layout = d1t1p2 splits a model over .* Set actor.layout to d2"
    ):
        host.load([""], {})
    host.close()


BACKEND = """
from hpcrl.backends.backend import Backend

MINE = Backend(train=True, generate=True, axes=("dp",), dtypes=("fp64",), engine=f"{__file__}:Engine")


def __getattr__(name):
    from hpcrl.engines.native import NativeEngine

    return type(name, (NativeEngine,), {})
"""


def test_a_family_and_a_backend_of_the_users_own_train_resume_and_export(folder, tmp_path):
    toy = f"{toy_family.__file__}:FAMILY"
    sizes = DecoderConfig(toy, len(LETTERS) + 1, 16, 24, 2, 4, 2, 4, 64, norm_eps=1e-5, initializer_range=0.3)
    write_random_pretrained(tmp_path / "toy", sizes, seed=0, tokenizer_from=folder / "model")
    (tmp_path / "backend.py").write_text(BACKEND)
    plain, mine = sft(folder), f"{tmp_path}/backend.py:MINE"
    own = replace(plain, actor=replace(plain.actor, path=str(tmp_path / "toy"), family=toy, backend=mine))
    with run_of(own) as conductor:
        conductor.step(1)
        checkpoint = conductor.save(tmp_path / "checkpoint")
        through = conductor.step(2)
        host = conductor.ranks.hosts[0]
        assert type(host._roles[ModelName("actor")].engine).__name__ == "Engine"
        trained = flat(host._roles[ModelName("actor")].engine).clone()
        conductor.export("actor", tmp_path / "export")
    with run_of(own, None, checkpoint) as conductor:
        assert conductor.step(2).records == through.records
    exported = new_model(tmp_path / "export", family=toy, dtype=torch.float64)
    assert torch.equal(exported.memory.data, trained)
