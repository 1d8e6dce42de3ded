"""What does a RayService of a plan hold? Its Serve configuration, and values for the chart.

The application is our own, which reads plan and serving configuration from its arguments
(`serving.rayservice.application`). Proxies are off: gateways listen themselves.

Invariant: the chart in `helm/shardwise` renders the same Serve configuration (tests/helm).
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent
from typing import Any

import yaml

from cluster.errors import InputError
from cluster.model.plan import Plan

IMPORT_PATH = "serving.rayservice.application:application"
APPLICATION = "shardwise-reconciler"


def serve_config(plan: Plan, config: Mapping[str, Any]) -> dict[str, Any]:
    """What is put to Serve's REST interface. `config`: the serving configuration's sections.

    Raises InputError for layouts that replicas cannot be started with.
    """
    _check(plan)
    return {
        "proxy_location": "Disabled",
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": None,
                "import_path": IMPORT_PATH,
                "args": {"plan": plan.model_dump(mode="json"), "config": dict(config)},
            }
        ],
    }


def serve_text(plan: Plan, config: Mapping[str, Any]) -> str:
    """The same as YAML."""
    return yaml.safe_dump(serve_config(plan, config), sort_keys=False)


def helm_text(plan: Plan, config: Mapping[str, Any]) -> str:
    """Values for the chart: the plan, from which it builds its worker groups, and the settings.

    The plan is a text, as `--set-file plan=plan.json` gives it: Helm warns where a table takes the
    place of the text that is the chart's own value.
    """
    _check(plan)
    settings = yaml.safe_dump({"config": dict(config)}, sort_keys=False)
    return f"plan: |\n{indent(plan.dumps(), '  ')}\n{settings}"


def _check(plan: Plan) -> None:
    for pool in plan.pools:
        if pool.layout.dp > 1:
            raise InputError(
                f"pool '{pool.name}' has dp = {pool.layout.dp}: a replica is one engine here. Fix: "
                "plan with --max-dp 1, or export in another format and run the engine yourself."
            )
