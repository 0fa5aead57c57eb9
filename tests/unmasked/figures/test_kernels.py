import torch

from unmasked.figures.kernels import errors


def test_errors_are_of_the_size_of_their_types_rounding():
    torch.manual_seed(1)
    found = errors(torch.randn(3, 1, 2, 64, 16, dtype=torch.float64))
    for name, of_each in found.items():
        finest = torch.finfo(getattr(torch, name)).eps
        assert len(of_each) == 3
        assert all(finest / 100 < each < 10 * finest for each in of_each), name
    assert list(found) == ["float32", "bfloat16", "float16"]
