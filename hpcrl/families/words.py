"""A model in words, for who plans a run with it."""

from collections import Counter
from collections.abc import Iterator

from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import parameter_count


def in_words(config: DecoderConfig) -> str:
    """Its family and size, and what not every model has."""
    size = parameter_count(config)
    scale, unit = next((each for each in ((1e9, "billion"), (1e6, "million")) if size >= each[0]), (1.0, ""))
    number = f"{size / scale:.2f} {unit}" if unit else f"{size:,}"
    whose = [f"transformers runs it: {config.because}"] if isinstance(config, ForeignConfig) else []
    parts = [
        f"{config.family}, {number} parameters, texts of up to {config.max_positions:,} tokens",
        *_unusual(config),
        *whose,
    ]
    return "; ".join(parts)


def _unusual(config: DecoderConfig) -> Iterator[str]:
    for window, count in sorted(Counter(config.windows).items()):
        if window:
            blocks = "all blocks" if count == config.blocks else f"{count} of {config.blocks} blocks"
            yield f"{blocks} see the last {window:,} tokens only"
    if (experts := config.experts) is not None:
        sparse = config.blocks - len(experts.dense)
        blocks = "blocks" if sparse == config.blocks else f"{sparse} of {config.blocks} blocks"
        yield f"{blocks} have {experts.count} experts, {experts.per_token} a token"
    for what, softcap in (("attention's scores", config.attention_softcap), ("its logits", config.logit_softcap)):
        if softcap is not None:
            yield f"{what} are softcapped at {softcap:g}"
    if config.rotary.kind != "default":
        yield f"its rope is scaled ({config.rotary.kind}, factor {config.rotary.factor:g})"
    if config.shares_embedding:
        yield "its embedding is its output matrix"
