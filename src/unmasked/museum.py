"""The mistakes that the museum shows: what each is called, how it looks, the wrong line and the right one.

Every entry has a heading of its own on one of the museum's pages, where the mistake runs beside its fix. The doctor and
the exercises name mistakes by these slugs.
"""

import ast
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from textwrap import dedent
from typing import Any

from torch import Tensor

from unmasked.probes import differs

__all__ = ["ENTRIES", "Entry", "Exhibits", "Plate", "drawn", "mended", "reach"]


@dataclass(frozen=True)
class Entry:
    """A mistake: the slug that names it, what it is in one line, the page of the museum that shows it, and two lines.

    Attributes:
        wrong: The line of code that makes the mistake.
        right: What should stand there.
        seen: How one meets it, in a sentence.
    """

    slug: str
    title: str
    page: str
    wrong: str
    right: str
    seen: str

    @property
    def link(self) -> str:
        """Where it hangs, from the site's root.

        >>> ENTRIES["merge-without-transpose"].link
        'museum/heads/#merge-without-transpose'
        """
        return f"{self.page}/#{self.slug}"

    @property
    def symptom(self) -> str:
        """What one sees.

        >>> ENTRIES["hidden-nan"].symptom
        'The output is NaN'
        """
        return next(symptom for symptom, slugs in SYMPTOMS.items() if self.slug in slugs)


