"""Which requests fit ServeGen's windows of rates and mean lengths?

Source: alibaba/ServeGen (arXiv:2505.09999), summed over clients into windows of ten minutes. A
window's rate times its length is the number of its requests; the fraction that scaling leaves over
goes to the next window. A window lasts until the next one begins.

Everything else (arrivals within the window, lengths) is drawn: `windows`, `options`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cluster.errors import ConfigError
from cluster.traces.cells import csv_rows, measure
from cluster.traces.request import MOST_TOKENS, TraceRequest
from cluster.traces.source import Source, WrongCellError
from cluster.traces.windows import Window, expand

SERVEGEN_COLUMNS = (
    "window_start_s",
    "total_rate_rps",
    "rate_weighted_cv",
    "mean_input_tokens",
    "mean_output_tokens",
)
_MOST_PER_WINDOW = 1e10


@dataclass(frozen=True, kw_only=True)
class _Row:
    line: int
    start_s: float
    rate: float
    cv: float
    input_tokens: float
    output_tokens: float


def read_servegen(source: Source) -> Iterator[TraceRequest]:
    """Requests drawn for every window; the same ones each time, under the options' seed."""
    rng = np.random.Generator(np.random.PCG64(source.windows.seed))
    for window in servegen_windows(source):
        yield from expand(window, source.windows, rng)


def servegen_windows(source: Source) -> Iterator[Window]:
    """The windows that have requests, counted from the first one's start."""
    options = source.windows
    left_over = 0.0
    first: _Row | None = None
    for row, duration_s in _with_durations(source):
        first = first or row
        expected = row.rate * options.rate_factor * duration_s + left_over
        if not expected <= _MOST_PER_WINDOW:
            raise source.wrong(
                row.line,
                "total_rate_rps",
                f"{row.rate:g} requests/s for {duration_s:g} s are too many.",
                fix="check the rate and the rate factor.",
            )
        requests = int(expected + 1e-6)
        left_over = max(expected - requests, 0.0)
        if requests:
            yield Window(
                start_s=row.start_s - first.start_s,
                duration_s=duration_s,
                requests=requests,
                cv=min(row.cv, options.max_cv),
                prompt_tokens=_mean(
                    source, row, "mean_input_tokens", row.input_tokens, options.prompt_tokens
                ),
                output_tokens=_mean(
                    source, row, "mean_output_tokens", row.output_tokens, options.output_tokens
                ),
            )


def _with_durations(source: Source) -> Iterator[tuple[_Row, float]]:
    last: _Row | None = None
    duration_s = source.windows.last_window_s
    for row in _rows(source):
        if last is not None:
            duration_s = row.start_s - last.start_s
            if duration_s <= 0.0:
                raise source.wrong(
                    row.line,
                    "window_start_s",
                    f"{row.start_s:g} is not after the window above it ({last.start_s:g}).",
                    fix="sort the file by window_start_s and keep one row per window.",
                )
            yield last, duration_s
        last = row
    if last is None:
        raise source.wrong(0, "", "holds no rows.", fix="add at least one window.")
    yield last, duration_s


def _rows(source: Source) -> Iterator[_Row]:
    for line, cells in csv_rows(source, SERVEGEN_COLUMNS):
        try:
            values = [
                measure(cell, column) for cell, column in zip(cells, SERVEGEN_COLUMNS, strict=True)
            ]
        except WrongCellError as wrong:
            raise source.wrong(line, wrong.column, wrong.problem, fix=wrong.fix) from wrong
        start_s, rate, cv, inputs, outputs = values
        yield _Row(
            line=line, start_s=start_s, rate=rate, cv=cv, input_tokens=inputs, output_tokens=outputs
        )


def _mean(source: Source, row: _Row, column: str, found: float, instead: float | None) -> float:
    """Mean length of a window: the option's where given."""
    if instead is not None:
        return instead
    if 0.0 < found <= MOST_TOKENS:
        return found
    raise _no_mean(source, row, column, found)


def _no_mean(source: Source, row: _Row, column: str, found: float) -> ConfigError:
    option = "prompt_tokens" if column == "mean_input_tokens" else "output_tokens"
    return source.wrong(
        row.line,
        column,
        f"is {found:g} tokens in a window with {row.rate:g} requests/s; requests of such a window "
        "have no known length (ServeGen's multimodal windows tell none).",
        fix=f"give a mean length by the option {option}, in tokens.",
    )
