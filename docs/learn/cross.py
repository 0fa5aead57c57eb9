# %% [markdown]
# # Two sequences: cross-attention
#
# **In cross-attention one sentence asks and another answers: the queries come from one sentence, the keys and values
# from the other.**

# %% tags=["hide-input", "imports"]
#| caption: A small model translates into French. Rows are queries, columns are keys. A row has the French word that was
#|   just written, and the one that is to be written next. To write *chat*, the model looks at *cat*.
from itertools import pairwise

import torch
from torch import nn

from unmasked import attend, plot, teaching
from unmasked.embeddings import ship_vectors

read = ["the", "black", "cat", "looks", "at", "the", "red", "ship"]
written = ["le", "chat", "noir", "regarde", "le", "navire", "rouge"]
pairs = [(read, written), *teaching.translations(512)[1:]]
(alignment, *_), correct = teaching.translate(pairs)
steps = [f"{before} → {word}" for before, word in pairwise(["", *written])]
plot.grid(alignment, "weights", queries=steps, keys=read)

# %% [markdown]
# A translator reads one sentence and writes another. Before it writes *chat*, it has to find *cat*. Cross-attention is
# how: what is written asks what was read. The same step lets a model that draws pictures ask the words that say what to
# draw. Whatever stands in a row, words or pieces of a picture, is called a *sequence*.
#
# <div class="overview" data-here="cross"></div>

# %% tags=["claims"]
assert alignment[1, 2] > 0.8, "To write chat, the model looks at cat"

# %% [markdown]
# ## Read the picture
#
# Nobody told the model which word belongs to which. It was trained to write the next French word, and over 95% of its
# words are correct. It writes one word after the other. The word that is to be written does not stand there yet, so the
# query of its row is made of what is known by then: the word that was just written, and the place where the next word
# will stand. The row *le → chat* asks with *le*, in order to find that *chat* comes next. The place tells this *le*
# from the second one, and each English word carries its place, too.
#
# French puts the adjective after the noun, so *chat* looks at the third English word and *noir* at the second.
# *regarde* takes nearly everything from *looks*. It could also have looked at *at*, but *at* stands after every verb of
# these sentences, and does not tell which verb it is. Where the rows of *le* look does not matter: every sentence has
# *le* in these places, and the model knows that without looking.

# %% tags=["claims"]
assert correct > 0.95, "and over 95% of its words are correct"
assert alignment[1].argmax() == 2 and alignment[2].argmax() == 1, (
    "so chat looks at the third English word and noir at the second"
)
assert alignment[3, 3] > 0.8, "regarde takes nearly everything from looks"
assert all(english[4] == "at" for english, _ in pairs), (
    "but at stands after every verb of these sentences"
)
assert all(french[0] == french[4] == "le" for _, french in pairs), (
    "every sentence has le in these places"
)

# %% [markdown]
# ## One sentence asks the other
#
# The computation is the one that you know. Only the inputs differ. Here six words ask eleven, with the word vectors as
# they are:

# %%
X = ship_vectors().lookup("i must go back to my ship and to my crew")
Y = ship_vectors().lookup("we process and ship your order")

scores = Y @ X.mT / Y.size(-1) ** 0.5  # queries keys
weights = scores.softmax(dim=-1)
context = weights @ X
weights.shape, context.shape

# %% [markdown]
# The table of weights is no longer square: it has a row for each query and a column for each key. Each of the six words
# that ask gets an average of the other sentence. In this step a word that asks knows nothing of its own neighbors (a
# translator has self-attention, too, for those): *ship* takes 55%<!--= weights[3, 6] --> from the other *ship*,
# whatever stands around it. And a word that finds nothing like itself, such as *order*, must still divide all of its
# weight among the words of the other sentence.

# %% tags=["claims"]
assert weights.shape == (len(Y), len(X)), (
    "it has a row for each query and a column for each key"
)
assert torch.allclose(context, attend(Y, X, X).context, atol=1e-5), (
    "The computation is the one that you know"
)

# %% [markdown]
# ## Which input decides what?
#
# `nn.MultiheadAttention` calls its inputs *query, key and value*. They are not queries, keys and values yet: the module
# has three<!--= module.in_proj_weight.size(0) / module.embed_dim --> matrices of its own, and multiplies each input by
# one of them first. For cross-attention, the last two inputs are the same. Here a word has 12<!--= module.embed_dim -->
# numbers, and there are three heads:

# %%
torch.manual_seed(0)
module = nn.MultiheadAttention(12, 3, batch_first=True)
# batch_first: sentences words features, here one sentence of each.
writing, source = torch.randn(1, 5, 12), torch.randn(1, 7, 12)
output, average = module(writing, source, source)
output.shape, average.shape

# %% [markdown]
# `output` holds a vector for each of the five words that are being written. `average` holds a row of weights for each
# of them, with a weight for each of the seven words of the source. These weights are an average over the heads.
#
# | Input | Decides |
# | --- | --- |
# | query | how many rows weights and output have |
# | key | how many columns the weights have |
# | value | what is averaged |
#
# Change one word of what is being written, and only its own output changes. Change one word of the source, and every
# output changes. The order of the source does not matter to attention, if keys and values are shuffled together. A
# translator must know it, so each word of the source carries its [position](positions.py).
#
# A translator writes word by word, but the source stays the same. So it computes the keys and values of the source
# once, and uses them for every word that it writes. The part of a model that reads the source is called the *encoder*,
# and the part that writes the *decoder*.
#
# In the decoder, a [block](block.py) has three parts: self-attention, then cross-attention, then the MLP. So a word
# first learns from the words that are written already, then from the source. Each part has a norm and a residual
# connection of its own. (The map above has a single box for attention. *Two texts* stands there for a second one, after
# the first.)

