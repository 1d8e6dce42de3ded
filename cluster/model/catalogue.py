"""Models by name: `llama-3.1-70b`, `deepseek-ai/DeepSeek-V3`, or the path of a configuration.

The catalogue (`data/models.yaml`) holds the fields of published configurations that decide shapes
and counts, each entry with its source, and is read by the same parsers as a config.json. Entries
whose dimensions were never published say "our reconstruction" in `ModelSpec.source`.

Invariant: a catalogue entry equals what its repository's config.json parses to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from cluster.errors import UnknownNameError
from cluster.model.config_fields import Fields
from cluster.model.hf_config import parse_config, read_model
from cluster.model.model_spec import ModelSpec

_DATA = Path(__file__).parent / "data" / "models.yaml"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model of the catalogue: its facts and where they are from."""

    name: str
    hub: tuple[str, ...]
    source: str
    config: Fields

    @property
    def is_reconstruction(self) -> bool:
        """Whether the dimensions are ours rather than published."""
        return self.source.startswith("our reconstruction")


@cache
def entries() -> tuple[Entry, ...]:
    """All entries, in the order of the file."""
    data = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    top = Fields(data, _DATA.name)
    found = []
    for name in data:
        fields = top.section(name)
        found.append(
            Entry(
                name=name,
                hub=fields.texts("hub"),
                source=fields.text("source"),
                config=fields.section("config"),
            )
        )
    return tuple(found)


def model_names() -> tuple[str, ...]:
    """Names of the catalogue, in the order of the file."""
    return tuple(entry.name for entry in entries())


def hub_id(name: str) -> str | None:
    """The hub repository a catalogue name stands for, None if it is no name or has none."""
    key = name.strip().lower()
    return next((entry.hub[0] for entry in entries() if entry.name == key and entry.hub), None)


def get_model(name_or_path: str) -> ModelSpec:
    """The model of a catalogue name, a hub id, or the path of a config.json or its directory.

    Case does not matter in names. Raises UnknownNameError with the near misses where it is
    neither, ConfigError where the path's configuration does not parse.
    """
    key = name_or_path.strip().lower()
    for entry in entries():
        if key == entry.name or key in (hub.lower() for hub in entry.hub):
            return _spec(entry.name)
    path = Path(name_or_path.strip())
    if key and (path.suffix == ".json" or _exists(path)):
        return read_model(path)
    raise UnknownNameError(
        kind="model",
        name=name_or_path,
        known=model_names(),
        hint="Or pass the path of a config.json, or of the directory that holds it.",
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # longer than a file name may be, or holding a null byte
        return False


@cache
def _spec(name: str) -> ModelSpec:
    entry = next(entry for entry in entries() if entry.name == name)
    model = parse_config(entry.config.data, source=entry.source, name=entry.name)
    return replace(model, source=entry.source)
