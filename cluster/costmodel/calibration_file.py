"""A calibration on disk: YAML with named numbers, where they are from and how well they did.

    format: 1
    name: silicon
    provenance: one line, said with every estimate
    sources: {gemm.hopper: text}       # by the longest prefix of a coefficient's name
    fit: {...}                         # how it was fitted: rows, parameters, date (free form)
    cross_validation: {...}            # its error on runs left out (free form)
    parameters: {gemm.hopper.fp8.mbu: 0.9}

`operators.yaml` is complete: published operator tables, and hand-set where there is none.
`silicon.yaml` lies over it: fitted to measured serving runs. A user's file lies over both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.costmodel.coefficients import UNKNOWN, Coefficients
from cluster.errors import ConfigError

FOLDER = Path(__file__).resolve().parents[1] / "calibrations"
SHIPPED = ("operators", "silicon")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads ten times faster


class CalibrationFile(BaseModel):
    """The file as written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    name: str = Field(min_length=1)
    provenance: str = Field(min_length=1)
    sources: dict[str, str] = Field(default_factory=dict)
    fit: dict[str, Any] = Field(default_factory=dict)
    cross_validation: dict[str, Any] = Field(default_factory=dict)
    parameters: dict[str, float]

    def dumps(self) -> str:
        """YAML text."""
        return yaml.safe_dump(
            self.model_dump(mode="json", exclude_defaults=False), sort_keys=False, width=100
        )


def read_calibration(path: Path) -> CalibrationFile:
    """Parse one file. Raises ConfigError with the field and the problem."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            source=str(path), field="", problem=f"cannot be read ({error})."
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(source=str(path), field="", problem=f"is not YAML ({error}).") from error
    try:
        return CalibrationFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            source=str(path),
            field=where,
            problem=f"{first['msg']}.",
            fix="see `cluster/calibrations/silicon.yaml` for the format.",
        ) from error


def overlay(base: Coefficients, file: CalibrationFile, *, source: str) -> Coefficients:
    """`file` over `base`. Raises ConfigError for a value out of range or an unknown name."""
    for name in file.parameters:
        if name not in base and not name.startswith("build."):
            raise ConfigError(
                source=source,
                field=f"parameters.{name}",
                problem="is no coefficient of the cost model.",
                fix="names are listed in cluster/calibrations/operators.yaml.",
            )
    try:
        merged = base.updated(file.parameters, source=file.provenance)
    except ConfigError as error:
        raise ConfigError(
            source=source, field=f"parameters.{error.field}", problem=str(error)
        ) from error
    stated = Coefficients(
        names=merged.names, values=merged.values, sources=file.sources, provenance=file.provenance
    )
    said = {name: text for name in file.parameters if (text := stated.source(name)) != UNKNOWN}
    return replace(merged, sources={**merged.sources, **said}, provenance=file.provenance)


@cache
def operator_coefficients() -> Coefficients:
    """The complete set from operator tables, before any run was looked at."""
    file = read_calibration(FOLDER / "operators.yaml")
    return Coefficients(
        names=tuple(file.parameters),
        values=np.array(list(file.parameters.values()), dtype=np.float64),
        sources={"": file.provenance, **file.sources},
        provenance=file.provenance,
    )


@cache
def default_coefficients() -> Coefficients:
    """What every estimate uses unless told otherwise: the shipped calibration."""
    path = FOLDER / "silicon.yaml"
    return overlay(operator_coefficients(), read_calibration(path), source=str(path))


def load_calibration(path: Path | None) -> Coefficients:
    """The shipped calibration, or a user's file over it."""
    base = default_coefficients()
    if path is None:
        return base
    return overlay(base, read_calibration(path), source=str(path))
