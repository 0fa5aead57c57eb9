# %% [markdown]
# # Which RoPE is mine, and did I break it?
#
# **Rotary embeddings turn features in pairs, and there are two ways to pair them: a checkpoint made for one raises no
# error under the other, but its scores are wrong.** To see whether positions work at all, add the same number to each
# of them: with RoPE and ALiBi no output may move.
#
# {{ plot.table(["Positions", "Feature 0 of 8 turns with", "Outputs move if all positions shift", "Found in"],
# table).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# **You should know** [why positions are needed](../learn/positions.py), and what queries and keys are. **You will
# know** which pairing your code and your checkpoint have, how to convert one into the other, what a config says of the
# rest, what half precision does to angles, and tests that find a wrong base, or positions that do not arrive.

# %% tags=["imports"]
import math
import textwrap

import torch

from unmasked import attend, heads, plot
from unmasked.positions import (
    Rotary,
    alibi,
    alibi_slopes,
    convert_pairing,
    sinusoids,
)
from unmasked_doctor import probes
from unmasked_lessons.experiments import positions as experiments
from unmasked_lessons.experiments.positions import added, turned
from unmasked_lessons.figures import positions as figures
from unmasked_lessons.figures.atlas import Atlas

torch.manual_seed(1)
x = torch.randn(2, 7, 8, dtype=torch.float64)  # batch tokens features


# %% tags=["check"]
of_halves, of_neighbors = (
    experiments.partners(Rotary(8, pairing=pairing), 8)
    for pairing in ("halves", "interleaved")
)
ways = {
    "sinusoids, added": (added, "none", "the first transformer"),
    "RoPE, halves": (
        turned("halves"),
        str(of_halves[0]),
        "Llama up to 3, Qwen, Gemma in transformers; GPT-NeoX",
    ),
    "RoPE, interleaved": (
        turned("interleaved"),
        str(of_neighbors[0]),
        "Llama as Meta released it; GPT-J",
    ),
    "ALiBi": (experiments.lowered, "none", "BLOOM, MPT"),
}
seen = {
    name: str(probes.notices_a_shift(way, x))
    for name, (way, *_) in ways.items()
}
table = [
    [name, partner, "yes" if "larger" in seen[name] else "no", where]
    for name, (_, partner, where) in ways.items()
]

# %% tags=["claims"]
assert table[1][1] != table[2][1], "and there are two ways to pair them"
assert [*seen.values()][1:] == ["None"] * 3, (
    "with RoPE and ALiBi no output may move"
)

# %% [markdown]
# ## Shift all positions
#
# A rotary embedding turns a query at position $m$ by angles that grow with $m$, and a key at position $n$ likewise.
# Their dot product keeps only the difference of the angles. So the score depends on the positions only through the
# offset $m - n$:
#
# $$\operatorname{turn}(q, m) \cdot \operatorname{turn}(k, n) = \operatorname{turn}(q, m - n) \cdot k \tag{25.1}$$
# <!-- where: d = 6; q, k = random("d", "d"); m = 7; n = 4
# turn = lambda x, place: Rotary(d)(x[None], torch.tensor([place]))[0] -->
#
# Here are the scores of two vectors that always stand five positions apart, farther and farther into the text:


# %%
def in_bfloat16(x, places):
    rates = 10_000 ** (-torch.arange(0, 64, 2) / 64)
    angles = places[:, None].bfloat16() * rates.bfloat16()  # the mistake
    real, imaginary = x.chunk(2, -1)
    z = torch.complex(real, imaginary) * torch.exp(1j * angles.float())
    return torch.cat([z.real, z.imag], -1)


def added_waves(x, places):
    return x + sinusoids(places, 64)


# %% tags=["hide-input", "any-version"]
#| caption: Scores of two vectors, {{ offset }} positions apart. With RoPE the score stays; with coarse angles, and with
#|   sinusoids that are added, it moves.
torch.manual_seed(2)
query, key = torch.randn(2, 1, 64)  # tokens head_dim
offset, places = 5, [5, 105, 1005, 10_005]
ways = {
    "RoPE": Rotary(64),
    "RoPE in bfloat16": in_bfloat16,
    "sinusoids": added_waves,
}
scores = experiments.scores(ways, query, key, places=places, offset=offset)
spread, *spreads = (max(each) - min(each) for each in scores.values())
plot.table(
    ["score of a query at", *(f"{place:,}" for place in places)],
    scores,
    "{:.2f}",
)

