"""The output module: it alone has the parameters of the final norm and the head, so what needs them is made in it.

Shapes: T rows of a packed batch, R rows with labels, E hidden size, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hpcrl.families.config import DecoderConfig
from hpcrl.models.activations import normalize
from hpcrl.models.logprobs import label_logprobs


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of P labels, on the model's device: at least fp32 [P], or [0] where it says nothing of it."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor
    cu_labels: Tensor
    """int64 [rows + 1]: where each row's labels begin, and P."""


class Output(nn.Module):
    """Final norm and output matrix: vocabulary logits, values or rewards. A tied model's matrix is the embedding's."""

    def __init__(self, config: DecoderConfig, views: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.kind = config.head
        self.norm_eps = config.norm_eps
        prefix = f"layers.{config.blocks + 1}."
        self.final_norm = views[prefix + "final_norm"]
        self.head = views["layers.0.embedding" if config.shares_embedding else prefix + "head"]
        self.head_bias = views.get(prefix + "head_bias")

    def forward(self, x_RE: Tensor, labels_R: Tensor, temperature: float, with_entropy: bool) -> Predictions:
        """Of the last block's output: values, or log-probabilities of the labels and, if asked for, entropies.

        To the output module every label is a row of its own.
        """
        hidden_RE, nothing = self.norm(x_RE), torch.zeros(0, device=x_RE.device)
        each = torch.arange(x_RE.shape[0] + 1, device=x_RE.device)
        if self.kind != "vocabulary":
            return Predictions(nothing, nothing, self.values(hidden_RE), each)
        log_probs, entropy = self.logprobs(hidden_RE, labels_R, temperature=temperature, with_entropy=with_entropy)
        return Predictions(log_probs, nothing if entropy is None else entropy, nothing, each)

    def norm(self, x_TE: Tensor) -> Tensor:
        """Hidden states, which logits and values are made of."""
        return normalize(x_TE, self.final_norm, self.norm_eps)

    def logprobs(
        self, hidden_RE: Tensor, labels_R: Tensor, *, temperature: float = 1.0, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probability of each row's label at this temperature, and the entropies if asked for; at least fp32 [R].

        Rollouts sampled at temperature t are trained on with the same t here.
        """
        return label_logprobs(hidden_RE, self.matrix(), labels_R, temperature=temperature, with_entropy=with_entropy)

    def values(self, hidden_RE: Tensor) -> Tensor:
        """The value or reward head's number for each row; at least fp32 [R], of a product in that type."""
        if self.kind == "vocabulary":
            raise ValueError("This model has a vocabulary head; values need a model with a value or reward head.")
        wide, bias = torch.promote_types(self.head.dtype, torch.float32), self.head_bias
        return linear(hidden_RE.to(wide), self.head.to(wide), None if bias is None else bias.to(wide))[:, 0]

    def matrix(self) -> Tensor:
        """[V, E], from hidden states to vocabulary logits."""
        if self.kind != "vocabulary":
            raise ValueError(f"This model has a {self.kind} head; logits need a model with a vocabulary head.")
        return self.head
