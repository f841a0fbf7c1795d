import pytest
import torch

from hpcrl.models.products import Products, packs

SIZES = [(48, 40), (64, 96), (33, 65), (512, 1408), (1408, 512)]
packed_types = pytest.mark.parametrize(
    ("dtype", "room"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"]
)


def skip_unless_packed(dtype):
    if not packs(torch.zeros(1, dtype=dtype)):
        pytest.skip(f"this CPU or torch packs no {dtype}")


@packed_types
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_packed_products_are_those_of_plain_matrices(dtype, room, size, transposed):
    skip_unless_packed(dtype)
    matrix = torch.randn(*reversed(size)).to(dtype).t() if transposed else torch.randn(size).to(dtype)
    rows, added = torch.randn(9, size[0]).to(dtype), torch.randn(9, size[1]).to(dtype)
    products, exact = Products(), rows.double() @ matrix.double()
    with torch.inference_mode(), products.packing():
        made, sum_ = products.of(rows, matrix), products.plus(added, rows, matrix)
    scale = exact.abs().max().item()
    torch.testing.assert_close(made.double(), exact, atol=room * scale, rtol=0)
    torch.testing.assert_close(sum_.double(), exact + added.double(), atol=2 * room * scale, rtol=0)


@packed_types
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_bits_of_a_row_do_not_depend_on_how_many_others_there_are(dtype, room, size):
    skip_unless_packed(dtype)
    if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        pytest.skip("in bf16 a CPU with AMX multiplies few rows otherwise than many")
    matrix, rows, products = torch.randn(size).to(dtype), torch.randn(130, size[0]).to(dtype), Products()
    with torch.inference_mode(), products.packing():
        together = products.of(rows, matrix)
        for count in (*range(4, 34), 64, 100):
            assert torch.equal(products.of(rows[:count], matrix), together[:count]), count
        assert torch.equal(products.of(rows[30:70], matrix), together[30:70])


def test_what_is_packed_is_kept_for_one_generation():
    """The next one may have other parameters in the same place."""
    products, matrix, rows = Products(), torch.eye(32), torch.ones(4, 32)
    with torch.inference_mode():
        with products.packing():
            products.of(rows, matrix)
        matrix *= 2
        with products.packing():
            again = products.of(rows, matrix)
        plain = products.of(rows, matrix)
    assert torch.equal(again, 2 * rows) and torch.equal(plain, 2 * rows)


def test_types_that_are_not_packed_are_multiplied_all_the_same():
    products, matrix, rows = Products(), torch.randn(8, 16, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    with products.packing():
        assert torch.equal(products.of(rows, matrix), rows @ matrix)
        assert torch.equal(
            products.plus(torch.ones(16).double(), rows, matrix), torch.addmm(torch.ones(16).double(), rows, matrix)
        )
