# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Is *my* module right? The attention doctor
#
# **Ask it: `unmasked.diagnose(my_module, embed_dim=12)`**<!--~ a size of our choice --> **tries the module, says what
# holds and what does not, and names the mistake.** It takes any module or function, and never changes it.

# %% tags=["hide-input"]
import inspect
import math
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from unmasked import museum, plot, probes, self_attention
from unmasked.doctor import patients
from unmasked.doctor.patients import HEALTHY, NOT_SEEN, SICK


class Mine(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, _ = x.shape
        parts = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in parts
        )
        scores = q @ k.mT / math.sqrt(q.size(-1))
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        context = scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ v
        return self.to_out(self.merge(context))

    def merge(self, context):
        batch, heads, tokens, head_dim = context.shape
        return context.reshape(batch, tokens, heads * head_dim)


# %%
from unmasked import diagnose

torch.manual_seed(1)
module = Mine(width=12, heads=3)  # any module or function of yours
report = diagnose(module, embed_dim=12, causal=True)
report

# %% [markdown]
# In a report, `x` marks a finding, `?` a question that stays open, and `+` what holds. `causal=True` told the doctor
# that no token may see a later one. The module merges its heads [without transposing
# back](museum/heads.py#merge-without-transpose), and the doctor has proved it: attention with this one mistake gives
# the module's own numbers.
#
# On this page the doctor examines {{= len(HEALTHY)}} correct implementations, and finds nothing in any<!--== "any" if
# all(report.ok for report in well.values()) else "most" -->; and {{= len(SICK)}} with one planted mistake each, and
# names the right one in every<!--== "every" if all(ill[name].causes == (SICK[name].cause,) for name in SICK) else
# "some" --> case. A green report is no proof. The doctor asks what it was taught to ask, at a few sizes; what it cannot
# decide it lists as open, with what it would need.
#
# **You should know** [how heads are split and merged](pytorch/heads.py) and [what a mask does](learn/masks.py).
# **You will know** how to examine a module in Python, in a terminal and in a test suite; what can be told of attention
# from its outputs alone; and how a mistake is proved by repeating it.
#
# ## Repair, and ask again
#
# Here is the line that was wrong. With the right one, the report has no finding:


# %%
class Repaired(Mine):
    def merge(self, context):
        return context.transpose(1, 2).flatten(2)


torch.manual_seed(1)
healed = diagnose(Repaired(12, 3), embed_dim=12, causal=True)
healed

# %% [markdown]
# Two mistakes in one module are harder. The doctor then sees that something is wrong and names the mistake that does so
# most often, and it calls that likely<!--== "likely" if not two.findings[0].certain else "proved" -->, not proved: no
# single mistake gives the module's numbers. Repair what it names, and ask again.


# %% tags=["check"]
class Two(Mine):
    def forward(self, x):
        tokens = x.size(1)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.to_qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.mT / math.sqrt(q.size(-1))
        future = torch.ones(tokens, tokens).triu(1)
        weights = (scores + future.to(x.dtype) * -9).softmax(dim=-1)
        return self.to_out(self.merge(weights @ v))


torch.manual_seed(1)
fresh = Two(width=12, heads=3)
two = diagnose(fresh, embed_dim=12, causal=True)
assert not two.ok
assert report.causes == ("merge-without-transpose",)
assert report.findings[0].certain
assert healed.ok

# %% [markdown]
# A finding has a `cause`, the mistake's name in [the museum](museum/index.py), the `evidence` with the smallest input
# that
# shows it, and a `link`. `report.ok` is true without findings, and `report.inconclusive` lists what was not decided.
#
# ## What outputs alone tell
#
# Some questions need nothing but calls. Attention without a mask or positions has no order: exchange the tokens, and
# the outputs are exchanged in the same way. With $P$ for a matrix that reorders rows,
#
# $$\operatorname{Attend}(P X) = P \operatorname{Attend}(X) \tag{18.1}$$
# <!-- where: X = random("n d"); P = torch.eye(n, dtype=torch.float64)[torch.arange(n).roll(1)];
#   Attend = lambda tokens: self_attention(tokens).context -->
#
# And an average of equal tokens is that token, if the weights sum to one. So a token among copies of itself has the
# output that it has alone. With $a$ for the weights, and $x$ for the token:
#
# $$\sum_{j=1}^{n} a_{ij} \, x = x \tag{18.2}$$
# <!-- where: X = random("n d"); x = random("d"); a = self_attention(X).weights -->
#
# Each such question is a function in `unmasked.probes`. It returns None, or the evidence:

