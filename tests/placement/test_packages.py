import importlib.metadata

import pytest

from hpcrl.backends.backend import Package
from hpcrl.backends.packages import package_problems

HAS = importlib.metadata.version("numpy")


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        (Package("numpy", "big", (HAS, "99")), None),
        (Package("numpy", "big", ("1", HAS)), f"numpy is version {HAS}, and versions from 1 to below {HAS} are tested"),
        (
            Package("numpy", "big", ("98", "99")),
            f"numpy is version {HAS}, and versions from 98 to below 99 are tested",
        ),
        (Package("no-such-thing", "big", ("1", "2")), "no-such-thing is not installed"),
    ],
)
def test_a_package_that_is_missing_or_untested_is_told_with_the_command_that_brings_it(package, problem):
    expected = [] if problem is None else [(problem, "Run: pip install 'hpcrl[big]'")]
    assert list(package_problems([package])) == expected
