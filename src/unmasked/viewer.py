"""The old place of `unmasked.plot.show`."""

from typing import TYPE_CHECKING

from unmasked._renamed import renamed

__all__: list[str] = []

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Viewer": "unmasked.plot:Viewer", "show": "unmasked.plot:show"})