def reach(f: Callable[[Tensor], Tensor], x: Tensor) -> list[list[float]]:
    """How far each output of a sequence moves when one token changes.

    Args:
        f: What is asked, a function of (batch, tokens, features) that gives (batch, tokens, features).
        x: (batch, tokens, features).

    Returns:
        A row for each output of the first item, a column for each token that was changed.

    Examples:
        >>> import torch
        >>> reach(lambda x: x.cumsum(1), torch.zeros(1, 3, 1))
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    before, columns = f(x), []
    for token in range(x.size(1)):
        changed = x.clone()
        changed[:, token] += 1
        columns.append((f(changed) - before)[0].detach().abs().amax(-1).tolist())
    return [list(row) for row in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Plate:
    """A mistake as the museum shows it: the wrong line beside the right one, and what was measured.

    Attributes:
        entry: The mistake.
        off: The largest difference that it makes, if it was measured.
        size: The largest number of what is right, to compare with.
        found: What a check said of it.
        maps: What `reach` gives for the wrong and for the right version.
    """

    entry: Entry
    off: float | None = None
    size: float | None = None
    found: str = ""
    maps: tuple[list[list[float]], list[list[float]]] | None = None

    def __str__(self) -> str:
        told = [f"wrong: {self.entry.wrong}", f"right: {self.entry.right}"]
        return "\n".join(told + [each for each in (self.measured, self.found) if each])

    __repr__ = __str__

    @property
    def measured(self) -> str:
        """How far off, and compared with what.

        >>> Plate(ENTRIES["missing-scale"], off=0.5, size=2.0).measured
        'off by 0.5, where the right numbers reach 2'
        """
        if self.off is None:
            return ""
        return f"off by {self.off:.2g}" + (f", where the right numbers reach {self.size:.2g}" if self.size else "")

    def _repr_html_(self) -> str:
        maps = self.maps or (None, None)
        sides = "".join(
            f'<div class="plate-{side.lower()}"><p>{side}</p><pre><code>{escape(code)}</code></pre>{drawn(cells)}</div>'
            for side, code, cells in zip(("Wrong", "Right"), (self.entry.wrong, self.entry.right), maps, strict=True)
        )
        told = [f"<p><b>Off by</b> {escape(self.measured.removeprefix('off by '))}.</p>"] * (self.off is not None)
        told += [f"<p><b>A check says:</b> {escape(self.found)}.</p>"] * bool(self.found)
        seen = f"<p><b>You see:</b> {escape(self.entry.symptom[0].lower() + self.entry.symptom[1:])}.</p>"
        return f'<div class="plate">{seen}<div class="plate-sides">{sides}</div>{"".join(told)}</div>'


def drawn(reached: list[list[float]] | None) -> str:
    """A small map of what `reach` gives.

    Args:
        reached: A row for each output, a column for each token; or None.

    Returns:
        HTML, a cell for each number, those that are none marked; nothing for None.

    Examples:
        >>> drawn([[1.0, 0.0], [0.5, 1.0]]).count("<i ")
        4
        >>> drawn([[1.0, 0.0], [float("nan"), 1.0]]).count("lost")
        1
    """
    if reached is None:
        return ""
    largest = max((cell for row in reached for cell in row if math.isfinite(cell)), default=0.0) or 1.0
    later = [cell > 1e-4 for row, cells in enumerate(reached) for cell in cells[row + 1 :]]
    label = f"Rows are outputs, columns are changed tokens: {sum(later)} of {len(later)} later tokens move an output"
    lost = sum(not all(map(math.isfinite, row)) for row in reached)
    label += f"; {lost} of {len(reached)} outputs are NaN" * bool(lost)
    cells = "".join(
        f'<i style="opacity:{(0.15 + 0.85 * cell / largest) if cell > 1e-4 else 0:.2f}"></i>'
        if math.isfinite(cell)
        else '<i class="lost"></i>'
        for row in reached
        for cell in row
    )
    return f'<div class="reach" role="img" aria-label="{label}" style="--columns:{len(reached[0])}">{cells}</div>'


@dataclass
class Exhibits:
    """Runs wrong versions beside right ones, each as an exhibit, and keeps how far off they are.

    Attributes:
        given: What both versions get, where an exhibit is given nothing else.
        hides: Where the mistake hides, unless the exhibit says where.
        probe: What finds the mistake, unless the exhibit has its own: called with a version and what is given, it
            returns what it found, or None.
        off: By the slugs of the exhibits, the largest difference from the right version.

    Examples:
        >>> import torch
        >>> exhibit = Exhibits(given=torch.ones(1, 3, 2), hides=torch.zeros(1, 3, 2))
        >>> plate = exhibit("missing-scale", lambda x: 2 * x, lambda x: x)
        >>> plate.measured, exhibit.off
        ('off by 1, where the right numbers reach 1', {'missing-scale': 1.0})
    """

    given: Tensor | Sequence[Any] = ()
    hides: Tensor | Sequence[Any] = ()
    probe: Callable[..., Any] | None = None
    off: dict[str, float] = field(default_factory=dict)

    def __call__(
        self,
        slug: str,
        wrong: Callable[..., Tensor],
        right: Callable[..., Tensor] | None = None,
        probe: Callable[..., Any] | None = None,
        *,
        hides: Tensor | Sequence[Any] | None = None,
        given: Tensor | Sequence[Any] | None = None,
    ) -> Plate:
        """Show a mistake, once it is sure that it is one, that it hides where it is said to, and that it is found.

        Args:
            slug: The mistake.
            wrong: The version that makes it.
            right: The version that does not; by default what `mended` makes of the wrong one.
            probe: What finds it.
            hides: What both versions get where they must agree: a tensor, or all of their arguments.
            given: What they get where they must not agree.

        Returns:
            What the museum shows. It has maps where the last of what is given is (batch, tokens, features), and no
            tensor stands before it.

        Raises:
            ValueError: The versions differ where the mistake hides, or agree where it shows; or the probe finds
                something in the right version, or nothing in the wrong one.
        """
        right = right or mended(ENTRIES[slug], wrong)
        hidden, shown = (
            _arguments(self.hides if hides is None else hides),
            _arguments(self.given if given is None else given),
        )
        if apart := differs(wrong(*hidden), right(*hidden)):
            raise ValueError(f"{slug} is off by {apart:.2g} where it should hide; pass as hides what hides it")
        self.off[slug] = differs(wrong(*shown), right(*shown))
        if not self.off[slug]:
            raise ValueError(f"{slug} is not off on what is given; pass as given what shows it")
        check = probe or self.probe
        found = check(wrong, *shown) if check else ""
        if check and (told := check(right, *shown)):
            raise ValueError(f"{slug}: the probe says of the right version: {told}; pass one that finds only the wrong")
        if check and not found:
            raise ValueError(f"{slug}: the probe does not find the wrong version; pass one that does")
        *others, last = shown
        maps = None
        if isinstance(last, Tensor) and last.dim() == 3 and not any(isinstance(each, Tensor) for each in others):
            maps = reach(lambda x: wrong(*others, x), last), reach(lambda x: right(*others, x), last)
        return Plate(ENTRIES[slug], self.off[slug], _size(right(*shown)), str(found), maps)

    def plate(self, slug: str, right: Tensor | float, found: object = "") -> Plate:
        """Show a mistake that was measured by hand.

        Args:
            slug: The mistake; `off` has how far off it is.
            right: The right numbers, or the largest of them.
            found: What a check said of it.

        Returns:
            What the museum shows, without maps.
        """
        return Plate(ENTRIES[slug], self.off[slug], _size(right) if isinstance(right, Tensor) else right, str(found))


def _size(numbers: Tensor) -> float:
    return numbers.detach().abs().max().item()


def mended(entry: Entry, wrong: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Put a mistake's right line in the place of its wrong one.

    Args:
        entry: The mistake.
        wrong: A function whose source has the wrong line once, as an expression or as a statement.

    Returns:
        The function with the right line, in the same module.

    Raises:
        ValueError: The function has no source, or the wrong line does not stand there once.

    Examples:
        >>> import torch
        >>> def weights(q, k):
        ...     return (q @ k.mT).softmax(-1)
        >>> q, k = torch.eye(4), torch.zeros(4, 4).fill_diagonal_(2 * math.log(4.0))
        >>> weights(q, k)[0, 0], mended(ENTRIES["missing-scale"], weights)(q, k)[0, 0]
        (tensor(0.8421), tensor(0.5714))
    """
    mending = _Mending(entry)
    try:
        tree = ast.parse(dedent(inspect.getsource(wrong)))
    except OSError as error:
        told = f"{wrong.__name__} has no source to mend: write it in a file or in a notebook, or pass right"
        raise ValueError(told) from error
    mending.visit(tree)
    if mending.times != 1:
        raise ValueError(
            f"{entry.slug}: `{entry.wrong}` stands {mending.times} times in {wrong.__name__}, expected once; "
            "write it as the museum has it, or pass right"
        )
    names: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), f"<{entry.slug}>", "exec"), wrong.__globals__, names)
    return names[wrong.__name__]  # type: ignore[no-any-return]


