"""Which cluster a text or a YAML file describes.

A text is `4x8xH200` (nodes x devices per node x device), `8xH100` (one node), or several joined by
`+` (a mixed cluster). A file lists groups and may define devices of its own, from scratch or as
differences from a known one (`like`); all its figures are SI (bytes, bytes/s, FLOP/s, seconds).

Invariant: every group has at least one device; a replica never spans two groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.errors import ConfigError, InputError, UnknownNameError
from cluster.model.devices import get_device, normalise
from cluster.model.formats import NumberFormat
from cluster.model.hardware import ClusterSpec, Device, NodeGroup

MAX_DEVICES = 1_000_000
_FORMS = (
    "Accepted: nodes x devices x name such as `4x8xH200`, one node such as `8xH100`, several "
    "joined by `+`, the path of a cluster file (see docs/examples/cluster.yaml), or `local`."
)
_GROUP = re.compile(
    r"\s*([+-]?[0-9]{1,9})\s*[x×*]\s*(?:([+-]?[0-9]{1,9})\s*[x×*]\s*)?([a-z].*?)\s*", re.IGNORECASE
)
_SUFFIXES = (".yaml", ".yml", ".json")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceEntry(_Strict):
    """A device of a cluster file: `cluster.model.hardware.Device`, field by field, plus `like`."""

    like: str | None = None
    memory_bytes: Positive | None = None
    memory_bandwidth: Positive | None = None
    flops: dict[NumberFormat, Positive] | None = Field(default=None, min_length=1)
    link_bandwidth: Positive | None = None
    link_latency_s: NotNegative | None = None
    domain: int | None = Field(default=None, ge=1)
    domain_spans_nodes: bool | None = None
    network_bandwidth: Positive | None = None
    network_latency_s: NotNegative | None = None
    host_bandwidth: Positive | None = None
    power_w: NotNegative | None = None
    launch_overhead_s: NotNegative | None = None
    reserved_bytes: NotNegative | None = None
    price_per_hour: NotNegative | None = None
    kind: str | None = Field(default=None, pattern="^(gpu|cpu)$")
    source: str | None = None


class GroupEntry(_Strict):
    """Equal nodes."""

    nodes: int = Field(ge=1)
    devices_per_node: int = Field(ge=1)
    device: str


class ClusterFile(_Strict):
    """A cluster file."""

    name: str | None = None
    devices: dict[str, DeviceEntry] = Field(default_factory=dict)
    groups: tuple[GroupEntry, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()


def parse_cluster(text: str) -> ClusterSpec:
    """The cluster of a text form or a file path.

    Raises InputError for a malformed text or an impossible count, UnknownNameError for a device,
    ConfigError for a file that does not parse.
    """
    stripped = text.strip()
    if stripped.lower() == "local":
        raise InputError(
            "cluster 'local' is the running Ray cluster: only commands that start or join one "
            f"resolve it. Write its size instead, e.g. `2xCPU`. {_FORMS}"
        )
    if stripped.lower().endswith(_SUFFIXES) or "/" in stripped:
        return read_cluster_file(Path(stripped))
    groups = tuple(_parse_group(part, whole=text) for part in stripped.split("+"))
    return _checked(ClusterSpec(name=stripped, groups=groups), source=f"cluster '{text}'")


def read_cluster_file(path: Path) -> ClusterSpec:
    """The cluster of a YAML file. Raises ConfigError naming the file and the field."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(
            source=str(path),
            field="",
            problem=f"is not YAML{where}.",
            fix="compare with docs/examples/cluster.yaml.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            source=str(path), field="", problem=f"cannot be read ({reason}).", fix=_FORMS
        ) from error
    try:
        entry = ClusterFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            source=str(path),
            field=".".join(str(part) for part in first["loc"]),
            problem=f"{first['msg']} ({error.error_count()} problem(s) in all).",
            fix="compare with docs/examples/cluster.yaml.",
        ) from error
    return _from_file(entry, source=str(path), default_name=path.stem)


def _parse_group(part: str, *, whole: str) -> NodeGroup:
    match = _GROUP.fullmatch(part)
    if match is None:
        raise InputError(f"cluster '{whole}' is malformed at '{part.strip()}'. {_FORMS}")
    first, second, name = match.groups()
    nodes, devices = (int(first), int(second)) if second else (1, int(first))
    for what, count in (("nodes", nodes), ("devices per node", devices)):
        if count < 1:
            raise InputError(f"cluster '{whole}': {what} is {count}, at least 1. {_FORMS}")
    return NodeGroup(nodes=nodes, devices_per_node=devices, device=get_device(name))


def _from_file(entry: ClusterFile, *, source: str, default_name: str) -> ClusterSpec:
    custom: dict[str, Device] = {}
    for name, device in entry.devices.items():
        custom[normalise(name)] = _device(name, device, known=custom, source=source)
    groups = []
    for index, group in enumerate(entry.groups):
        try:
            device_spec = get_device(group.device, custom=custom)
        except UnknownNameError as error:
            field = f"groups.{index}.device"
            raise ConfigError(source=source, field=field, problem=str(error)) from error
        groups.append(
            NodeGroup(
                nodes=group.nodes, devices_per_node=group.devices_per_node, device=device_spec
            )
        )
    cluster = ClusterSpec(
        name=entry.name or default_name, groups=tuple(groups), notes=tuple(entry.notes)
    )
    return _checked(cluster, source=source)


def _device(name: str, entry: DeviceEntry, *, known: Mapping[str, Device], source: str) -> Device:
    given = entry.model_dump(exclude_none=True, exclude={"like"})
    field = f"devices.{name}"
    if entry.like is not None:
        try:
            base = get_device(entry.like, custom=known)
        except UnknownNameError as error:
            raise ConfigError(source=source, field=f"{field}.like", problem=str(error)) from error
        origin = given.pop("source", f"like {base.name}, changed in {source}")
        return replace(base, **given, name=normalise(name), source=origin)
    optional = {"price_per_hour", "kind", "source", "domain_spans_nodes", "like"}
    missing = [key for key in DeviceEntry.model_fields if key not in optional and key not in given]
    if missing:
        raise ConfigError(
            source=source,
            field=field,
            problem=f"lacks {', '.join(missing)}.",
            fix="write them, or `like: <known device>` and only what differs.",
        )
    return Device(**{"source": source, **given, "name": normalise(name)})


def _checked(cluster: ClusterSpec, *, source: str) -> ClusterSpec:
    if cluster.devices > MAX_DEVICES:
        raise InputError(
            f"{source} has {cluster.devices:,} devices, at most {MAX_DEVICES:,}. {_FORMS}"
        )
    return cluster
