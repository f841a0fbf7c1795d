"""What a rollout says of its tokens, before anything is learnt from it: rewards, groups, what counts.

The same for every role that learns from it. Shape legend: N response tokens of this rank's B samples.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hpcrl.algos.functional.advantages import masked_advantages, whiten
from hpcrl.algos.functional.groups import Groups
from hpcrl.algos.functional.kl import token_kl
from hpcrl.algos.functional.rewards import overlong_penalty, scaled, token_rewards
from hpcrl.algos.functional.sequences import last_labels, sequence_means, sequence_sums
from hpcrl.algos.functional.totals import Total
from hpcrl.data.samples import SequenceSample
from hpcrl.engines.engine import Sequences
from hpcrl.recipes.policy import PolicyExperiment, policy_of
from hpcrl.workers.host import Stats, Work


@dataclass(frozen=True, eq=False)
class Rollout:
    """Responses and their rewards, float64. What is of no token that counts is 0."""

    batch: SequenceSample
    sequences: Sequences
    """Which samples count, and which of their tokens."""
    rewards_N: torch.Tensor
    """Scores where they are placed, less the KL penalty where it is in the reward."""
    groups: Groups
    experiment: PolicyExperiment
    kl_sum: float
    """Over the samples of all ranks that count, of each one's mean per token."""
    samples: int
    """Those of all ranks that count."""
    drawn: int
    """Samples of all ranks."""

    @property
    def total(self) -> Total:
        return self.groups.total

    @property
    def cu_labels(self) -> torch.Tensor:
        return torch.from_numpy(np.cumsum([0, *self.sequences.labels], dtype=np.int64))

    @property
    def mask_N(self) -> torch.Tensor:
        """Tokens that are the model's, whether their sample counts or not."""
        return torch.from_numpy(self.sequences.mask)

    @property
    def sums_B(self) -> torch.Tensor:
        """Each response's reward."""
        return sequence_sums(self.rewards_N * self.mask_N, self.cu_labels)

    @property
    def mean_kl(self) -> float:
        return self.kl_sum / self.samples if self.samples else 0.0

    def spread(self, numbers_B: torch.Tensor) -> torch.Tensor:
        """Each sample's number for each of its tokens, [N]."""
        return numbers_B.repeat_interleave(self.cu_labels.diff())

    def to_come(self, discount: float) -> torch.Tensor:
        """Σ_k discount^k · r_{t+k}, [N]: the estimate of advantages with values of 0 and λ = 1."""
        nothing_N = torch.zeros_like(self.rewards_N)
        return masked_advantages(self.rewards_N, nothing_N, self.mask_N, self.cu_labels, discount, 1.0)[0]

    def counting(self, numbers_N: torch.Tensor) -> torch.Tensor:
        """The numbers of tokens that count, and 0 of the others."""
        return torch.where(torch.from_numpy(self.sequences.counting), numbers_N, 0.0)

    def whitened(self, numbers_N: torch.Tensor) -> torch.Tensor:
        """Over the tokens of all ranks that count: mean 0, variance 1."""
        return whiten(numbers_N, self.total, torch.from_numpy(self.sequences.counting))

    def shaped(self, scores_B: torch.Tensor, finished_B: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        """What scores of responses of these lengths become as rewards, other responses to the same prompts too."""
        return shaped(self.experiment, scores_B, finished_B, lengths_B)

    def double(self, key: str) -> torch.Tensor:
        return double(self.batch, key)

    def stats(self) -> Stats:
        """The KL where it is estimated, and the share of samples that count."""
        share = {"counted": (float(self.samples), float(self.drawn))}
        return share | ({"kl": (self.kl_sum, float(self.samples))} if policy_of(self.experiment).kl.used else {})


def estimate(work: Work, experiment: PolicyExperiment, kl_coef: float, total: Total) -> Rollout:
    """Rewards per token of a rollout. A sample without a score does not count, nor, if so set, one that was cut."""
    batch, policy = work.batch, policy_of(experiment)
    scores_B, finished_B = double(batch, "rewards"), double(batch, "finished").bool()
    counted_B = ~scores_B.isnan()
    if policy.cut == "mask":
        counted_B &= finished_B
    sequences = responses(batch, counted_B.numpy())
    labels_B = torch.from_numpy(sequences.labels)
    cu_labels = torch.from_numpy(np.cumsum([0, *sequences.labels], dtype=np.int64))
    mask_N, counting_N = (torch.from_numpy(flags) for flags in (sequences.mask, sequences.counting))
    scores_B = torch.where(counted_B, scores_B, 0.0)
    shaped_B = shaped(experiment, scores_B, finished_B, labels_B)
    last_B = last_labels(mask_N, cu_labels)
    rewards_N = _placed(batch, shaped_B, policy.reward_scale, mask_N, cu_labels, last_B)
    if policy.cut == "bootstrap":
        rewards_N[last_B] += policy.discount * torch.where(finished_B, 0.0, double(batch, "values_after"))
    kl_B = torch.zeros_like(scores_B)
    if policy.kl.used:
        before = "old_logprobs" if "old_logprobs" in batch.keys else "logprobs"
        kl_N = token_kl(policy.kl.by, double(batch, before), double(batch, "ref_logprobs"))
        kl_B = sequence_means(kl_N, mask_N, cu_labels)
        rewards_N = rewards_N - (kl_coef if policy.kl.mode == "reward" else 0.0) * kl_N * mask_N
    rewards_N = torch.where(counting_N, rewards_N, 0.0)
    if policy.whiten_rewards:
        rewards_N = whiten(rewards_N, total, counting_N, shift=False)
    sums = [(kl_B * counted_B).sum(), counted_B.double().sum(), kl_B.new_tensor(len(kl_B))]
    kl_sum, samples, drawn = total(torch.stack(sums)).tolist()
    groups = _groups(work, counted_B, total)
    return Rollout(batch, sequences, rewards_N, groups, experiment, kl_sum, int(samples), int(drawn))


def shaped(
    experiment: PolicyExperiment, scores_B: torch.Tensor, finished_B: torch.Tensor, lengths_B: torch.Tensor
) -> torch.Tensor:
    """Scores in the units of rewards, bounded, less what being cut or overlong costs."""
    policy = policy_of(experiment)
    shaped_B = scaled(scores_B, policy.reward_scale, policy.reward_bias, policy.reward_clip)
    if policy.overlong_buffer is not None:
        longest = experiment.generation.max_new_tokens
        shaped_B = shaped_B - overlong_penalty(lengths_B, longest, policy.overlong_buffer, policy.overlong_penalty)
    return shaped_B if policy.cut != "penalty" else shaped_B - policy.cut_penalty * (~finished_B).double()


def responses(batch: SequenceSample, counted: np.ndarray | None = None) -> Sequences:
    """Only the model's own tokens have labels that count, where the batch says which are (`response_mask`): what a tool
    wrote is read, and not learnt."""
    mask = batch.rows("response_mask") if "response_mask" in batch.keys else None
    return Sequences.from_rows(batch.rows("prompts"), batch.rows("responses"), counted=counted, mask=mask)


def per_token(ids: Sequence[str], key: str, packed_N: np.ndarray, labels: np.ndarray) -> SequenceSample:
    """Rows of numbers, as many of each sample as it has labels."""
    rows = np.split(packed_N, np.cumsum(labels)[:-1]) if len(labels) else []
    return SequenceSample.from_rows(ids, {key: rows})


def shown(work: Work, like: str, columns: Mapping[str, torch.Tensor], labels: np.ndarray) -> SequenceSample | None:
    """Columns [N] of the samples that a train_step is asked to show, in the type of a key of its batch."""
    if not work.shown:
        return None
    dtype = work.batch.data[like].dtype
    made = [per_token(work.batch.ids, key, column.numpy().astype(dtype), labels) for key, column in columns.items()]
    return functools.reduce(SequenceSample.merge, made).select(work.shown)


def double(batch: SequenceSample, key: str) -> torch.Tensor:
    return torch.from_numpy(batch.data[key].astype(np.float64))


def _placed(
    batch: SequenceSample,
    shaped_B: torch.Tensor,
    scale: float,
    mask_N: torch.Tensor,
    cu_labels: torch.Tensor,
    last_B: torch.Tensor,
) -> torch.Tensor:
    """Rewards where their scores are placed, on tokens of the model's; the rest at its last one."""
    scores_N = torch.zeros(int(cu_labels[-1]), dtype=torch.float64)
    placed_B = torch.zeros_like(shaped_B)
    if "token_rewards" in batch.keys:
        lengths = torch.tensor(batch.length("token_rewards"))
        there_N = (lengths > 0).repeat_interleave(cu_labels.diff())
        scores_N[there_N] = double(batch, "token_rewards").nan_to_num()
        scores_N *= mask_N
        placed_B = sequence_sums(scores_N, cu_labels)
    return token_rewards(scores_N, placed_B, scale, shaped_B, last_B)


def _groups(work: Work, counted_B: torch.Tensor, total: Total) -> Groups:
    """The responses to one prompt are a group; groups are numbered in the order of the whole step's samples."""
    count, own = work.numbered
    return Groups(torch.tensor(own, dtype=torch.int64), counted_B, count, total)
