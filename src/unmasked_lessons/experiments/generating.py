"""Writing on from a text, with a cache and without one, for the script `cache.js`; and scores of the next word."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unmasked.cache import KVCache
from unmasked_lessons.teaching import Singer


def story(model: Singer, prompt: Tensor, steps: int) -> dict[str, Any]:
    """Write on from a prompt without a cache and with one, and note what each step did; the scores must be the same.

    Args:
        model: What writes.
        prompt: The ids of its words, (1, words).
        steps: How many words to write.

    Returns:
        "words": those of the prompt, then those that were written.
        "prompt": the count of the first.
        "kept": how many bytes the cache kept after each step.
        "likely": for each step the three likeliest words, with their probabilities.
        "computed": for how many words each step computed keys and values, "without" a cache and "with" one.
    """
    counted: list[int] = []  # for each pass, the count of words for which the first layer makes keys and values

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
    """Mark the words for which each of the first steps of a `story` computes keys and values.

    Returns:
        Ones and zeros, (steps, words): "without a cache", and "with a cache".
    """
    until = record["prompt"] + torch.arange(steps)[:, None]
    index = torch.arange(int(until.max()))
    marks = {}
    for way, counts in record["computed"].items():
        since = until - torch.tensor(counts[:steps])[:, None]
        marks[f"{way} a cache"] = ((index < until) & (index >= since)).float()
    return marks


def next_scores(model: Singer, texts: Sequence[str]) -> dict[str, Any]:
    """Score the words that may follow each text, for the script `temperature.js`.

    Returns:
        "words": those that the model knows.
        "texts": each "text", with the "scores" of these words, (vocabulary,).
    """
    scored = [{"text": f"{text} …", "scores": model(model.numbers_of(text))[0, -1]} for text in texts]
    return {"words": model.vocabulary, "texts": scored}