# %%
torch.manual_seed(2)
x = torch.randn(4, 5, 12)
print(probes.sees_the_future(fresh, x))
print(probes.is_no_average(fresh, x))
print(probes.mixes_items(fresh, x))

# %% tags=["check"]
for probe in (
    probes.breaks_equivariance,
    probes.is_no_average,
    probes.mixes_items,
):
    assert probe(lambda x: self_attention(x).context, x) is None
assert probes.breaks_equivariance(fresh, x)

# %% [markdown]
# Evidence is not yet a cause. Here `fresh` has the two mistakes. Equal tokens come out different because its merge
# moves features from token to token. And as a causal module it must break the symmetry of equation (18.1), even if it
# were right.
#
# ## How a mistake is proved
#
# Behavior shows that something is wrong, and seldom what. To find out, the doctor tells which weights are the query's,
# the key's, the value's and the output's from their names and shapes; where these leave doubt, it tries every
# possibility. With them it computes attention, step by step.

# %% tags=["check"]
from unmasked.doctor._mistakes import attend

print(inspect.getsource(attend))

# %% [markdown]
# Where that is not the target's output, it computes each known mistake: the same steps, one of them done wrong. In
# float64, with random weights, two different computations do not agree by accident. So the mistake that gives the
# target's own numbers is the one in the target. By hand, for the module above:

# %%
torch.manual_seed(3)
suspect = Mine(12, 3).double()
x = torch.randn(4, 5, 12, dtype=torch.float64)
q, k, v = (
    part.unflatten(-1, (3, 4)).transpose(1, 2)
    for part in suspect.to_qkv(x).chunk(3, dim=-1)
)
hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)


def attended(
    scale=0.5,
    fill=-torch.inf,
    merge=lambda context: context.transpose(1, 2).flatten(2),
):
    context = (q @ k.mT * scale).masked_fill(hidden, fill).softmax(dim=-1) @ v
    return suspect.to_out(merge(context))


# %%
hypotheses = {
    "right": attended(),
    "missing-scale": attended(scale=1.0),
    "no mask": attended(fill=0.0),
    "merge-without-transpose": attended(
        merge=lambda context: context.reshape(4, 5, 12)
    ),
}
off = {
    name: (suspect(x) - output).abs().max().item()
    for name, output in hypotheses.items()
}
plot.table(
    ("hypothesis", "off by"),
    [(name, f"{gap:.1e}") for name, gap in off.items()],
)

# %% [markdown]
# One<!--= sum(gap < 1e-9 for gap in off.values()) --> is off by no more than rounding; the others by more
# than 0.5<!--= min(gap for name, gap in off.items() if name != "merge-without-transpose") > 0.5 -->.

# %% tags=["check"]
from unmasked.doctor._mistakes import Case
from unmasked.doctor._weights import Weights

roles = ("query", "key", "value")
matrices = dict(zip(roles, suspect.to_qkv.weight.chunk(3), strict=True)) | {
    "out": suspect.to_out.weight
}
biases = dict(zip(roles, suspect.to_qkv.bias.chunk(3), strict=True)) | {
    "out": suspect.to_out.bias
}
case = Case(x, x, x, ~hidden, Weights(matrices, biases, heads=3, kv_heads=3))
torch.testing.assert_close(attend(case), hypotheses["right"])

# %% [markdown]
# ## Tried on right and on wrong modules
#
# **Sound**: nothing is found in what is right. The implementations differ in style: einsum, fused kernels, lists of
# heads, shared keys, functions, convolutions, names that say nothing.

