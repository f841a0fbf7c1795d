"""The output module: it alone has the parameters of the final norm and the head, so what needs them is made in it.

Shapes: R rows with labels, r those of this rank, E hidden size, V this rank's tokens of the vocabulary.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hpcrl.families.config import DecoderConfig
from hpcrl.models.layers import Norm
from hpcrl.models.softcap import capped_
from hpcrl.models.vocabulary import Vocabulary


class Predictions(NamedTuple):
    """What a model says of P labels, on the model's device: at least fp32 [P], or [0] where it says nothing of it.

    A tuple, so that a library which watches what a module returns (FSDP) finds the tensors in it.
    """

    log_probs: Tensor
    entropy: Tensor
    values: Tensor
    cu_labels: Tensor
    """int64 [rows + 1]: where each row's labels begin, and P."""

    def nothing(self) -> Tensor:
        """Zero, of which everything that the predictions are made of has a gradient of zero."""
        return 0.0 * (self.log_probs.sum() + self.values.sum())


class Output(nn.Module):
    """Final norm and output matrix: vocabulary logits, values or rewards. A tied model's matrix is the embedding's."""

    def __init__(self, config: DecoderConfig, views: Mapping[str, nn.Parameter], vocabulary: Vocabulary) -> None:
        super().__init__()
        self.kind = config.head
        self.softcap = config.logit_softcap
        self.vocabulary = vocabulary
        prefix = f"layers.{config.blocks + 1}."
        self.norm = Norm(config, prefix + "final_norm", views)
        """To hidden states, which logits and values are made of."""
        self.head = views["layers.0.embedding" if config.shares_embedding else prefix + "head"]
        self.head_bias = views.get(prefix + "head_bias")

    def forward(self, x_rE: Tensor, labels_R: Tensor, temperature: float, with_entropy: bool) -> Predictions:
        """Of the last block's output: values, or log-probabilities of the labels and, if asked for, entropies.

        To the output module every label is a row of its own. All ranks get the same.
        """
        hidden_rE, nothing, ranks = self.norm(x_rE), torch.zeros(0, device=x_rE.device), self.vocabulary.ranks
        count = labels_R.shape[0]
        each = torch.arange(count + 1, device=x_rE.device)
        if self.kind != "vocabulary":
            return Predictions(nothing, nothing, ranks.together(self.values(hidden_rE), count), each)
        hidden_RE = ranks.gather(hidden_rE, count)
        log_probs, entropy = self.logprobs(hidden_RE, labels_R, temperature=temperature, with_entropy=with_entropy)
        return Predictions(log_probs, nothing if entropy is None else entropy, nothing, each)

    def logprobs(
        self, hidden_RE: Tensor, labels_R: Tensor, *, temperature: float = 1.0, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probability of each row's label at this temperature, and the entropies if asked for; at least fp32 [R].

        Rollouts sampled at temperature t are trained on with the same t here.
        """
        head_VE = self.matrix()
        return self.vocabulary.label_logprobs(
            hidden_RE,
            head_VE,
            labels_R,
            temperature=temperature,
            with_entropy=with_entropy,
            softcap=self.softcap,
        )

    def values(self, hidden_rE: Tensor) -> Tensor:
        """The value or reward head's number for each row; at least fp32 [r], of a product in that type."""
        if self.kind == "vocabulary":
            raise ValueError("This model has a vocabulary head; values need a model with a value or reward head.")
        wide, bias = torch.promote_types(self.head.dtype, torch.float32), self.head_bias
        return linear(hidden_rE.to(wide), self.head.to(wide), None if bias is None else bias.to(wide))[:, 0]

    def capped_(self, products_RV: Tensor) -> Tensor:
        """The logits that products with the matrix make: they themselves, or softcapped, in place, at least fp32."""
        if self.softcap is None:
            return products_RV
        return capped_(products_RV.to(torch.promote_types(products_RV.dtype, torch.float32)), self.softcap)

    def matrix(self) -> Tensor:
        """[V, E], from hidden states to vocabulary logits, before their softcap."""
        if self.kind != "vocabulary":
            raise ValueError(f"This model has a {self.kind} head; logits need a model with a vocabulary head.")
        return self.vocabulary.matrix(self.head)
