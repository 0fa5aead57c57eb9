"""Notices what code does with random generators: torch's, Python's and NumPy's.

Whoever asks looks at the states of the global ones before the code and after it, and so does who seeds one. What was
seen stands in one list, of which a step of a page and each of its statements has a part.
"""

import functools
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from ..keep.watch import Watch, asks
from ..lazy_import import when_imported

PYTHON, TORCH, NUMPY = LIBRARIES = "Python's", "torch's", "NumPy's"


class Event(NamedTuple):
    """What was done with a random generator."""

    did: Literal["draws", "seeds", "makes"]  # the last without a seed
    generator: str  # a global one begins with whose it is: "torch's", or "torch's CUDA (0)"

    @property
    def whose(self) -> str:
        """The library of the generator, one of LIBRARIES."""
        return self.generator.partition(" ")[0]


def unseeded(events: Sequence[Event]) -> list[Event]:
    """Those that make a generator without a seed, or draw from one that was not seeded before."""
    seeds = {event.whose: place for place, event in reversed([*enumerate(events)]) if event.did == "seeds"}
    return [
        event
        for place, event in enumerate(events)
        if event.did == "makes" or (event.did == "draws" and place < seeds.get(event.whose, len(events)))
    ]


class Generators:
    """The random generators of this process, watched from now on for the page that a `Watch` belongs to."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._events: list[Event] = []
        self._states: dict[str, Any] = {}
        self._libraries: dict[str, Any] = {}
        seed = random.Random.seed

        def seeded(generator: random.Random, a: Any = None, *arguments: Any, **keywords: Any) -> None:
            self._make(a, PYTHON)
            seed(generator, a, *arguments, **keywords)

        random.Random.seed = seeded  # type: ignore[assignment,method-assign]
        self._libraries[PYTHON] = random
        random.seed = self._seeding(random.seed, PYTHON)
        when_imported("torch", self._watch_torch)
        when_imported("numpy.random", self._watch_numpy)

    def begin(self) -> Callable[[], Sequence[Event]]:
        """Begin to watch some code; what this returns gives what that code has done until then."""
        self._look(*self._libraries)
        start = len(self._events)

        def end() -> Sequence[Event]:
            self._look(*self._libraries)
            return self._events[start:]

        return end

    def _watch_torch(self, torch: Any) -> None:
        self._libraries[TORCH] = torch
        torch.manual_seed = torch.random.manual_seed = self._seeding(torch.manual_seed, TORCH)
        self._look(TORCH)  # the code that imports it may draw at once

    def _watch_numpy(self, numpy: Any) -> None:
        self._libraries[NUMPY] = numpy
        numpy.seed = self._seeding(numpy.seed, NUMPY)
        drawn = numpy.bit_generator.randbits  # which every generator begins with that has no seed

        def randbits(bits: int) -> int:
            # RandomState begins with none, and then takes its own.
            if "RandomState" not in sys._getframe(1).f_code.co_names:
                self._make(None, NUMPY)
            return int(drawn(bits))

        numpy.bit_generator.randbits = randbits
        self._look(NUMPY)

    def _make(self, seed: Any, whose: str) -> None:
        """A generator begins with a seed; libraries may go without one, as they see fit."""
        if seed is None and asks(sys._getframe(1), self._watch, __file__, f"{os.sep}random.py"):
            self._events.append(Event("makes", whose))

    def _seeding(self, seed: Any, whose: str) -> Any:
        @functools.wraps(seed)
        def seeded(*arguments: Any, **keywords: Any) -> Any:
            self._look(whose)
            made = seed(*arguments, **keywords)
            self._states |= self._now(whose)
            self._events.append(Event("seeds", whose))
            return made

        return seeded

    def _look(self, *libraries: str) -> None:
        """Take note of the generators that were drawn from since they were last looked at."""
        for generator, state in [each for whose in libraries for each in self._now(whose)]:
            before = self._states.get(generator, state)
            if not (state.equal(before) if hasattr(state, "equal") else state == before):
                self._events.append(Event("draws", generator))
            self._states[generator] = state

    def _now(self, whose: str) -> Iterator[tuple[str, Any]]:
        library = self._libraries[whose]
        if whose == PYTHON:
            yield whose, library.getstate()
        elif whose == TORCH:
            yield whose, library.get_rng_state()
            if library.cuda.is_initialized():
                states = library.cuda.get_rng_state_all()
                yield from ((f"{whose} CUDA ({i})", state) for i, state in enumerate(states))
        else:
            _, keys, *place = library.get_state()
            yield whose, (keys.tobytes(), place)
