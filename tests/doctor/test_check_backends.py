from hpcrl.doctor.check_backends import check_backends
from hpcrl.doctor.findings import Finding, Severity


def test_each_backend_is_told_with_what_it_can_do():
    able, types = "trains, generates; splits over", "computes in fp32, bf16, fp64"
    assert list(check_backends()) == [
        Finding("backends", "fsdp", f"{able} dp, parameters too; {types}", Severity.OK),
        Finding("backends", "megatron", f"{able} dp, tp, pp; computes in fp32, bf16; on cuda only", Severity.OK),
        Finding("backends", "native", f"{able} dp, tp, pp; {types}", Severity.OK),
    ]
