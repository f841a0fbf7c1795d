"""What a micro-batch's pass through a stage takes besides parameters, from shapes alone.

A rank of several that share the layers has its run of the rows between them, and all rows within them.
"""

from dataclasses import dataclass

from hpcrl.data.logit_rows import logits_per_piece, rows_per_chunk
from hpcrl.data.score_blocks import TENSORS, most_scores
from hpcrl.families.config import DecoderConfig
from hpcrl.placement.activations import inner_numbers, kept_by_mlp, kept_per_token, numbers_in_mlp
from hpcrl.placement.layouts import Layout

STAGED_BYTES = 64 * 2**20
"""At most so much of what ranks exchange is staged at a time; of a move, for each of two exchanges, and as much is
received."""


@dataclass(frozen=True)
class MicroBatch:
    """Of `tokens` at most, whose numbers have `size` bytes, and `state` where they are added up."""

    model: DecoderConfig
    tokens: int
    size: int
    state: int
    layout: Layout
    device: str
    stage: int = 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.layout.pp - 1

    @property
    def gives_logits(self) -> bool:
        return self.is_last and self.model.head == "vocabulary"

    @property
    def rows(self) -> int:
        """Bytes of a hidden row of each token."""
        return self.tokens * self.model.hidden_size * self.size

    @property
    def number(self) -> float:
        """Bytes of a rank's part of one number of each token."""
        return self.tokens * self.size / self.layout.tp

    @property
    def _is_shared(self) -> bool:
        return self.layout.tp > 1

    def kept(self, blocks: int, *, recompute: bool) -> float:
        """By blocks for the backward pass, or what they were given where they make the rest again. Rows that are
        gathered for matrices are whole."""
        if recompute:
            return blocks * self.number * self.model.hidden_size
        gathered = 2 * (self.rows - self.number * self.model.hidden_size)
        return blocks * (self.number * kept_per_token(self.model) + gathered)

    def predicting(self) -> float:
        """The most without gradients. On the last stage rows with labels are picked in the last block."""
        return max(self.visiting(picks=self.is_last), self._logits if self.gives_logits else 0.0)

    def training(self, *, recompute: bool) -> float:
        """Beside the activations that are kept: a block, or after the last one the logits, of which labels are at most
        as many as tokens. Of several stages each has rows and their gradients on their way."""
        kept = self.kept(1, recompute=False) * recompute
        scores = self.scores(self.model.max_positions)
        inner = max(numbers_in_mlp(self.model, self.tokens) * self.size / self.layout.tp, scores, self._exchanging)
        of_block = 2 * self.rows + inner
        of_head = 3.0 * self.rows
        if self.gives_logits:
            matrix = self.model.vocabulary_size / self.layout.tp * self.model.hidden_size
            narrowed = self._table * self.size / self.state * (self.size < self.state)
            of_head += 2 * self._table + narrowed + 2 * matrix * self.state
        on_the_way = 2 * self.number * self.model.hidden_size * (self.layout.pp > 1)
        return max(of_head, kept + of_block) + self._turns + self.let_go_late + on_the_way

    def visiting(self, *, picks: bool = False, longest: int | None = None) -> float:
        """What a block takes at once without gradients: the rows that it is given and has added to, what attention has
        gathered, and its MLP's numbers; or before these q k v, the first two also as they are turned, attention's
        output twice, and scores, half as many as backward. `picks`: some rows alone go on after attention.

        Rows come from the stage before meanwhile, and go to the next one.
        """
        model, number = self.model, self.number
        own = number * model.hidden_size
        held = 2 * own + number * model.query_size + self._turns
        within = number * (3 * (model.query_size + model.kv_size) - model.hidden_size)
        within += self.scores(self.model.max_positions if longest is None else longest) / 2
        exchanged = own * ((self.stage > 0) + (not self.is_last))
        return held + max(within, own * picks + self._in_mlp) + exchanged

    def scores(self, longest: int) -> float:
        """Bytes of those that softcapped attention holds at once; other attention holds none."""
        model = self.model
        if model.attention_softcap is None:
            return 0.0
        seen = max(model.head_dim, min(self.tokens, longest))
        most = min(most_scores(self.device), self.tokens * seen * model.heads / self.layout.tp)
        return TENSORS * most * self.state

    @property
    def _turns(self) -> int:
        """What queries and keys are multiplied by."""
        return self.tokens * self.model.head_dim * self.state * (self.model.positions == "rotary")

    @property
    def let_go_late(self) -> float:
        """Rows that were gathered to train or generate: gloo's threads free what they had when they come to it."""
        return (self.rows + self.rows / self.layout.tp) * (self._is_shared and self.device == "cpu")

    @property
    def _in_mlp(self) -> float:
        """Its numbers, beside the rows that all ranks need and give; of experts, beside the former."""
        model, number = self.model, self.number
        whole = number * kept_by_mlp(model)
        if model.experts is not None:
            return max(whole + self.rows * self._is_shared, self._exchanging)
        inner = number * inner_numbers(model)
        return max(whole, whole - inner + self.rows, inner + (self._exchanging or self.rows))

    @property
    def _exchanging(self) -> float:
        """What a rank has computed for all rows, what it is given for its own, and these as they are added up."""
        if not self._is_shared:
            return 0.0
        staged = min(self.rows, 2 * STAGED_BYTES)
        wide = min(self.rows, STAGED_BYTES) * self.state / self.size * (self.size < self.state)
        return self.rows + staged + wide + self.rows / self.layout.tp

    @property
    def _chunk(self) -> int:
        """Rows whose logits are held at once."""
        vocabulary = self._vocabulary if self._is_shared else self.model.vocabulary_size
        return min(self.tokens, rows_per_chunk(vocabulary, self.device))

    @property
    def _vocabulary(self) -> int:
        return -(-self.model.vocabulary_size // self.layout.tp)

    @property
    def _table(self) -> float:
        """Bytes of logits that are held at once."""
        return self._chunk * self.model.vocabulary_size / self.layout.tp * self.state

    @property
    def _logits(self) -> float:
        """Without gradients: of a rank's rows what the last block gave and its norm, all rows where several share the
        vocabulary, the table, and what is made of it."""
        made = logits_per_piece(self._vocabulary, self._chunk, self.device) * self.state
        own = self.rows / self.layout.tp
        late = own * (self._is_shared and self.device == "cpu")  # as `let_go_late`, of the rank's own rows
        return 2 * own + late + self.rows * self._is_shared + self._table + made
