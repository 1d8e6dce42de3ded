"""Which requests does a trace file hold?

    trace = open_trace(Path("AzureLLMInferenceTrace_conv_2023.csv"))
    for request in trace: ...
    trace.skipped  # {"no output tokens": 3}

Iterating reads the file anew, one line at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.traces.formats import TraceFormat, format_named, format_of
from cluster.traces.options import WindowOptions
from cluster.traces.request import TraceRequest
from cluster.traces.source import Source

_PLAIN = WindowOptions()


class Trace:
    """A trace file whose format is known."""

    def __init__(self, path: Path, known: TraceFormat, windows: WindowOptions = _PLAIN) -> None:
        self.name = path.name
        self.format = known.name
        self._path = path
        self._known = known
        self._windows = windows
        self._skipped: Counter[str] = Counter()

    def __iter__(self) -> Iterator[TraceRequest]:
        source = Source(path=self._path, windows=self._windows)
        self._skipped = source.skipped
        return source.closing(self._known.read(source))

    def __repr__(self) -> str:
        return f"Trace({str(self._path)!r}, format={self.format!r})"

    @property
    def skipped(self) -> Mapping[str, int]:
        """Rows left out by the iteration begun last, by reason; complete when it has ended."""
        return dict(self._skipped)


def open_trace(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002  the word a user knows
    windows: WindowOptions = _PLAIN,
) -> Trace:
    """The trace at `path`, of the named format or of the one its first line tells.

    Raises ConfigError for a file that cannot be read, is empty or of no known format, and
    UnknownNameError for a format that is none. A wrong row raises ConfigError when it is reached.
    """
    source = Source(path=path)
    lines = source.lines()
    first = next((line for line in lines if line.strip()), "")
    lines.close()
    if not first:
        raise source.wrong(0, "", "is empty.", fix="pass a trace with at least one request.")
    known = format_named(format) if format is not None else format_of(source, first)
    return Trace(path, known, windows)
