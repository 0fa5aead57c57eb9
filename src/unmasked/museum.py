"""The mistakes that the museum shows: what each is called, and where it hangs.

Every entry has a heading of its own on one of the museum's pages, where the mistake runs beside its fix. The doctor and
the exercises name mistakes by these slugs.
"""

from dataclasses import dataclass

__all__ = ["ENTRIES", "Entry"]


@dataclass(frozen=True)
class Entry:
    """A mistake: the slug that names it, what it is in one line, and the page of the museum that shows it."""

    slug: str
    title: str
    page: str

    @property
    def link(self) -> str:
        """Where it hangs, from the site's root.

        >>> ENTRIES["merge-without-transpose"].link
        'museum/heads/#merge-without-transpose'
        """
        return f"{self.page}/#{self.slug}"


def _room(page: str, **titles: str) -> dict[str, Entry]:
    slugs = {name.replace("_", "-"): title for name, title in titles.items()}
    return {slug: Entry(slug, title, page) for slug, title in slugs.items()}


ENTRIES: dict[str, Entry] = {
    **_room(
        "museum/heads",
        merge_without_transpose="Heads merged without transposing back",
        view_without_transpose="Heads split by a view alone",
        swapped_view="Heads and head_dim exchanged in a view",
        batch_indexed_for_head="The batch indexed where the head was meant",
        batch_transposed="`.T` on a batch",
        batch_first_forgotten="`batch_first` forgotten",
        only_first_item="Only the first batch item used",
        batch_and_tokens_swapped="Batch and tokens swapped",
        head_dim_one="Tested with a head_dim of one",
    ),
    **_room(
        "museum/masks",
        no_causal_mask="No causal mask at all",
        mask_polarity="A mask of the other polarity",
        boolean_mask_added="A boolean mask added to the scores",
        float_mask_of_ones="A float mask of zeros and ones",
        mask_after_softmax="Masked after the softmax",
        padding_ignored="Padding that is attended to",
        top_left_causal="A causal mask aligned at the top left",
        is_causal_is_a_hint="`is_causal` taken for a mask",
        fully_masked_row="A query that may see nothing",
        hidden_nan="A NaN behind the mask",
        float16_overflow="A mask of -1e9 in float16",
        mask_buffer="A mask kept as a persistent float32 buffer",
        expanded_mask="A mask expanded to every head",
    ),
    **_room(
        "museum/weights",
        bias_kv_as_shift="`add_bias_kv` taken for a bias",
        aliased_weights="Weights copied by aliasing them",
        zero_bias_parity="Parity shown with biases of zero",
        weight_not_transposed="`x @ W` where nn.Linear has `x @ W.T`",
        averaged_weights_parity="Parity shown with averaged weights",
        missing_out_proj="The output projection left out",
        interleaved_qkv="Query, key and value packed head by head",
        wrong_value="A query or key passed as the value",
        bypass_conditions="The weight bypass outside its conditions",
        packed_initialization="Three matrices initialized for one packed",
        projection_variance="Projected queries taken for unit variance",
    ),
    **_room(
        "museum/numbers",
        missing_scale="The scale left out",
        wrong_d_in_scale="The root of another d",
        global_d_k="A global read inside the function",
        softmax_over_queries="A softmax over the queries",
        weights_not_normalized="Weights that do not sum to one",
        foreign_norms="Cosines with another sentence's norms",
        weights_after_dropout="Weights returned after dropout",
        dropout_in_eval="Dropout in evaluation",
        gradient_cut="A gradient cut off",
        input_overwritten="An input overwritten in place",
        forward_called_directly="`.forward()` called directly",
        need_weights_costs="Weights asked for and not used",
        embedding_reader="An embedding file split at every space",
    ),
}

SYMPTOMS: dict[str, tuple[str, ...]] = {
    "The loss falls suspiciously fast, and what is generated is bad": (
        "no-causal-mask",
        "mask-polarity",
        "boolean-mask-added",
        "float-mask-of-ones",
        "mask-after-softmax",
        "is-causal-is-a-hint",
        "merge-without-transpose",
    ),
    "It trains, but worse than it should": (
        "view-without-transpose",
        "swapped-view",
        "missing-scale",
        "wrong-d-in-scale",
        "wrong-value",
        "missing-out-proj",
        "packed-initialization",
        "projection-variance",
        "gradient-cut",
    ),
    "A sequence's result depends on what else is in the batch": (
        "batch-first-forgotten",
        "only-first-item",
        "batch-and-tokens-swapped",
        "batch-indexed-for-head",
        "batch-transposed",
        "padding-ignored",
    ),
    "It agrees with PyTorch in the test, and not elsewhere": (
        "zero-bias-parity",
        "averaged-weights-parity",
        "weight-not-transposed",
        "interleaved-qkv",
        "bypass-conditions",
        "head-dim-one",
    ),
    "The output is NaN": ("fully-masked-row", "hidden-nan", "float16-overflow"),
    "Rows of weights do not sum to one": (
        "weights-not-normalized",
        "softmax-over-queries",
        "weights-after-dropout",
        "foreign-norms",
    ),
    "The weights have a column too many or too few": ("bias-kv-as-shift",),
    "With a cache, the newest token gets another answer": ("top-left-causal",),
    "Two calls, or training and evaluation, disagree": (
        "dropout-in-eval",
        "global-d-k",
        "input-overwritten",
        "aliased-weights",
    ),
    "It takes too much memory or time, or does not load": (
        "expanded-mask",
        "mask-buffer",
        "need-weights-costs",
        "embedding-reader",
    ),
    "Hooks do not run": ("forward-called-directly",),
}
"""What one sees, and the mistakes that look like that; each of the museum's mistakes stands under one symptom."""
