"""TRL's SFTTrainer, a step a round. Arguments: the model's folder, tokens of a packed row, packed rows a micro-batch.

Packing with the strategy `bfd` resets positions at each text; transformers makes a block-diagonal mask of them for
SDPA, so no text attends to another: losses equal hpcrl's. TRL lays the rows of a micro-batch one after another, under
one mask as large as all of them. 0 tokens: no packing, all texts padded to the longest.
"""

import math
import sys

import torch
from datasets import Dataset
from metronome import Metronome
from shapes import texts, word
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer, pack_dataset

torch.set_num_threads(1)
folder, longest, rows_at_once = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows = [{"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer} for prompt, answer in texts()]
packed_rows = len(pack_dataset(Dataset.from_list(rows), longest)) if longest else len(rows)
micro_batches = math.ceil(packed_rows / rows_at_once)


config = SFTConfig(
    output_dir=f"{folder}/../trl",
    packing=longest > 0,
    packing_strategy="bfd",
    max_length=longest or None,
    per_device_train_batch_size=rows_at_once,
    gradient_accumulation_steps=micro_batches,
    max_steps=10**6,
    learning_rate=1e-4,
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
SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa"),
    args=config,
    train_dataset=Dataset.from_list(rows),
    processing_class=PreTrainedTokenizerFast(
        tokenizer_file=f"{folder}/tokenizer.json", pad_token=word(0), eos_token=word(0)
    ),
    callbacks=[Metronome(micro_batches=micro_batches)],
).train()
