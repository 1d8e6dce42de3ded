"""Which steps of a live engine are worth their time? The cells that a measurement goes through.

A prompt cell is one prompt alone. A decode cell keeps some sequences decoding and sends probes,
prompts of other lengths, among them: its steps between probes are decode steps, those that a probe
stretches are mixed ones. Invariants: no cell needs more KV cache or longer sequences than the
engine has; cells come cheapest first, so that a budget cut short still spans batch and length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_SHORT = 16  # tokens: a prompt that is nearly none
_MARGIN = 8  # tokens of a sequence kept free for what is generated
_KV_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of the engine: sequences, tokens of a sequence and of a step, tokens of KV cache."""

    sequences: int
    length: int
    chunk: int
    kv_tokens: int


@dataclass(frozen=True, kw_only=True)
class PromptCell:
    """One prompt alone."""

    tokens: int

    @property
    def prompt_tokens(self) -> int:
        """What will be prefilled, for guessing how long it takes."""
        return self.tokens


@dataclass(frozen=True, kw_only=True)
class DecodeCell:
    """`sequences` of `prompt` tokens each decode `steps` steps, beside what `probes` stretch."""

    sequences: int
    prompt: int
    steps: int
    probes: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """What will be prefilled, for guessing how long it takes."""
        return self.sequences * self.prompt + sum(self.probes)

    def output(self, chunk: int) -> int:
        """Tokens each sequence generates: while the last still prefills, in probes, and between."""
        room = max(1, chunk - self.sequences)
        joining = math.ceil(self.sequences * self.prompt / room) + 2
        stretched = sum(math.ceil(probe / room) + 2 for probe in self.probes)
        return joining + stretched + self.steps

    def fits(self, limits: Limits) -> bool:
        """Whether the engine can hold it."""
        output = self.output(limits.chunk)
        longest = max((self.prompt + output, *self.probes))
        held = self.sequences * (self.prompt + output) + max(self.probes, default=0)
        slots = self.sequences + (1 if self.probes else 0)
        return (
            longest + 1 <= limits.length
            and held <= _KV_SHARE * limits.kv_tokens
            and slots <= limits.sequences
        )


Cell = PromptCell | DecodeCell


def quick_cells(limits: Limits) -> list[Cell]:
    """Powers of two, one longer context, few probes."""
    chunk = limits.chunk
    prompts = (_SHORT, 64, chunk // 2, chunk, 2 * chunk)
    cells: list[Cell] = [PromptCell(tokens=tokens) for tokens in prompts]
    batches = powers(limits.sequences)
    cells += [
        DecodeCell(sequences=batch, prompt=_SHORT, steps=12, probes=probes)
        for batch in batches
        for probes in (_probes(batch, batches, chunk=chunk, many=False),)
    ]
    cells.append(DecodeCell(sequences=min(4, limits.sequences), prompt=chunk, steps=12))
    cells.append(DecodeCell(sequences=1, prompt=chunk, steps=12))
    return _possible(cells, limits)


def full_cells(limits: Limits) -> list[Cell]:
    """Batches between powers of two as well, contexts up to three quarters of the longest."""
    chunk, longest = limits.chunk, limits.length
    prompts = (_SHORT, 32, 64, 128, chunk // 2, chunk, 2 * chunk, longest - _MARGIN)
    cells: list[Cell] = [PromptCell(tokens=tokens) for tokens in prompts]
    batches = powers(limits.sequences)
    between = [3 * batch // 2 for batch in batches[1:] if 3 * batch // 2 < limits.sequences]
    cells += [
        DecodeCell(sequences=batch, prompt=_SHORT, steps=24, probes=probes)
        for batch in sorted({*batches, *between})
        for probes in (_probes(batch, batches, chunk=chunk, many=True),)
    ]
    held = longest // 4
    cells += [
        DecodeCell(sequences=1, prompt=held, steps=24, probes=(64,)),
        DecodeCell(sequences=min(4, limits.sequences), prompt=held, steps=24, probes=(64,)),
        DecodeCell(sequences=1, prompt=3 * held, steps=24),
        DecodeCell(sequences=min(8, limits.sequences), prompt=held, steps=24),
        DecodeCell(sequences=min(4, limits.sequences), prompt=3 * held, steps=24),
        DecodeCell(sequences=limits.sequences, prompt=held, steps=24),
    ]
    return _possible(cells, limits)


def powers(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def _probes(batch: int, batches: list[int], *, chunk: int, many: bool) -> tuple[int, ...]:
    """Short and long probes where batches are small, middling and nearly full."""
    if batch == min(4, batches[-1]):
        return (32, chunk // 4, 2 * chunk) if not many else (8, 32, chunk // 4, chunk, 2 * chunk)
    if batch == 1 or batch == batches[max(0, len(batches) - 2)]:
        return (48, chunk // 2)
    return (64,) if many else ()


def _possible(cells: list[Cell], limits: Limits) -> list[Cell]:
    """Those the engine can hold, each once; a full batch leaves no slot for probes."""
    kept: dict[Cell, None] = {}
    for cell in cells:
        match cell:
            case PromptCell() if 0 < cell.tokens < limits.length:
                kept[cell] = None
            case DecodeCell():
                bare = DecodeCell(sequences=cell.sequences, prompt=cell.prompt, steps=cell.steps)
                best = next((each for each in (cell, bare) if each.fits(limits)), None)
                if best is not None:
                    kept[best] = None
    return list(kept)
