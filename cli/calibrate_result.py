"""What does one run of `shardwise calibrate` hand over? Parameters, their provenance and figures.

Invariants: a parameter is a coefficient of the cost model (or of an engine version); numbers have
five digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.costmodel.calibration_file import CalibrationFile, default_coefficients, overlay
from cluster.costmodel.coefficients import Coefficients


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """What goes into the file; provenance is what it rests on, and over what it lies."""

    parameters: Mapping[str, float]
    basis: str
    over: str
    fit: Mapping[str, Any]
    cross_validation: Mapping[str, Any] = field(default_factory=dict)


def short(value: float) -> float:
    """Five digits: more than any measurement has."""
    return float(f"{value:.5g}")


def over_shipped(parameters: Mapping[str, float]) -> Coefficients:
    """What is predicted with once these parameters are loaded."""
    file = CalibrationFile(name="new", provenance="new", parameters=dict(parameters))
    return overlay(default_coefficients(), file, source="the new calibration")
