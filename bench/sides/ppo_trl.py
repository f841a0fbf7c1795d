"""TRL's PPOTrainer (experimental), a step a round. Argument: the model's folder.

Policy, value, reference and reward model of one shape; 4 minibatches with an optimizer step each, one pass;
responses of one length, so that nothing is padded. It does not clip gradients; hpcrl does.
"""

import sys

import torch
from datasets import Dataset
from metronome import OwnLoop
from shapes import PAD, RESPONSE_TOKENS, prompts
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer

MINIBATCHES = 4

torch.set_num_threads(1)
folder = sys.argv[1]


config = PPOConfig(
    output_dir=f"{folder}/../trl-ppo",
    per_device_train_batch_size=len(prompts()),
    gradient_accumulation_steps=1,
    num_mini_batches=MINIBATCHES,
    num_ppo_epochs=1,
    local_rollout_forward_batch_size=len(prompts()),
    total_episodes=10**6,
    num_sample_generations=0,
    response_length=RESPONSE_TOKENS,
    temperature=1.0,
    learning_rate=1e-5,
    gradient_checkpointing=False,
    bf16=False,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", pad_token="<pad>", eos_token="<pad>")
assert tokenizer.pad_token_id == PAD, tokenizer.pad_token_id
policy, reference = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
value, reward = (AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1) for _ in range(2))
PPOTrainer(
    args=config,
    processing_class=tokenizer,
    model=policy,
    ref_model=reference,
    reward_model=reward,
    value_model=value,
    train_dataset=Dataset.from_list([{"input_ids": prompt} for prompt in prompts()]),
    callbacks=[OwnLoop()],
).train()
