"""TRL's GRPOTrainer or RLOOTrainer, a step a round. Arguments: the model's folder, grpo or rloo, rows a micro-batch.

One optimizer step on each batch of responses, so that nobody needs log-probabilities of the old policy; RLOO has its
KL penalty, for which it asks a reference. Responses of one length, so that nothing is padded. No gradient
checkpointing, fp32.
"""

import sys

import torch
from datasets import Dataset
from metronome import Metronome
from shapes import GROUP, GROUP_PROMPT_TOKENS, GROUPS, RESPONSE_TOKENS, even_share, group_prompts, word
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

torch.set_num_threads(1)
folder, method, rows_at_once = sys.argv[1], sys.argv[2], int(sys.argv[3])
CONFIGS = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}
config_of, trainer_of = CONFIGS[method]


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [even_share(tokens) for tokens in completion_ids]


config = config_of(
    output_dir=f"{folder}/../trl-{method}",
    per_device_train_batch_size=rows_at_once,
    gradient_accumulation_steps=GROUPS * GROUP // rows_at_once,
    num_generations=GROUP,
    max_completion_length=RESPONSE_TOKENS,
    max_steps=10**6,
    learning_rate=1e-5,
    gradient_checkpointing=False,
    bf16=False,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", pad_token="<pad>", eos_token="<pad>")
rows = [{"prompt": " ".join(word(token) for token in prompt)} for prompt in group_prompts()]
assert len(tokenizer(rows[0]["prompt"])["input_ids"]) == GROUP_PROMPT_TOKENS
trainer_of(
    model=AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa"),
    reward_funcs=reward,
    args=config,
    train_dataset=Dataset.from_list(rows * 1000),
    processing_class=tokenizer,
    callbacks=[Metronome()],
).train()