# %% [markdown]
# `probes.notices_a_shift` tests this for any function of tokens and positions. It also doubles the offsets: a function
# that does not notice even that makes no use of the positions:


# %%
def forgotten(x, places):
    return attend(x, x, x).context


for attention in (turned("halves"), added, forgotten):
    print(textwrap.fill(str(probes.notices_a_shift(attention, x)), 72))

# %% tags=["claims"]
assert spread < 1e-3 and min(spreads) > 0.5, (
    "With RoPE the score stays; with coarse angles, and with sinusoids that are added, it moves"
)

# %% tags=["remove-cell"]
atlas = Atlas()

# %% [markdown]
# ## Halves or interleaved: which is mine?
#
# In the pairing *halves*, a feature of the first half turns with its counterpart in the second. In the pairing
# *interleaved*, each even feature turns with the next. Unless features are moved first, code with `chunk(2, -1)`<!--~ a
# call --> has halves, and code with `view_as_complex` or `x[..., ::2]`<!--~ an index --> is interleaved. The name
# `rotate_half` proves nothing, nor does the family: in transformers, Llama's has halves, those of Cohere and GLM-4<!--~
# its name --> are interleaved, and that of GLM-4.5<!--~ its name --> has halves. To be sure, turn a single feature by
# one position, and see with which other feature, left unturned, it has a score:


