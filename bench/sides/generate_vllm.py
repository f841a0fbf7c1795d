"""The same responses from vLLM, set up as in a server of hpcrl's. Its interpreter has vLLM, and nothing of hpcrl."""

import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}

from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "hpcrl" / "engines" / "servers"))

from serve_vllm import Generate, Served, ServerArgs
from serving import serve
from shapes import PROMPT_TOKENS, limits, prompts

FOLDER, DTYPE, HOW, CORE = sys.argv[1:]
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


class Limited(Served):
    """Each response as long as it is to be; a seed is its number."""

    def __init__(self, args: ServerArgs, limits: list[int]) -> None:
        super().__init__(args)
        self._limits = limits

    def _sampling(self, wanted: Generate, seed: int) -> Any:
        made = super()._sampling(wanted, seed)
        made.max_tokens = self._limits[seed]
        return made


def main() -> None:
    os.sched_setaffinity(0, {int(CORE)})
    wanted = limits(HOW)
    rows = len(wanted)
    args = ServerArgs(
        agent=0,
        listener=0,
        model=FOLDER,
        tokenizer="",
        dtype=DTYPES[DTYPE],
        tensor_parallel=1,
        longest=PROMPT_TOKENS + max(wanted),
        slots=rows,
        prefill_tokens=rows * PROMPT_TOKENS,
        cache_bytes=1 << 30,
        cuda=False,
    )
    served = Limited(args, wanted)
    asked = Generate(
        prompts=tuple(array("i", prompt).tobytes() for prompt in prompts()),
        seeds=tuple(range(rows)),
        max_new_tokens=max(wanted),
        min_new_tokens=0,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_ids=(),
    )

    def run() -> dict[str, object]:
        return {"tokens": sum(len(it.logprobs) // 8 for it in served.generate(asked, lambda: False))}

    serve(run)


if __name__ == "__main__":
    main()
