"""Random configurations of each family as transformers has them, for hypothesis."""

from typing import Any

from hypothesis import strategies as st

Fields = dict[str, Any]

LLAMA3: Fields = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
YARN: Fields = {"rope_type": "yarn", "original_max_position_embeddings": 24, "beta_fast": 4.0}
MOST_POSITIONS = 96


@st.composite
def _sizes(draw: st.DrawFn) -> Fields:
    kv_heads, sharing = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 4]))
    heads = kv_heads * sharing
    return {
        "vocab_size": draw(st.integers(5, 67)),
        "hidden_size": heads * draw(st.sampled_from([4, 6])),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": MOST_POSITIONS,
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-2])),
        "tie_word_embeddings": draw(st.booleans()),
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


@st.composite
def _rope(draw: st.DrawFn) -> Fields:
    kind = draw(st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn"]))
    scaling: Fields = {"rope_type": kind} | {"llama3": LLAMA3, "yarn": YARN}.get(kind, {})
    if kind != "default":
        scaling["factor"] = draw(st.sampled_from([1.5, 4.0]))
    return {"rope_parameters": scaling | {"rope_theta": draw(st.sampled_from([50.0, 1e4]))}}


def _joined(*parts: Fields) -> Fields:
    return {name: value for part in parts for name, value in part.items()}


def _made(*parts: st.SearchStrategy[Fields]) -> st.SearchStrategy[Fields]:
    return st.tuples(*parts).map(lambda drawn: _joined(*drawn))


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
    return st.fixed_dictionaries(fields)


WINDOW = st.integers(2, 20)
"""The cache of transformers 5 keeps all tokens of a window of 1, where its own forward pass sees one."""
HEAD_DIM = st.sampled_from([4, 6, 8])
UPPER_WINDOWS: st.SearchStrategy[Fields] = st.one_of(
    st.just({}), _some(use_sliding_window=st.just(True), sliding_window=WINDOW, max_window_layers=st.integers(1, 3))
)


@st.composite
def _gemma3(draw: st.DrawFn) -> Fields:
    fields = draw(_sizes()) | {"head_dim": draw(HEAD_DIM), "sliding_window": draw(WINDOW)}
    kinds = st.sampled_from(["full_attention", "sliding_attention"])
    count = fields["num_hidden_layers"]
    whole: Fields = draw(st.sampled_from([{"rope_type": "default"}, {"rope_type": "linear", "factor": 8.0}]))
    return fields | {
        "layer_types": draw(st.lists(kinds, min_size=count, max_size=count)),
        "query_pre_attn_scalar": draw(st.sampled_from([4, 8, 24])),
        "attention_bias": draw(st.booleans()),
        "final_logit_softcapping": draw(st.sampled_from([None, None, 3.0])),
        "rope_parameters": {
            "full_attention": whole | {"rope_theta": 1e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    }


@st.composite
def _gemma2(draw: st.DrawFn) -> Fields:
    """Of softcaps small ones too, which bend every score; one of the two may be absent."""
    fields = draw(_sizes()) | draw(_rope()) | {"head_dim": draw(HEAD_DIM), "sliding_window": draw(WINDOW)}
    kinds, count = st.sampled_from(["full_attention", "sliding_attention"]), fields["num_hidden_layers"]
    softcaps = st.sampled_from([None, 0.5, 3.0, 50.0])
    return fields | {
        "layer_types": draw(st.one_of(st.none(), st.lists(kinds, min_size=count, max_size=count))),
        "query_pre_attn_scalar": draw(st.sampled_from([4, 8, 24])),
        "attention_bias": draw(st.booleans()),
        "attn_logit_softcapping": draw(softcaps),
        "final_logit_softcapping": draw(softcaps),
    }


@st.composite
def _experts(draw: st.DrawFn, count: str) -> Fields:
    """One expert of one, all of them, or some."""
    experts = draw(st.integers(1, 9))
    return {count: experts, "num_experts_per_tok": draw(st.integers(1, experts))}


@st.composite
def _qwen3_moe(draw: st.DrawFn) -> Fields:
    """Blocks with a plain MLP are named one by one, or all between those with experts."""
    fields = draw(_sizes()) | draw(_rope()) | draw(_experts("num_experts"))
    return fields | {
        "head_dim": draw(HEAD_DIM),
        "moe_intermediate_size": draw(st.integers(1, 20)),
        "norm_topk_prob": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "decoder_sparse_step": draw(st.sampled_from([1, 1, 2])),
        "mlp_only_layers": draw(st.lists(st.integers(0, 3), max_size=2, unique=True)),
        **draw(st.sampled_from([{}, {"use_sliding_window": True, "sliding_window": 7}])),
    }


@st.composite
def _gpt2(draw: st.DrawFn) -> Fields:
    heads = draw(st.integers(1, 4))
    return {
        "vocab_size": draw(st.integers(5, 67)),
        "n_embd": heads * draw(st.integers(2, 9)),
        "n_inner": draw(st.sampled_from([None, 7, 40])),
        "n_layer": draw(st.integers(1, 4)),
        "n_head": heads,
        "n_positions": MOST_POSITIONS,
        "layer_norm_epsilon": draw(st.sampled_from([1e-5, 1e-2])),
        "tie_word_embeddings": draw(st.booleans()),
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


CONFIGURATIONS: dict[str, st.SearchStrategy[Fields]] = {
    "llama": _made(_sizes(), _rope(), _some(attention_bias=st.booleans(), mlp_bias=st.booleans(), head_dim=HEAD_DIM)),
    "qwen2": _made(_sizes(), _rope(), UPPER_WINDOWS),
    "qwen3": _made(_sizes(), _rope(), UPPER_WINDOWS, _some(attention_bias=st.booleans(), head_dim=HEAD_DIM)),
    "mistral": _made(_sizes(), _rope(), _some(sliding_window=st.one_of(st.none(), WINDOW), head_dim=HEAD_DIM)),
    "gemma": _made(_sizes(), _rope(), _some(head_dim=HEAD_DIM, attention_bias=st.booleans())),
    "gemma2": _gemma2(),
    "gemma3_text": _gemma3(),
    "gpt2": _gpt2(),
    "mixtral": _made(
        _sizes(),
        _rope(),
        _experts("num_local_experts"),
        _some(sliding_window=st.one_of(st.none(), WINDOW), head_dim=HEAD_DIM),
    ),
    "qwen3_moe": _qwen3_moe(),
}
"""By model_type."""
LENGTHS = st.lists(st.integers(1, 45), min_size=1, max_size=6)
