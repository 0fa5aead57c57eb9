"""One table for the refusals of a module: each message, and the calls that raise it."""

from collections.abc import Callable, Mapping

import pytest

Calls = Callable[[], object] | tuple[Callable[[], object], ...]


def refused(
    table: Mapping[type[Exception], Mapping[str, Calls]], afterwards: Callable[[], bool] = lambda: True
) -> Callable[..., None]:
    """Make a test of a table: of errors, their texts, and the calls that must raise them where nothing checks types.

    A text is whole, from its first word to its last, unless it ends in three dots. What must hold after each call is
    `afterwards`.
    """
    rows = [(error, text, calls) for error, texts in table.items() for text, calls in texts.items()]

    @pytest.mark.usefixtures("unhooked")
    @pytest.mark.parametrize(("error", "text", "calls"), rows, ids=[text for _, text, _ in rows])
    def test(error: type[Exception], text: str, calls: Calls) -> None:
        for call in calls if isinstance(calls, tuple) else (calls,):
            with pytest.raises(error) as caught:
                call()
            message = str(caught.value)
            assert message.startswith(text.removesuffix("...")) if text.endswith("...") else message == text, message
            assert afterwards()

    return test
