"""How many numbers a block's pass makes and keeps, from its shapes alone."""

from hpcrl.families.config import DecoderConfig


def numbers_in_mlp(model: DecoderConfig, tokens: int) -> int:
    """Numbers of gradients within an MLP, or within experts, whose matrices' gradients are made beside those there
    are."""
    dense = tokens * 4 * model.intermediate_size * has_dense(model)
    if (experts := model.experts) is None:
        return dense
    rows = tokens * experts.per_token * (2 * model.hidden_size + 4 * experts.inner_size)
    return max(dense, rows + experts.count * model.hidden_size * 2 * experts.inner_size)


def has_dense(model: DecoderConfig) -> bool:
    """Whether a block has a plain MLP."""
    return any(model.experts_of(layer) is None for layer in range(1, model.blocks + 1))


def kept_per_token(model: DecoderConfig) -> int:
    """Numbers that a block keeps for its backward pass: norms in and out, those of what is added too, q k v, the first
    two also as they are normalised, turned and multiplied, attention's output, and what its MLP or experts keep."""
    attention = 2 * (model.query_size + model.kv_size)
    changed = ((model.positions == "rotary") + model.head_norms) * (model.query_size + model.kv_size)
    changed += model.query_size * (model.query_factor != 1)
    return (4 + 2 * model.post_norms) * model.hidden_size + attention + changed + kept_by_mlp(model)


def kept_by_mlp(model: DecoderConfig) -> int:
    """The neurons' 3 numbers, or 2 without a gate; for each expert of a token its row in and out too."""
    dense = (3 if model.gated else 2) * model.intermediate_size * has_dense(model)
    if (experts := model.experts) is None:
        return dense
    return max(dense, experts.per_token * (2 * model.hidden_size + 3 * experts.inner_size) + 4 * experts.count)


def inner_numbers(model: DecoderConfig) -> int:
    """What a plain MLP multiplies by the matrix that leads down."""
    return model.intermediate_size * has_dense(model)
