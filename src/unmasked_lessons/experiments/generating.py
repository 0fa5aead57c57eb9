"""Writing: with a cache beside without one, for the script `cache.js`; and scores of the next word."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unmasked.cache import KVCache
from unmasked_lessons.teaching import Singer


def story(model: Singer, prompt: Tensor, steps: int) -> dict[str, Any]:
    """Write on from a prompt, (1, words), without a cache and with one, and note what each step did.

    The scores must be the same. Returned are the "words" of the prompt and those that were written, and the count of
    those in the "prompt"; for how many words each step "computed" keys and values, "without" a cache and "with" one;
    how many bytes the cache "kept" after each step; and for each the three "likely" words with their probabilities.
    """
    counted: list[int] = []  # words that go through the layer that makes keys and values

    def count(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        counted.append(args[0].size(1))

    bytes_per_token = KVCache.bytes_per_token(model.HEADS, model.WIDTH // model.HEADS, num_layers=len(model.qkv))
    kept, likely = [], []
    text, new, caches = prompt, prompt, model.new_caches()
    hook = model.qkv[0].register_forward_hook(count)
    try:
        for _ in range(steps):
            scores = model(text)[0, -1]
            torch.testing.assert_close(model(new, caches)[0, -1], scores, rtol=1e-3, atol=1e-3)
            chances = scores.softmax(dim=-1).topk(3)
            words = model.words_of(chances.indices[None]).split()
            likely.append(list(zip(words, chances.values.tolist(), strict=True)))
            kept.append(caches[0].length * bytes_per_token)
            new = scores.argmax().view(1, 1)
            text = torch.cat([text, new], dim=1)
    finally:
        hook.remove()
    return {
        "words": model.words_of(text).split(),
        "prompt": prompt.size(1),
        "kept": kept,
        "likely": likely,
        "computed": {"without": counted[::2], "with": counted[1::2]},
    }


def computed(record: dict[str, Any], steps: int) -> dict[str, Tensor]:
    """Mark the words for which the first steps of a `story` compute keys and values: by the side, (steps, words)."""
    until = record["prompt"] + torch.arange(steps)[:, None]
    places = torch.arange(int(until.max()))
    by_side = {}
    for side, counts in record["computed"].items():
        since = until - torch.tensor(counts[:steps])[:, None]
        by_side[f"{side} a cache"] = ((places < until) & (places >= since)).float()
    return by_side


def next_scores(model: Singer, texts: Sequence[str]) -> dict[str, Any]:
    """Score the words that may follow each text, for the script `temperature.js`.

    Returned are the "words" that the model knows, and "texts", each with the "scores" of these words, (vocabulary,).
    """
    scored = [{"text": f"{text} …", "scores": model(model.numbers_of(text))[0, -1]} for text in texts]
    return {"words": model.vocabulary, "texts": scored}