class _Mending(ast.NodeTransformer):
    def __init__(self, entry: Entry) -> None:
        self.wrong, self.right = ast.dump(_parsed(entry.wrong)), _parsed(entry.right)
        self.times = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if ast.dump(node) == self.wrong:
            self.times += 1
            return self.right
        return self.generic_visit(node)


def _parsed(line: str) -> ast.AST:
    (statement,) = ast.parse(line).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _arguments(given: Tensor | Sequence[Any]) -> Sequence[Any]:
    return [given] if isinstance(given, Tensor) else given


_SEEN = {
    "merge-without-transpose": "The training loss falls below what is possible, and what the model writes is bad.",
    "view-without-transpose": "All shapes are right and it trains, but tokens take from tokens at the wrong places.",
    "swapped-view": "Each call looks right; only a comparison with the same weights elsewhere fails.",
    "batch-indexed-for-head": "A sequence gets another result when another one of the batch changes.",
    "batch-transposed": "PyTorch warns of `.T`, and where all sizes are equal, sequences run into each other.",
    "batch-first-forgotten": "Every word keeps to itself, and gets another result in another batch.",
    "only-first-item": "Every sequence of the batch is averaged with the words of the first one.",
    "batch-and-tokens-swapped": "With one sequence all is right; with several, each holds parts of the others.",
    "head-dim-one": "The test is green, and the same code is wrong with larger heads.",
    "no-causal-mask": "The loss falls to nearly nothing, for the model reads the answer, and what it writes is bad.",
    "mask-polarity": "Each word sees only what comes later, and the last one gets NaN or nothing.",
    "boolean-mask-added": "The words that should be hidden get about as much weight as before.",
    "float-mask-of-ones": "The words that should be hidden get somewhat less weight, and never none.",
    "mask-after-softmax": "The hidden words have no weight, but the rows of weights add up to less than one.",
    "padding-ignored": "A short sentence gets another result beside a longer one than alone.",
    "top-left-causal": "While the model writes with a cache, the newest word sees only the first one.",
    "is-causal-is-a-hint": "The call says that it is causal, and a change of the last word moves the first output.",
    "fully-masked-row": "Padding in front of a sentence makes its first outputs NaN.",
    "hidden-nan": "The output is NaN now and then, though what is NaN is masked.",
    "float16-overflow": "In float16 an error says that the value cannot be converted without overflow.",
    "mask-buffer": "The checkpoint is far larger than its weights, and does not load at another length.",
    "expanded-mask": "The mask alone fills the memory as soon as there are many heads.",
    "bias-kv-as-shift": "The weights have as many columns as there are words, where PyTorch's have one more.",
    "aliased-weights": "Training the copy changes the original, too.",
    "zero-bias-parity": "A fresh layer agrees with PyTorch's, and a trained one does not.",
    "weight-not-transposed": "The shapes fit, because the matrix is square, and all numbers are wrong.",
    "averaged-weights-parity": "The averaged weights are equal, and the outputs are not.",
    "missing-out-proj": "The weights agree with PyTorch's, and the outputs do not.",
    "interleaved-qkv": "A checkpoint loads without a word, and the model writes nonsense.",
    "wrong-value": "The weights are right, and what comes out is made of queries instead of values.",
    "bypass-conditions": "What should be plain attention agrees on a fresh module, and not on another.",
    "packed-initialization": "A layer of your own starts with larger matrices than PyTorch's.",
    "projection-variance": "At the start the weights are more even than the division by the root promises.",
    "missing-scale": "With wide heads nearly all weight lies on one word.",
    "wrong-d-in-scale": "With several heads the weights are more even than they should be.",
    "global-d-k": "It works in the notebook, and gives other numbers after another cell has run.",
    "softmax-over-queries": "The columns of the weights add up to one, and the rows do not.",
    "weights-not-normalized": "The outputs grow with the number of words.",
    "foreign-norms": "A cosine is larger than one.",
    "weights-after-dropout": "In training, the weights that are returned do not add up to one.",
    "dropout-in-eval": "Two calls of a model in evaluation give different numbers.",
    "gradient-cut": "The outputs are right, and queries and keys do not learn.",
    "input-overwritten": "A second call with the same tensor gives another result.",
    "forward-called-directly": "A hook that you have registered is never called.",
    "need-weights-costs": "Attention is slow and takes much memory, though nobody reads its weights.",
    "embedding-reader": "Reading a file of word vectors stops at a line with an error about a number.",
    "repeat-for-repeat-interleave": "A checkpoint with fewer key heads loads, runs, and writes nonsense.",
    "rope-pairing": "A checkpoint with rotary positions loads, runs, and writes nonsense.",
    "rope-in-bfloat16": "In bfloat16 the model reads a page well, and a long document badly.",
    "alibi-sign": "Each word looks mostly at the farthest one, and the model learns slowly.",
    "positions-restart": "With a cache, what the model writes falls apart after a few words.",
    "left-padding-positions": "A short prompt gets another answer beside a longer one than alone.",
    "packed-without-documents": "The model goes on with words of another document of the same row.",
    "positions-not-reset": "A document gets another result at the end of a row than at its beginning.",
    "two-finfo-min": "An empty prompt in the batch makes its outputs NaN, and then the loss.",
    "softcap-after-mask": "A change of the last word moves the first output by a little.",
    "fast-path-bias": "In evaluation the model looks only at its own word, and in training it does not.",
    "dropout-leaves-the-kernel": "On a CPU, training takes many times the memory as soon as there is dropout.",
    "frozen-with-zero-gradient": "A layer is frozen, and its weights go on changing.",
}
"""How one meets each mistake, in a sentence."""


