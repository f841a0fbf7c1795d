"""TRL's DPOTrainer or RewardTrainer, a step of all pairs a round. Arguments: the model's folder, dpo or reward_model,
pairs a micro-batch, and random or sequential: the order of pairs, which are given from the shortest to the longest.

DPO's reference is asked in every step, as an epoch of it costs either way. No gradient checkpointing, fp32.
"""

import sys

import torch
from datasets import Dataset
from metronome import Metronome
from shapes import ENDS, FILLS, PAIRS, pairs, word
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

torch.set_num_threads(1)
folder, method, pairs_at_once, order = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]


def words(tokens: list[int]) -> str:
    return " ".join(word(token) for token in tokens)


def row_of(prompt: list[int], chosen: list[int], rejected: list[int]) -> dict[str, object]:
    if method == "dpo":
        return {"prompt": f"{words(prompt)} ", "chosen": words(chosen), "rejected": words(rejected)}
    return {"chosen_ids": prompt + chosen, "rejected_ids": prompt + rejected}


def length(pair: tuple[list[int], ...]) -> int:
    prompt, *answers = pair
    return len(prompt) + max(map(len, answers))


config_of, trainer_of, model_of = {
    "dpo": (DPOConfig, DPOTrainer, AutoModelForCausalLM),
    "reward_model": (RewardConfig, RewardTrainer, AutoModelForSequenceClassification),
}[method]
config = config_of(
    output_dir=f"{folder}/../trl-{method}",
    per_device_train_batch_size=pairs_at_once,
    gradient_accumulation_steps=PAIRS // pairs_at_once,
    train_sampling_strategy=order,
    max_steps=10**6,
    learning_rate=1e-5,
    lr_scheduler_type="constant",
    gradient_checkpointing=False,
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
model = model_of.from_pretrained(folder, attn_implementation="sdpa")
model.config.pad_token_id = FILLS
trainer_of(
    model=model,
    args=config,
    train_dataset=Dataset.from_list([row_of(*pair) for pair in sorted(pairs(), key=length)]),
    processing_class=PreTrainedTokenizerFast(
        tokenizer_file=f"{folder}/tokenizer.json", pad_token=word(FILLS), eos_token=word(ENDS)
    ),
    callbacks=[Metronome()],
).train()
