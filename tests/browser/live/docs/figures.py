# %% [markdown]
# # Figures that live
#
# Each of them begins with what this page's run gave.

# %% tags=["imports"]
import torch

from unmasked import plot, self_attention
from unmasked_lessons.figures import sentence

sentences = sentence.ask("ship", "i must go back to my ship and to my crew", "we process and ship your order")

# %%
#| caption: What a word takes.
#| script: live/sentence.js
#| data: sentence.script_data(sentences)
plot.grid(sentences[1].weights, "weights", rows=sentences[1].words, columns=sentences[1].words)

# %%
#| caption: Both, side by side.
#| script: live/sentence.js
#| data: sentence.script_data(sentences, together=True)
plot.grid(sentences[1].weights, "weights", rows=sentences[1].words, columns=sentences[1].words)

# %%
#| caption: Three arrows.
#| script: live/arrows.js
#| data: {"names": names, "vectors": arrows, "weights": averaged.weights, "context": averaged.context}
names, arrows = ["ship", "crew", "order"], torch.tensor([[2.0, 1.0], [1.0, 2.0], [-1.5, 0.5]])
averaged = self_attention(arrows)
plot.grid(averaged.weights, "weights", rows=names, columns=names)

# %%
#| caption: A sure softmax.
#| script: live/scale.js
#| data: given
torch.manual_seed(0)
given = {"sizes": [4, 64, 1024], "scaled": [], "unscaled": [], "gradient_scaled": [], "gradient_unscaled": []}
for size in given["sizes"]:
    query, key, values, upstream = torch.randn(4, 500, 10, size, dtype=torch.float64)
    for name, scale in (("scaled", size**-0.5), ("unscaled", 1.0)):
        asked = query[:, :1].clone().requires_grad_()
        weights = (scale * asked @ key.mT).softmax(-1)
        (gradient,) = torch.autograd.grad(weights @ values, asked, upstream[:, :1])
        given[name].append(weights.detach()[:, 0].sort(descending=True).values.mean(0))
        given[f"gradient_{name}"].append(gradient.norm(dim=-1).flatten().quantile(torch.arange(1, 40, 2).double() / 40))
plot.grid(torch.stack(given["scaled"]), "weights", rows=[f"d = {size}" for size in given["sizes"]])

# %%
#| caption: Tiles.
#| script: live/tiles.js
#| data: {"scores": row, "hidden": [key < 2 for key in range(7)], "values": row.flip(0) / 2, "sizes": [1, 2, 7]}
row = torch.tensor([2.0, -1.0, 0.5, -0.75, 1.5, 1.25, -2.0])
plot.grid(row[None], "scores", rows=["query"], columns=list("0123456"))

# %%
#| caption: A training.
#| script: live/training.js
#| data: run
queries, keys = ["red", "green", "blue"], ["blue", "red", "sun", "green"]
scores = torch.zeros(3, 4, requires_grad=True)
run = {"steps": [], "loss": [], "weights": [], "queries": queries, "keys": keys}
optimizer = torch.optim.Adam([scores], lr=0.1)
for step in range(0, 101):
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor([1, 3, 0]))
    if step % 2 == 0:
        run["steps"].append(step)
        run["loss"].append(loss.item())
        run["weights"].append(scores.detach().softmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
plot.grid(run["weights"][-1], "weights", rows=queries, columns=keys)

# %%
#| caption: Chances.
#| script: live/temperature.js
#| data: chances
chances = {"words": list("abcdefghi"), "texts": []}
for text, warm in (("sure", 3.0), ("unsure", 1.0)):
    chances["texts"].append(
        {"text": text, "scores": [warm * place for place in (0, 1.5, -1, 2, 0.5, -2, 1, -0.5, 2.5)]}
    )
plot.grid(torch.tensor(chances["texts"][0]["scores"])[None], "scores", rows=["sure"], columns=chances["words"])

# %%
#| caption: Parts.
#| script: live/parts.js
#| data: {"right": ["we", "sail", "home"], "songs": songs}
songs = [{"name": "whole", "words": ["we", "sail", "home"], "share": 1.0}]
songs.append({"name": "without sails", "words": ["we", "row", "row"], "share": 0.02})
plot.table(["Crew", "Sings"], [(song["name"], " ".join(song["words"])) for song in songs])

# %%
#| caption: A text that is written.
#| script: live/cache.js
#| data: story
story = {"words": ["we", "sail", "on", "and", "on", "until", "we", "see", "land"], "prompt": 2, "likely": []}
story["computed"] = {"without": [2, 3, 4, 5, 6, 7, 8], "with": [2, 1, 1, 1, 1, 1, 1]}
story["kept"] = [330 * words for words in story["computed"]["without"]]
for place, word in enumerate(story["words"][2:]):
    story["likely"].append([[word, 0.9 - place / 100], ["ship", 0.06], ["crew", 0.002]])
plot.grid(torch.eye(7), "computed", rows=[f"step {n + 1}" for n in range(7)])
