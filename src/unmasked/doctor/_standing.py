"""Whether what attention gives for a token comes out at this token, in windows, grids and chunks too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from unmasked.doctor._look import Inside, Look, Run, moved
from unmasked.doctor._observed import Event
from unmasked.doctor._patient import Patient
from unmasked.doctor._weights import Weights

__all__ = ["keeps_places"]


def keeps_places(patient: Patient) -> None:
    """Follow a token's query to the row of weights that it makes, and what this row gives to the output.

    The query is made of this token alone, or nothing is said; then the output of this token must notice what is added
    to what its weights give. So it is in all attention whose queries are tokens, however they are cut and gathered.
    """
    look = Look(patient, Inside())
    keys = patient.tokens if patient.options.own else patient.fixed or patient.tokens + 3
    try:
        case = patient.case(patient.items, patient.tokens, keys, _NONE, causal=False)
        if case.allowed is not None:
            case = replace(case, allowed=torch.ones_like(case.allowed))
        base = look.run(case)
        calls = list(_calls(base))
        asked = [(n % patient.items, token) for n, token in enumerate((1, patient.tokens // 2, patient.tokens - 2))]
        strays = [_strays(look, base, calls, *each) for each in asked]
    except Exception:  # such as a length that it does not take, which others ask about
        return
    found = [stray for stray in strays if stray is not None]
    shifted = patient.causal and all(there == [here + 1] for here, there in found)  # so that none sees itself
    if not found or shifted:
        return
    told = "what attention gives for a token comes out at others: its outputs stand at other places than its tokens"
    here, there = found[0]
    evidence = patient.sized(f"what the query of token {here} gives moves the output of {there}, and not its own")
    patient.find("an output belongs to its own token", None, told, evidence)


_NONE = Weights({}, {}, 1, 1)


def _strays(look: Look, base: Run, calls: list[_Rows], item: int, token: int) -> tuple[int, list[int]] | None:
    """Where in the outputs comes what this token asks for, if it does not come to its own."""
    own = torch.zeros(base.case.query.shape[:2], dtype=torch.bool)
    own[item, token] = True
    for call in calls:
        rows = call.moved(look, base, own) & ~call.moved(look, base, ~own)
        places = call.places[rows]
        if not len(places):
            continue
        reached = [_reached(look, base, call.place, which) for which in (places, places[:1], places[-1:])]
        if any(other != reached[0] for other in reached[1:]):
            continue  # each head's comes elsewhere
        there = [n for other, n in reached[0] if other == item]
        if there and len(there) == len(reached[0]) and token not in there:
            return token, there
    return None


def _reached(look: Look, base: Run, place: int, where: Tensor) -> list[tuple[int, int]]:
    def put(result: Tensor) -> Tensor:
        flat = result.reshape(-1).clone()
        flat[where.reshape(-1)] += 1.0 + torch.arange(where.numel()).to(flat) % 7
        return flat.view(result.shape)

    which = moved(base.output, look.run(base.case, {place: put}).output)
    return [(item, n) for item, n in which.nonzero().tolist()]


class _Rows:
    """One product of weights and values.

    Attributes:
        place: The number of its event.
        places: Where what a row of weights gives stands in the event's result: (every axis but the keys', features).
        first: The place of the event that the rows of weights are made of.
        arrange: Brings what such an event makes the rows of to their order.
    """

    def __init__(self, place: int, places: Tensor, first: int, arrange: Callable[[Event], Tensor]):
        self.place, self.places, self.first, self.arrange = place, places, first, arrange

    def moved(self, look: Look, base: Run, which: Tensor) -> Tensor:
        """Which rows notice when these tokens are changed a little."""
        x, small = base.case.query, 0.05 if look.rough else 1e-4  # what is sorted keeps its order
        other = torch.where(which[..., None], x + small * (x.flip(-1) + 0.5), x)
        run = look.run(look.changed(base.case, lambda given: other if given is x else given))
        if len(run.events) != len(base.events) or run.events[self.first].kind != "product":
            raise ValueError("what it does depends on its input")
        return moved(self.arrange(base.events[self.first]), self.arrange(run.events[self.first]))


def _calls(run: Run) -> Iterator[_Rows]:
    """Find softmaxes between two products, whatever their axes are."""
    events = run.events
    softmaxes = [n for n, event in enumerate(events) if event.kind == "softmax"]
    for at, end in ((n, n + more) for n in softmaxes for more in (1, 2, 3) if n + more < len(events)):
        last, soft = events[end], events[at].result
        if last.kind != "product":
            continue
        side = next((n for n in (0, 1) if torch.equal(last.given[n].reshape(-1), soft.reshape(-1))), None)
        if side is None:
            continue
        names, values, out = last.axes[side], last.axes[1 - side], last.axes[2]
        summed = [c for c in names if c in values and c not in out]
        shape = last.given[side].shape
        starts = [n for n in range(at - 1, -1, -1) if events[n].kind == "product" and events[n].result.shape == shape]
        if len(summed) != 1 or not starts:
            continue
        key, rows = names.index(summed[0]), [c for c in names if c != summed[0]]
        result = events[starts[0]].axes[2]
        asks = [n for n in (0, 1) if result[key] not in events[starts[0]].axes[n]]
        if len(asks) != 1 or any(c not in out for c in rows):
            continue
        wanted = [c for c in result if c != result[key]]
        if any(c not in events[starts[0]].axes[asks[0]] for c in wanted):
            continue
        places = torch.arange(last.result.numel()).view(last.result.shape)
        places = places.permute([out.index(c) for c in (*rows, *(c for c in out if c not in rows))])
        sizes = [n for i, n in enumerate(shape) if i != key]

        def arrange(event: Event, ask: int = asks[0], wanted: list[str] = wanted, sizes: list[int] = sizes) -> Tensor:
            x, axes = event.given[ask], event.axes[ask]
            x = x.permute([axes.index(c) for c in (*wanted, *(c for c in axes if c not in wanted))])
            return x.flatten(len(wanted)).expand(*sizes, -1)

        yield _Rows(end, places.flatten(len(rows)), starts[0], arrange)
