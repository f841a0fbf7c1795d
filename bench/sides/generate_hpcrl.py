"""Responses of the lengths that are asked for, with their log-probabilities: hpcrl's own engine, on one core."""

import os
import sys

import numpy as np
import torch
from serving import serve
from shapes import limits, prompts

from hpcrl.engines.flat import new_model
from hpcrl.models.generation import GenerationOptions, Generator

FOLDER, DTYPE, HOW, CORE = sys.argv[1:]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    os.sched_setaffinity(0, {int(CORE)})
    torch.set_num_threads(1)
    wanted, texts = limits(HOW), [np.array(prompt) for prompt in prompts()]
    options = GenerationOptions(max(wanted), slots=len(wanted))
    generator = Generator(new_model(FOLDER, dtype=DTYPES[DTYPE], trainable=False), options)

    def run() -> dict[str, object]:
        made = generator.generate(texts, range(len(wanted)), wanted)
        return {"tokens": sum(len(it) for it in made.logprobs)}

    serve(run)


if __name__ == "__main__":
    main()
