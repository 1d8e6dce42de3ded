"""Which options of a command name files, and which files travel with it when it becomes a job?

An option that is not in the tables below is passed on as it is. What may be text or a file
(`--model`, `--cluster`, `--trace`) travels where it is a file, and is checked here where it is not,
so that a mistyped name costs no job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from cli.simulate_traffic import trace_of
from cluster.errors import InputError
from cluster.model.catalogue import entries, get_model
from cluster.model.cluster_file import parse_cluster


@dataclass(frozen=True, kw_only=True)
class Source:
    """The files behind a value: `name` stands for it, `files` are at or below that name."""

    name: str
    files: Mapping[str, Path]


Reader = Callable[[str, str], Source | None]
Given = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Files:
    """A command's options by parameter. `read`: how each becomes files. `written`: its results.

    `unnamed`: what a result is called where no option says so. `kept`: a directory that goes there
    and comes back. `here`: options that mean this machine, and why. `on_ray`: whether the command
    works on Ray, and so on its job's cluster.
    """

    read: Mapping[str, Reader]
    written: tuple[str, ...]
    on_ray: Callable[[Given], bool]
    unnamed: Mapping[str, str] = field(default_factory=dict)
    kept: str | None = None
    here: Mapping[str, str] = field(default_factory=dict)


def file(text: str, option: str) -> Source:
    """A file that must be there."""
    path = Path(text)
    if not path.is_file():
        raise InputError(
            f"{option} {text} is no file here. Fix: pass a file of this machine; it travels with "
            "the job. For one that only the cluster has, use `ray job submit -- shardwise …`."
        )
    return _one(path)


def model(text: str, _: str) -> Source | None:
    """A configuration or its directory, of which nothing else travels; None for a known name."""
    get_model(text)
    path = Path(text.strip())
    known = {name for entry in entries() for name in (entry.name, *map(str.lower, entry.hub))}
    if text.strip().lower() in known:
        return None
    if not path.is_dir():
        return _one(path)
    name = _safe(path.resolve().name)
    return Source(name=name, files={f"{name}/config.json": path / "config.json"})


def cluster(text: str, _: str) -> Source | None:
    """A cluster file; None for `4x8xH200`, and for `local`: the node where the job runs."""
    if text.strip().lower() == "local":
        return None
    parse_cluster(text)
    path = Path(text.strip())
    return _one(path) if path.is_file() else None


def trace(text: str, _: str) -> Source | None:
    """A trace file; None for one that is described."""
    path = Path(text)
    if path.is_file():
        return _one(path)
    trace_of(text, format_name=None, seed=0)
    return None


def configurations(text: str, option: str) -> Source:
    """A directory of <config>.json."""
    folder = Path(text)
    found = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not found:
        raise InputError(
            f"{option} {text} is no folder with a .json file. Fix: pass the folder that holds one "
            "<config>.json per model."
        )
    name = _safe(folder.resolve().name)
    return Source(name=name, files={f"{name}/{_safe(path.name)}": path for path in found})


def _one(path: Path) -> Source:
    # The directory's name goes along: a config.json is a model of that name.
    name = f"{_safe(path.resolve().parent.name)}/{_safe(path.name)}"
    return Source(name=name, files={name: path})


def _safe(name: str) -> str:
    """Printable ASCII without what JSON would escape."""
    return re.sub(r'[^ -~]|["\\/]', "_", name) or "_"


FILES: Mapping[str, Files] = MappingProxyType(
    {
        "search": Files(
            read={"model": model, "cluster": cluster, "trace": trace, "calibration": file},
            written=("path", "json_", "report"),
            kept="checkpoint",
            on_ray=lambda _: True,
        ),
        "simulate": Files(
            read={
                "plan": file,
                "trace": trace,
                "config": file,
                "failures": file,
                "calibration": file,
                "times": file,
            },
            written=("json_", "plot", "chrome_trace", "decisions", "requests"),
            on_ray=lambda given: len(several(given["plan"])) > 1,
        ),
        "calibrate": Files(
            read={"runs": file, "models": configurations, "nsys": file, "model": model},
            written=("out_path",),
            unnamed={"out_path": "calibration.yaml"},
            here={
                "live": "it measures an engine on the machine it runs on",
                "local": "it measures the machine it runs on",
                "show": "it prints a file",
            },
            on_ray=lambda given: bool(given["measure"]),
        ),
    }
)


def several(value: object) -> tuple[object, ...]:
    """The values of an option that may be repeated, or the one of another."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)
