"""Which kernels gradients get, and what is said of those that have no deterministic variant."""

from collections.abc import Iterator

import pytest
import torch

from hpcrl.errors import InternalError
from hpcrl.models.kernels import UNNAMED, Kernels, lacking_in


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    """What `Kernels` settles for the whole process is put back."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    yield
    torch.set_deterministic_debug_mode(before)


def test_gradients_alone_are_computed_by_deterministic_kernels_or_not_at_all() -> None:
    kernels = Kernels()
    assert torch.get_deterministic_debug_mode() == 1
    assert kernels.gradients("actor", torch.get_deterministic_debug_mode, lambda: 0) == 2
    assert (torch.get_deterministic_debug_mode(), kernels.lacking) == (1, "")


def test_while_responses_are_generated_any_kernels_will_do() -> None:
    kernels = Kernels()
    with kernels.generating():
        assert torch.get_deterministic_debug_mode() == 0
    assert torch.get_deterministic_debug_mode() == 1


def test_the_first_gradient_of_a_role_is_computed_twice_and_no_other() -> None:
    kernels, calls = Kernels(), []
    for role in ("actor", "actor", "critic"):
        kernels.gradients(role, lambda role=role: calls.append(role), lambda: 0)
    assert calls == ["actor", "actor", "actor", "critic", "critic"]


@pytest.mark.filterwarnings("ignore:put_ does not have a deterministic")
def test_an_operation_without_a_deterministic_variant_is_named_and_computed_all_the_same() -> None:
    def compute() -> int:
        torch.zeros(1).put_(torch.tensor([0]), torch.ones(1))
        return torch.get_deterministic_debug_mode()

    kernels = Kernels()
    assert kernels.gradients("actor", compute, lambda: 0) == 1 and kernels.lacking == "put_"
    assert kernels.gradients("critic", torch.get_deterministic_debug_mode, lambda: 0) == 1


def test_a_gradient_that_differs_the_second_time_has_an_operation_that_nobody_names() -> None:
    kernels, numbers = Kernels(), iter(range(9))
    kernels.gradients("actor", lambda: None, lambda: next(numbers))
    assert kernels.lacking == UNNAMED


@pytest.mark.filterwarnings("ignore:put_ does not have a deterministic")
def test_ranks_that_compute_together_find_out_without_stopping_and_continue_as_the_rest() -> None:
    modes: list[int] = []

    def put() -> None:
        torch.zeros(1).put_(torch.tensor([0]), torch.ones(1))
        modes.append(torch.get_deterministic_debug_mode())

    kernels, asked = Kernels(), []
    kernels.gradients("actor", put, lambda: 0, anyone=lambda so: asked.append(so) or so)
    assert (modes, asked, kernels.lacking) == ([1], [False, True], "put_")
    kernels.gradients("actor", put, lambda: 0, anyone=lambda so: so)
    assert modes == [1, 1]


def test_ranks_that_compute_together_compare_what_deterministic_kernels_gave() -> None:
    kernels, modes = Kernels(), []
    for _ in range(2):
        kernels.gradients(
            "actor", lambda: modes.append(torch.get_deterministic_debug_mode()), lambda: 0, anyone=lambda so: so
        )
    assert (modes, kernels.lacking) == ([1, 2, 2, 2], "")
    # Another rank finds what this one does not have: this one compares nothing either.
    told, others = iter([False, True]), Kernels()
    others.gradients(
        "actor", lambda: modes.append(torch.get_deterministic_debug_mode()), lambda: 0, anyone=lambda _: next(told)
    )
    assert modes[4:] == [1]


@pytest.mark.filterwarnings("ignore:put_ does not have a deterministic")
def test_an_operation_that_a_later_gradient_of_ranks_together_meets_ends_the_call() -> None:
    kernels = Kernels()
    kernels.gradients("actor", lambda: None, lambda: 0, anyone=lambda so: so)
    with pytest.raises(InternalError, match=r"actor: put_ has no deterministic variant.*--deterministic false"):
        kernels.gradients(
            "actor",
            lambda: torch.zeros(1).put_(torch.tensor([0]), torch.ones(1)),
            lambda: 0,
            anyone=lambda so: so,
        )
    free = Kernels(deterministic=False)
    free.gradients("actor", lambda: torch.zeros(1).put_(torch.tensor([0]), torch.ones(1)), lambda: 0, lambda so: so)


def test_another_error_stays_one_and_a_run_that_need_not_be_deterministic_asks_for_nothing() -> None:
    def fail() -> None:
        raise RuntimeError("CUDA out of memory")

    kernels = Kernels()
    with pytest.raises(RuntimeError, match="out of memory"):
        kernels.gradients("actor", fail, lambda: 0)
    assert (torch.get_deterministic_debug_mode(), kernels.lacking) == (1, "")
    torch.set_deterministic_debug_mode("default")
    assert Kernels(deterministic=False).gradients("actor", torch.get_deterministic_debug_mode, lambda: 0) == 0


def test_the_operation_is_read_from_what_torch_says() -> None:
    said = "cumsum_cuda_kernel does not have a deterministic implementation, but you set ..."
    assert lacking_in(said) == "cumsum_cuda_kernel"
    assert lacking_in("this operation is not deterministic because it uses CuBLAS and you have CUDA") == "CuBLAS"
    assert lacking_in("shape mismatch") == ""
