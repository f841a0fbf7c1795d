"""Responses of a model to prompts, by continuous batching. Knows nothing of training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from hpcrl.config.generation import GenerationConfig
from hpcrl.data.tokens import Tokens, load_tokens
from hpcrl.engines.model import PackedModel, finite
from hpcrl.models.decoder import distinct
from hpcrl.models.generation import GenerationOptions
from hpcrl.models.history import Generated
from hpcrl.models.sampling import SamplingOptions
from hpcrl.models.stopping import StopStrings
from hpcrl.parallel.group import Group
from hpcrl.workers.meter import Meter


@dataclass
class Sampler:
    """At most `prefill_tokens` prompt tokens go through the model at once; `eos_token_ids` end a response.

    `tokenizer` is the folder of the run's, by which responses are read where strings end them; the ranks of `pp` have
    the model's stages.
    """

    model: PackedModel
    prefill_tokens: int
    eos_token_ids: tuple[int, ...]
    tokenizer: Path
    pp: Group
    meter: Meter = field(default_factory=Meter)

    @cached_property
    def _tokens(self) -> Tokens:
        return load_tokens(self.tokenizer)

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        seeds: Sequence[int],
        config: GenerationConfig,
        begun: Sequence[np.ndarray] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Generated:
        """As `Engine.generate`."""
        if not prompts:
            return Generated([], [], [])
        options = GenerationOptions(
            max_new_tokens=config.max_new_tokens,
            min_new_tokens=config.min_new_tokens,
            sampling=SamplingOptions(config.temperature, config.top_k, config.top_p, config.greedy),
            eos_token_ids=self.eos_token_ids,
            stops=partial(StopStrings, self._tokens, config.stop) if config.stop else None,
            slots=config.slots,
            prefill_tokens=self.prefill_tokens,
            cuda_graphs=config.cuda_graphs == "auto",
        )
        generator = self.model.transformer.generator(options, self.pp, self.meter)
        generated = generator.generate(prompts, seeds, limits, begun)
        read = prompts if begun is None else [np.concatenate(row) for row in zip(prompts, begun, strict=True)]
        self._tell(read, generated.tokens)
        finite(self.model.role, "log-probabilities of sampled tokens", np.concatenate(generated.logprobs))
        return generated

    def _tell(self, prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray]) -> None:
        """What was read and made. A prompt counts once, though it may be read again if many rows wait for slots."""
        read, flops = [len(prompt) for prompt in distinct(prompts)[0]], self.model.flops
        rows = [(len(prompt), len(response)) for prompt, response in zip(prompts, responses, strict=True)]
        operations = 0.0 if flops is None else flops.prefill(read) + flops.decode(rows)
        self.meter.rows(sum(read) + sum(made for _, made in rows), max(map(sum, rows)), operations)
