"""How do the gateways compare? Tables for people, one document for programs.

What a gateway adds is its percentile less that of the bare engine under the same load; a ratio is
ours over the peer's, so above 1 ours does more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.gateway_parts.measure import PACE_MS, WIDTH, Reading, Readings

ENGINE, OURS = "engine", "shardwise"
_ABSENT = "-"


@dataclass(frozen=True, kw_only=True)
class Results:
    """Readings by gateway and load; why the others have none, by gateway or `gateway load`."""

    readings: Mapping[str, Readings]
    missing: Mapping[str, str]

    def added_s(self, gateway: str, load: str, quantile: str) -> float | None:
        """Seconds over the bare engine; `quantile` as in `Reading`, without `_s`."""
        reading, bare = self._get(gateway, load), self._get(ENGINE, load)
        if reading is None or bare is None or gateway == ENGINE:
            return None
        return float(getattr(reading, f"{quantile}_s")) - float(getattr(bare, f"{quantile}_s"))

    def ratio(self, gateway: str, load: str) -> float | None:
        """Requests per second of ours over the gateway's."""
        reading, ours = self._get(gateway, load), self._get(OURS, load)
        if reading is None or ours is None or gateway in (ENGINE, OURS):
            return None
        return ours.requests_per_s / reading.requests_per_s

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "gateways": {
                gateway: {load: self._entry(gateway, load) for load in readings}
                for gateway, readings in self.readings.items()
            },
            "not_measured": dict(self.missing),
        }

    def text(self) -> str:
        """The tables."""
        parts = [
            f"An engine that answers at once (16 tokens); {WIDTH} callers unless it says 1",
            _table(_AT_ONCE, self),
            f"An engine that takes {PACE_MS} ms a token",
            _table(_PACED, self),
            *(f"not measured: {what}: {why}" for what, why in self.missing.items()),
            *self._failures(),
        ]
        return "\n\n".join(parts)

    def _entry(self, gateway: str, load: str) -> dict[str, Any]:
        added = {
            f"added_{quantile}_s": self.added_s(gateway, load, quantile)
            for quantile in ("first_p50", "first_p99", "last_p50", "last_p99")
        }
        reading = asdict(self.readings[gateway][load])
        return {**reading, **added, "ours_over_this": self.ratio(gateway, load)}

    def _failures(self) -> list[str]:
        return [
            f"failed: {gateway} {load}: {reading.failed} requests, most of them: {reading.failure}"
            for gateway, readings in self.readings.items()
            for load, reading in readings.items()
            if reading.failed
        ]

    def _get(self, gateway: str, load: str) -> Reading | None:
        return self.readings.get(gateway, {}).get(load)


Cell = Callable[[Results, str], str]


def _added(load: str, quantile: str) -> Cell:
    def cell(results: Results, gateway: str) -> str:
        added_s = results.added_s(gateway, load, quantile)
        return _ABSENT if added_s is None else f"{1e3 * added_s:.2f}"

    return cell


def _of(load: str, show: Callable[[Reading], str]) -> Cell:
    def cell(results: Results, gateway: str) -> str:
        reading = results.readings.get(gateway, {}).get(load)
        return _ABSENT if reading is None else show(reading)

    return cell


def _ratio(load: str) -> Cell:
    def cell(results: Results, gateway: str) -> str:
        ratio = results.ratio(gateway, load)
        return _ABSENT if ratio is None else f"{ratio:.2f}"

    return cell


def _requests(reading: Reading) -> str:
    return f"{reading.requests_per_s:,.0f}"


def _tokens(reading: Reading) -> str:
    return f"{reading.tokens_per_s:,.0f}"


def _cpu(reading: Reading) -> str:
    return f"{1e6 * reading.cpu_s:,.0f}"


def _elsewhere(*loads: str) -> Cell:
    def cell(results: Results, gateway: str) -> str:
        found = results.readings.get(gateway, {})
        cores = [found[load].elsewhere_cores for load in loads if load in found]
        return f"{sum(cores) / len(cores):.1f}" if cores else _ABSENT

    return cell


_AT_ONCE: Sequence[tuple[str, Cell]] = (
    ("1: first p50 +ms", _added("one", "first_p50")),
    ("1: last p50 +ms", _added("one", "last_p50")),
    ("1: last p99 +ms", _added("one", "last_p99")),
    ("whole req/s", _of("whole", _requests)),
    ("ours/its", _ratio("whole")),
    ("streamed req/s", _of("streamed", _requests)),
    ("tokens/s", _of("streamed", _tokens)),
    ("ours/its", _ratio("streamed")),
    ("CPU us whole", _of("whole", _cpu)),
    ("CPU us streamed", _of("streamed", _cpu)),
    ("others' cores", _elsewhere("one", "whole", "streamed")),
)
_PACED: Sequence[tuple[str, Cell]] = (
    ("1: first p50 +ms", _added("one_paced", "first_p50")),
    ("1: last p50 +ms", _added("one_paced", "last_p50")),
    ("first p50 +ms", _added("streamed_paced", "first_p50")),
    ("first p99 +ms", _added("streamed_paced", "first_p99")),
    ("last p50 +ms", _added("streamed_paced", "last_p50")),
    ("last p99 +ms", _added("streamed_paced", "last_p99")),
    ("whole req/s", _of("whole_paced", _requests)),
    ("streamed req/s", _of("streamed_paced", _requests)),
    ("tokens/s", _of("streamed_paced", _tokens)),
    ("ours/its", _ratio("streamed_paced")),
    ("others' cores", _elsewhere("one_paced", "whole_paced", "streamed_paced")),
)


def _table(columns: Sequence[tuple[str, Cell]], results: Results) -> str:
    rows = [["", *(title for title, _ in columns)]]
    rows += [
        [gateway, *(cell(results, gateway) for _, cell in columns)] for gateway in results.readings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )
