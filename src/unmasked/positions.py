"""Where a token stands: sinusoids that are added, rotary embeddings that turn, and ALiBi's bias that fades.

Attention without a mask has no order of its own. Sinusoids are added to the embeddings; `Rotary` turns queries and
keys; `alibi` is added to the scores. With the last two a score depends on how far apart the two tokens are, and not on
where they stand: `unmasked_doctor.probes.notices_a_shift` tests that of any function.

Rotary embeddings turn pairs of features, and there are two ways to pair them. A checkpoint is made for one of them, and
the other raises no error:

| pairing | partners | checkpoints |
| --- | --- | --- |
| halves | a feature of the first half, its like in the second | Llama up to 3, Qwen, Gemma in transformers; GPT-NeoX |
| interleaved | an even feature, and the next | Llama as Meta released it, GPT-J |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from unmasked._checks import broadcasts, checked, choice, number, require_divides, require_positive, tensor
from unmasked._layers import require_positions
from unmasked._shapes import Float, Int

__all__ = ["Rotary", "alibi", "alibi_slopes", "apply_rotary", "convert_pairing", "sinusoids"]

Pairing = Literal["halves", "interleaved"]

# For each pairing: the shape into which a head's features are unflattened, and the axis of the two partners in it.
_PAIRINGS = {"halves": ((2, -1), -2), "interleaved": ((-1, 2), -1)}

# The parameters that each way to stretch needs beside the base.
_STRETCHED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "proportional": (),
}

_NUMBERS = {"rope_theta", "partial_rotary_factor", "beta_fast", "beta_slow", *chain(*_STRETCHED.values())}


@checked
def sinusoids(
    positions: Int[Tensor, "*batch tokens"], dim: int, *, base: float = 10_000.0, pairing: Pairing = "interleaved"
) -> Float[Tensor, "*batch tokens {dim}"]:
    """Make the vectors that the first transformer adds to its embeddings: sines and cosines of growing wavelength.

    Args:
        positions: integers, (tokens,) or (batch, tokens): where each token stands, as torch.arange(tokens).
        dim: features of a vector; even.
        base: the wavelengths grow from 2 pi to nearly 2 pi times this.
        pairing: "interleaved", as in the paper: a sine in each even feature, its cosine in the next one; "halves": the
            sines, then the cosines.

    Returns:
        float32, (..., tokens, dim).

    Raises:
        TypeError: positions holds no integers.
        ValueError: dim is odd or not positive, or there is no such pairing.

    References:
        Vaswani et al. (2017), section 3.5.

    Examples:
        >>> sinusoids(torch.arange(2), 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    _require_even("dim", dim)
    _, axis = _pairs(pairing)
    angles = positions[..., None] * _frequencies(dim, base, torch.float32, positions.device)  # ... tokens dim/2
    return torch.stack([angles.sin(), angles.cos()], axis).flatten(-2)


class Rotary:
    r"""Turn each pair of features by an angle that grows with the position, in queries and in keys, never in values.

    Equation:
        $\operatorname{turn}(q, m) \cdot \operatorname{turn}(k, n) = \operatorname{turn}(q, m - n) \cdot k$ (25.1)

    The dot product of a turned query and a turned key depends on their offset alone, and turning changes no length.
    It has no parameters and keeps no table, so that no position costs memory.

    Angles are computed in float32, or in float64 for x in float64, under autocast too, and the result is rounded once:
    bfloat16 counts to 256 only. Float32 bears some hundred thousand positions; at a million, angles are off by a few
    hundredths of a radian.

    Args:
        head_dim: features of a head; even.
        base: the wavelengths grow from 2 pi to nearly 2 pi times this. Checkpoints call it "rope theta".
        pairing: "halves" or "interleaved": which two features are turned together, as the table above says.
        rotary_dim: how many features are turned, the first of each head; all by default. GPT-NeoX and GPT-J turn some.
        frequencies: (rotary_dim / 2,), radians per position, in place of those of base; or a function that makes them
            of those of base, in the dtype and on the device in which it gets them: ``lambda plain: plain / 8``.
        factor: turned features are multiplied by it, as YaRN does: scores grow by its square.

    Raises:
        ValueError: head_dim or rotary_dim is odd, rotary_dim exceeds head_dim, there is no such pairing, or the number
            of frequencies is another, or one is not finite.

    References:
        Su et al. (2021), section 3.2.

    Examples:
        >>> rotary = Rotary(4, pairing="interleaved")
        >>> rotary(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.tensor([1]))
        tensor([[0.5403, 0.8415, 0.9999, 0.0100]])
        >>> query, key = torch.randn(2, 3, 1, 4, dtype=torch.float64)  # heads tokens head_dim
        >>> score = lambda i, j: rotary(query, torch.tensor([i])) @ rotary(key, torch.tensor([j])).mT
        >>> torch.allclose(score(5, 0), score(1005, 1000))
        True
        >>> torch.tensor(257, dtype=torch.bfloat16).item()
        256.0
    """

    @checked
    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        pairing: Pairing = "halves",
        rotary_dim: int | None = None,
        frequencies: Float[Tensor, "pairs"] | Callable[[Tensor], Tensor] | None = None,
        factor: float = 1.0,
    ) -> None:
        _require_even("head_dim", head_dim)
        rotary_dim = _of_turned(rotary_dim, head_dim)
        _pairs(pairing)
        number("factor", factor, "be positive", above=0)
        number("base", base, "be positive", above=0)
        self.head_dim, self.rotary_dim, self.base = head_dim, rotary_dim, base
        self.pairing, self.factor = pairing, factor
        self._own_frequencies = frequencies
        rates = self.frequencies
        tensor("what frequencies makes" if callable(frequencies) else "frequencies", rates, "Float")
        if rates.shape != (rotary_dim // 2,):
            raise ValueError(
                f"frequencies has shape {tuple(rates.shape)}; for {rotary_dim} features it must be "
                f"({rotary_dim // 2},), one for each pair"
            )
        if not (rates.is_meta or rates.isfinite().all()):
            raise ValueError(f"frequencies are {rates.tolist()}; each must be a finite number")

    @property
    def frequencies(self) -> Float[Tensor, "pairs"]:
        """How far each pair turns from one position to the next, in radians: float32, the first pair first.

        >>> Rotary(4).frequencies
        tensor([1.0000, 0.0100])
        """
        return self._rates(torch.float32, None)

    def _rates(self, dtype: torch.dtype, device: torch.device | None) -> Tensor:
        if isinstance(self._own_frequencies, Tensor):
            return self._own_frequencies.to(device, dtype)
        plain = _frequencies(self.rotary_dim, self.base, dtype, device)
        return plain if self._own_frequencies is None else self._own_frequencies(plain)

    @classmethod
    @checked
    def from_config(cls, head_dim: int, rope: Mapping[str, Any], *, pairing: Pairing = "halves") -> Rotary:
        r"""Make the embedding of a checkpoint's config: its base, how far it is stretched, and how many features turn.

        Equation:
            $\omega_i = (1 - \gamma_i) \frac{\theta_i}{s} + \gamma_i \theta_i$ (25.3)

        A config says it as ``rope_parameters``. Before transformers 5 it had ``rope_theta`` and ``rope_scaling``, and
        some ``partial_rotary_factor`` beside both: ``{"rope_theta": config["rope_theta"], "partial_rotary_factor":
        config.get("partial_rotary_factor"), **(config["rope_scaling"] or {})}`` is the same. Models with near and far
        layers have one for each kind: Gemma 3's near layers have ``rope_local_base_freq`` and no scaling.

        With *s* for "factor", a slow pair is slowed *s* times, a fast one stays, and $\gamma_i$ leads from one to the
        other: "llama3" by the wavelength, "yarn" by the number of the pair. "linear" slows all. YaRN also multiplies
        scores, by $(0.1 \ln s + 1)^2$, unless the config says another factor. "proportional", of Gemma 4's far layers,
        turns a share of the pairs, the fast ones, as if all were turned: the others stand still.

        Args:
            head_dim: features of a head; even.
            rope: "rope_theta"; "rope_type": "default" (also if it is left out), "linear", "llama3", "yarn" or
                "proportional"; and what the type needs: "factor", "original_max_position_embeddings",
                "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate", "attention_factor",
                "mscale", "mscale_all_dim". With "partial_rotary_factor" only this share of the features turns.
                An "mrope_section" deals the pairs out to several positions of a token. A word has one and the same
                on every axis, so this turns words; a patch of an image is turned by `apply_rotary`.
            pairing: which two features are turned together. Only some configs say it: DeepSeek's, "rope_interleave".

        Raises:
            ValueError: ``rope`` lacks what its type needs, has an unknown type, or has parameters for several kinds
                of layers. A "factor" of null is among what it lacks: transformers then divides the config's
                max_position_embeddings by the original ones.

        References:
            Peng et al. (2024), for YaRN. Grattafiori et al. (2024), section 3.2, for Llama 3's base.

        Examples:
            >>> Rotary.from_config(8, {"rope_theta": 500_000, "partial_rotary_factor": 0.5})
            Rotary(8, base=500000, pairing='halves', rotary_dim=4)
            >>> stretched = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
            >>> Rotary.from_config(4, stretched).frequencies
            tensor([0.1250, 0.0001])
            >>> far = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
            >>> Rotary.from_config(8, far).frequencies
            tensor([1.0000, 0.1000, 0.0000, 0.0000])
        """
        if nested := [name for name, each in rope.items() if isinstance(each, Mapping)]:
            raise ValueError(f"rope has parameters for {', '.join(nested)}: pass those of one kind of layer")
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind not in _STRETCHED:
            known = ", ".join(f'"{each}"' for each in _STRETCHED)
            raise ValueError(
                f"rope has the type {kind!r}; known are {known}. If its frequencies do not depend on the length, "
                "compute and pass them: Rotary(head_dim, frequencies=...)"
            )
        if lacking := [name for name in ("rope_theta", *_STRETCHED[kind]) if rope.get(name) is None]:
            counted = "; a factor that is null there is max_position_embeddings / original_max_position_embeddings"
            raise ValueError(
                f"rope lacks {', '.join(lacking)}, which the type {kind!r} needs; take them from the config"
                + counted * ("factor" in lacking and "original_max_position_embeddings" in rope)
            )
        for name in _NUMBERS & rope.keys():
            if rope[name] is not None:
                number(f"rope[{name!r}]", rope[name], "be positive", above=0)
        share = rope.get("partial_rotary_factor") or 1.0
        return cls(
            head_dim,
            base=float(rope["rope_theta"]),
            pairing=pairing,
            rotary_dim=head_dim if kind == "proportional" else int(head_dim * share),
            frequencies=None if kind == "default" else partial(_stretched, kind, dict(rope)),
            factor=_yarns_factor(rope) if kind == "yarn" else 1.0,
        )

    def __call__(
        self, x: Float[Tensor, "*batch tokens head_dim"], positions: Int[Tensor, "*positions tokens"]
    ) -> Float[Tensor, "*batch tokens head_dim"]:
        """Turn queries or keys to where they stand.

        Args:
            x: (..., heads, tokens, head_dim); with positions for all sequences alike, the heads axis may be left out.
            positions: integers, (tokens,), or (batch, tokens) where sequences start at different places.

        Returns:
            x, turned: the same shape and dtype.

        Raises:
            TypeError: positions holds no integers.
            ValueError: x has another head_dim, or the positions do not fit its tokens, or are on another device.
        """
        tensor("x", x, "Float")
        require_positions(positions, x, self)
        if x.dim() < 2 or x.size(-1) != self.head_dim:
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be (..., heads, tokens, {self.head_dim})")
        if positions.dim() > 1:
            positions = positions.unsqueeze(-2)  # batch 1 tokens: alike for all heads
        fits = positions.dim() and broadcasts(positions.shape, x.shape[:-1])
        if not fits or positions.size(-1) != x.size(-2):
            shape = tuple(positions.squeeze(-2).shape) if positions.dim() > 1 else tuple(positions.shape)
            raise ValueError(
                f"positions has shape {shape} and x {tuple(x.shape)}; it must be (tokens,) or (batch, tokens): "
                f"{x.size(-2)} tokens, and as many sequences as x has"
            )
        dtype = torch.promote_types(x.dtype, torch.float32)
        # By element: autocast rounds matmul and einsum, not this.
        angles = positions[..., None] * self._rates(dtype, x.device)
        return _turned(x, angles.cos() * self.factor, angles.sin() * self.factor, self.pairing)

    def __repr__(self) -> str:
        """Name the options."""
        scaled = "" if self._own_frequencies is None else ", frequencies=..."
        part = "" if self.rotary_dim == self.head_dim else f", rotary_dim={self.rotary_dim}"
        factor = "" if self.factor == 1 else f", factor={self.factor:g}"
        return f"Rotary({self.head_dim}, base={self.base:.7g}, pairing={self.pairing!r}{part}{scaled}{factor})"


@checked
def apply_rotary(
    x: Float[Tensor, "*batch tokens head_dim"],
    cos: Float[Tensor, "*positions tokens pairs"],
    sin: Float[Tensor, "*positions tokens pairs"],
    *,
    pairing: Pairing = "halves",
) -> Float[Tensor, "*batch tokens head_dim"]:
    """Turn each pair of features by an angle whose cosine and sine are given.

    It is for angles that no `Rotary` makes: of patches of an image, which turn by a row and a column, or of a model of
    transformers, whose ``rotary_emb`` gives both. Those have a column for each feature, so half of them is for the
    pairs: ``cos[..., : cos.size(-1) // 2]`` where it holds the halves one behind the other, as nearly all do. That a
    half was not taken is an error only where all features turn: of a head that turns in part nothing can tell it.

    Args:
        x: (..., heads, tokens, head_dim); with angles for all sequences alike, the heads axis may be left out.
        cos: (tokens, pairs), or (batch, tokens, pairs): the cosine for each pair, the first pair first. Features
            beyond the last pair are not turned.
        sin: the sine, likewise.
        pairing: "halves" or "interleaved": which two features are turned together.

    Returns:
        x, turned, computed in float32 or wider: the same shape and dtype.

    Raises:
        ValueError: cos and sin differ in shape, have more pairs than x has, or do not fit its tokens or its batch; or
            there is no such pairing.

    Examples:
        >>> angles = torch.tensor([[torch.pi / 4]])  # one token, one pair
        >>> apply_rotary(torch.tensor([[1.0, 0.0, 5.0]]), angles.cos(), angles.sin())
        tensor([[0.7071, 0.7071, 5.0000]])
    """
    _pairs(pairing)
    shape = tuple(cos.shape)
    if 2 * shape[-1] > x.size(-1):
        raise ValueError(
            f"cos has {shape[-1]} pairs and x {x.size(-1)} features, half as many pairs at most; where it has a column "
            "for each feature, pass cos[..., : cos.size(-1) // 2], and sin likewise"
        )
    if cos.dim() > 2:
        cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # batch 1 tokens pairs: alike for all heads
    if not broadcasts(cos.shape[:-1], x.shape[:-1]):
        raise ValueError(
            f"cos has shape {shape} and x {tuple(x.shape)}; it must be (tokens, pairs) or (batch, tokens, pairs): "
            f"{x.size(-2)} tokens, and as many sequences as x has"
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    return _turned(x, cos.to(dtype), sin.to(dtype), pairing)


@checked
def convert_pairing(
    weight: Float[Tensor, "rows *columns"], num_heads: int, *, to: Pairing, rotary_dim: int | None = None
) -> Float[Tensor, "rows *columns"]:
    """Move the rows of a projection made for one pairing, so that it gives the same scores under the other.

    Both the query's and the key's projection are to be converted, weights and biases, and never the value's.

    Args:
        weight: (num_heads * head_dim, ...): the weight, as nn.Linear keeps it, or the bias.
        num_heads: heads of this projection: for keys of grouped heads, their number.
        to: the pairing that the result is for; the weight was made for the other.
        rotary_dim: how many features of a head are turned; all by default.

    Returns:
        A copy with the rows of each head moved.

    Raises:
        ValueError: the rows are not a multiple of num_heads, or the features of a head are odd, or fewer than
            rotary_dim, or there is no such pairing.

    Examples:
        >>> convert_pairing(torch.arange(8.0), 2, to="interleaved")
        tensor([0., 2., 1., 3., 4., 6., 5., 7.])
        >>> convert_pairing(torch.arange(4.0), 1, to="halves")
        tensor([0., 2., 1., 3.])
    """
    require_divides("rows of weight", weight.size(0), "num_heads", num_heads)
    head_dim = weight.size(0) // num_heads
    rotary_dim = _of_turned(rotary_dim, head_dim)
    made_for = _pairs(to)[0][::-1]  # the shape of the other pairing
    heads = weight.unflatten(0, (num_heads, head_dim))
    moved = heads[:, :rotary_dim].unflatten(1, made_for).transpose(1, 2).flatten(1, 2)  # heads rotary_dim ...
    return torch.cat([moved, heads[:, rotary_dim:]], 1).flatten(0, 1)


@checked
def alibi_slopes(num_heads: int, *, device: torch.device | str | None = None) -> Float[Tensor, "{num_heads}"]:
    """Return how fast each head's attention fades: a geometric series, whose first member is its ratio.

    For a number of heads that is no power of two, the series of the next smaller power comes first, and every other
    member of the next larger one's follows, as in the authors' code and in the checkpoints of BLOOM and MPT.
    Arguments as for `alibi`.

    Returns:
        float32, (num_heads,).

    References:
        Press et al. (2022), section 3, for powers of two.

    Examples:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039])
        >>> alibi_slopes(6)
        tensor([0.2500, 0.0625, 0.0156, 0.0039, 0.5000, 0.1250])
    """
    require_positive(num_heads=num_heads)
    power = 1 << (num_heads.bit_length() - 1)  # the largest that is not larger
    exponents = [8 * (i + 1) / power for i in range(power)]
    exponents += [8 * (i + 1) / (2 * power) for i in range(0, 2 * (num_heads - power), 2)]
    return 2.0 ** -torch.tensor(exponents, dtype=torch.float32, device=device)


@checked
def alibi(
    num_heads: int, queries: int, keys: int | None = None, *, device: torch.device | str | None = None
) -> Float[Tensor, "{num_heads} queries keys"]:
    r"""Make the bias that lowers a score by a head's slope for each token between query and key.

    Equation:
        $s_{hij} = \frac{q_{hi} \cdot k_{hj}}{\sqrt{d_k}} - r_h \, |i - j|$ (25.2)

    It is added to the scores, after their scale, ``attend(..., bias=alibi(...))``, and hides no future. The last query
    is aligned with the last key, as in `unmasked.masks.causal`.

    Args:
        num_heads: number of heads.
        queries: number of queries.
        keys: number of keys; as many as queries by default.
        device: where the bias is made.

    Returns:
        float32, (num_heads, queries, keys): 0 where a query meets its own position, and negative elsewhere.

    Raises:
        ValueError: num_heads is not positive.

    References:
        Press et al. (2022), section 3.

    Examples:
        >>> alibi(2, 3)[0]
        tensor([[ 0.0000, -0.0625, -0.1250],
                [-0.0625,  0.0000, -0.0625],
                [-0.1250, -0.0625,  0.0000]])
    """
    keys = queries if keys is None else keys
    places = torch.arange(keys - queries, keys, device=device)[:, None]  # of the queries, counted from the first key
    distance = (places - torch.arange(keys, device=device)).abs()
    return alibi_slopes(num_heads, device=device)[:, None, None] * -distance


def _frequencies(dim: int, base: float, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    number("base", base, "be positive", above=0)
    # In the order in which the models' own code computes, so that large positions give the same angles.
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=dtype, device=device) / dim)


def _stretched(kind: str, rope: Mapping[str, Any], plain: Tensor) -> Tensor:
    """Slow the frequencies of a base as a config says: of each pair's a share stays as it was, by default none."""
    if kind == "proportional":
        turned = int((rope.get("partial_rotary_factor") or 1.0) * len(plain))
        return torch.cat([plain[:turned], torch.zeros_like(plain[turned:])]) / float(rope.get("factor") or 1.0)
    scale, kept = float(rope["factor"]), torch.zeros_like(plain)
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)  # within the original length
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    elif kind == "yarn":
        kept = _kept_by_yarn(rope, plain)
    return (1 - kept) * plain / scale + kept * plain


