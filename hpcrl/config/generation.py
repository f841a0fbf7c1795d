"""How responses are sampled."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, Natural
from hpcrl.config.fields import ChangeClass

MIN_TEMPERATURE = 1e-3
"""Logits divided by less could overflow, and would have no distribution."""

Temperature = Annotated[
    float, Meta(ge=MIN_TEMPERATURE, description="at least 0.001 (for the likeliest token, set generation.greedy)")
]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How responses of an evaluation are drawn."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    temperature: Temperature | None = None
    """Divides the logits; null takes the likeliest token each time."""
    samples_per_prompt: Count = 1
    """Responses to each prompt of an evaluation."""
    pass_at: tuple[Count, ...] = ()
    """Of so many responses, the chance that one is right (Chen et al. 2021): each at most samples_per_prompt."""

    @property
    def named_chances(self) -> tuple[str, ...]:
        """What a call that judges an evaluation reports of them."""
        return tuple(f"pass_at_{k}" for k in self.pass_at)


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Sampling options of training rollouts. Evaluation takes the same lengths and bounds."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    max_new_tokens: Count = 512
    """Longest response; one that reaches it is unfinished."""
    segment: Count | None = None
    """Draw responses so many tokens at a time (a few hundred), each time by a call of its own that is recorded, as
    actor_gen_s01: whoever dies costs its segment, and not the responses. The tokens are those that are drawn at once
    (of vLLM others, from the second segment on); log-probabilities differ in their last bits. A segment begins with a
    prefill of what there is. null: at once."""
    refresh: Count | None = None
    """With a lag, after so many segments the rest of a response comes from an actor one step newer, and so on up to the
    newest, for which it waits. null: all of a response comes from one."""
    in_flight: Count | None = None
    """Draw the responses to so many prompts at a time, each a segment, and begin another prompt for each that has
    ended: a step trains on the first data.batch_size to end, and the others go on in the next step. So nobody waits
    for the longest. A response may be by several actors: see importance_cap. null: a step draws what it trains on."""
    max_age: Natural | None = None
    """A response that was begun more than so many steps ago, and was not trained on, is drawn anew. null: none is."""
    min_new_tokens: Natural = 0
    """The end-of-text token is not sampled before."""
    temperature: Annotated[Temperature, ChangeClass.FORK] = 1.0
    """Divides the logits, in generation and in training on what was generated; at least 0.001, so that none overflows.
    For the likeliest token, set greedy."""
    top_k: Natural = 0
    """Sample among the so many likeliest tokens; 0 is off."""
    top_p: Annotated[float, Meta(gt=0, le=1, description="above 0 and at most 1")] = 1.0
    """Sample among the likeliest tokens that together have this probability; 1 is off."""
    greedy: bool = False
    """Take the likeliest token instead of sampling."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How responses of an evaluation are drawn."""
    stop: Annotated[tuple[str, ...], ChangeClass.FORK] = ()
    """A response ends where its text has one of these strings, and is finished. Its tokens stay as they were drawn; a
    reward sees the text before the string."""
    slots: Annotated[Count, ChangeClass.PLACEMENT] = 64
    """Sequences that a worker decodes at the same time; the next one enters when one ends."""
    cuda_graphs: Annotated[Literal["auto", "off"], ChangeClass.PLACEMENT] = "auto"
    """Where hpcrl generates on GPUs: record what a GPU does for a token of each sequence, and replay it (auto), or
    launch each kernel anew (off). Tensor ranks always launch them anew."""

    @property
    def segments(self) -> int:
        """In how many calls a response is drawn."""
        return -(-self.max_new_tokens // self.segment) if self.segment else 1

    def newer(self, number: int) -> int:
        """By how many steps the actor that draws a segment is newer than that of the first one."""
        return 0 if self.refresh is None else (number - 1) // self.refresh

    def until(self, number: int) -> int:
        """How many tokens a response has at most when so many segments are drawn."""
        return self.max_new_tokens if self.segment is None else min(self.max_new_tokens, number * self.segment)
