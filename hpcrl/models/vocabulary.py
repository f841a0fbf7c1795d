"""A vocabulary of which each of several ranks has a run of tokens: vectors, log-probabilities, entropies.

Ranks exchange a few numbers a row, never logits. Shapes: T tokens, R rows, E hidden size, V tokens of this rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from hpcrl.data.logit_rows import rows_per_chunk
from hpcrl.models.logprobs import Scale, grad_logits, label_logprobs, pieces
from hpcrl.models.tensor_parallel import TensorParallel
from hpcrl.parallel.group import Group

ROOM = 4
"""Numbers that ranks exchange a row: largest logit, sum of exponentials, the same weighted, the label's logit."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one rank, of `size` in all. Its matrices have room for more where the ranks do not divide them."""

    size: int
    ranks: TensorParallel

    @property
    def first(self) -> int:
        return min(self.size, self.ranks.part(self.size) * self.ranks.group.index)

    @property
    def count(self) -> int:
        return min(self.ranks.part(self.size), self.size - self.first)

    def vectors(self, tokens_T: Tensor, matrix: Tensor) -> Tensor:
        """This rank's rows [t, E] of the tokens' vectors."""
        if self.ranks.size == 1:
            return embedding(tokens_T, matrix)
        places, absent = self._places(tokens_T)
        return self.ranks.reduce(embedding(places, matrix).masked_fill(absent[:, None], 0.0))

    def matrix(self, padded: Tensor) -> Tensor:
        """[V, E] without padding."""
        return padded if padded.shape[0] == self.count else padded[: self.count]

    def local(self, tokens: Tensor) -> Tensor:
        """Those of these tokens that this rank has, as its own columns."""
        places, absent = self._places(tokens)
        return places[~absent]

    def label_logprobs(
        self,
        hidden_RE: Tensor,
        head_VE: Tensor,
        labels_R: Tensor,
        *,
        temperature: float,
        with_entropy: bool,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `hpcrl.models.logprobs.label_logprobs`, for all of the vocabulary; all ranks have the same rows."""
        if self.ranks.size == 1:
            return label_logprobs(
                hidden_RE, head_VE, labels_R, temperature=temperature, with_entropy=with_entropy, softcap=softcap
            )
        places, absent = self._places(labels_R)
        rows = rows_per_chunk(max(1, self.count), head_VE.device.type)
        logprobs, entropy = _Logprobs.apply(
            hidden_RE, head_VE, places, absent, self.ranks.group, Scale(temperature, softcap), with_entropy, rows
        )
        return logprobs, entropy if with_entropy else None

    def _places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The column of each token, and whether it is another rank's; then the column is just any."""
        places = tokens - self.first
        return places.clamp(0, max(0, self.count - 1)), (places < 0) | (places >= self.count)


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        places: Tensor,
        absent: Tensor,
        group: Group,
        scale: Scale,
        with_entropy: bool,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        wide = torch.promote_types(hidden.dtype, torch.float32)
        own_4R = hidden.new_zeros((ROOM, count), dtype=wide)
        own_4R[0] = torch.finfo(wide).min
        table_RV = hidden.new_empty(0)
        for begin in range(0, count if head.shape[0] else 0, rows):
            part = slice(begin, begin + rows)
            del table_RV  # before there is another
            table_RV = scale.apply_(linear(hidden[part], head).to(wide))
            _note(table_RV, own_4R[:3, part], with_entropy)
            own_4R[3, part] = table_RV.gather(-1, places[part, None])[:, 0].masked_fill_(absent[part], 0.0)
        of_all, label, entropy = _merged(group.gathered(own_4R))
        kept = table_RV.sub_(of_all[:, None]) if 0 < len(table_RV) == count else None
        ctx.save_for_backward(hidden, head, places, absent, of_all, entropy, kept)
        ctx.scale, ctx.rows = scale, rows
        ctx.set_materialize_grads(False)
        return label - of_all, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head, places, absent, of_all, entropy, kept = ctx.saved_tensors
        scale: Scale = ctx.scale
        of_logprobs = torch.zeros_like(entropy) if grads[0] is None else grads[0] / scale.temperature
        of_entropy = None if grads[1] is None else grads[1] / scale.temperature
        of_labels = of_logprobs.masked_fill(absent, 0.0)
        grad_hidden = torch.zeros_like(hidden)
        grad_head = torch.zeros_like(head, dtype=entropy.dtype) if ctx.needs_input_grad[1] else None
        for begin in range(0, hidden.shape[0] if head.shape[0] else 0, ctx.rows):
            part = slice(begin, begin + ctx.rows)
            table_RV = kept
            if table_RV is None:
                table_RV = scale.apply_(linear(hidden[part], head).to(entropy.dtype)).sub_(of_all[part, None])
            slopes = None if of_entropy is None else (of_entropy[part], entropy[part])
            grad_RV = grad_logits(table_RV, of_logprobs[part], slopes)
            grad_RV.scatter_add_(-1, places[part, None], of_labels[part, None])
            grad_RV = scale.back_(grad_RV, table_RV, of_all[part]).to(head.dtype)
            torch.mm(grad_RV, head, out=grad_hidden[part])
            if grad_head is not None:
                grad_head += grad_RV.t() @ hidden[part]
            del table_RV, grad_RV
        return grad_hidden, grad_head, None, None, None, None, None, None


def _note(table_RV: Tensor, own_3R: Tensor, with_entropy: bool) -> None:
    """Of each row its largest logit, the sum of the exponentials of all less that, and this sum weighted by them."""
    for rows in pieces(table_RV):
        own_3R[0, rows] = table_RV[rows].amax(-1)
        below = table_RV[rows] - own_3R[0, rows, None]
        weights = below.exp() if with_entropy else below.exp_()
        own_3R[1, rows] = weights.sum(-1)
        if with_entropy:
            own_3R[2, rows] = weights.mul_(below).sum(-1)
        del below, weights


def _merged(all_S4R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: the log of the sum of all exponentials, the label's logit, the entropy."""
    largest = all_S4R[:, 0].amax(0)
    total, weighted, label = torch.zeros_like(largest), torch.zeros_like(largest), torch.zeros_like(largest)
    for own, sums, of_own, of_label in all_S4R:
        scale = (own - largest).exp()
        total += scale * sums
        weighted += scale * (of_own + (own - largest) * sums)
        label += of_label
    return largest + total.log(), label, total.log() - weighted / total
