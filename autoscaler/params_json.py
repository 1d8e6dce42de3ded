"""How are steering parameters written down and read back?

Every field is written and every field is required: a log with a missing field would be replayed
with today's default, which need not be what ran. Floats survive exactly (shortest repr).
"""

from __future__ import annotations

import dataclasses

from autoscaler.json_reader import Json, Reader
from autoscaler.json_records import read_record
from autoscaler.params import ControllerParams


def params_to_json(params: ControllerParams) -> dict[str, Json]:
    """All parameters as JSON values."""
    return dataclasses.asdict(params)


def params_from_json(data: object, *, source: str) -> ControllerParams:
    """Inverse of `params_to_json`. Raises InputError naming `source` and the field."""
    return read_params(Reader(data, source=source))


def read_params(reader: Reader) -> ControllerParams:
    """Parameters from a reader at their object."""
    return read_record(reader, ControllerParams)
