"""Microbenchmarks and traces to a calibration: measured or read, fitted, findings printed.

Invariant: what has no place among the coefficients is printed and not written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cli.calibrate_report import print_measured, print_trace, working
from cli.calibrate_result import Calibrated, over_shipped, short
from cluster.calibration.nsys import corrections, read_nsys, seconds_per_step
from cluster.calibration.nsys_updates import coefficient_updates
from cluster.calibration.points import Measurements
from cluster.calibration.predict import group_of
from cluster.calibration.traced_step import TracedStep, expect
from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.families import family_of
from cluster.errors import InputError, UnavailableError
from cluster.model.catalogue import get_model
from cluster.model.devices import get_device
from cluster.model.hardware import Device

if TYPE_CHECKING:
    from cluster.calibration.robust import Fit


def from_measurements(
    *, device: str | None, address: str | None, budget_s: float, console: Console
) -> Calibrated:
    """Run the microbenchmarks here or on the cluster at `address`, and fit them.

    Raises UnavailableError without PyTorch, Ray or a known device; InputError for points too few.
    """
    given = None if device is None else get_device(device)
    where = "this machine" if address is None else f"the cluster at {address}"
    with working(console, f"measuring {where} for about {budget_s:g} s"):
        found = measured(address, budget_s=budget_s, device=given)
    chosen = given or _recognised(found)
    family = family_of(chosen).value
    fit = _fitted(found, device=chosen)
    base = default_coefficients()
    parameters = {name: short(value) for name, value in fit.coefficients.items() if name in base}
    console.print(
        f"{found.node}: {found.devices} x {found.device}, calibrated as '{chosen.name}' ({family})",
        markup=False,
    )
    print_measured(console, fit, base=base)
    report = fit.report
    return Calibrated(
        parameters=parameters,
        basis=f"microbenchmarks on {found.devices} x {found.device}",
        over=base.provenance,
        fit={
            "source": "microbenchmarks",
            "node": found.node,
            "device": chosen.name,
            "points": report.points,
            "median_error_percent": round(report.median_error * 100.0, 2),
            "observed": {name: short(value) for name, value in report.observed.items()},
        },
    )


def measured(address: str | None, *, budget_s: float, device: Device | None) -> Measurements:
    """All points of this machine, or of the nodes of a Ray cluster."""
    if address is None:
        from cluster.calibration.machine import measure_machine

        return measure_machine(budget_s=budget_s)
    try:
        from cluster.ray_backend.measure import connected, measure_cluster
    except ImportError as error:
        raise InputError(
            f"--address needs Ray, which cannot be imported ({error}). "
            "Fix: install the serve extra, or measure this machine alone (--local)."
        ) from error
    with connected(address):
        return measure_cluster(
            budget_s=budget_s,
            domain_spans_nodes=device is not None and device.domain_spans_nodes,
        )


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """Summaries of a trace, and what was profiled; `steps` a number or an NVTX range's name."""

    paths: tuple[Path, ...]
    model: str
    device: str
    step: TracedStep
    steps: str
    devices: int


def from_trace(request: TraceRequest, console: Console) -> Calibrated:
    """Correct the coefficients that bound the parts of the profiled step."""
    model, group = get_model(request.model), group_of(request.device)
    base, step = default_coefficients(), request.step
    expected = expect(model, group, step, coefficients=base)
    summary = read_nsys(request.paths)
    number = request.steps.strip()
    steps = int(number) if number.isdigit() else summary.times(number) // request.devices
    ratios = corrections(summary, steps=steps, predicted=expected.parts, devices=request.devices)
    updates = coefficient_updates(
        ratios,
        predicted=expected.parts,
        current=dict(zip(base.names, base.values.tolist(), strict=True)),
        trace=expected.trace,
    )
    parameters = {name: short(value) for name, value in updates.values.items()}
    after = expect(model, group, step, coefficients=over_shipped(parameters))
    console.print(
        f"{model.name} on {group.device.name}, {step.layout.describe()}, {step.phase} of "
        f"{step.batch} x {step.context} tokens: {steps} steps on {request.devices} device(s)",
        markup=False,
    )
    print_trace(
        console,
        measured=seconds_per_step(summary, steps=steps, devices=request.devices),
        before=expected.parts,
        after=after.parts,
        ratios=ratios,
    )
    for row, share in summary.unknown:
        console.print(f"unknown kernel, {share:.1%} of the time: {row.name}", markup=False)
    for note in (*expected.notes, *updates.notes):
        console.print(f"note: {note}", markup=False)
    return Calibrated(
        parameters=parameters,
        basis=f"Nsight Systems trace of {model.name} on {group.device.name} ({step.phase})",
        over=base.provenance,
        fit={
            "source": "Nsight Systems",
            "files": [path.name for path in request.paths],
            "model": model.name,
            "device": group.device.name,
            "layout": step.layout.describe(),
            "phase": step.phase,
            "batch": step.batch,
            "context": step.context,
            "steps": steps,
            "devices": request.devices,
            "measured_over_predicted": {part: short(ratio) for part, ratio in ratios.items()},
        },
    )


def _fitted(found: Measurements, *, device: Device) -> Fit:
    """All that the points determine; links too sparse for a fit are a note, not the end of it."""
    from cluster.calibration.curves import fit_measurements  # scipy takes half a second

    family = family_of(device).value
    try:
        return fit_measurements(found, device=device, family=family)
    except InputError as error:
        if not found.collectives:
            raise
        without = replace(found, collectives=())
        return fit_measurements(without, device=device, family=family).noted(str(error))


def _recognised(found: Measurements) -> Device:
    from cluster.ray_backend.inventory import device_of

    try:
        return device_of(found.device, kind=found.kind)
    except UnavailableError as error:
        raise InputError(
            f"{error} Or name the catalogue's device it is like with --device."
        ) from error
