# %% [markdown]
# # Two sequences: cross-attention
#
# **In cross-attention one sentence asks and another answers: the queries come from one sentence, the keys and values
# from the other.**

# %% tags=["hide-input", "imports"]
#| caption: A small model translates into French. What does it look at in the English sentence, before it writes each
#|   French word? To write *chat*, it looks at *cat*.
#| script: ../../src/unmasked_lessons/figures/translation.js
#| data: {"sentences": sentences, "start": 1}
import torch
from torch import nn

from unmasked import attend, plot
from unmasked_lessons import teaching
from unmasked_lessons.embeddings import ship_vectors

read = ["the", "black", "cat", "looks", "at", "the", "red", "ship"]
written = ["le", "chat", "noir", "regarde", "le", "navire", "rouge"]
pairs = [(read, written), *teaching.translations(512)[1:]]
looks, correct = teaching.translate(pairs)
alignment = looks[0]
sentences = [
    {"read": english, "written": french, "weights": each}
    for (english, french), each in zip(pairs[:3], looks)
]
plot.grid(alignment, "weights", queries=written, keys=read)

# %% [markdown]
# This page leaves the song, which is one text, for a while. A translator reads one sentence and writes another. A row
# of things, words or pieces of a picture, is called a *sequence*.
#
# <div class="overview" data-here="cross"></div>

# %% tags=["claims"]
assert alignment[1, 2] > 0.8, "To write chat, it looks at cat"

# %% [markdown]
# ## Read the picture
#
# Choose the French words in [Figure 1](#figure-1), one after the other. Nobody told the model which English word
# belongs to which. It was trained to write the next French word, and over 95% of its words are correct. The next word
# is not written yet, so the word before it asks: *le* asks for what comes after *le*.
#
# French puts the adjective after the noun. So to write *chat*, its second word, the model looks at the third English
# word, and to write *noir* it goes back to the second. For *regarde* it gives {{ alignment[3, 3] :.0%}} to *looks*, and
# hardly anything to *at*, which stands after every verb of these sentences and so tells nothing. Where it looks for
# *le* does not matter: every sentence has *le* in these places.

# %% tags=["claims"]
assert correct > 0.95, "and over 95% of its words are correct"
assert alignment[1].argmax() == 2 and alignment[2].argmax() == 1, (
    "the model looks at the third English word, and to write noir it goes back to the second"
)
assert alignment[3, 3] > 0.8 and alignment[3, 4] < 0.1, (
    "and hardly anything to at"
)
assert all(english[4] == "at" for english, _ in pairs), (
    "which stands after every verb of these sentences and so tells nothing"
)
assert all(french[0] == french[4] == "le" for _, french in pairs), (
    "every sentence has le in these places"
)

# %% [markdown]
# ## One sentence asks the other
#
# The computation is the one that you know, and only the inputs differ. Let $X$ be the sentence that answers, and $Y$
# the one that asks. Here six words ask eleven, with the word vectors as they are:

# %%
X = ship_vectors().lookup("i must go back to my ship and to my crew")
Y = ship_vectors().lookup("we process and ship your order")

scores = Y @ X.mT / Y.size(-1) ** 0.5  # queries keys
weights = scores.softmax(dim=-1)
context = weights @ X
weights.shape, context.shape

# %% [markdown]
# The table of weights is no longer square: it has a row for each query and a column for each key. Each of the six words
# that ask gets an average of the other sentence, and knows nothing of its own neighbors. As one equation:
#
# $$\operatorname{CrossAttention}(Y, X) = \operatorname{softmax}\left(\frac{Y X^\top}{\sqrt{d}}\right) X \tag{7.1}$$
# <!-- where: Y, X = random("n d", "m d");
# CrossAttention = lambda asking, asked: attend(asking, asked, asked).context -->

# %% tags=["claims"]
assert weights.shape == (len(Y), len(X)), (
    "it has a row for each query and a column for each key"
)
assert torch.allclose(context, attend(Y, X, X).context, atol=1e-5), (
    "The computation is the one that you know"
)

# %% [markdown]
# `nn.MultiheadAttention` calls its inputs *query, key and value*. For cross-attention, give it the sentence that asks,
# and twice the one that answers, called the *source*. (In a translator, matrices make queries of the one, and keys and
# values of the other.)

# %% tags=["check"]
torch.manual_seed(0)
module = nn.MultiheadAttention(12, 3, batch_first=True)
# batch_first: sentences words features, here one sentence of each.
writing, source = torch.randn(1, 5, 12), torch.randn(1, 7, 12)
output, average = module(writing, source, source)

# %% [markdown]
# ## Do chat models have it?
#
# Most of them do not. A chat model puts your question and its answer into one sequence, and self-attention under the
# causal mask looks back at all of it. Cross-attention is for a second sequence, often in another language or of another
# kind. Translators have it, and programs that write down what somebody says, or draw what a text describes. Some chat
# models ask pictures by cross-attention. Others put the pieces of a picture into their one sequence, as if they were
# words.
#
# The part of a model that reads the source is called the *encoder*, and the part that writes the *decoder*. A
# [block](block.py) of a translator's decoder has three parts: self-attention, then cross-attention, then the MLP. The
# source is usually known as a whole, so no future is hidden in it, but only padding ([mind what `True`
# means](masks.py#two-traps)). Then it stays the same while the decoder writes, so its keys and values are computed
# once, and serve for every word.

# %% tags=["check"]
called = []  # the parts of PyTorch's decoder block, one after the other
torch.manual_seed(0)
decoder = nn.TransformerDecoderLayer(12, 3, 24, batch_first=True)
for name, part in decoder.named_children():
    part.register_forward_hook(lambda *_, name=name: called.append(name))
_ = decoder(writing, source)

# %% tags=["claims"]
assert module.forward.__code__.co_varnames[1:4] == (
    "query",
    "key",
    "value",
), "nn.MultiheadAttention calls its inputs query, key and value"
assert average.shape == (1, 5, 7), (
    "For cross-attention, give it the sentence that asks, and twice the one that answers"
)
assert [name for name in called if name.endswith(("attn", "linear1"))] == [
    "self_attn",
    "multihead_attn",
    "linear1",
], "has three parts: self-attention, then cross-attention, then the MLP"

# %% [markdown]
# ## Recap
#
# - Queries come from one sequence, keys and values from another; the weights have a row for each query and a column for
#   each key.
# - The padding of the source is hidden, and no future. Most chat models have one sequence, and no cross-attention.

# %% tags=["claims"]
assert weights.shape == (len(Y), len(X)), (
    "the weights have a row for each query and a column for each key"
)
# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("cross-attention", answer))`.
#
# **Ask another sequence** (`cross-attention`). Write `cross(x, memory)` for tensors of (batch, tokens, features): every
# token of `x` gets an average of the tokens of `memory`, without matrices.
#
# ??? question "Hint"
#
#     Which of the two gives the number of rows? Which one is averaged?

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def cross(x, memory):
    scores = x @ memory.mT / x.size(-1) ** 0.5
    return scores.softmax(dim=-1) @ memory


feedback = check("cross-attention", cross)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Writing one word at a time](generating.py) is the next page: how a model writes, and what it keeps.
# - [Masks, interface by interface](../pytorch/masks.py): what each of them makes of yours.
#
# ??? note "The papers"
#
#     <!--~ 2017, 3.2.3, 3.2.1, 1, 2015, 3.1: references -->
#     - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, first item, for queries from the decoder
#       with keys and values from the encoder; section 3.2.1, equation 1, for (7.1).
#     - Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and Translate*:
#       section 3.1, where a decoder first asks the words of a source.