# %%
def which_pairing(turn, head_dim):
    """turn(x, positions), with x of the axes (tokens, head_dim)."""
    x = torch.eye(head_dim)  # a single feature in each row
    left, moved = (turn(x, torch.full((head_dim,), n)) for n in (0, 1))
    scores = moved @ left.mT
    others = scores - scores.diag().diag()
    turned = int(others.any(dim=1).sum())  # how many features have a partner
    reached = others[0].nonzero().flatten().tolist()
    halves = [turned // 2], [head_dim // 2]  # of those that turn, or of all
    known = "interleaved" if reached == [1] else f"neither: {reached}"
    pairing = "halves" if reached in halves else known
    share = f", {turned} of {head_dim} features" * (turned < head_dim)
    return pairing + share


def as_deepseek_does(x, places):
    real, imaginary = x[..., ::2], x[..., 1::2]  # neighbors
    return Rotary(x.size(-1))(torch.cat([real, imaginary], -1), places)


print(which_pairing(Rotary(64), 64))
print(which_pairing(Rotary(64, pairing="interleaved"), 64))
print(which_pairing(Rotary(64, rotary_dim=16), 64))
print(which_pairing(in_bfloat16, 64))
print(which_pairing(as_deepseek_does, 64))

# %% [markdown]
# The last function pairs neighbors, and puts them into the two halves. That order does not change a score, but it would
# mislead a test that looks at what the feature becomes.
#
# ??? note "Such a function of a model of transformers"
#
#     Some models turn only as many features as the cosines have columns, and some cut the others off before the call,
#     so cut in any case. Gemma 3<!--~ its name -->, whose near and far layers turn differently, also wants to be told
#     which: pass `"full_attention"`.
#
#     ```py
#     def theirs(rotary_emb, apply_rotary_pos_emb, *kind_of_layer):
#         def turn(x, places):
#             cos, sin = rotary_emb(x, places[None], *kind_of_layer)
#             part = x[None, None, :, : cos.size(-1)]
#             turned, _ = apply_rotary_pos_emb(part, part, cos, sin)
#             return torch.cat([turned[0, 0], x[:, cos.size(-1) :]], -1)
#         return turn
#     ```
#
#     The project's tests call it for a dozen models. Some of transformers' models differ: gpt-oss has a column for each
#     pair, Gemma 4<!--~ its name --> and GPT-J turn one tensor a call, and Llama 4<!--~ its name --> and
#     DeepSeek-V2<!--~ its name --> multiply complex numbers. For these take `unmasked.positions.apply_rotary`, which
#     turns by a cosine and a sine for each pair.
#
# Most decoders of transformers turn halves, {{ atlas.count("halves", "decoder") }} of the {{
# len(atlas.asked("halves", "decoder")) }} in [the atlas](atlas.py), which counts pairs as a checkpoint's rows have
# them; {{ atlas.count("interleaved", "decoder") }} turn interleaved pairs.
#
# The weights do not show their pairing: their rows were trained for one, and their shapes fit both. Some configurations
# name it: in transformers, that of DeepSeek-V3<!--~ a name --> has `rope_interleave`. Here are four heads whose
# projections were made for *interleaved*, as Meta's Llama has them, in code that turns *halves*:

# %%
torch.manual_seed(3)
tokens, width, num_heads = 7, 32, 4
words = torch.randn(tokens, width)
w_q, w_k = torch.randn(2, width, width) / width**0.5
places = torch.arange(tokens)


def all_scores(w_q, w_k, rotary):
    query, key = (
        rotary(heads.split_heads(words @ w.mT, num_heads), places)
        for w in (w_q, w_k)
    )
    return query @ key.mT / math.sqrt(width // num_heads)


right = all_scores(w_q, w_k, Rotary(8, pairing="interleaved"))
misread = all_scores(w_q, w_k, Rotary(8, pairing="halves"))
off_by = (misread - right).abs().max()

# %% [markdown]
# The scores are finite and as large as they should be, but they are off by up to
# 2.2<!--= (misread - right).abs().max() -->, with a standard deviation of 1.0<!--= right.std() -->. Only the diagonal,
# where the offset is zero, is right, so a test on one token sees nothing. The fix is to move the rows of both
# projections, and to leave the value's alone:

# %%
w_q, w_k = (convert_pairing(w, num_heads, to="halves") for w in (w_q, w_k))
mended = all_scores(w_q, w_k, Rotary(8, pairing="halves"))
torch.testing.assert_close(mended, right)

# %% [markdown]
# Biases of these projections move in the same way. With grouped heads, the key's projection has fewer heads, so pass
# their number. Models that turn only a part of each head (GPT-NeoX, GPT-J, Phi) need `rotary_dim`, in `Rotary` and
# here.

# %% tags=["claims"]
assert misread.isfinite().all() and off_by > 1, (
    "a checkpoint made for one raises no error under the other, but its scores are wrong"
)
assert of_halves == [4, 5, 6, 7, 0, 1, 2, 3], (
    "a feature of the first half turns with its counterpart in the second"
)
assert of_neighbors == [1, 0, 3, 2, 5, 4, 7, 6], (
    "each even feature turns with the next"
)
assert atlas.share("halves", "decoder") > 0.5, (
    "Most decoders of transformers turn halves"
)
assert experiments.partners(as_deepseek_does, 64)[0] == 32, (
    "The last function pairs neighbors, and puts them into the two halves"
)
assert (
    misread.isfinite().all() and 0.8 < misread.std() / right.std() < 1.25
), "The scores are finite and as large as they should be"
assert ((misread - right).abs() < 1e-5).equal(
    torch.eye(7).expand(4, 7, 7) > 0
), "Only the diagonal, where the offset is zero, is right"

# %% [markdown]
# ## What a checkpoint's config says
#
# Two models of one pairing can still turn differently. Here is what differs, where a config of transformers says it
# (`rope_parameters` or, in older files, `rope_theta` and `rope_scaling`), and who has it:
#
# <!--~ 500,000, 3, 3.1, 4: configs and names of models -->
# | What differs | The config says | For example |
# | --- | --- | --- |
# | the base | `rope_theta` | Llama 3: 500,000 |
# | all pairs are slowed | `"linear"`, `factor` | Gemma 3's far layers |
# | slow pairs are slowed | `"llama3"` and four numbers | Llama 3.1 |
# | the same, and scores are multiplied | `"yarn"` | gpt-oss, DeepSeek-V3 |
# | only some features turn | `partial_rotary_factor` | GLM-4, Qwen3-Next |
# | the same, at the speeds of the whole head | `"proportional"`, `partial_rotary_factor` | Gemma 4's far layers |
# | near and far layers turn differently | one entry for each kind of layer | Gemma 3 |
# | rows and columns turn features of their own | `"axial"`, `mrope_section` | Qwen2-VL, Pixtral |
# | some layers turn nothing | `no_rope_layers`, or only `layer_types` | SmolLM3, Llama 4; Command R7B |
#
# The base says how slow the slowest pair is. A wrong base passes the test of shifts, because with any base a score
# depends on the offset alone. Yet the config names the right one. So turn each feature by one position, and take its
# scores with all unturned features: they say how far each pair turns. `probes.turns_otherwise` compares this with the
# config:

# %%
config = {"rope_type": "default", "rope_theta": 10_000.0}
of_config = Rotary.from_config(8, config)
misread = Rotary(8, base=500_000.0)


def as_misread(x, places):
    return attend(misread(x, places), misread(x, places), x).context


print("shifted:", probes.notices_a_shift(as_misread, x))
print(
    textwrap.fill(str(probes.turns_otherwise(misread, of_config, x[0])), 72)
)

# %% [markdown]
# It also finds another pairing, another share of turned features, forgotten stretching and the wrong direction. Give it
# your own function of `(x, positions)`, or what `theirs` makes of a model.

# %% tags=["remove-cell"]
others = {
    "another pairing": Rotary(8, pairing="interleaved"),
    "another share of turned features": Rotary(8, rotary_dim=4),
    "the wrong direction": lambda x, places: of_config(x, -places),
}
slow = Rotary.from_config(
    8, {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0}
)

# %% tags=["claims"]
assert probes.notices_a_shift(as_misread, x) is None, (
    "A wrong base passes the test of shifts, because with any base a score depends on the offset alone"
)
assert all(
    probes.turns_otherwise(turn, of_config, x[0]) for turn in others.values()
) and probes.turns_otherwise(of_config, slow, x[0]), (
    "It also finds another pairing, another share of turned features, forgotten stretching and the wrong direction"
)

# %% [markdown]
# ## Texts longer than the training
#
# Some newer checkpoints are also *stretched*, so that a model can read longer texts than it was trained on. Let pair
# $i$ turn by $\theta_i$ from one place to the next. By Llama's rule and by YaRN, fast pairs keep their speed, because
# they tell neighbors apart. Slow ones turn $s$ times as slowly, so that no angle comes up that the model has never
# seen. With $\gamma_i$, which falls from one for the fast pairs to zero for the slow ones, a pair then turns by
#
# $$\omega_i = (1 - \gamma_i) \frac{\theta_i}{s} + \gamma_i \theta_i \tag{25.3}$$
# <!-- where: s = 8.0; theta = 500_000 ** (-torch.arange(0, 128, 2).double() / 128);
# rope = dict(rope_type="yarn", rope_theta=5e5, factor=8.0, original_max_position_embeddings=8192)
# omega = Rotary.from_config(128, rope).frequencies.double(); gamma = (omega * s / theta - 1) / (s - 1) -->
#
# Llama's rule takes $\gamma_i$ from the wavelength, the code of YaRN from the number of the pair, and YaRN multiplies
# the scores, too. [DeepSeek-V3's](models.py) attention does that itself, by `mscale_all_dim`, and its rotary does not.
# `Rotary.from_config` reads what the config says. It refuses "dynamic" and "longrope", whose frequencies depend on the
# length of the text:

# %%
llama3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
Rotary.from_config(128, llama3)

# %% tags=["hide-input"]
#| alt: Two curves over the pairs. Both fall from one to an eighth, in a bend and in a straight line.
#| caption: How fast each pair turns, as a share of its former speed, for a text of eight times the length. The fast
#|   pairs are on the left.
from unmasked_lessons.figures.curves import curves

stretched = {
    name: Rotary.from_config(128, llama3 | {"rope_type": name})
    for name in ("llama3", "yarn")
}
plain = 500_000 ** (-torch.arange(0, 128, 2) / 128)
slowed = {name: each.frequencies / plain for name, each in stretched.items()}
curves(slowed, xlabel="pair", ylabel="share of its speed", height=2.4)

# %% [markdown]
# Without its stretching, a checkpoint is wrong in different ways. With Llama's rule, short texts hardly
# show it, but `turns_otherwise` finds it. Where all pairs are slowed, as in Gemma 3's<!--~ its name --> far layers,
# every angle is off; and without YaRN's factor so is every score, in a text of ten words, too. [How do today's models
# attend?](models.py) shows the base of each.

# %% tags=["claims"]
assert all(
    each[0] == 1 and abs(each[-1] - 1 / 8) < 1e-3 for each in slowed.values()
), "Both fall from one to an eighth"
assert stretched["yarn"].factor > 1 == stretched["llama3"].factor, (
    "YaRN multiplies the scores, too"
)
assert (
    Rotary.from_config(
        128,
        llama3 | {"rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0},
    ).factor
    == 1
), "by mscale_all_dim, and its rotary does not"

# %% [markdown]
# ## Rows and columns, or no positions at all
#
# A patch of an image stands in a row and in a column. Here half of the pairs turn by the one, half by the other, and a
# shift of either changes no score:


# %%
def planar(x, rows, columns):
    by_row, by_column = x.chunk(2, dim=-1)
    turn = Rotary(x.size(-1) // 2)
    return torch.cat([turn(by_row, rows), turn(by_column, columns)], dim=-1)


def over_an_image(rows, columns):
    query = key = planar(patches, rows, columns)
    return attend(query, key, patches).context


torch.manual_seed(7)
patches = torch.randn(6, 8, dtype=torch.float64)  # 2 rows of 3 patches
rows, columns = torch.arange(6) // 3, torch.arange(6) % 3
image = over_an_image(rows, columns)
for name, moved in {
    "all rows 10 further": over_an_image(rows + 10, columns),
    "all columns 5 further": over_an_image(rows, columns + 5),
    "rows and columns exchanged": over_an_image(columns, rows),
}.items():
    print(f"{name}: outputs move by {probes.differs(moved, image):.2f}")

# %% [markdown]
# Qwen2-VL<!--~ its name --> and Pixtral put the same pairs elsewhere in the head, and Pixtral deals the speeds of a
# whole head out to rows and columns in turn, so their weights need their own order. Qwen2-VL's<!--~ its name --> text
# has a third axis, time. `mrope_section` says how many pairs each axis has. They lie in blocks there, and are dealt out
# in turn in Qwen3-VL<!--~ its name -->. A word has the same number on all three, as if there were one, so
# `Rotary.from_config` turns words right and images wrong.
#
# Some layers turn nothing (*NoPE*): there only the causal mask tells what came earlier. In `no_rope_layers`, despite
# its name, a one means that the layer *does* turn, and a zero that it does not. In Command R7B<!--~ its name -->,
# layers with a window turn and those that see everything do not, and only `layer_types` says so. EXAONE 4<!--~ its name
# --> does the same if its config has a `sliding_window`; if not, all of its layers turn. A layer that turns although it
# should not is found by `turns_otherwise`, if you give it `lambda x, places: x` as the right function.

# %% tags=["claims"]
assert not probes.differs(over_an_image(rows + 10, columns + 5), image), (
    "a shift of either changes no score"
)
assert probes.differs(over_an_image(columns, rows), image) > 0.1, (
    "half of the pairs turn by the one, half by the other"
)
assert probes.turns_otherwise(of_config, lambda x, places: x, x[0]), (
    "A layer that turns although it should not is found by turns_otherwise"
)

# %% [markdown]
# ## Angles in half precision
#
# A `bfloat16` has eight bits<!--= math.log2(exact_to) --> for its digits, so the first whole number that it cannot hold
# is 257<!--= exact_to + 1 -->. From there on positions merge, and an angle of a thousand radians is off by up to
# two<!--= angles_off -->. The table of scores shows what comes of it. All of these lines look harmless, and all but the
# third merge positions:

# %% tags=["hide-input", "any-version"]
#| caption: What a model's angles are computed in.
rates = 10_000 ** (-torch.arange(0, 8, 2) / 8)
positions = torch.arange(1000, 1004)
exact_to = next(
    n - 1 for n in range(1, 1000) if torch.tensor(n).bfloat16().int() != n
)
thousands = torch.arange(600.0, 1024.0)
angles_off = (thousands - thousands.bfloat16()).abs().max().item()
found = experiments.angles(positions, rates)
rows = {
    name: [str(each.dtype).removeprefix("torch."), len(each[:, 0].unique())]
    for name, each in found.items()
}
all_differ = [count == len(positions) for _, count in rows.values()]
plot.table(
    ["for x in bfloat16", "angles", "different angles of 4 positions"], rows
)

# %% [markdown]
# So compute the frequencies when they are needed, in float32, and multiply them element by element. Turn in the same
# type, and round once, at the end. `Rotary` does all of this for inputs of any dtype, and under autocast:

# %%
torch.manual_seed(5)
small = torch.randn(2, 7, 64).bfloat16()
rotary, far = Rotary(64), torch.arange(7) + 1000
with torch.autocast("cpu", dtype=torch.bfloat16):
    here = rotary(small, far)
print(here.dtype, torch.equal(here, rotary(small.float(), far).bfloat16()))

# %% [markdown]
# The museum has it among the [rotary mistakes](../museum/models.py#rope-in-bfloat16). It has turned up in
# [transformers](https://github.com/huggingface/transformers/pull/29285), in
# [vLLM](https://github.com/vllm-project/vllm/issues/863) and in [Mistral's
# code](https://github.com/huggingface/transformers/issues/29496).

# %% tags=["claims"]
assert all_differ == [False, False, True, False], (
    "All of these lines look harmless, and all but the third merge positions"
)

# %% [markdown]
# ## Positions that start again
#
# While a model writes, its keys come from a cache, where they usually lie already turned. The newest query stands
# behind all of them. Code that numbers the tokens of the *call*, as `torch.arange(x.size(1))`<!--~ a call --> does,
# puts it at position zero:

# %%
torch.manual_seed(6)
written = torch.randn(12, 64)  # tokens head_dim
rotary = Rotary(64)
keys = rotary(written, torch.arange(12))
newest = written[-1:]
right_row = rotary(newest, torch.tensor([11])) @ keys.mT
wrong_row = rotary(newest, torch.arange(1)) @ keys.mT

# %% [markdown]
# The last key should have the highest score, because it is made from the same vector as the query. With the query at
# zero, it scores {{ wrong_row[0, -1] :.0f}} instead of {{ right_row[0, -1] :.0f}}. The positions of a call begin where
# the text so far ends, also if a window has dropped its first keys from the cache:
# `torch.arange(length, length + new)`. With padding on the left they begin at the first real token. [The page about
# caches](cache.py) has more of this.

# %% tags=["claims"]
assert right_row.argmax() == 11, "The last key should have the highest score"

# %% [markdown]
# ## ALiBi: slopes and sign
#
# ALiBi turns nothing; it lowers each score by the distance, times a slope $r_h$ that differs from head to head:
#
# $$s_{hij} = \frac{q_{hi} \cdot k_{hj}}{\sqrt{d_k}} - r_h \, |i - j| \tag{25.2}$$
# <!-- where: H = 3; q, k = random("H n d_k", "H n d_k"); r = alibi_slopes(H).double()
# s = q @ k.mT / d_k**0.5 + alibi(H, n).double() -->

# %% tags=["hide-input"]
#| caption: ALiBi's bias of two heads out of eight. It is zero on the diagonal and falls with the distance. The first
#|   head looks only at its neighbors, the other one farther.
biases = alibi(8, 5)
plot.grid(
    {"head 1": biases[0], "head 4": biases[3]},
    queries=range(5),
    keys=range(5),
)

# %% tags=["claims"]
assert (
    not biases.diagonal(dim1=1, dim2=2).any()
    and (biases[[0, 3], -1].diff() > 0).all()
), "It is zero on the diagonal and falls with the distance"
assert biases[0, 4, 0].exp() < 0.2 < 0.7 < biases[3, 4, 0].exp(), (
    "The first head looks only at its neighbors, the other one farther"
)

# %% [markdown]
# For eight heads the slopes are a half, a quarter, and so on. Twelve heads have the slopes of eight, and then every
# other slope of sixteen, as in the paper's code. If you take the first twelve of sixteen instead, most of the twelve
# heads get another slope:

# %%
for_twelve = alibi_slopes(12)
first_of_sixteen = alibi_slopes(16)[:12]

# %% tags=["hide-input"]
#| alt: Crosses that fall in one line, and dots that fall in two lines, twice as steeply: eight, and then
#|   four.
#| caption: The slope of each head: those of twelve heads, as BLOOM and MPT have them, and the first of sixteen.
of_the_paper = torch.cat([alibi_slopes(8), alibi_slopes(16)[:8:2]])
bends = (for_twelve.diff() > 0).nonzero().flatten().tolist()
steeper = (
    for_twelve[:2].log().diff() / first_of_sixteen[:2].log().diff()
).item()
figures.slopes(
    {"twelve heads": for_twelve, "first of sixteen": first_of_sixteen}
)

# %% [markdown]
# A wrong sign hides well. With a plus instead of the minus, the farthest token gets the most, and nothing raises:

# %%
torch.manual_seed(4)
q, k, v = torch.randn(3, 8, 200, 16)  # heads tokens head_dim
right = attend(q, k, v, bias=alibi(8, 200), is_causal=True, need_weights=True)
wrong = attend(
    q, k, v, bias=-alibi(8, 200), is_causal=True, need_weights=True
)
first_token = [
    each.weights[0, -1, 0].item()
    for each in (right, wrong)  # last query, first key
]

# %% [markdown]
# With the wrong sign, the first head gives {{ first_token[1] :.0%}} of the last token's attention to the first token,
# 199<!--= len(right.weights[0]) - 1 --> places away; with the right one, it gives nothing that can be seen. The bias
# hides no future, so pass `is_causal` as well. And do not give it to an `nn.TransformerEncoderLayer` in evaluation,
# whose [fast path](masks.py#masks-of-numbers-are-added) takes every number that
# is not zero for minus infinity. The museum shows the [sign beside its
# remedy](../museum/models.py#alibi-sign).

# %% tags=["claims"]
assert alibi_slopes(8)[:2].tolist() == [0.5, 0.25], (
    "For eight heads the slopes are a half, a quarter"
)
assert for_twelve.allclose(of_the_paper, atol=1e-6), (
    "Twelve heads have the slopes of eight, and then every other slope of sixteen"
)
assert ((for_twelve - first_of_sixteen).abs() > 1e-3).sum() > 6, (
    "If you take the first twelve of sixteen instead, most of the twelve heads get another slope"
)
assert bends == [7] and abs(steeper - 2) < 1e-3, (
    "dots that fall in two lines, twice as steeply: eight, and then four"
)
assert wrong.weights[0, -1].argmax() == 0, "the farthest token gets the most"
assert first_token[0] < 1e-6, (
    "with the right one, it gives nothing that can be seen"
)
assert alibi(8, 5).isfinite().all(), "The bias hides no future"

# %% [markdown]
# ## Sinusoids: two orders, and no offset
#
# The first transformer adds a vector to each embedding: a sine in each even feature and its cosine in the next one.
# Much code keeps all sines first and all cosines behind them: `pairing="halves"`. A trained model knows only one of the
# two. With sinusoids a score does depend on where the tokens stand, as the table above shows, because the vectors of
# words and of places are multiplied with each other, too.

# %% tags=["check"]
waves, kept_apart = (
    sinusoids(places, 8),
    sinusoids(places, 8, pairing="halves"),
)
first_pair = torch.stack([places.sin(), places.cos()], dim=1)

# %% tags=["claims"]
assert waves[:, :2].allclose(first_pair, atol=1e-5), (
    "a sine in each even feature and its cosine in the next one"
)
assert kept_apart[:, :4].allclose(waves[:, ::2], atol=1e-5), (
    "Much code keeps all sines first and all cosines behind them"
)

# %% [markdown]
# ## The check for your own tests
#
# Write your attention as a function of tokens and positions, in float64, and paste this. The first test fails for mixed
# pairings, for turned keys beside unturned queries, for turned values, and for angles of few bits. The second fails for
# a base or a stretching that is not the config's. (A checkpoint made for the other pairing passes the first, and the
# second only knows the pairing that you tell it; to see that, compare its
# logits with those of the code that trained it.)


# %%
def test_positions_are_relative():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    my_attention = turned("halves")  # (x, positions): yours stands here
    assert probes.notices_a_shift(my_attention, x) is None


def test_features_turn_as_the_config_says():
    config = {"rope_type": "default", "rope_theta": 10_000.0}
    right = Rotary.from_config(8, config, pairing="halves")
    my_turn = Rotary(8)  # (x, positions): yours stands here
    assert probes.turns_otherwise(my_turn, right, torch.ones(1, 8)) is None


test_positions_are_relative()
test_features_turn_as_the_config_says()

# %% tags=["check"]
halves, interleaved = Rotary(8), Rotary(8, pairing="interleaved")
wrong_ones = [
    lambda x, p: attend(halves(x, p), interleaved(x, p), x).context,
    lambda x, p: attend(x, halves(x, p), x).context,
    lambda x, p: attend(*[halves(x, p)] * 3).context,
    lambda x, p: attend(*[halves(x, p.bfloat16().long())] * 2, x).context,
]
complaints = [str(probes.notices_a_shift(f, x)) for f in wrong_ones]


# %% tags=["claims"]
assert all("larger" in each for each in complaints), (
    "for turned keys beside unturned queries, for turned values, and for angles of few bits"
)
assert probes.turns_otherwise(
    misread, of_config, x[0]
) and probes.turns_otherwise(slow, of_config, x[0]), (
    "The second fails for a base or a stretching that is not the config's"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("turn-by-hand", answer))`.
#
# **Turn by hand** (`turn-by-hand`). Write `turn(x, positions)` for the pairing *halves*, with the base 10,000<!--=
# Rotary(8).base -->: x has the axes (..., tokens, head_dim), positions (tokens).
#
# ??? question "Hint"
#
#     One half turns with the other: the first becomes the first times the cosine minus the second times the sine.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def turn(x, positions):
    first, second = x.chunk(2, dim=-1)
    pairs = first.size(-1)
    rates = 10_000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = positions[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat(
        [first * cos - second * sin, second * cos + first * sin], dim=-1
    )


feedback = check("turn-by-hand", turn)
assert feedback
feedback

# %% [markdown]
# **Read the pairing off** (`read-the-pairing`). Write `is_interleaved(turn)` for any function `turn(x, positions)`,
# with heads of 8<!--~ a size --> features. Some of the functions that it will be tried on turn the other way round, or
# only the first four features, or give the features back in another order.
#
# ??? question "Hint"
#
#     Turn a vector that has a single feature. With which other feature, at position 0<!--~ a place -->, does it have a
#     score?


# %% tags=["solution"]
def is_interleaved(turn):
    first, second = torch.eye(8)[:2].split(1)
    turned, left = (
        turn(first, torch.tensor([1])),
        turn(second, torch.tensor([0])),
    )
    return bool((turned * left).sum() != 0)


feedback = check("read-the-pairing", is_interleaved)
assert feedback
feedback

# %% [markdown]
# **Bias by distance** (`alibi-bias`). Write `bias(slopes, queries, keys)`, with the axes (heads, queries, keys), for a
# decoder that may hold more keys than it has queries.
#
# ??? question "Hint"
#
#     The last query stands where the last key does. How many keys lie before the first query?


# %% tags=["solution"]
def bias(slopes, queries, keys):
    place = torch.arange(queries) + keys - queries
    distance = (place[:, None] - torch.arange(keys)).abs()
    return -slopes[:, None, None] * distance


feedback = check("alibi-bias", bias)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Five layouts of its weights](layouts.py): the names and shapes of the checkpoints whose pairings stand above.
# - [Packed sequences](packing.py): why new positions for each document isolate nothing.
# - [Does order matter?](../learn/positions.py), with pictures of the waves and of the turning.
#
# ## References
#
# <!--~ 2017, 3.5, 2021, 3.2, 2022, 3, 2024: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.5, sinusoids.
# - Su et al. (2021), *RoFormer: Enhanced Transformer with Rotary Position Embedding*: section 3.2, for (25.1).
# - Peng et al. (2024), *YaRN: Efficient Context Window Extension of Large Language Models*, for its part of (25.3).
# - Press, Smith and Lewis (2022), *Train Short, Test Long*: section 3, for (25.2) and the slopes.