# %% tags=["check"]
#| timeout: 300
torch.manual_seed(4)
well = patients.ward(HEALTHY)
assert all(report.ok for report in well.values())

rows = [
    (name, "no finding", ", ".join(c.cause for c in report.cautions))
    for name, report in well.items()
]
plot.table(("correct implementation", "the doctor", "cautions"), rows)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# A *caution* is what PyTorch's own functions do too: NaN for a query that may see nothing, weights returned after
# dropout. With `strict=True` it is a finding.
#
# **Complete**: every<!--== {p.cause for p in SICK.values()} | set(NOT_SEEN) == set(museum.ENTRIES) --> mistake of the
# museum that can be seen from outside is named. *Proved* says that the mistake gave the target's own numbers.

# %% tags=["check"]
#| timeout: 300
torch.manual_seed(5)
ill = patients.ward(SICK)
assert {
    patient.cause for patient in SICK.values()
} | NOT_SEEN.keys() == museum.ENTRIES.keys()
assert all(ill[name].causes == (SICK[name].cause,) for name in SICK)

rows = [
    (name, f.cause, "proved" if f.certain else "likely")
    for name, r in ill.items()
    for f in r.findings
]
plot.table(("planted", "named", ""), rows)

# %% [markdown]
# {{= sum(r.findings[0].certain for r in ill.values())}} of {{= len(ill)}} are proved. The figure shows why that works:
# for some patients, how far each hypothesis is from the patient's own output. Only the right one is at zero.

# %% tags=["check"]
chosen = [
    "merge-without-transpose",
    "view-without-transpose",
    "missing-scale",
    "wrong-d-in-scale",
]
chosen += [
    "softmax-over-queries",
    "weights-not-normalized",
    "wrong-value",
    "weight-not-transposed",
]

torch.manual_seed(6)
plain = patients.Plain().double().eval().requires_grad_(False)
tokens = torch.randn(4, 5, 12, dtype=torch.float64)
outputs = {}
for name in chosen:
    patient = SICK[name].make().double().eval().requires_grad_(False)
    patient.load_state_dict(plain.state_dict())
    outputs[name] = patient(tokens)
apart = torch.stack(
    [
        torch.stack([(a - b).abs().mean() for b in outputs.values()])
        for a in outputs.values()
    ]
)

# %% tags=["hide-input"]
#| alt: A heat map, a row for each patient and a column for each hypothesis, eight<!--= len(chosen) --> of both. The
#|   diagonal is zero: the hypothesis that names the patient's mistake gives the patient's output. No other cell is.
#| caption: Only the right hypothesis gives the patient's own output<!--== "Only the right hypothesis gives the
#|   patient's own output" if apart.diagonal().max() < 1e-9 < (apart + torch.eye(len(chosen))).min() else "Several do"
#|   -->: the diagonal is zero.
plot.heatmap(
    {"difference from the patient's output": apart.clamp(max=1)},
    queries=chosen,
    keys=chosen,
)

# %% [markdown]
# On the diagonal no difference exceeds<!--= "exceeds" if apart.diagonal().max() < 1e-9 else "equals" --> rounding; the
# smallest of the other cells is {{= (apart + torch.eye(len(chosen))).min() :.2f}}.
#
# ## What it cannot see
#
# Some mistakes of the museum are not in a module's behavior, {{= len(NOT_SEEN) }} of {{= len(museum.ENTRIES) }}. The
# fold at the end of this section names each, and why.

# %% tags=["check"]
plot.table(("mistake", "why not"), list(NOT_SEEN.items()))

# %% [markdown]
# And some modules keep their weights out of sight. Then the reference cannot be computed, and the report says what it
# needs. Rows packed head by head and rows packed matrix by matrix are both right; only you know which was meant:


# %%
class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        q, k, v = (
            self.rows(x)
            .unflatten(-1, (3, 12))
            .transpose(1, 2)
            .chunk(3, dim=-1)
        )
        return self.out(
            nn.functional.scaled_dot_product_attention(q, k, v)
            .transpose(1, 2)
            .flatten(2)
        )


