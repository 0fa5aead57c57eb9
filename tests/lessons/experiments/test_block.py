from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unmasked.functional import attend
from unmasked.heads import merge_heads, split_heads
from unmasked_lessons.experiments import block
from unmasked_lessons.teaching import Singer, verse


def test_what_moves_is_what_changes_with_another_word():
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4)
    assert block.moves(lambda x: x.cumsum(dim=1), x).equal(torch.ones(3, 3).tril().bool())  # rows are outputs
    assert block.moves(lambda x: 2 * x, x).equal(torch.eye(3).bool())


def test_parameters_are_counted_part_by_part():
    layer = nn.TransformerEncoderLayer(8, 2, 12)
    found = block.parameters(layer)
    assert found == {"attention": 4 * (8 * 8 + 8), "MLP": 8 * 12 + 12 + 12 * 8 + 8, "norms": 2 * 2 * 8}
    assert sum(found.values()) == sum(each.numel() for each in layer.parameters())


@pytest.mark.parametrize("length", [5, 32])
def test_a_block_of_pytorch_takes_as_many_multiplications(length: int):
    layer = nn.TransformerEncoderLayer(16, 2, 64, batch_first=True, device="meta")
    x = torch.empty(1, length, 16, device="meta")
    found = []
    for part in (lambda x: layer.self_attn(x, x, x), lambda x: layer.linear2(layer.linear1(x))):
        with FlopCounterMode(display=False) as flops:
            part(x)
        found.append(flops.get_total_flops() / 2 / length)  # a multiplication and an addition
    assert block.multiplications(16, length) == tuple(found)


def by_hand(singer: Singer, words: torch.Tensor, part: str) -> torch.Tensor:
    """The scores of a singer of one block without a part, written out."""

    def norm(number: int, x: torch.Tensor) -> torch.Tensor:
        return x if part == "norms" else singer.norm[number](x)

    x = singer.word(words)
    x = x if part == "positions" else x + singer.place.weight[: words.size(1)]
    query, key, value = split_heads(singer.qkv[0](norm(0, x)), 6).chunk(3, dim=1)
    found = singer.out[0](merge_heads(attend(query, key, value, is_causal=True).context))
    x = {"attention": x, "residual": found}.get(part, x + found)
    more = singer.mlp[0](norm(1, x))
    x = {"MLP": x, "residual": more}.get(part, x + more)
    return singer.read(norm(2, x))


@pytest.mark.parametrize("part", ["", *block.PARTS, "positions"])
def test_a_singer_without_a_part_computes_the_rest_and_is_whole_again_afterwards(part: str):
    torch.manual_seed(0)
    singer = Singer(1).requires_grad_(False)
    words = singer.numbers_of("la la seven green")
    whole, expected = singer(words), by_hand(singer, words, part)
    with block.without(singer, part) if part else nullcontext():
        assert torch.allclose(singer(words), expected, atol=1e-5)
        assert torch.allclose(singer(words), whole) is (not part)
    assert singer(words).equal(whole)


def test_no_part_of_another_name_is_taken_away():
    with (
        pytest.raises(ValueError, match="part is 'norm'; pass one of attention, MLP, residual, norms, positions"),
        block.without(Singer(1), "norm"),
    ):
        pass


def test_the_whole_singer_sings_the_verse_and_without_a_part_another_song():
    told = block.songs(Singer.trained(1), 9)
    assert [each["name"] for each in told] == ["whole", *(f"without {part}" for part in block.PARTS)]
    assert told[0]["words"] == verse(9).split()[2:]
    assert told[0]["share"] == 1
    assert max(each["share"] for each in told[1:]) < 0.9