# What each is called, the wrong line and the right one, room by room.
_ROOMS = {
    "museum/heads": (
        (
            "merge-without-transpose",
            "Heads merged without transposing back",
            "context.reshape(x.shape)",
            "context.transpose(1, 2).reshape(x.shape)",
        ),
        (
            "view-without-transpose",
            "Heads split by a view alone",
            "x.view(x.size(0), H, x.size(1), D)",
            "x.view(x.size(0), x.size(1), H, D).transpose(1, 2)",
        ),
        (
            "swapped-view",
            "Heads and head_dim exchanged in a view",
            "x.unflatten(-1, (-1, H))",
            "x.unflatten(-1, (H, -1))",
        ),
        (
            "batch-indexed-for-head",
            "The batch indexed where the head was meant",
            "query[i] = projected",
            "query[:, i] = projected",
        ),
        ("batch-transposed", "`.T` on a batch", "x @ x.T", "x @ x.mT"),
        (
            "batch-first-forgotten",
            "`batch_first` forgotten",
            "nn.MultiheadAttention(H * D, H)",
            "nn.MultiheadAttention(H * D, H, batch_first=True)",
        ),
        ("only-first-item", "Only the first batch item used", "x @ x[0].T", "x @ x.mT"),
        (
            "batch-and-tokens-swapped",
            "Batch and tokens swapped",
            "context.reshape(x.shape)",
            "context.transpose(0, 1).reshape(x.shape)",
        ),
        ("head-dim-one", "Tested with a head_dim of one", "draw(B, N, H)", "draw(B, N, H * D)"),
    ),
    "museum/masks": (
        (
            "no-causal-mask",
            "No causal mask at all",
            "F.scaled_dot_product_attention(x, x, x)",
            "F.scaled_dot_product_attention(x, x, x, is_causal=True)",
        ),
        ("mask-polarity", "A mask of the other polarity", "with_mask(x, ~causal(x))", "with_mask(x, causal(x))"),
        (
            "boolean-mask-added",
            "A boolean mask added to the scores",
            "scores += ~causal(x)",
            "scores.masked_fill_(~causal(x), -torch.inf)",
        ),
        (
            "float-mask-of-ones",
            "A float mask of zeros and ones",
            "with_mask(x, causal(x).float())",
            "with_mask(x, causal(x))",
        ),
        (
            "mask-after-softmax",
            "Masked after the softmax",
            "scores.softmax(-1).tril()",
            "scores.masked_fill(~causal(x), -torch.inf).softmax(-1)",
        ),
        (
            "padding-ignored",
            "Padding that is attended to",
            "self_attention(x)",
            "self_attention(x, allowed=allowed_keys(x))",
        ),
        (
            "top-left-causal",
            "A causal mask aligned at the top left",
            "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            "F.scaled_dot_product_attention(q, k, v, masks.causal(q.size(1), k.size(1)))",
        ),
        (
            "is-causal-is-a-hint",
            "`is_causal` taken for a mask",
            "module(x, x, x, is_causal=True, need_weights=False)",
            "module(x, x, x, attn_mask=~causal(x), need_weights=False)",
        ),
        (
            "fully-masked-row",
            "A query that may see nothing",
            "scores.masked_fill(~allowed, -torch.inf).softmax(-1)",
            "attention_weights(scores, allowed=allowed)",
        ),
        ("hidden-nan", "A NaN behind the mask", "torch.empty(B, room, E)", "torch.zeros(B, room, E)"),
        (
            "float16-overflow",
            "A mask of -1e9 in float16",
            "scores.masked_fill(~causal(x), -1e9)",
            "scores.masked_fill(~causal(x), -torch.inf)",
        ),
        (
            "mask-buffer",
            "A mask kept as a persistent float32 buffer",
            'self.register_buffer("mask", mask)',
            'self.register_buffer("mask", mask.bool(), persistent=False)',
        ),
        (
            "expanded-mask",
            "A mask expanded to every head",
            "torch.full(scores.size(), -torch.inf).triu(1)",
            "torch.full((N, N), -torch.inf).triu(1)",
        ),
    ),
    "museum/weights": (
        (
            "bias-kv-as-shift",
            "`add_bias_kv` taken for a bias",
            "k + module.bias_k",
            "torch.cat([k, module.bias_k.expand(B, 1, E)], 1)",
        ),
        (
            "aliased-weights",
            "Weights copied by aliasing them",
            "student.weight.data = original.weight.data",
            "student.weight.copy_(original.weight)",
        ),
        (
            "zero-bias-parity",
            "Parity shown with biases of zero",
            "F.linear(x, module.in_proj_weight)",
            "F.linear(x, module.in_proj_weight, module.in_proj_bias)",
        ),
        ("weight-not-transposed", "`x @ W` where nn.Linear has `x @ W.T`", "x @ w + b", "x @ w.T + b"),
        (
            "averaged-weights-parity",
            "Parity shown with averaged weights",
            "module(x, x, x)[1]",
            "module(x, x, x, average_attn_weights=False)[1]",
        ),
        (
            "missing-out-proj",
            "The output projection left out",
            "return context",
            "return module.out_proj(context)",
        ),
        (
            "interleaved-qkv",
            "Query, key and value packed head by head",
            "fused_qkv(x, module.in_proj_weight, module.in_proj_bias, num_heads=H)",
            'layouts.convert(state, "packed", "interleaved", num_heads=H)',
        ),
        ("wrong-value", "A query or key passed as the value", "return q, k, q", "return q, k, v"),
        ("bypass-conditions", "The weight bypass outside its conditions", "set_identity(module)", "bypass_(module)"),
        (
            "packed-initialization",
            "Three matrices initialized for one packed",
            "nn.init.xavier_uniform_(torch.empty(wide, wide))",
            "nn.init.xavier_uniform_(torch.empty(3 * wide, wide))",
        ),
        (
            "projection-variance",
            "Projected queries taken for unit variance",
            "nn.Linear(96, 64, bias=False)",
            "layer.weight.normal_(std=96**-0.5)",
        ),
    ),
    "museum/computation": (
        (
            "missing-scale",
            "The scale left out",
            "(q @ k.mT).softmax(-1)",
            "(q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)",
        ),
        (
            "wrong-d-in-scale",
            "The root of another d",
            "attend(x, heads, x.size(-1))",
            "attend(x, heads, x.size(-1) // heads)",
        ),
        (
            "global-d-k",
            "A global read inside the function",
            "q @ k.mT / math.sqrt(d_k)",
            "q @ k.mT / math.sqrt(q.size(-1))",
        ),
        (
            "softmax-over-queries",
            "A softmax over the queries",
            "attention_scores(q, k).softmax(-2)",
            "attention_scores(q, k).softmax(-1)",
        ),
        (
            "weights-not-normalized",
            "Weights that do not sum to one",
            "cosine_attention(x).context",
            "self_attention(x).context",
        ),
        ("foreign-norms", "Cosines with another sentence's norms", "x / norms", "x / x.norm(dim=-1, keepdim=True)"),
        (
            "weights-after-dropout",
            "Weights returned after dropout",
            "module.train()(x, x, x)",
            "module.eval()(x, x, x)",
        ),
        ("dropout-in-eval", "Dropout in evaluation", "dropout_p=p", "dropout_p=p if training else 0.0"),
        ("gradient-cut", "A gradient cut off", "scores.softmax(-1).detach() @ x", "scores.softmax(-1) @ x"),
        (
            "input-overwritten",
            "An input overwritten in place",
            "q /= math.sqrt(q.size(-1))",
            "q = q / math.sqrt(q.size(-1))",
        ),
        ("forward-called-directly", "`.forward()` called directly", "self[0].forward(x)", "self[0](x)"),
        (
            "need-weights-costs",
            "Weights asked for and not used",
            "output, _ = module(x, x, x)",
            "output, _ = module(x, x, x, need_weights=False)",
        ),
        (
            "embedding-reader",
            "An embedding file split at every space",
            "line.split()",
            'line.rsplit(" ", dim)',
        ),
    ),
    "museum/models": (
        (
            "repeat-for-repeat-interleave",
            "Key heads repeated in the wrong order",
            "k.repeat(1, groups, 1, 1)",
            "k.repeat_interleave(groups, 1)",
        ),
        (
            "rope-pairing",
            "The other rotary pairing",
            "halves(q, places), halves(k, places)",
            "neighbors(q, places), neighbors(k, places)",
        ),
        (
            "rope-in-bfloat16",
            "Rotary angles in bfloat16",
            "places.bfloat16()[:, None] * frequencies.bfloat16()",
            "places[:, None] * frequencies",
        ),
        ("alibi-sign", "Distance rewarded", "attention_scores(x, x) - bias", "attention_scores(x, x) + bias"),
        (
            "positions-restart",
            "Positions that begin again with every step",
            "torch.arange(new.size(1))",
            "past + torch.arange(new.size(1))",
        ),
        (
            "left-padding-positions",
            "Padding counted as positions",
            "table[torch.arange(x.size(1))]",
            "table[masks.positions_of(allowed.any(1))]",
        ),
        (
            "packed-without-documents",
            "Packed documents that see each other",
            "attend(x, causal(x))",
            "attend(x, causal(x) & masks.documents(ids))",
        ),
        (
            "positions-not-reset",
            "Positions that run on through a pack",
            "table[places]",
            "table[places - torch.searchsorted(ids, ids)]",
        ),
        (
            "two-finfo-min",
            "A mask of the smallest number, added twice",
            "(scores + shut + shut).softmax(-1)",
            "scores.masked_fill(padded, lowest).softmax(-1)",
        ),
        (
            "softcap-after-mask",
            "Capped after the mask",
            "cap * (scores / cap).tanh()",
            "(cap * (scores / cap).tanh()).masked_fill(~causal(x), -math.inf)",
        ),
        (
            "fast-path-bias",
            "A floating bias on the fast path",
            "layer(wide, src_mask=bias)",
            "torch.backends.mha.set_fastpath_enabled(False)",
        ),
        (
            "dropout-leaves-the-kernel",
            "Dropout that leaves the kernel",
            "F.scaled_dot_product_attention(long, long, long, dropout_p=p)",
            "F.scaled_dot_product_attention(long, long, long, dropout_p=0.0)",
        ),
        (
            "frozen-with-zero-gradient",
            "Frozen, with a gradient of zeros",
            "optimizer.zero_grad(set_to_none=False)",
            "optimizer.zero_grad(set_to_none=True)",
        ),
    ),
}

ENTRIES: dict[str, Entry] = {
    slug: Entry(slug, title, page, wrong, right, _SEEN[slug])
    for page, entries in _ROOMS.items()
    for slug, title, wrong, right in entries
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
        "softcap-after-mask",
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
        "alibi-sign",
    ),
    "A sequence's result depends on what else is in the batch": (
        "batch-first-forgotten",
        "only-first-item",
        "batch-and-tokens-swapped",
        "batch-indexed-for-head",
        "batch-transposed",
        "padding-ignored",
        "left-padding-positions",
        "packed-without-documents",
        "positions-not-reset",
    ),
    "It agrees with PyTorch in the test, and not elsewhere": (
        "zero-bias-parity",
        "averaged-weights-parity",
        "weight-not-transposed",
        "interleaved-qkv",
        "bypass-conditions",
        "head-dim-one",
    ),
    "The output is NaN": ("fully-masked-row", "hidden-nan", "float16-overflow", "two-finfo-min"),
    "Rows of weights do not sum to one": (
        "weights-not-normalized",
        "softmax-over-queries",
        "weights-after-dropout",
        "foreign-norms",
    ),
    "The weights have a column too many or too few": ("bias-kv-as-shift",),
    "With a cache, the newest token gets another answer": ("top-left-causal", "positions-restart"),
    "A checkpoint loads without an error, and answers nonsense": ("repeat-for-repeat-interleave", "rope-pairing"),
    "Right on short texts, wrong on long ones": ("rope-in-bfloat16",),
    "Two calls, or training and evaluation, disagree": (
        "dropout-in-eval",
        "global-d-k",
        "input-overwritten",
        "aliased-weights",
        "fast-path-bias",
    ),
    "It takes too much memory or time, or does not load": (
        "expanded-mask",
        "mask-buffer",
        "need-weights-costs",
        "embedding-reader",
        "dropout-leaves-the-kernel",
    ),
    "Frozen weights change": ("frozen-with-zero-gradient",),
    "Hooks do not run": ("forward-called-directly",),
}
"""What one sees, and the mistakes that look like that; each of the museum's mistakes stands under one symptom."""
