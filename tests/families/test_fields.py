import pytest

from hpcrl.errors import ConfigurationError
from hpcrl.families.config import Experts, RotaryConfig
from hpcrl.families.family import FAMILIES
from hpcrl.families.fields import HARMLESS
from hpcrl.families.reader import config_from_json, config_to_json
from hpcrl.families.words import in_words
from hpcrl.plugins import find

QWEN2 = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "eos_token_id": [2, 3],
}
LLAMA = QWEN2 | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN3 = QWEN2 | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False}
MISTRAL = QWEN2 | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
GEMMA = QWEN2 | {"model_type": "gemma", "architectures": ["GemmaForCausalLM"]}
GEMMA2 = QWEN2 | {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "sliding_window": 7}
GEMMA3 = QWEN2 | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 16}
GEMMA3_WINDOWS = GEMMA3 | {"sliding_window": 7, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24}
MIXTRAL = QWEN2 | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
QWEN3_MOE = QWEN2 | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "use_sliding_window": True,
    "sliding_window": 7,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (QWEN2 | {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (QWEN2 | {"layer_types": ["full_attention", "sliding_attention"]}, "layers have a window, which is None"),
        (QWEN2 | {"layer_types": ["full_attention"]}, "layer_types = ['full_attention']; a list of 2 is needed"),
        (QWEN2 | {"layer_types": ["full_attention", "linear_attention"]}, "layer_types = ['full_attention', 'linear"),
        (QWEN2 | {"use_sliding_window": 1}, "use_sliding_window = 1; true or false"),
        (QWEN2 | {"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        (QWEN2 | {"classifier_dropout": 0.1}, "classifier_dropout = 0.1"),
        (QWEN2 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (QWEN2 | {"rope_scaling": {"type": "longrope", "factor": 4.0}}, "rope type 'longrope'"),
        (QWEN2 | {"rope_scaling": {"type": "dynamic", "alpha": 4.0}}, "rope type 'dynamic' needs the fields"),
        (QWEN2 | {"rope_scaling": {"type": "yarn", "factor": 4.0, "low_freq_factor": 1.0}}, "rope type 'yarn' needs"),
        (QWEN2 | {"rope_scaling": YARN | {"truncate": 1}}, "rope's truncate = 1; true or false"),
        (QWEN2 | {"rope_scaling": YARN | {"beta_fast": "32"}}, "rope's beta_fast = '32'; a positive number"),
        (QWEN2 | {"rope_scaling": {"type": "linear"}}, "rope type 'linear' needs the fields"),
        (QWEN2 | {"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, "mrope_section"),
        (QWEN2 | {"quantization_config": {"bits": 4}}, "quantization_config"),
        (QWEN2 | {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        (QWEN2 | {"hidden_size": None}, "hidden_size = None"),
        (QWEN2 | {"head_dim": 7}, "head_dim = 7 is odd"),
        (QWEN2 | {"num_attention_heads": 3}, "no multiple of num_key_value_heads = 2"),
        (QWEN2 | {"architectures": ["Qwen2ForQuestionAnswering"]}, "Qwen2ForQuestionAnswering"),
        (QWEN2 | {"architectures": ["Qwen2ForTokenClassification"], "id2label": {"0": "a", "1": "b"}}, "2 labels"),
        (QWEN2 | {"is_encoder_decoder": True}, "is_encoder_decoder = True"),
        (LLAMA | {"attention_bias": 1}, "attention_bias = 1; true or false"),
        (LLAMA | {"mlp_bias": "yes"}, "mlp_bias = 'yes'; true or false"),
        (MISTRAL | {"sliding_window": "none"}, "layers have a window, which is 'none' by sliding_window"),
        (MISTRAL | {"sliding_window": 0}, "layers have a window, which is 0"),
        (QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]}, "layers have a window, which is None"),
        (GEMMA | {"hidden_act": "relu"}, "hidden_act = 'relu'"),
        (GEMMA | {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        (GEMMA3 | {"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (GEMMA3 | {"final_logit_softcapping": 0.0}, "final_logit_softcapping = 0.0; a positive number"),
        (GEMMA2 | {"attn_logit_softcapping": -50.0}, "attn_logit_softcapping = -50.0; a positive number"),
        (GEMMA2 | {"final_logit_softcapping": "30"}, "final_logit_softcapping = '30'; a positive number"),
        (GEMMA2 | {"hidden_activation": "gelu_new"}, "hidden_activation = 'gelu_new'"),
        (GEMMA2 | {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        (GEMMA2 | {"sliding_window": None}, "layers have a window, which is None by sliding_window"),
        (GEMMA2 | {"sliding_window_size": 8}, "sliding_window_size = 8 differs from sliding_window = 7"),
        (GEMMA3 | {"sliding_window": None, "layer_types": ["sliding_attention"] * 2}, "layers have a window, which is"),
        (GEMMA3 | {"rope_parameters": {"rope_theta": 3.0}}, "rope_parameters has rope_theta; it needs one for each of"),
        (
            GEMMA3 | {"rope_parameters": {"sliding_attention": 3}},
            "rope_parameters has no objects; it needs one for each",
        ),
        (QWEN3 | {"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        (LLAMA | {"sliding_window": 4096}, "sliding_window = 4096"),
        (MIXTRAL | {"router_jitter_noise": 0.1}, "router_jitter_noise = 0.1"),
        (MIXTRAL | {"num_experts_per_tok": 5}, "num_experts_per_tok = 5, of 4 experts"),
        (QWEN3_MOE | {"mlp_only_layers": ["0"]}, "mlp_only_layers = ['0']; a list of blocks"),
        (QWEN3_MOE | {"num_experts": 0}, "num_experts = 0; a positive integer"),
        (QWEN3_MOE | {"norm_topk_prob": 1}, "norm_topk_prob = 1; true or false"),
        (GPT2 | {"activation_function": "relu"}, "activation_function = 'relu'"),
        (GPT2 | {"scale_attn_weights": False}, "scale_attn_weights = False"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        (GPT2 | {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn = True"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention = True"),
        (GPT2 | {"n_ctx": 64}, "n_ctx = 64"),
        (GPT2 | {"n_head": 3}, "n_embd = 32 is no multiple of n_head = 3"),
        (GPT2 | {"n_positions": "128"}, "n_positions = '128'"),
        (GPT2 | {"rope_theta": 1e4}, "rope_theta = 10000.0"),
        (GPT2 | {"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2DoubleHeadsModel"),
        (
            QWEN2 | {"model_type": "cohere2"},
            "model_type 'cohere2' is not supported; supported are gemma, gemma2, gemma3_text, gpt2, llama, mistral",
        ),
    ],
)
def test_what_would_change_the_mathematics_is_refused_by_name(fields, name):
    with pytest.raises(ConfigurationError, match=r"here\.json|model_type") as refusal:
        config_from_json(fields, "here.json")
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_attention_heads": "14"}, "num_attention_heads = '14'; a positive integer"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0; a positive integer"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads = '2'; a positive integer"),
        ({"head_dim": True}, "head_dim = True; a positive integer"),
        ({"rope_theta": "abc"}, "rope_theta = 'abc'; a positive number"),
        ({"rope_theta": -1.0}, "rope_theta = -1.0; a positive number"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear'; an object"),
        ({"rope_scaling": {"type": ["linear"], "factor": 2.0}}, "rope type ['linear']"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor = '2'; a positive number"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": "8192"}}, "embeddings = '8192'; a positive"),
        ({"layer_types": 3}, "layer_types = 3"),
        ({"eos_token_id": "x"}, "eos_token_id = 'x'; a token id"),
        ({"eos_token_id": [2, None]}, "eos_token_id = [2, None]; a token id"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps = '1e-6'; a positive number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps = -1; a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan; a positive number"),
        ({"initializer_range": "0.02"}, "initializer_range = '0.02'; a positive number"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false'; true or false"),
        ({"architectures": "Qwen2"}, "architectures names 'Qwen2'"),
        ({"architectures": [3]}, "architectures names 3"),
        ({"architectures": ["Qwen2ForTokenClassification"], "id2label": 1}, "id2label = 1; an object"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(fields, name):
    with pytest.raises(ConfigurationError, match=r"here\.json") as refusal:
        config_from_json(QWEN2 | fields, "here.json")
    assert name in str(refusal.value)


def test_all_problems_are_reported_together():
    fields = QWEN2 | {"hidden_act": "relu", "use_mrope": True, "something_new": 1}
    with pytest.raises(ConfigurationError) as refusal:
        config_from_json(fields, "here.json")
    lines = str(refusal.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("here.json: ") for line in lines)


def test_fields_without_influence_are_accepted():
    config = config_from_json(QWEN2 | {"use_cache": False, "torch_dtype": "bfloat16", "temperature": 0.3}, "here.json")
    assert config.eos_token_ids == (2, 3)
    assert config.qkv_bias


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RotaryConfig(10000.0)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RotaryConfig(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}, RotaryConfig(5e5, "linear", 2)),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, RotaryConfig(7.0)),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, RotaryConfig(1e4, "dynamic", 2)),
        ({"rope_scaling": YARN | {"mscale": None}}, RotaryConfig(1e4, "yarn", 4.0, original_max_positions=32)),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_slow": 2, "truncate": False, "mscale": 0.5}},
            RotaryConfig(1e4, "yarn", 2.0, original_max_positions=128, beta_slow=2, truncate=False, mscale=0.5),
        ),
        ({"rope_scaling": LLAMA3}, RotaryConfig(10000.0, "llama3", 8.0, 1.0, 4.0, 128)),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}},
            RotaryConfig(10000.0, "llama3", 8.0, 1.0, 4.0, 64),
        ),
    ],
)
def test_rope_is_read_in_the_forms_of_transformers_4_and_5(fields, expected):
    assert config_from_json(LLAMA | fields, "here.json").rotary == expected


BIASED = [LLAMA | {"attention_bias": True, "mlp_bias": True}, QWEN3 | {"attention_bias": True}]
OLD_ROPE, WIDE_HEADS, WIDE_MLP = LLAMA | {"rope_scaling": LLAMA3}, QWEN2 | {"head_dim": 16}, GPT2 | {"n_inner": 48}


@pytest.mark.parametrize(
    "fields",
    [
        QWEN2,
        LLAMA,
        OLD_ROPE,
        WIDE_HEADS,
        MISTRAL,
        QWEN3,
        GPT2,
        WIDE_MLP,
        *BIASED,
        QWEN3 | {"rope_scaling": YARN | {"mscale": 0.7}},
        QWEN2 | {"use_sliding_window": True, "max_window_layers": 1},
        QWEN3 | {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
        MISTRAL | {"sliding_window": None},
        MIXTRAL | {"router_aux_loss_coef": 0.5},
        MIXTRAL | {"sliding_window": 9},
        QWEN3_MOE | {"norm_topk_prob": True, "mlp_only_layers": [1], "attention_bias": True},
        QWEN3_MOE | {"decoder_sparse_step": 2, "use_sliding_window": False},
        GEMMA,
        GEMMA2,
        GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": 0.5, "query_pre_attn_scalar": 144},
        GEMMA2 | {"layer_types": ["full_attention"] * 2, "final_logit_softcapping": None, "attention_bias": True},
        GEMMA3,
        GEMMA3_WINDOWS,
        GEMMA3 | {"final_logit_softcapping": 30.0},
        GEMMA3 | {"rope_theta": 7.0, "rope_local_base_freq": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 8}},
    ],
)
@pytest.mark.parametrize("head", ["vocabulary", "value", "reward"])
def test_what_is_written_reads_back_the_same(fields, head):
    family = find(FAMILIES, fields["model_type"], "family")
    suffix = next(suffix for suffix, its in family.heads.items() if its == head)
    fields = fields | {"architectures": [family.architecture + suffix], "num_labels": 1}
    config = config_from_json(fields, "here.json")
    assert config.head == head
    assert config_from_json(config_to_json(config, "float32"), "there.json") == config


def test_a_head_of_qwen3_has_128_dimensions_unless_it_says_otherwise():
    assert config_from_json(QWEN3, "here.json").head_dim == 128
    assert config_from_json(QWEN3 | {"head_dim": 16}, "here.json").head_dim == 16
    assert config_from_json(QWEN2, "here.json").head_dim == 8


OWNS = {
    "Qwen2": QWEN2,
    "Llama": LLAMA,
    "Mistral": MISTRAL,
    "Qwen3": QWEN3,
    "Gemma": GEMMA,
    "Gemma2": GEMMA2,
    "Gemma3Text": GEMMA3_WINDOWS,
    "GPT2": GPT2,
    "Mixtral": MIXTRAL,
    "Qwen3Moe": QWEN3_MOE,
}
"""What begins the names of the classes of transformers' configurations."""


def test_every_field_of_a_family_in_transformers_is_known():
    transformers = pytest.importorskip("transformers")
    for own, fields in OWNS.items():
        written = getattr(transformers, f"{own}Config")(**fields).to_dict()
        assert config_from_json(written, "here.json").family == fields["model_type"]


INERT = {
    "qwen2": {"use_sliding_window", "sliding_window", "max_window_layers"},
    "qwen3": {"use_sliding_window", "sliding_window", "max_window_layers"},
    "gemma3_text": {"_sliding_window_pattern", "sliding_window_pattern"},
    "gpt2": {
        *("attn_pdrop", "embd_pdrop", "resid_pdrop"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    },
}
"""Of windows where the layers are listed; of dropouts, which none is trained with; of a head that none of ours is."""


def changed(value):
    """Another value of its kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 or 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, "another"]
    return {"another": 3} if isinstance(value, dict) else 3


@pytest.mark.parametrize("own", OWNS)
def test_no_field_of_transformers_is_ignored(own):
    """Each of its class's fields, changed, makes another model, or is refused by name, or counts nowhere."""
    transformers = pytest.importorskip("transformers")
    fields = OWNS[own]
    written = getattr(transformers, f"{own}Config")(**fields).to_dict()
    usual, ignored = config_from_json(written, "here.json"), []
    for name, value in written.items():
        try:
            found = config_from_json(written | {name: changed(value)}, "here.json")
        except ConfigurationError as error:
            assert name in str(error) or name in ("rope_parameters", "layer_types", "num_hidden_layers")
            continue
        if found == usual and name not in HARMLESS | INERT.get(fields["model_type"], set()):
            ignored.append(name)
    assert ignored == []


def test_blocks_have_the_windows_that_transformers_gives_them():
    transformers = pytest.importorskip("transformers")
    windows = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    changes: list[dict[str, object]] = [{}, {"layer_types": ["sliding_attention", "full_attention"]}]
    cases = [("Qwen2", QWEN2 | windows), ("Qwen3", QWEN3 | windows), ("Gemma2", GEMMA2), ("Gemma3Text", GEMMA3_WINDOWS)]
    for own, fields in cases:
        for changed in changes:
            theirs = getattr(transformers, f"{own}Config")(**(fields | changed))
            expected = [theirs.sliding_window if kind == "sliding_attention" else 0 for kind in theirs.layer_types]
            assert config_from_json(fields | changed, "here.json").windows == (tuple(expected) if any(expected) else ())
    assert config_from_json(MISTRAL, "here.json").windows == (4096, 4096)
    assert config_from_json(MISTRAL | {"sliding_window": None}, "here.json").windows == ()


def test_a_gemma2_has_softcaps_unless_they_are_null():
    config = config_from_json(GEMMA2, "here.json")
    assert (config.attention_softcap, config.logit_softcap, config.query_scalar) == (50.0, 30.0, 256)
    assert (config.windows, config.post_norms, config.head_norms, config.tied) == ((7, 0), True, False, True)
    assert "attention's scores are softcapped at 50; its logits are softcapped at 30" in in_words(config)
    none = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    config = config_from_json(GEMMA2 | none, "here.json")
    assert (config.attention_softcap, config.logit_softcap) == (None, None)


def test_transformers_can_read_a_model_of_which_no_block_has_a_window():
    """It makes the mask of a window, too, whose size it has to know."""
    transformers = pytest.importorskip("transformers")
    for own, fields in (("Gemma2", GEMMA2), ("Gemma3Text", GEMMA3)):
        config = config_from_json(fields | {"layer_types": ["full_attention"] * 2}, "here.json")
        theirs = getattr(transformers, f"{own}Config")(**config_to_json(config, "float32"))
        assert (theirs.layer_types, theirs.sliding_window) == (["full_attention"] * 2, 4096)


def test_a_gpt2_is_read_with_the_defaults_of_its_fields():
    config = config_from_json(GPT2, "here.json")
    assert (config.intermediate_size, config.tied, config.norm_eps) == (128, True, 1e-5)
    assert config_from_json({**GPT2, "n_ctx": 128}, "here.json").max_positions == 128
    assert config_from_json({**GPT2, "n_positions": None, "n_ctx": 64}, "here.json").max_positions == 64


def test_blocks_have_the_experts_that_transformers_gives_them():
    mixtral = config_from_json(MIXTRAL, "here.json")
    assert mixtral.experts == Experts(4, 2, 48) and (mixtral.rotary.theta, mixtral.windows) == (1e6, ())
    sparse = QWEN3_MOE | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3, 4]}
    config = config_from_json(sparse, "here.json")
    assert config.experts == Experts(6, 3, 16, normalized=False, dense=(1, 3, 4, 5))
    assert [config.experts_of(layer) is None for layer in range(1, 7)] == [True, False, True, True, True, False]
    assert config.windows == (7,) * 6
    assert "2 of 6 blocks have 6 experts, 3 a token" in in_words(config)


def test_a_family_refuses_to_write_a_config_that_is_not_its_own():
    config = config_from_json(QWEN2, "here.json")
    for family, names in {
        "llama": "qkv_bias = False, not True",
        "qwen3": "head_norms = True, not False",
        "mistral": "qkv_bias = False",
        "gpt2": "norm = layer, not rms",
        "gemma2": "norm = rms_plus_one, not rms",
        "mixtral": "have experts of 48 neurons, normalised, not None",
        "qwen3_moe": "has experts",
    }.items():
        with pytest.raises(ValueError, match=names):
            config_to_json(config.__class__(**(vars(config) | {"family": family})), "float32")
    for softcap in ("attention_softcap", "logit_softcap"):
        with pytest.raises(ValueError, match=f"A qwen2 model has {softcap} = None, not 30"):
            config_to_json(config.__class__(**(vars(config) | {softcap: 30.0})), "float32")
