"""Which coefficients of the cost model do measured points mean? Fits by part of a step.

Matrix products, as `cluster.costmodel.compute` has them: t = floor + serial * K +
pnorm4(2MNK / (peak * mfu * M / (M + half)), bytes / (bandwidth * mbu)) with pnorm4(a, b) =
(a^4 + b^4)^(1/4), the roofline with a rounded knee, and bytes = weights in their format plus
activations of 2 (CPU: 4) bytes. Links: `cluster.calibration.link_curves`.

Invariants: fractions lie in (0, 1]; a coefficient is returned only if points determine it, and
what is missing is an InputError that names the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from cluster.calibration.link_curves import fit_links, nvlink_pairs, nvlink_switch_bytes
from cluster.calibration.points import CopyPoint, GemmPoint, LaunchPoint, Measurements
from cluster.calibration.robust import Fit, FitReport, Floats, Parameter, PartReport, fit_times
from cluster.errors import InputError
from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device

__all__ = [
    "Fit",
    "FitReport",
    "PartReport",
    "copy_bandwidth",
    "fit_floor",
    "fit_gemm",
    "fit_links",
    "fit_measurements",
    "gemm_s",
    "nvlink_pairs",
    "nvlink_switch_bytes",
]

_LEAST_EACH_SIDE = 2


def gemm_s(points: Sequence[GemmPoint], values: Mapping[str, float], *, device: Device) -> Floats:
    """Seconds that `values` (mbu, mfu, half_tokens, floor_s, serial_s) predict, shape (n,)."""
    m = np.array([point.m for point in points], dtype=np.float64)
    k = np.array([point.k for point in points], dtype=np.float64)
    compute, memory = _roofline_s(points, device)
    compute = compute / values["mfu"] * (1.0 + values["half_tokens"] / m)
    memory = memory / values["mbu"]
    once = values["floor_s"] + values["serial_s"] * k
    return np.asarray(once + (compute**4 + memory**4) ** 0.25)


def _roofline_s(points: Sequence[GemmPoint], device: Device) -> tuple[Floats, Floats]:
    """Least seconds of arithmetic and of memory traffic of each point."""
    m, n, k = np.array([(p.m, p.n, p.k) for p in points], dtype=np.float64).T
    stored = NumberFormat(points[0].format)
    width = 4.0 if device.kind == "cpu" else 2.0
    bytes_ = n * k * stored.bytes + m * (n + k) * width
    return 2.0 * m * n * k / device.flops[stored], bytes_ / device.memory_bandwidth


def fit_gemm(
    points: Sequence[GemmPoint], *, device: Device, family: str, floor_s: float | None = None
) -> Fit:
    """`gemm.<family>.<format>.*` of each format among the points: all five of the curve.

    `floor_s` is the least time of a kernel, fitted where None. Raises InputError where a format's
    points all lie on one side of the roofline, or the catalogue has no peak for it.
    """
    if not points:
        raise InputError("no matrix products were measured. Fix: run the matrix benchmark.")
    fits = []
    for fmt in dict.fromkeys(point.format for point in points):
        chosen = [point for point in points if point.format == fmt]
        _check_gemm(chosen, fmt, device=device)
        unknown = _unknown(chosen, device=device)
        fixed = {} if floor_s is None else {"floor_s": floor_s}
        if floor_s is None:
            least = min(point.seconds for point in chosen)
            unknown.append(Parameter(name="floor_s", start=least / 4, low=1e-9, high=least))

        def model(
            values: Mapping[str, float],
            chosen: Sequence[GemmPoint] = chosen,
            fixed: Mapping[str, float] = fixed,
        ) -> Floats:
            return gemm_s(chosen, {**values, **fixed}, device=device)

        part = f"gemm.{family}.{fmt}"
        fit = fit_times(
            part, chosen, seconds=[p.seconds for p in chosen], parameters=unknown, model=model
        )
        kept = {**fit.coefficients, **fixed}
        fits.append(fit.named(part, {f"{part}.{name}": value for name, value in kept.items()}))
    return Fit.joined(fits)


def _unknown(points: Sequence[GemmPoint], *, device: Device) -> list[Parameter]:
    """Starts where the ends of the token range put them.

    At few tokens both terms are proportional to n * k, so where the knee is low (a CPU) points
    cannot tell memory from half-filled arithmetic units; the starts are held to settle it.
    """
    compute, memory = _roofline_s(points, device)
    tokens = np.array([point.m for point in points])
    reached = np.array([point.seconds for point in points])
    few, many = tokens == tokens.min(), tokens == tokens.max()
    mbu = float(np.median((memory / reached)[few]))
    mfu = float(np.median((compute / reached)[many]))
    return [
        Parameter(name="mbu", start=mbu, hold=0.05, fraction=True),
        Parameter(name="mfu", start=mfu, hold=0.01, fraction=True),
        Parameter(name="half_tokens", start=32.0, hold=1e-3, low=1e-2, high=1e4),
        Parameter(name="serial_s", start=1e-10, hold=1e-3, low=1e-14, high=1e-7),
    ]


def _check_gemm(points: Sequence[GemmPoint], fmt: str, *, device: Device) -> None:
    if fmt not in {str(known) for known in device.flops}:
        raise InputError(
            f"matrix products were measured in {fmt}, but device '{device.name}' has no {fmt} peak "
            "in the catalogue. Fix: add its flops to the device, or leave that format out."
        )
    compute, memory = _roofline_s(points, device)
    for side, count, which in (
        ("memory", int(np.sum(memory > compute)), "few tokens (m)"),
        ("compute", int(np.sum(compute >= memory)), "many tokens (m)"),
    ):
        if count < _LEAST_EACH_SIDE:
            raise InputError(
                f"{fmt} matrix products: {count} of {len(points)} points are bound by {side} on "
                f"'{device.name}', a fit needs {_LEAST_EACH_SIDE}. Fix: measure products of "
                f"{which}, or give the benchmark a larger budget."
            )


def fit_floor(points: Sequence[LaunchPoint], *, family: str) -> Fit:
    """`kernel.<family>.small_s`: the median captured launch, the eager one where none was captured.

    Raises InputError without a point.
    """
    captured = [point.seconds for point in points if point.captured]
    eager = [point.seconds for point in points if not point.captured]
    if not captured and not eager:
        raise InputError("no kernel launch was measured. Fix: run the launch benchmark.")
    observed = {"launch_eager_s": median(eager)} if eager else {}
    return Fit(
        coefficients={f"kernel.{family}.small_s": median(captured or eager)},
        report=FitReport(observed=observed),
    )


def fit_measurements(found: Measurements, *, device: Device, family: str) -> Fit:
    """All coefficients that a node's (or a merged cluster's) measurements determine.

    `device` is the catalogue's entry of the measured device. Raises InputError where nothing was
    measured or a measurement is too sparse; links that could not be measured are a note.
    """
    floor = fit_floor(found.launches, family=family)
    floor_s = floor.coefficients[f"kernel.{family}.small_s"]
    fits = [floor, fit_gemm(found.gemm, device=device, family=family, floor_s=floor_s)]
    if found.collectives:
        fits.append(fit_links(found.collectives, device=device, family=family))
    observed = {}
    if found.copies:
        observed["memory_bandwidth"] = 2.0 * copy_bandwidth(found.copies)  # read and written
    if found.host_copies:
        observed["host_bandwidth"] = copy_bandwidth(found.host_copies)
    switch = nvlink_switch_bytes(found.peers)
    if switch is not None:
        observed["nvlink_switch_bytes"] = switch
    joined = Fit.joined(fits).noted(*found.notes)
    if not found.collectives:
        joined = joined.noted("no collective was measured: links keep their coefficients.")
    report = replace(joined.report, observed={**joined.report.observed, **observed})
    return replace(joined, report=report)


def copy_bandwidth(points: Sequence[CopyPoint]) -> float:
    """Bytes/s that large copies approach: t = latency + bytes / bandwidth. InputError if empty."""
    if not points:
        raise InputError("no copy was measured. Fix: run the copy benchmark.")
    sizes = np.array([point.bytes for point in points], dtype=np.float64)
    best = float(np.max(sizes / [point.seconds for point in points]))
    if len(set(sizes.tolist())) < 3:
        return best
    fit = fit_times(
        "copy",
        points,
        seconds=[point.seconds for point in points],
        parameters=[
            Parameter(name="latency_s", start=1e-6, low=1e-9, high=1.0),
            Parameter(name="share", start=1.0),
        ],
        model=lambda values: values["latency_s"] + sizes / (best * values["share"]),
    )
    return best * fit.coefficients["share"]
