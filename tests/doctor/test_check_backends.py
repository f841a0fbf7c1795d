from hpcrl.doctor.check_backends import check_backends
from hpcrl.doctor.findings import Finding, Severity


def test_each_backend_is_told_with_what_it_can_do():
    value = "trains, generates; splits over dp, tp, pp; computes in fp32, bf16, fp64"
    assert list(check_backends()) == [Finding("backends", "native", value, Severity.OK)]
