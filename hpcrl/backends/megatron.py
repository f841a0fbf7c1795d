"""Megatron-core: its layers, gradient buffers and distributed optimizer; hpcrl's own attention, heads and sampler."""

from types import MappingProxyType

from hpcrl.backends.backend import Backend, Package

BACKEND = Backend(
    train=True,
    generate=True,
    axes=("dp", "tp", "pp"),
    dtypes=("fp32", "bf16"),
    devices=("cuda",),
    models=MappingProxyType(
        {
            "norm": "rms",
            "post_norms": False,
            "positions": "rotary",
            "head_norms": False,
            "query_scalar": None,
            "attention_softcap": None,
            "logit_softcap": None,
            "embedding_scaled": False,
            "activation": "swiglu",
            "experts": None,
            "output_bias": False,
            "mlp_bias": False,
        }
    ),
    packages=(Package("megatron-core", "megatron", ("0.16.1", "0.20")),),
    engine="hpcrl.engines.megatron:MegatronEngine",
)