# %% tags=["check"]
from unmasked.figures.block import moves

of_query = moves(lambda x: module(x, source, source)[0], writing)
of_key = moves(lambda x: module(writing, x, source)[0], source)
of_value = moves(lambda x: module(writing, source, x)[0], source)
mixed = source[:, [6, 2, 0, 4, 1, 5, 3]]
of_other_values, the_same = module(writing, source, source + 1)
_, by_head = module(writing, source, source, average_attn_weights=False)

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
assert torch.allclose(by_head.mean(1), average, atol=1e-5), (
    "These weights are an average over the heads"
)
assert output.size(1) == average.size(1) == writing.size(1), (
    "query how many rows weights and output have"
)
assert average.size(2) == source.size(1), (
    "key how many columns the weights have"
)
assert torch.allclose(the_same, average, atol=1e-5) and not torch.allclose(
    of_other_values, output, atol=1e-3
), "value what is averaged"
assert of_query.equal(torch.eye(5) > 0), (
    "Change one word of what is being written, and only its own output changes"
)
assert of_key.all() and of_value.all(), (
    "Change one word of the source, and every output changes"
)
assert torch.allclose(
    module(writing, mixed, mixed)[0], output, atol=1e-5
) and not torch.allclose(
    module(writing, mixed, source)[0], output, atol=1e-2
), (
    "The order of the source does not matter to attention, if keys and values are shuffled together"
)
assert [name for name in called if name.endswith(("attn", "linear1"))] == [
    "self_attn",
    "multihead_attn",
    "linear1",
], "has three parts: self-attention, then cross-attention, then the MLP"
assert sum(name.startswith("norm") for name in called) == 3, (
    "Each part has a norm"
)

# %% [markdown]
# ## Where masks apply
#
# The source of a translation is known as a whole, so there is no future to hide. Padding must be hidden, though: the
# padding of the *source*, whose columns are closed to every query. A causal mask is needed in one case: an interpreter
# who begins before the speaker has finished. Such a model waits for two words, writes one, hears one more, and so on.

# %% tags=["hide-input"]
#| caption: Two masks for cross-attention, five queries by seven keys. Rows are queries, columns are keys. Hatched cells
#|   are hidden. With padding the last two columns are hidden; the interpreter sees one more word in every row.
padding = (torch.arange(7) < 5).expand(5, 7)
heard = torch.arange(7) < torch.arange(5)[:, None] + 2
kinds = {"padding of the source": padding, "interpreter": heard}
shown = {name: each.int() for name, each in kinds.items()}
plot.grid(shown, queries="12345", keys="1234567", allowed=kinds)

# %% [markdown]
# In PyTorch's module the first of these is `key_padding_mask`, and the second is `attn_mask`; [mind what `True`
# means](masks.py#the-surprise-true-means-two-things) there. With $Y$ for the sequence that asks and $X$ for the one
# that answers, and without learned matrices, all of it is
#
# $$\operatorname{CrossAttention}(Y, X) = \operatorname{softmax}\left(\frac{Y X^\top}{\sqrt{d}}\right) X \tag{8.1}$$
# <!-- where: Y, X = random("n d", "m d");
# CrossAttention = lambda asking, asked: attend(asking, asked, asked).context -->

# %% tags=["claims"]
assert padding[:, :5].all() and not padding[:, 5:].any(), (
    "With padding the last two columns are hidden"
)
assert (heard.sum(1).diff() == 1).all(), (
    "the interpreter sees one more word in every row"
)
assert heard.sum(1).tolist() == [2, 3, 4, 5, 6], (
    "Such a model waits for two words, writes one, hears one more, and so on"
)

# %% [markdown]
# ## Recap
#
# - Queries come from one sequence, keys and values from another; the weights have a row for each query and a column for
#   each key.
# - A query changes its own output. A key or a value changes every output.
# - The padding of the source is hidden. A causal mask is rare here.

# %% tags=["claims"]
assert weights.shape == (len(Y), len(X)), (
    "the weights have a row for each query and a column for each key"
)
assert of_query.equal(torch.eye(5) > 0) and of_key.all() and of_value.all(), (
    "A query changes its own output. A key or a value changes every output"
)
# %% [markdown]
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **Ask another sequence** (`cross-attention`). Write `cross(x, memory)` for tensors of (batch, tokens, features): every
# token of `x` gets an average of the tokens of `memory`, without matrices.
#
# ??? question "Hint"
#
#     Which of the two gives the number of rows? Which one is averaged?

# %% tags=["solution"]
from unmasked.exercises import check


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
# - [What is attention?](attention.py) is where the track begins.
# - [Masks, interface by interface](../pytorch/masks.py): the alignment of causal masks, and what each interface makes
#   of yours.
# - [A pair that comes from no sequence](../pytorch/heads.py#a-pair-that-comes-from-no-sequence): keys and values that
#   are learned.
#
# ## References
#
# <!--~ 2017, 3.2.3, 3.2.1, 1, 2015, 3.1: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, first item, for queries from the decoder with
#   keys and values from the encoder; section 3.2.1, equation 1, for (8.1).
# - Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and Translate*: section
#   3.1, where a decoder first asks the words of a source.
