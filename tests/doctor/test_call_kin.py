"""What is asked of a call is asked of its kin, and accuses nobody who only looks like one that is wrong."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked import diagnose
from unmasked_doctor import ModelReport, diagnose_model

from .test_call_designs import (
    ADJACENT,
    PADDED,
    TOKENS,
    WIDTH,
    Heads,
    Kept,
    Marked,
    Rotary,
    Words,
    causal,
    drawn,
)


def test_what_overflows_in_float64_alone_is_no_nan() -> None:
    class Lowest(Heads):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            hidden = (1.0 - mask[:, None, None].float()) * torch.finfo(x.dtype).min
            return self.merge(*self.split(x), hidden)

    torch.manual_seed(7)
    report = diagnose(Lowest(), (drawn(2, TOKENS, WIDTH), (~PADDED).long()))
    assert report.ok
    assert "what is hidden is not seen" in report.passed


def test_another_output_may_be_what_depends_on_an_argument() -> None:
    class Two(Heads):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.merge(*self.split(x)), self.merge(*self.split(y))

    torch.manual_seed(7)
    report = diagnose(Two(), (drawn(2, TOKENS, WIDTH), drawn(2, 4, WIDTH)))
    assert not any("no output depends" in each.told for each in report.named)


def test_ids_are_asked_about_the_future_and_the_pair_runs() -> None:
    torch.manual_seed(7)
    target, call = Words(), (torch.tensor([[5, 9, 7, 2, 8, 3], [4, 8, 5, 9, 6, 2]]),)
    finding = next(each for each in diagnose(target, call, causal=True).findings if each.pair)
    assert "torch.tensor(" in finding.show()
    scope: dict[str, Any] = {"target": target, "call": call}
    exec(finding.show().replace("print(", "gap = ("), scope)
    assert scope["gap"] > 1e-3


def test_items_of_a_list_of_nodes_are_its_graphs() -> None:
    class Graph(Heads):
        def forward(self, x: Tensor, batch: Tensor) -> Tensor:
            apart = (batch[:, None] != batch) * -1e9
            return self.merge(*self.split(x[None]), apart)[0]

    torch.manual_seed(7)
    report = diagnose_model(Graph(), (drawn(TOKENS, WIDTH), torch.tensor([0, 0, 0, 0, 1, 1, 1])))
    assert isinstance(report, ModelReport)
    assert report.ok


def test_items_that_a_call_reorders_are_not_accused() -> None:
    class Beam(Heads):
        def forward(self, x: Tensor, new_order: Tensor) -> Tensor:
            return self.merge(*self.split(x[new_order]))

    class Listed(Heads):
        def forward(self, x: Tensor, lengths: list[int]) -> Tensor:
            hidden = torch.arange(x.size(1)) >= torch.tensor([*lengths, *[7] * len(x)])[: len(x), None]
            return self.merge(*self.split(x), hidden[:, None, None] * -1e9)

    torch.manual_seed(7)
    for target, call in ((Beam(), torch.tensor([1, 1, 0])), (Listed(), [7, 4, 5])):
        report = diagnose(target, (drawn(3, TOKENS, WIDTH), call))
        assert report.ok
        assert any(each.check == "batch items independent" for each in report.inconclusive)


def test_the_axis_of_time_of_an_image_is_not_guessed() -> None:
    class Groups(Heads):
        def forward(self, x: Tensor) -> Tensor:  # batch channels rows columns, each row after the one before
            tokens = x.permute(0, 2, 3, 1)
            row = torch.arange(x.size(2)).repeat_interleave(x.size(3))
            y = self.merge(*self.split(tokens.flatten(1, 2)), (row[:, None] < row) * -1e9)
            return y.view_as(tokens).permute(0, 3, 1, 2)

    torch.manual_seed(7)
    assert diagnose(Groups(), (drawn(2, WIDTH, 2, 3),), causal=True).ok


def test_a_causal_module_is_none_that_sees_all() -> None:
    class Earlier(Heads):
        def forward(self, x: Tensor) -> Tensor:
            return self.merge(*self.split(x), causal(x.size(1), x.size(1)))

    torch.manual_seed(7)
    named = diagnose(Earlier(), (drawn(2, TOKENS, WIDTH),), causal=False).named
    assert any("no output notices a later token" in each.told for each in named)


def test_a_cache_that_was_asked_about_was_passed() -> None:
    torch.manual_seed(7)
    report = diagnose(Kept(), (drawn(2, TOKENS, WIDTH),), causal=True)
    assert not report.never_passed


def test_a_name_that_is_no_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="call names 'mask', which is no argument: pass some of x, attention_mask"):
        diagnose(Marked(), (drawn(2, TOKENS, WIDTH), {"attention_mask": (~PADDED).long(), "mask": PADDED}))


def test_heads_taken_for_places_are_found_in_a_model() -> None:
    torch.manual_seed(7)
    for slip in (True, False):
        model = nn.Sequential(Rotary(slip=slip), nn.LayerNorm(WIDTH), Rotary(slip=slip))
        named = diagnose_model(model, (drawn(2, TOKENS, WIDTH),), causal=True).named
        assert any("turned alike at every place" in each.told for each in named) == slip


def test_a_cache_that_is_filled_in_place_starts_empty_each_time() -> None:
    class Filled(Heads):
        def forward(self, x: Tensor, cache: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            q, k, v = self.split(x)
            if cache:
                k, v = torch.cat([cache["k"], k], 1), torch.cat([cache["v"], v], 1)
            cache["k"], cache["v"] = k, v
            return self.merge(q, k, v, causal(x.size(1), k.size(1))), cache

    torch.manual_seed(7)
    report = diagnose(Filled(), {"x": drawn(2, TOKENS, WIDTH), "cache": {}}, causal=True)
    assert report.ok
    assert "with a cache, the same as without" in report.passed


def test_names_go_where_any_name_is_taken() -> None:
    class Open(Heads):
        def forward(self, x: Tensor, mask: Tensor | None = None, **more: Any) -> Tensor:
            assert mask is None or isinstance(mask, Tensor)
            return self.merge(*self.split(x))

    torch.manual_seed(7)
    assert diagnose(Open(), (drawn(2, TOKENS, WIDTH), {"mask": None, "output_attentions": True})).ok


def test_one_query_is_a_call_like_any_other() -> None:
    class Pool(Heads):
        def forward(self, x: Tensor, context: Tensor) -> Tensor:
            (q, _, _), (_, k, v) = self.split(x), self.split(context)
            return self.merge(q, k, v)

    torch.manual_seed(7)
    report = diagnose(Pool(), (drawn(2, 1, WIDTH), drawn(2, 6, WIDTH)), causal=False)
    assert not report.named, report
    assert "batch items independent" in report.passed


def test_an_adjacency_that_a_dense_layer_ignores_hides_nothing() -> None:
    class Dense(Heads):
        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            return self.merge(*self.split(x)) + adj.to(x.dtype) @ x

    torch.manual_seed(7)
    assert diagnose(Dense(), (drawn(2, TOKENS, WIDTH), ADJACENT[:2]), causal=False).ok


def test_a_mask_that_hides_and_changes_nothing_in_a_model_is_named() -> None:
    class Reads(Heads):
        def forward(self, x: Tensor, image_mask: Tensor) -> Tensor:
            hidden = image_mask[:, None].logical_not() * -1e9
            return self.merge(*self.split(x), 0.0 if self.slip else hidden)

    torch.manual_seed(7)
    call = (drawn(2, TOKENS, WIDTH), ADJACENT[:2])
    assert not diagnose_model(Reads(), call).named
    told = [each.told for each in diagnose_model(Reads(slip=True), call).differences]
    assert told == ["no output notices image_mask"]


def test_padding_at_the_other_end_is_asked_of_none_that_sees_all() -> None:
    class Pooled(Heads):
        """The first token is its own row, whatever a mask says; padding comes last."""

        def forward(self, x: Tensor, pad: Tensor) -> Tensor:
            rest = (x[:, 1:] * ~pad[:, 1:, None]).unflatten(1, (-1, 2)).sum(2)
            (q, _, _), (_, k, v) = self.split(torch.cat([x[:, :1], rest], 1)), self.split(x)
            return self.merge(q, k, v, pad[:, None, None] * -1e9)

    torch.manual_seed(7)
    assert diagnose(Pooled(), (drawn(2, TOKENS, WIDTH), PADDED), causal=False).ok


def test_one_number_for_each_token_is_an_output_like_any_other() -> None:
    class Points(Heads):
        def forward(self, x: Tensor, done: Tensor) -> Tensor:
            return self.merge(*self.split(x)).sum(-1).masked_fill(done, -1e4)

    torch.manual_seed(7)
    report = diagnose(Points(), (drawn(2, TOKENS, WIDTH), PADDED), causal=False)
    assert "batch items independent" in report.passed


def test_what_padded_rows_of_a_model_see_means_nothing() -> None:
    class Left(Heads):
        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            hidden = (attention_mask == 0)[:, None, None] | torch.ones(x.size(1), x.size(1)).triu(1).bool()
            return self.merge(*self.split(x), torch.zeros(()).masked_fill(hidden, torch.finfo(x.dtype).min))

    torch.manual_seed(7)
    report = diagnose_model(Left(), (drawn(2, TOKENS, WIDTH), (~PADDED).flip(1).long()), causal=True)
    assert report.ok, report


def test_an_item_that_is_all_padding_is_asked_where_a_mask_says_no_more() -> None:
    class Keys(Heads):
        def forward(self, x: Tensor, pad: Tensor) -> Tensor:
            bias = torch.zeros(()).masked_fill(pad, -1e9 if self.slip else -math.inf)
            return self.merge(*self.split(x), bias[:, None, None])

    torch.manual_seed(7)
    report = diagnose(Keys(), (drawn(2, TOKENS, WIDTH), PADDED), causal=False)
    assert [each.cause for each in report.cautions] == ["fully-masked-row"]
    report = diagnose(Keys(slip=True), (drawn(2, TOKENS, WIDTH), PADDED), causal=False)
    assert "no NaN where a query may see nothing" in report.passed
