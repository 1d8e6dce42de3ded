"""What does a Serve configuration ask for? A plan and a serving configuration, as its arguments.

Both are read here as they are from files, and with the same errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import ConfigError
from cluster.model.plan import Plan, parse_plan
from serving.layout.generations import digest
from serving.layout.succession import check_servable
from serving.settings.config import ServeConfig, read_serve_config
from serving.sources import resolve_sources, with_sources

_WHERE = "the arguments of the Serve application"
_KNOWN = ("plan", "config", "allow_below_floor")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the operator wants to be served.

    `allow_below_floor`: whether requests may wait in line while a layout changes without room.
    """

    plan: Plan
    config: ServeConfig
    allow_below_floor: bool = False

    @property
    def sources(self) -> dict[str, str]:
        """What engines load, by pool, as seen from this node. Raises InputError."""
        return resolve_sources(self.plan)

    @property
    def resolved(self) -> Plan:
        """The plan with what engines load."""
        return with_sources(self.plan, self.sources)

    @property
    def digest(self) -> str:
        """By which the controller knows this plan."""
        return digest(self.resolved)


def read_wanted(arguments: Mapping[str, Any]) -> Wanted:
    """Validate the arguments. Raises ConfigError or InputError naming the field and the fix."""
    unknown = sorted(arguments.keys() - set(_KNOWN))
    if unknown:
        raise ConfigError(
            source=_WHERE,
            field=unknown[0],
            problem="is not known.",
            fix=f"leave it out; there are {', '.join(_KNOWN)}.",
        )
    if not isinstance(arguments.get("plan"), Mapping):
        raise ConfigError(
            source=_WHERE,
            field="plan",
            problem="is missing or no mapping.",
            fix="write the configuration with `shardwise export plan.json --format serve`.",
        )
    config = arguments.get("config") or {}
    if not isinstance(config, dict):
        raise ConfigError(source=_WHERE, field="config", problem="is no mapping of sections.")
    plan = parse_plan(json.dumps(arguments["plan"]), source=f"{_WHERE}, plan")
    check_servable(plan)
    return Wanted(
        plan=plan,
        config=read_serve_config(config, source=f"{_WHERE}, config"),
        allow_below_floor=arguments.get("allow_below_floor") is True,
    )
