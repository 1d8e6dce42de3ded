"""Which dims are fastest within a memory limit? The best that fits of all that nothing beats.

A label is a walk's (seconds, bytes, widest): objective, bytes of weights and KV cache on a device,
and elements per token of its widest live tensor. At one state of one slot, a label is dropped if
another is no worse in all three: any continuation adds the same seconds and bytes to both and
takes the maximum with the same widths, so the other stays no worse, and fits where it fits. What is
left at the end holds an optimum of

    minimise seconds  subject to  bytes + widest * token_bytes <= room

over all assignments: exact, by induction over the slots. Layer kinds are merged the same way.
Labels that exceed the room even with the least that is to come are dropped as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from cluster.costmodel.sharding_states import Env

Way = tuple[int, Env, "Price"]
"""A way on from a state: the code of the dim, the state it leads to, and what it costs."""


@dataclass(frozen=True)
class Price:
    """What one way through one slot adds: seconds, bytes, and a width to take the maximum with."""

    seconds: float
    bytes_: float
    width: float


@dataclass(frozen=True)
class Label:
    """A walk so far; `codes` are the dims chosen, slot by slot."""

    seconds: float
    bytes_: float
    width: float
    codes: tuple[int, ...]

    def then(self, code: int, price: Price) -> Label:
        """One slot further."""
        return Label(
            self.seconds + price.seconds,
            self.bytes_ + price.bytes_,
            max(self.width, price.width),
            (*self.codes, code),
        )

    def beside(self, other: Label) -> Label:
        """Two layer kinds together."""
        return Label(
            self.seconds + other.seconds,
            self.bytes_ + other.bytes_,
            max(self.width, other.width),
            self.codes + other.codes,
        )


@dataclass(frozen=True)
class Stages:
    """One layer kind of one layout: from every state of every slot, the ways on."""

    start: Env
    ways: tuple[dict[Env, tuple[Way, ...]], ...]


def best_within(
    kinds: Sequence[Stages], *, room: float, token_bytes: float, width: float
) -> Label | None:
    """The fastest walk through all kinds that fits, None where none does.

    `width` is that of what has no choice; `token_bytes` its bytes per element at a full chunk.
    """
    least = [_least(kind) for kind in kinds]
    front = [Label(0.0, 0.0, width, ())]
    for index, kind in enumerate(kinds):
        # What the other kinds hold at the least is not there for this one.
        spared = sum(least[:index]) + sum(least[index + 1 :])
        own = _front(kind, room=room - spared, token_bytes=token_bytes, width=width)
        later = room - sum(least[index + 1 :])
        front = _unbeaten(
            made
            for left in front
            for right in own
            if (made := left.beside(right)).bytes_ + made.width * token_bytes <= later
        )
    return min(front, key=lambda label: label.seconds, default=None)


def _front(kind: Stages, *, room: float, token_bytes: float, width: float) -> list[Label]:
    coming = _least_after(kind)
    labels: dict[Env, list[Label]] = {kind.start: [Label(0.0, 0.0, width, ())]}
    for index, stage in enumerate(kind.ways):
        reached: dict[Env, list[Label]] = {}
        for env, found in labels.items():
            for code, then, price in stage[env]:
                if price.seconds == inf:
                    continue
                rest = coming[index + 1].get(then, 0.0)
                for label in found:
                    made = label.then(code, price)
                    if made.bytes_ + made.width * token_bytes + rest <= room:
                        reached.setdefault(then, []).append(made)
        labels = {env: _unbeaten(found) for env, found in reached.items()}
    return labels.get(kind.start, [])


def _least(kind: Stages) -> float:
    return _least_after(kind)[0][kind.start]


def _least_after(kind: Stages) -> list[dict[Env, float]]:
    """The fewest bytes that the slots from each on can add, by state."""
    after: list[dict[Env, float]] = [{kind.start: 0.0}]
    for stage in reversed(kind.ways):
        after.insert(
            0,
            {
                env: min(
                    price.bytes_ + after[0][then] if price.seconds < inf else inf
                    for _, then, price in ways
                )
                for env, ways in stage.items()
            },
        )
    return after


def _unbeaten(labels: Iterable[Label]) -> list[Label]:
    """Labels that no other is at least as good as in all three, the first of equal ones kept."""
    kept: list[Label] = []
    for label in sorted(labels, key=lambda each: (each.seconds, each.bytes_, each.width)):
        if not any(k.bytes_ <= label.bytes_ and k.width <= label.width for k in kept):
            kept.append(label)
    return kept
