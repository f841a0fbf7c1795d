# ruff: noqa: E402
"""verl's and TRL's own functions, asked from outside: runs in the peers' environment and imports nothing of hpcrl.

Reads a list of questions [name, arguments] as JSON, and writes the answers as JSON. Arrays are float64 [B, T], padded
on the right; `mask` says which tokens count. TRL computes inside its trainers, so its methods are called on a stand-in
that holds just what they read.
"""

import dataclasses
import json
import sys
from collections import defaultdict
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

for server in ("cachetools", "fastapi", "uvicorn"):
    sys.modules[server] = MagicMock()  # verl imports its server with its trainer; nothing here starts one

import numpy as np
import torch
import trl
import verl
from omegaconf import OmegaConf
from tensordict import NonTensorData, TensorDict
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils.torch_functional import entropy_from_logits, masked_whiten
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
from verl.workers.reward_manager.dapo import DAPORewardManager
from verl.workers.utils.losses import ppo_loss


def tensor(numbers, kind=torch.float64):
    return torch.tensor(numbers, dtype=kind)


def flags(mask):
    return tensor(mask, torch.int64)


# ── defaults ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def verl_defaults(places):
    """Of the trainer's configuration as its generated file has it; after `sft: ` of the optimizer's, for SFT."""
    folder = Path(verl.__file__).parent / "trainer" / "config"
    trainer_config = OmegaConf.load(folder / "_generated_ppo_trainer.yaml")
    optimizer = OmegaConf.create({"optim": OmegaConf.load(folder / "optim" / "fsdp.yaml")})
    found = []
    for place in places:
        config, key = (optimizer, place[5:]) if place.startswith("sft: ") else (trainer_config, place)
        if key.rpartition(".")[2] not in OmegaConf.select(config, key.rpartition(".")[0]):
            raise KeyError(place)
        found.append(OmegaConf.select(config, key))
    return found


def trl_defaults(places):
    found = []
    for place in places:
        config, _, name = place.partition(".")
        (field,) = (field for field in dataclasses.fields(getattr(trl, config)) if field.name == name)
        made = field.default is dataclasses.MISSING
        found.append(field.default_factory() if made else field.default)
    return [str(value) if isinstance(value, Enum) else value for value in found]


# ── verl ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def verl_gae(rewards, values, mask, discount, gae_lambda):
    found = core_algos.compute_gae_advantage_return(tensor(rewards), tensor(values), tensor(mask), discount, gae_lambda)
    return [part.tolist() for part in found]


def verl_advantages(estimator, rewards, mask, groups, std=True, discount=1.0, baselines=()):
    function = core_algos.get_adv_estimator_fn(estimator)
    own = {
        "grpo": {"index": np.array(groups), "norm_adv_by_std_in_grpo": std},
        "rloo": {"index": np.array(groups)},
        "reinforce_plus_plus": {"config": AlgoConfig(gamma=discount)},
        "reinforce_plus_plus_baseline": {"index": np.array(groups)},
        "remax": {"reward_baselines": tensor(baselines)},
    }[estimator]
    return function(tensor(rewards), response_mask=tensor(mask), **own)[0].tolist()


def verl_whiten(values, mask, shift):
    return masked_whiten(tensor(values), tensor(mask), shift_mean=shift).tolist()


def verl_policy_loss(columns, mask, mode, aggregation, constant=None, kl=None, cap=None, **settings):
    """Of a whole mini-batch: the loss, and its gradient in the log-probabilities."""
    lengths = [sum(length) for length in columns["length"]]
    log_probs = tensor(columns["log_probs"]).requires_grad_()
    rows = [(row[:length], row.new_zeros(1)) for row, length in zip(log_probs, lengths, strict=True)]
    entropies = [
        (row[:length], row.new_zeros(1)) for row, length in zip(tensor(columns["entropy"]), lengths, strict=True)
    ]
    data = {
        "prompts": torch.zeros(len(lengths), 1, dtype=torch.int64),
        "responses": torch.zeros(log_probs.shape, dtype=torch.int64),
        "attention_mask": torch.cat([torch.ones(len(lengths), 1).long(), flags(columns["length"])], dim=1),
        "response_mask": flags(mask),
        "old_log_probs": tensor(columns["old_log_probs"]),
        "advantages": tensor(columns["advantages"]),
        "ref_log_prob": tensor(columns["ref_log_probs"]),
    }
    if cap is not None:
        weights = verl_importance_weights(columns["old_log_probs"], columns["sampled_log_probs"], mask, cap)
        data["rollout_is_weights"] = tensor(weights)
    for name in ("batch_num_tokens", "global_batch_size"):
        data[name] = NonTensorData(None)
    config = FSDPActorConfig(
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=mode),
        loss_agg_mode=aggregation,
        loss_scale_factor=constant,
        use_kl_loss=kl is not None,
        **({} if kl is None else {"kl_loss_coef": kl[1], "kl_loss_type": kl[0]}),
        **settings,
    )
    given = TensorDict({**data, "dp_size": NonTensorData(1)}, batch_size=[len(lengths)])
    made = {"log_probs": torch.cat([part for row in rows for part in row])}
    made["entropy"] = torch.cat([part for row in entropies for part in row])
    loss, _ = ppo_loss(config, made, given)
    loss.backward()
    return [loss.item(), log_probs.grad.tolist()]


