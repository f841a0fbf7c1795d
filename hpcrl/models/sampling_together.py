"""Sampling where several ranks have the logits together: the tokens that one process with all of them would draw.

Ranks exchange a few numbers a row, with top-k its candidates; top-p alone gathers all logits.
Shapes: N rows, V this rank's tokens of the vocabulary, S ranks, K candidates of a rank, C those of all.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from hpcrl.models.sampling import SamplingOptions, choose, running_sums, uniform
from hpcrl.models.vocabulary import Vocabulary


def choose_together(
    logits_NV: Tensor, seeds_N: Tensor, index_N: Tensor, options: SamplingOptions, vocabulary: Vocabulary
) -> tuple[Tensor, Tensor]:
    """As `hpcrl.models.sampling.choose`; the ranks of the vocabulary have the same rows and get the same."""
    if vocabulary.ranks.size == 1:
        return choose(logits_NV, seeds_N, index_N, options)
    logits = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    if options.greedy:
        return _greedy(logits, vocabulary)
    if not options.top_k and options.top_p == 1.0:
        return _inverted(logits / options.temperature, uniform(seeds_N, index_N), vocabulary)
    candidates, tokens = _candidates(logits, options.top_k, vocabulary)
    places, logprobs = choose(candidates, seeds_N, index_N, options)
    return tokens.gather(-1, places[:, None])[:, 0], logprobs


def _greedy(logits_NV: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """The most likely tokens, the first ones of equals."""
    largest, places = _largest(logits_NV)
    sums = (logits_NV - largest[:, None]).exp().sum(-1)
    largest_SN, places_SN, sums_SN = _exchanged(vocabulary, largest, places + vocabulary.first, sums)
    owner = largest_SN.argmax(0, keepdim=True)
    whole = (sums_SN * (largest_SN - largest_SN.amax(0)).exp()).sum(0)
    return places_SN.gather(0, owner)[0].long(), -whole.log().to(logits_NV.dtype)


def _inverted(logits_NV: Tensor, uniform_N: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """The first token at which the running sum of all probabilities exceeds u, and the log of its probability."""
    largest, _ = _largest(logits_NV)
    reached = running_sums((logits_NV - largest[:, None]).exp())
    own = reached[:, -1] if logits_NV.shape[-1] else torch.zeros_like(uniform_N)
    largest_SN, own_SN = _exchanged(vocabulary, largest, own)
    scale_SN = (largest_SN - largest_SN.amax(0)).exp()
    ends_SN = (own_SN * scale_SN).cumsum(0)
    wanted = uniform_N * ends_SN[-1]
    last = ((own_SN > 0) * torch.arange(len(own_SN), device=own_SN.device)[:, None]).amax(0)  # that has any
    owner = torch.minimum((ends_SN <= wanted).sum(0), last)[None]
    index = vocabulary.ranks.group.index
    before = ends_SN[index] - own_SN[index] * scale_SN[index]
    places = torch.searchsorted(reached, ((wanted - before) / scale_SN[index])[:, None], right=True)
    places = places.clamp_(max=max(0, logits_NV.shape[-1] - 1))
    drawn = logits_NV.gather(-1, places)[:, 0] if logits_NV.shape[-1] else largest
    tokens_SN, drawn_SN = _exchanged(vocabulary, places[:, 0] + vocabulary.first, drawn)
    logprobs = drawn_SN.gather(0, owner)[0] - largest_SN.amax(0) - ends_SN[-1].log()
    return tokens_SN.gather(0, owner)[0].long(), logprobs.to(logits_NV.dtype)


def _candidates(logits_NV: Tensor, top_k: int, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """The logits of the tokens that may be drawn [N, C], of each rank its `top_k` largest (0: all), and the tokens."""
    room = vocabulary.ranks.part(vocabulary.size)
    if 0 < top_k < room:
        kept, places = logits_NV.topk(min(top_k, logits_NV.shape[-1]))
        room = top_k
    else:
        kept, places = logits_NV, torch.arange(logits_NV.shape[-1], device=logits_NV.device).expand(logits_NV.shape)
    missing = (0, room - kept.shape[-1])
    kept, tokens = pad(kept, missing, value=-torch.inf), pad(places + vocabulary.first, missing)
    kept_SNK, tokens_SNK = _exchanged(vocabulary, kept, tokens)
    return kept_SNK.transpose(0, 1).flatten(1).to(logits_NV.dtype), tokens_SNK.transpose(0, 1).flatten(1).long()


def _largest(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and where it is; of none, or of none that may be drawn, the smallest number."""
    least = torch.finfo(logits_NV.dtype).min
    if logits_NV.shape[-1]:
        largest = logits_NV.max(-1)
        return largest.values.clamp(min=least), largest.indices
    nothing = logits_NV.new_full(logits_NV.shape[:1], least)
    return nothing, torch.zeros_like(nothing, dtype=torch.int64)


def _exchanged(vocabulary: Vocabulary, *columns: Tensor) -> Tensor:
    """What each rank has of these, [columns, S, …] in float64."""
    own = torch.stack([column.to(torch.float64) for column in columns])
    return vocabulary.ranks.group.gathered(own).transpose(0, 1)
