"""Where did the GPU's time go, and how far is the cost model off? From Nsight Systems summaries.

`read_nsys` takes the CSV files of `nsys stats` and sums kernels by part of a step; `corrections`
divides measured by predicted seconds per step and part; `coefficient_updates` turns such a ratio
into the coefficient it speaks for: a part bound by bandwidth that took 1.25 times as long as
predicted reaches 1/1.25 of the share of bandwidth assumed.

Kernel time is summed over all devices of a trace and over overlapping streams: it is work, not
wall time, which is what the parts of a step are. Invariants: the parts and what is unknown add up
to all kernel time; unknown kernels are listed, and too many of them are an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.calibration import kernel_names as names
from cluster.calibration.nsys_csv import HOW_TO, Row, read_tables
from cluster.errors import InputError, UnknownNameError

__all__ = ["NsysSummary", "Row", "corrections", "read_nsys", "seconds_per_step"]

COVERS: Mapping[str, tuple[str, ...]] = {
    names.GEMM: (names.GEMM, "projections", "ffn", "head"),
    names.EXPERTS: (names.EXPERTS,),
    names.ATTENTION: (names.ATTENTION,),
    names.ALL_REDUCE: (names.ALL_REDUCE,),
    names.ALL_GATHER: (names.ALL_GATHER,),
    names.REDUCE_SCATTER: (names.REDUCE_SCATTER,),
    names.ALL_TO_ALL: (names.ALL_TO_ALL,),
    names.SEND_RECV: (names.SEND_RECV,),
    names.ELEMENTWISE: (names.ELEMENTWISE, "small_kernels"),
    names.SAMPLING: (names.SAMPLING,),
    names.COPY: (names.COPY, "offload"),
}
"""Parts of a trace → the cost model's parts (`cluster.costmodel.steps`) whose kernels they hold."""

NOT_KERNELS = frozenset({"host", "bubble", "prefill_share", "stragglers", "drafts"})
"""Parts of an estimate that no kernel's time shows."""