def verl_value_loss(values, old_values, returns, mask, clip, aggregation, constant=None):
    values = tensor(values).requires_grad_()
    loss, share = core_algos.compute_value_loss(
        values, tensor(returns), tensor(old_values), flags(mask), clip, aggregation, loss_scale_factor=constant
    )
    loss.backward()
    return [loss.item(), values.grad.tolist(), share.item()]


def verl_kl(estimator, log_probs, ref_log_probs):
    log_probs = tensor(log_probs).requires_grad_()
    kl = core_algos.kl_penalty(log_probs, tensor(ref_log_probs), estimator)
    kl.sum().backward()
    return [kl.tolist(), log_probs.grad.tolist()]


def verl_kl_in_reward(scores, log_probs, ref_log_probs, mask, estimator, coef, target, horizon):
    """Rewards, the mean KL of the batch, and the weight of the next step."""
    numbers = {"token_level_scores": scores, "old_log_probs": log_probs, "ref_log_prob": ref_log_probs}
    batch = DataProto.from_dict({"response_mask": flags(mask), **{key: tensor(row) for key, row in numbers.items()}})
    control = core_algos.AdaptiveKLController(coef, target, horizon)
    data, metrics = apply_kl_penalty(batch, control, estimator)
    return [data.batch["token_level_rewards"].tolist(), metrics["actor/reward_kl_penalty"], control.value]


def verl_importance_weights(old_log_probs, sampled_log_probs, mask, cap):
    log_ratio = tensor(old_log_probs) - tensor(sampled_log_probs)
    return compute_rollout_correction_weights(log_ratio, flags(mask), "token", cap)[0].tolist()


def verl_entropy(logits):
    return entropy_from_logits(tensor(logits)).tolist()


def verl_overlong(lengths, longest, buffer, penalty):
    """What responses of these lengths get whose score is 0."""
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "", eos_token="</s>")
    settings = SimpleNamespace(enable=True, len=buffer, penalty_factor=penalty, log=False)
    manager = DAPORewardManager(tokenizer, 0, lambda **_: 0.0, "source", longest, settings)
    there = torch.arange(longest)[None] < flags(lengths)[:, None]
    batch = DataProto.from_dict(
        {
            "prompts": torch.zeros(len(lengths), 1, dtype=torch.int64),
            "responses": torch.zeros(len(lengths), longest, dtype=torch.int64),
            "attention_mask": torch.cat([torch.ones(len(lengths), 1).bool(), there], dim=1).long(),
        },
        non_tensors={
            "reward_model": np.array([{"ground_truth": ""} for _ in lengths], dtype=object),
            "source": np.array(["any"] * len(lengths), dtype=object),
        },
    )
    return manager(batch).sum(-1).tolist()


# ── TRL ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def trainer(**own):
    """What a method of a trainer reads of it: one process, a model in training, no images, tools or vLLM."""
    alone = SimpleNamespace(
        device=torch.device("cpu"),
        process_index=0,
        num_processes=1,
        is_main_process=True,
        sync_gradients=True,
        gather=lambda value: value,
        gather_for_metrics=lambda value: value,
        reduce=lambda value, reduction: value,
    )
    held = MagicMock(
        accelerator=alone,
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
        _pending_extra_logs={},
        _pending_metrics={},
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        environment_factories=None,
        environments=None,
        tools=None,
        use_vllm=False,
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        ref_model=None,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_adaptive_entropy=False,
        use_weighting=False,
        ld_alpha=None,
        reward_clip_range=None,
        reward_func_names=["score"],
        reward_funcs=[None],
        reward_weights=torch.ones(1, dtype=torch.float64),
        multi_objective_aggregation="sum_then_normalize",
    )
    held._tokenizer.pad_token_id = 0
    for name, value in own.items():
        setattr(held, name, value)
    return held


def trl_advantages(kind, scores, per_group, scale="group", normalised=False, beta=0.0, columns=None, mask=None):
    """A score of null is no score."""
    count = len(scores)
    tokens = [[1] * (sum(mask[i]) if mask else 1) for i in range(count)]
    prompts, texts = [[1]] * count, [""] * count
    log_probs = [tensor(columns[name]) if beta else None for name in ("log_probs", "ref_log_probs")]
    held = trainer(
        _generate=lambda _: (
            (prompts, tokens, None, texts, None, {}, None, None) if kind == "grpo" else (prompts, tokens, texts)
        ),
        _calculate_rewards=lambda *_: tensor([[float("nan") if score is None else score] for score in scores]),
        _get_per_token_logps_and_entropies=lambda model, *_, **__: (
            log_probs[1] if model == "reference" else log_probs[0] if beta else torch.zeros(count, 1),
            None,
            None,
        ),
        ref_model="reference",
        num_generations=per_group,
        num_iterations=1,
        beta=beta,
        scale_rewards=scale,
        normalize_advantages=normalised,
    )
    held.args = SimpleNamespace(
        per_device_train_batch_size=count,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing_kwargs=None,
    )
    method = {"grpo": GRPOTrainer, "rloo": RLOOTrainer}[kind]._generate_and_score_completions
    return method(held, [{"prompt": ""} for _ in scores])["advantages"].tolist()


def trl_policy_loss(kind, columns, mask, constant=None, beta=0.0, entropy_coef=0.0, delta=None, **own):
    """Of a whole mini-batch: the loss, and its gradient in the log-probabilities."""
    log_probs, mask = tensor(columns["log_probs"]).requires_grad_(), flags(mask)
    held = trainer(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, tensor(columns["entropy"]), None),
        beta=beta,
        entropy_coef=entropy_coef,
        _entropy_bonus_enabled=entropy_coef != 0,
        max_completion_length=constant,
        **own,
    )
    held.args = SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1)
    old = tensor(columns["old_log_probs"])
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1).long(),
        "prompt_mask": torch.ones(len(mask), 1).long(),
        "completion_ids": torch.zeros(mask.shape).long(),
        "completion_mask": mask,
        "advantages": tensor(columns["advantages"]) if kind == "grpo" else tensor(columns["advantages"])[:, 0],
        "old_per_token_logps": old,
        "old_logps": (old * mask).sum(1),
        "ref_per_token_logps": tensor(columns["ref_log_probs"]),
        "num_items_in_batch": mask.sum(),
    }
    loss = {"grpo": GRPOTrainer, "rloo": RLOOTrainer}[kind]._compute_loss(held, None, inputs)
    loss.backward()
    return [loss.item(), log_probs.grad.tolist()]


def trl_dpo_loss(kind, log_probs, ref_log_probs, mask, beta, label_smoothing=0.0):
    """Rows are all chosen answers and then all rejected ones."""
    log_probs, mask = tensor(log_probs).requires_grad_(), flags(mask)
    own = {name: torch.ones(mask.shape).double() for name in ("entropy", "mean_logits")}
    inputs = {
        "input_ids": torch.zeros(len(mask), mask.shape[1] + 1).long(),
        "attention_mask": torch.ones(len(mask), mask.shape[1] + 1).long(),
        "completion_mask": torch.cat([torch.zeros(len(mask), 1).long(), mask], dim=1),
    }
    inputs["ref_chosen_logps"], inputs["ref_rejected_logps"] = (tensor(ref_log_probs) * mask).sum(1).chunk(2)
    held = trainer(
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[kind],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=label_smoothing,
    )

    def model(**_):
        return SimpleNamespace(log_probs=log_probs * mask, is_top1=mask.bool(), **own)

    loss = DPOTrainer._compute_loss(held, model, inputs, return_outputs=False)
    loss.backward()
    return [loss.item(), log_probs.grad.tolist()]


def trl_reward_loss(chosen, rejected, margins, centring):
    scores = tensor([*chosen, *rejected]).requires_grad_()
    held = trainer(args=SimpleNamespace(center_rewards_coefficient=centring))
    inputs = {"attention_mask": torch.ones(len(scores), 1)}
    if margins is not None:
        inputs["margin"] = tensor(margins)
    loss = RewardTrainer.compute_loss(held, lambda **_: SimpleNamespace(logits=scores[:, None]), inputs)
    loss.backward()
    return [loss.item(), scores.grad.tolist()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    answers = [globals()[name](**arguments) for name, arguments in json.load(sys.stdin)]
    with open(sys.argv[1], "w") as file:
        json.dump(answers, file)
