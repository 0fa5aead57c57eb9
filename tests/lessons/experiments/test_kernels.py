import torch

from unmasked_lessons.experiments.kernels import changes, errors


def test_errors_are_of_the_size_of_their_types_rounding():
    torch.manual_seed(1)
    found = errors(torch.randn(3, 1, 2, 64, 16, dtype=torch.float64))
    for name, of_each in found.items():
        finest = torch.finfo(getattr(torch, name)).eps
        assert len(of_each) == 3
        assert all(finest / 100 < each < 10 * finest for each in of_each), name
    assert list(found) == ["float32", "bfloat16", "float16"]


def test_each_change_leaves_the_fused_kernel_and_its_remedy_brings_it_back():
    torch.manual_seed(3)
    found = changes(*torch.randn(3, 1, 2, 256, 16))
    plain = found.pop("nothing")
    assert plain.names == plain.mended == ("flash",)
    assert plain.shape == (1, 2, 256, 16)
    until_2_14 = "three axes, without a batch, up to PyTorch 2.13"
    for name, change in found.items():
        assert change.mended == ("flash",), name
        if name != until_2_14 or torch.__version__ < (2, 14):
            assert change.names == ("math",), name
            assert change.peak_bytes > 2 * 256 * 256 * 4, name  # a table of scores
    assert found["`dropout_p=0.1`"].shape == plain.shape
    assert found["values of another width"].shape == (1, 2, 256, 8)
