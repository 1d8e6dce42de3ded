"""The catalogue of devices: a name, in any spelling, to a `Device`.

The rows and their sources are in `cluster.model.device_table`. A cluster file may bring devices of
its own (`custom`), which come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cluster.errors import UnknownNameError
from cluster.model.device_table import ALL_DEVICES
from cluster.model.hardware import Device

DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in ALL_DEVICES})

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "a100": "a100-80",
        "a100-sxm": "a100-80",
        "a100-80-sxm": "a100-80",
        "a100-80gb": "a100-80",
        "a100-80g": "a100-80",
        "a100-40-sxm": "a100-40",
        "a100-40gb": "a100-40",
        "a100-40g": "a100-40",
        "a100-pcie": "a100-80-pcie",
        "h100-sxm": "h100",
        "h200-sxm": "h200",
        "b200-sxm": "b200",
        "b300-sxm": "b300",
        "gb200-nvl72": "gb200",
        "gb300-nvl72": "gb300",
        "rtx-a6000": "a6000",
        "mi300": "mi300x",
        "rtx-pro-6000-server": "rtx-pro-6000",
        "rtxpro6000": "rtx-pro-6000",
    }
)


def get_device(name: str, *, custom: Mapping[str, Device] = MappingProxyType({})) -> Device:
    """The device of a name: case, `_` and spaces do not matter, aliases are known.

    `custom` (a cluster file's own devices, by normalised name) comes first. Raises UnknownNameError
    with the near misses.
    """
    key = normalise(name)
    if key in custom:
        return custom[key]
    key = ALIASES.get(key, key)
    if key not in DEVICES:
        raise UnknownNameError(
            kind="device",
            name=name,
            known=[*DEVICES, *custom],
            hint="Other devices can be defined under `devices:` of a cluster file.",
        )
    return DEVICES[key]


def normalise(name: str) -> str:
    """The spelling names are compared in."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")