@dataclass(frozen=True, kw_only=True)
class NsysSummary:
    """Kernels, memory operations, CUDA calls, and NVTX ranges projected onto the GPU."""

    kernels: tuple[Row, ...]
    memory: tuple[Row, ...] = ()
    calls: tuple[Row, ...] = ()
    ranges: tuple[Row, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def seconds(self) -> Mapping[str, float]:
        """Kernel and copy seconds by part, `names.UNKNOWN` among them, the longest first."""
        total: dict[str, float] = {}
        for kernel in self.kernels:
            part = names.part_of(kernel.name)
            total[part] = total.get(part, 0.0) + kernel.seconds
        moved = sum(row.seconds for row in self.memory)
        if moved > 0.0:
            total[names.COPY] = total.get(names.COPY, 0.0) + moved
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    @property
    def shares(self) -> Mapping[str, float]:
        """The parts' shares of all kernel and copy time; they add up to 1."""
        seconds = self.seconds
        whole = sum(seconds.values())
        return {part: value / whole for part, value in seconds.items()} if whole > 0.0 else {}

    @property
    def unknown(self) -> tuple[tuple[Row, float], ...]:
        """Kernels that no pattern knows, each with its share of the time, the largest first."""
        whole = sum(self.seconds.values())
        strange = [row for row in self.kernels if names.part_of(row.name) == names.UNKNOWN]
        ordered = sorted(strange, key=lambda row: -row.seconds)
        return tuple((row, row.seconds / whole if whole > 0.0 else 0.0) for row in ordered)

    def times(self, range_name: str) -> int:
        """How often an NVTX range ran, summed over ranks: the number of steps, if it marks them.

        Raises UnknownNameError naming the ranges there are.
        """
        found = [row.count for row in self.ranges if row.name.lstrip(":") == range_name.lstrip(":")]
        if not found:
            raise UnknownNameError(
                kind="NVTX range",
                name=range_name,
                known=[row.name for row in self.ranges],
                hint="Ranges come from the report nvtx_gpu_proj_sum.",
            )
        return sum(found)


def read_nsys(paths: Iterable[Path]) -> NsysSummary:
    """The summaries of one trace, in one file or several (of several ranks: they are added up).

    Raises ConfigError for a file that is not such a CSV, InputError where no kernel summary is
    among them.
    """
    files = tuple(paths)
    tables: dict[str, list[Row]] = {}
    for path in files:
        for report, rows in read_tables(Path(path)).items():
            tables.setdefault(report, []).extend(rows)
    kernels = _merged(tables.get("cuda_gpu_kern_sum", ()))
    if not kernels:
        raise InputError(
            f"{', '.join(str(path) for path in files) or 'no file'}: no kernel summary "
            f"(cuda_gpu_kern_sum) among the reports ({', '.join(sorted(tables)) or 'none'}). "
            f"Fix: run `{HOW_TO}`"
        )
    calls = _merged(tables.get("cuda_api_sum", ()))
    sizes = {row.name: row.bytes for row in _merged(tables.get("cuda_gpu_mem_size_sum", ()))}
    times = _merged(tables.get("cuda_gpu_mem_time_sum", ()))
    memory = tuple(
        Row(name=row.name, count=row.count, seconds=row.seconds, bytes=sizes.get(row.name, 0.0))
        for row in times
    )
    return NsysSummary(
        kernels=kernels,
        memory=memory,
        calls=calls,
        ranges=_merged(tables.get("nvtx_gpu_proj_sum", ())),
        notes=_graph_note(kernels, calls),
    )


def _merged(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of one name added up, the longest first."""
    total: dict[str, Row] = {}
    for row in rows:
        old = total.get(row.name, Row(name=row.name, count=0))
        total[row.name] = Row(
            name=row.name,
            count=old.count + row.count,
            seconds=old.seconds + row.seconds,
            bytes=old.bytes + row.bytes,
        )
    return tuple(sorted(total.values(), key=lambda row: (-row.seconds, -row.bytes)))


def _graph_note(kernels: Iterable[Row], calls: Iterable[Row]) -> tuple[str, ...]:
    """By default nsys traces a graph as one thing, and its kernels are in no summary."""
    rows = tuple(calls)
    replays = sum(row.count for row in rows if "GraphLaunch" in row.name)
    launches = sum(row.count for row in rows if "LaunchKernel" in row.name)
    seen = sum(row.count for row in kernels)
    if replays == 0 or seen > 1.05 * launches:
        return ()
    return (
        f"{replays} graph launches but no more kernels ({seen}) than were launched singly "
        f"({launches}): kernels inside CUDA graphs are missing from this trace. Profile with "
        "`--cuda-graph-trace=node`.",
    )


def seconds_per_step(summary: NsysSummary, *, steps: int, devices: int = 1) -> Mapping[str, float]:
    """Seconds of each part in one step of one device.

    `devices` is how many GPUs the trace sums over. Raises InputError unless both are >= 1.
    """
    if steps < 1 or devices < 1:
        raise InputError(
            f"a trace of {steps} steps on {devices} devices cannot be compared; both must be at "
            "least 1. Fix: count the engine steps between start and end of the profile."
        )
    return {part: value / steps / devices for part, value in summary.seconds.items()}


def corrections(
    summary: NsysSummary,
    *,
    steps: int,
    predicted: Mapping[str, float],
    devices: int = 1,
    most_unknown: float = 0.2,
) -> Mapping[str, float]:
    """Part of the trace → measured / predicted seconds of one step of one device.

    `predicted` are seconds per step by the cost model's part names (or the trace's). A part that
    either side lacks has no ratio. Raises UnknownNameError for a part neither knows, InputError
    where more than `most_unknown` of the kernel time is in kernels of no known part, where kernels
    inside graphs are missing, or nothing can be compared.
    """
    _check_complete(summary, most_unknown=most_unknown)
    expected = _by_trace_part(predicted)
    measured = dict(seconds_per_step(summary, steps=steps, devices=devices))
    if expected.get(names.ALL_TO_ALL, 0.0) > 0.0 and not expected.get(names.SEND_RECV, 0.0):
        # An all-to-all over NCCL is made of its send and receive kernels.
        point_to_point = measured.pop(names.SEND_RECV, 0.0)
        measured[names.ALL_TO_ALL] = measured.get(names.ALL_TO_ALL, 0.0) + point_to_point
    ratios = {
        part: measured[part] / seconds
        for part, seconds in expected.items()
        if seconds > 0.0 and measured.get(part, 0.0) > 0.0
    }
    if not ratios:
        raise InputError(
            f"the trace has {', '.join(measured) or 'no parts'}, the estimate "
            f"{', '.join(part for part, value in expected.items() if value > 0.0) or 'none'}: no "
            "part is in both. Fix: estimate the model and layout that were profiled."
        )
    return ratios


def _check_complete(summary: NsysSummary, *, most_unknown: float) -> None:
    if summary.notes:
        raise InputError(" ".join(summary.notes))
    whole = sum(row.seconds for row in summary.kernels)  # copies of a load would hide kernels
    share = sum(row.seconds for row, _ in summary.unknown) / whole if whole > 0.0 else 0.0
    if share > most_unknown:
        top = "; ".join(f"{row.name[:60]} ({part:.1%})" for row, part in summary.unknown[:5])
        raise InputError(
            f"{share:.0%} of the kernel time is in kernels of no known part, the limit is "
            f"{most_unknown:.0%}: {top}. Fix: add their names to the table in "
            "cluster/calibration/kernel_names.py, or raise the limit if they are no part of a step."
        )


def _by_trace_part(predicted: Mapping[str, float]) -> dict[str, float]:
    """The cost model's parts summed into the trace's."""
    home = {name: part for part, covered in COVERS.items() for name in covered}
    total: dict[str, float] = {}
    for name, seconds in predicted.items():
        if name in home:
            total[home[name]] = total.get(home[name], 0.0) + seconds
        elif name not in NOT_KERNELS:
            raise UnknownNameError(kind="part of a step", name=name, known=[*home, *NOT_KERNELS])
    return total