def _kept_by_yarn(rope: Mapping[str, Any], plain: Tensor) -> Tensor:
    pairs, base = len(plain), float(rope["rope_theta"])

    def pair(turns: float) -> float:
        """The pair, as a fraction, that turns so often within the original length."""
        return pairs * math.log(rope["original_max_position_embeddings"] / (turns * 2 * math.pi)) / math.log(base)

    first, last = (pair(float(rope.get(name) or turns)) for name, turns in (("beta_fast", 32), ("beta_slow", 1)))
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    number = torch.arange(pairs, dtype=plain.dtype, device=plain.device)
    return 1 - ((number - first) / max(last - first, 0.001)).clamp(0, 1)


def _yarns_factor(rope: Mapping[str, Any]) -> float:
    """Return the factor by which YaRN multiplies turned features."""

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(scale) + 1 if scale > 1 else 1.0

    if (factor := rope.get("attention_factor")) is not None:
        return float(factor)
    scale, above, below = float(rope["factor"]), rope.get("mscale"), rope.get("mscale_all_dim")
    return grown(above) / grown(below) if above and below else grown(1.0)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """Turn the first pairs of x, as many as cos and sin have, in their dtype."""
    shape, axis = _pairs(pairing)
    rotary_dim = 2 * cos.size(-1)
    cos, sin = torch.stack([cos, cos], axis), torch.stack([-sin, sin], axis)
    pairs = x[..., :rotary_dim].to(cos.dtype).unflatten(-1, shape)  # ... tokens, then pairs and partners
    turned = torch.addcmul(pairs * cos, pairs.flip(axis), sin).flatten(-2).to(x.dtype)
    return turned if rotary_dim == x.size(-1) else torch.cat([turned, x[..., rotary_dim:]], -1)


def _pairs(pairing: str) -> tuple[tuple[int, int], int]:
    if not isinstance(pairing, str) or pairing not in _PAIRINGS:
        choice("pairing", pairing, *_PAIRINGS)
    return _PAIRINGS[pairing]


def _of_turned(rotary_dim: int | None, head_dim: int) -> int:
    """How many features of a head are turned: all by default."""
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    _require_even("rotary_dim", rotary_dim)
    if rotary_dim > head_dim:
        raise ValueError(f"rotary_dim is {rotary_dim}; it can be at most head_dim ({head_dim})")
    return rotary_dim


def _require_even(name: str, size: int) -> None:
    require_positive(**{name: size})
    if size % 2:
        raise ValueError(f"{name} is {size}; features are turned in pairs: it must be even")
