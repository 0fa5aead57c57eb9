"""A word on its way through the singer: the data of the scripts `singer.js` and `strip.js`, and a still picture."""

from typing import Any

from unmasked_lessons.teaching.song import STEPS, Singer, step

ZERO = 79  # the character of a number that is zero: all others are printable, too


def packed(singer: Singer) -> dict[str, Any]:
    """A singer as the script reads it: each number is a character, so many steps behind that of zero, or before it.

    Raises:
        ValueError: The singer is not rounded.
    """
    parameters: dict[str, list[float | str]] = {}
    for name, numbers in singer.state_dict().items():
        size = step(numbers)
        steps = (numbers / size).round()
        if not (size * steps.double()).float().equal(numbers) or steps.abs().max() > STEPS:
            raise ValueError(f"singer has a {name} of other than {STEPS} steps up or down: pass singer.rounded()")
        rows = steps.long().view(-1, numbers.size(-1)).tolist()
        parameters[name] = [size, *("".join(chr(ZERO + each) for each in row) for row in rows)]
    return {
        "words": singer.vocabulary,
        "heads": singer.HEADS,
        "length": singer.LENGTH,
        "parameters": parameters,
    }
