"""What does a device cost per hour? A YAML file of prices, laid over the catalogue's.

    source: our contract        # optional, said of every price that names none of its own
    date: 2026-11-01            # optional
    h100: 2.10                  # USD per device and hour
    b200: {usd_per_hour: 3.90, source: spot market, date: 2026-11-20}

Prices age and differ by contract, so those of a file win over the catalogue's; a device that the
file leaves out keeps what it had. Invariants: every named device is a known one, named once in
whatever spelling; a price is finite and not negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from cluster.errors import ConfigError, UnknownNameError
from cluster.model.devices import DEVICES, get_device, normalise
from cluster.model.hardware import ClusterSpec, Device, NodeGroup

_FIX = "write `<device>: <USD per hour>` lines, e.g. `h100: 2.10`."
_ABOUT = ("source", "date")  # keys that describe the file instead of naming a device

# YAML reads 2026-11-01 as a date; what is wanted of it is its text.
_Text = Annotated[str, BeforeValidator(lambda value: None if value is None else str(value))]
_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    usd_per_hour: _Usd
    source: _Text | None = None
    date: _Text | None = None


_ENTRIES: TypeAdapter[dict[str, _Usd | _Entry]] = TypeAdapter(dict[str, _Usd | _Entry])


@dataclass(frozen=True, kw_only=True)
class Price:
    """USD per device and hour, and where the figure is from."""

    usd_per_hour: float
    source: str


@dataclass(frozen=True)
class PriceList:
    """Prices by the device's own name."""

    prices: Mapping[str, Price]

    def apply(self, cluster: ClusterSpec) -> ClusterSpec:
        """The cluster with the listed devices at the listed prices, the others unchanged."""
        return replace(cluster, groups=tuple(self._priced(group) for group in cluster.groups))

    def source_of(self, device: Device) -> str:
        """Where the price of a device is from: this list, the catalogue, or a cluster file."""
        if device.name in self.prices:
            return self.prices[device.name].source
        if device.price_per_hour is None:
            return "no price known"
        known = DEVICES.get(device.name)
        listed = known is not None and known.price_per_hour == device.price_per_hour
        return "catalogue list price" if listed else "cluster file"

    def _priced(self, group: NodeGroup) -> NodeGroup:
        price = self.prices.get(group.device.name)
        if price is None:
            return group
        return replace(group, device=replace(group.device, price_per_hour=price.usd_per_hour))


NO_PRICES = PriceList(MappingProxyType({}))


def read_prices(path: Path, *, clusters: Iterable[ClusterSpec] = ()) -> PriceList:
    """The prices of a YAML file.

    Names are those of the catalogue, in any spelling, and of the devices of `clusters`. Raises
    ConfigError naming the file and the field, with the near misses of an unknown device.
    """
    data = _load(path)
    about = {key: str(data.pop(key)) for key in _ABOUT if data.get(key) is not None}
    for key in _ABOUT:
        data.pop(key, None)
    entries = _entries(data, path=path)
    devices = [group.device for each in clusters for group in each.groups]
    custom = {device.name: device for device in devices if device.name not in DEVICES}
    prices: dict[str, Price] = {}
    for name, entry in entries.items():
        try:
            device = get_device(name, custom=custom)
        except UnknownNameError as error:
            raise ConfigError(source=str(path), field=name, problem=str(error)) from error
        if device.name in prices:
            raise ConfigError(
                source=str(path),
                field=name,
                problem=f"prices '{device.name}' a second time.",
                fix="keep one line for it.",
            )
        usd = entry.usd_per_hour if isinstance(entry, _Entry) else entry
        own = (entry.source, entry.date) if isinstance(entry, _Entry) else (None, None)
        parts = (own[0] or about.get("source"), own[1] or about.get("date"))
        said = ", ".join(part for part in parts if part)
        prices[device.name] = Price(
            usd_per_hour=usd, source=f"{path.name}: {said}" if said else path.name
        )
    return PriceList(MappingProxyType(prices))


def _load(path: Path) -> dict[object, object]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(
            source=str(path), field="", problem=f"is not YAML{where}.", fix=_FIX
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            source=str(path), field="", problem=f"cannot be read ({reason}).", fix=_FIX
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(
            source=str(path), field="", problem="does not map devices to prices.", fix=_FIX
        )
    return data


def _entries(data: dict[object, object], *, path: Path) -> Mapping[str, float | _Entry]:
    names: dict[str, object] = {}
    for key, value in data.items():
        name = str(key)
        if normalise(name) in {normalise(known) for known in names}:
            raise ConfigError(
                source=str(path), field=name, problem="is there twice.", fix="keep one line for it."
            )
        names[name] = value
    try:
        return _ENTRIES.validate_python(names)
    except ValidationError as error:
        # A union complains once per member; the entry's own complaint says more about a mapping.
        found = error.errors()
        name = str(found[0]["loc"][0])
        mapping = isinstance(names[name], dict)
        chosen = [e for e in found if e["loc"][0] == name and ("_Entry" in e["loc"]) == mapping]
        first = (chosen or found)[0]
        field = ".".join([name, *(str(p) for p in first["loc"][2:])])
        raise ConfigError(
            source=str(path), field=field, problem=f"{first['msg']}.", fix=_FIX
        ) from error
