"""How responses are sampled."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Sampling options of training rollouts. Evaluation takes the same lengths, and is greedy.

    PPO draws from the whole distribution, that of training: no top-k or top-p, no least length, not greedy.
    """

    max_new_tokens: int = 512
    """Longest response; one that reaches it is unfinished."""
    min_new_tokens: int = 0
    """The end-of-text token is not sampled before."""
    temperature: float = 1.0
    """Divides the logits."""
    top_k: int = 0
    """Sample among the so many likeliest tokens; 0 is off."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together have this probability; 1 is off."""
    greedy: bool = False
    """Take the likeliest token instead of sampling."""
    slots: int = 64
    """Sequences that a worker decodes at the same time; the next one enters when one ends."""