torch.manual_seed(7)
module = Renamed()
given = {"qkv": "rows.weight", "qkv_bias": "rows.bias", "out": module.out}
print(diagnose(module, embed_dim=12, num_heads=3).ok)
diagnose(module, embed_dim=12, num_heads=3, weights=given).causes

# %% [markdown]
# If you do not say what `rows.weight` is, the doctor finds nothing wrong and leaves the question open. If you say that
# it has all of the query's rows first, the doctor finds that the module reads them head by head.
#
# ## In a terminal
#
# `python -m unmasked doctor file.py:Class` makes an object of the class. It passes the sizes to arguments with the
# usual names, such as `dim` and `heads`; otherwise say how, as in `--with "12, heads=3"`<!--~ sizes of our choice -->.
# It exits with 0<!--== codes["Right"] --> if nothing is wrong, with 1<!--== codes["Wrong"] --> if there is a finding,
# and with 2<!--== codes["Absent"] --> if it cannot do what it is asked.

# %% tags=["hide-input"]
torch.manual_seed(8)
source = """
import torch

class Right(torch.nn.Module):
    scale = True

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv = heads, torch.nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / (q.size(-1) ** 0.5 if self.scale else 1)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

class Wrong(Right):
    scale = False
"""
codes = {}
with TemporaryDirectory() as folder:
    Path(folder, "mine.py").write_text(source)
    for name in ("Right", "Wrong", "Absent"):
        words = f"-m unmasked doctor mine.py:{name} --embed-dim 12 --num-heads 3".split()
        run = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        codes[name] = run.returncode
        print("$ python", *words, "\n" + run.stdout + run.stderr)

# %% [markdown]
# `--json` prints the report for other programs; `--causal`, `--inputs qkv`, `--weights query=a.weight` and `--strict`
# say what the options of `diagnose` say.
#
# ## In a test suite
#
# One line tests a module for all of this. Findings that you know of and accept are named with `but`, as in
# `but=["missing-scale"]`:

# %%
from unmasked.testing import assert_attention


def test_my_layer_attends():
    assert_attention(Repaired(12, 3), embed_dim=12, causal=True)


torch.manual_seed(9)
test_my_layer_attends()


# %%
#| raises: AssertionError: merge-without-transpose
torch.manual_seed(9)
assert_attention(Mine(12, 3), embed_dim=12, causal=True)

# %% [markdown]
# ## Exercises
#
# `check` judges an answer by the name in brackets: [how to do the exercises](install.md#do-the-exercises).
#
# **Plant a mistake** (`plant-a-mistake`). Write attention of one tensor, (batch, tokens, features), without learned
# matrices and with one mistake of the museum, and pass it with its name. The doctor must find the same.
#
# ??? question "Hint"
#
#     Three lines are attention. Leave something out.

# %% tags=["solution"]
from unmasked.exercises import check


def planted(x):
    scores = x @ x.mT
    return scores.softmax(dim=-1) @ x


check("plant-a-mistake", (planted, "missing-scale"))

# %% [markdown]
# **Get past the doctor** (`get-past-the-doctor`). Write causal attention of one tensor, without learned matrices, that
# the doctor passes, though in sequences of more than 100<!--~ a length of our choice --> tokens it lets later tokens
# through.
#
# ??? question "Hint"
#
#     The doctor looks from outside, with the smallest sizes that show a mistake. What does a function know about `x`?


# %% tags=["solution"]
def treacherous(x):
    return self_attention(x, is_causal=x.size(1) <= 100).context


check("get-past-the-doctor", treacherous)

# %% [markdown]
# No test from outside proves that there is no mistake: it proves that those it looked for are not there, at the sizes
# that it tried.
#
# ## What to read next
#
# - [The museum of mistakes](museum/index.py): each mistake beside its fix.
# - [Is my multi-head attention right?](pytorch/from_scratch.py): equality with PyTorch, option by option.
#
# ## References
#
# <!--~ 2017, 3.2, 2019, 3: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2, the steps.
# - Lee et al. (2019), *Set Transformer*: section 3, attention and the order of a set.
