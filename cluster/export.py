"""How is a plan said to other systems? Text for vLLM, NIM, Triton, Ray Serve, Helm and Ray.

Every format is one pure function from a plan to files; `PLAIN` is the table of them, `CONFIGURED`
that of those that say the serving configuration too.
NIM's notation has no attention data parallelism of its own: (TP, EP, PP) means dp = EP, and a
layout where the two differ says `dp=` as well. A Triton repository or a `vllm serve` line is one
replica; how many there are is said beside it.

Per-operator dims are in none of these words except bundles, which only place ranks: a plan that has
some is refused elsewhere, since what was exported would run another layout than the one planned.

Invariant: the same plan gives the same text.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

from cluster.errors import InputError, UnknownNameError
from cluster.model.catalogue import hub_id
from cluster.model.plan import Plan, PoolSection
from cluster.ray_backend.bundles import PlacementBundles, replica_bundles
from cluster.rayservice_files import helm_text, serve_text


@dataclass(frozen=True, kw_only=True)
class ExportFile:
    """A file of an export: its path relative to the target, and its text."""

    path: str
    text: str


Config = Mapping[str, Any]


def export(plan: Plan, name: str, *, config: Config | None = None) -> tuple[ExportFile, ...]:
    """The files of a plan in the format `name`. `config`: sections of a serving configuration.

    Raises UnknownNameError, and InputError for what the format cannot say.
    """
    if name not in FORMATS:
        raise UnknownNameError(kind="export format", name=name, known=FORMATS)
    if config is not None and name not in CONFIGURED:
        raise InputError(
            f"a serving configuration has no place in {name}. Fix: leave it out; "
            f"{' and '.join(CONFIGURED)} have one."
        )
    if name not in SAY_DIMS:
        for pool in plan.pools:
            if pool.layout.dims:
                named = ", ".join(pool.layout.dims)
                raise InputError(
                    f"pool '{pool.name}' has dims of its own ({named}), which {name} cannot say: "
                    "it would run another layout than the one planned. Fix: plan in the `vllm` "
                    "space, or remove the dims and check the plan again."
                )
    if name in CONFIGURED:
        return CONFIGURED[name](plan, config or {})
    return PLAIN[name](plan)


def vllm(plan: Plan) -> tuple[ExportFile, ...]:
    """A shell script with the `vllm serve` command line of a replica of each pool."""
    blocks = ["#!/bin/sh\n# One replica of each pool; ports and machines are up to the caller.\n"]
    for pool in plan.pools:
        words = [_weights(pool), "--served-model-name", pool.model.name]
        for name, value in pool.engine_args.items():
            words += _flag(name, value)
        lines = " \\\n".join(["vllm serve " + shlex.quote(words[0]), *_pairs(words[1:])])
        blocks.append(f"# pool {pool.name}: {_replicas(pool)}\n{lines}\n")
    return (ExportFile(path="serve.sh", text="\n".join(blocks)),)


def _weights(pool: PoolSection) -> str:
    """What another system loads: a catalogue name is ours alone, its repository everyone's."""
    return hub_id(pool.model.source) or pool.model.source


def nim(plan: Plan) -> tuple[ExportFile, ...]:
    """NIM-style options, a line per pool."""
    lines = []
    for pool in plan.pools:
        layout = pool.layout
        degrees = {"tp": layout.tp, "ep": layout.moe_ep, "pp": layout.pp}
        if layout.dp != layout.moe_ep:
            degrees["dp"] = layout.dp
        parallelism = ",".join(f"{name}={value}" for name, value in degrees.items())
        lines.append(
            f"--model {shlex.quote(_weights(pool))} --parallelism {parallelism} "
            f"--chunk_size {layout.max_num_batched_tokens}\n"
        )
    return (ExportFile(path="nim.txt", text="".join(lines)),)


def triton(plan: Plan) -> tuple[ExportFile, ...]:
    """A Triton model repository for its vLLM backend: a directory per pool."""
    files = []
    for pool in plan.pools:
        name = pool.model.name.replace("/", "--")
        engine = {"model": _weights(pool), **pool.engine_args}
        files.append(
            ExportFile(
                path=f"{name}/config.pbtxt",
                text=(
                    f"# pool {pool.name}: {_replicas(pool)}, a server each\n"
                    f"name: {json.dumps(name)}\n"
                    'backend: "vllm"\n'
                    "# The engine batches and places its ranks itself.\n"
                    "instance_group [\n  {\n    count: 1\n    kind: KIND_MODEL\n  }\n]\n"
                ),
            )
        )
        files.append(
            ExportFile(path=f"{name}/1/model.json", text=json.dumps(engine, indent=2) + "\n")
        )
    return tuple(files)


def bundles(plan: Plan) -> tuple[ExportFile, ...]:
    """JSON of the Ray placement group of a replica of each pool."""
    groups = {}
    for pool in plan.pools:
        placement = _placement(plan, pool)
        groups[pool.name] = {
            "strategy": placement.strategy,
            "bundles": list(placement.bundles),
            "replicas": pool.replicas.model_dump(),
        }
    return (ExportFile(path="bundles.json", text=json.dumps(groups, indent=2) + "\n"),)


def ray_llm(plan: Plan) -> tuple[ExportFile, ...]:
    """A Ray Serve configuration (`serve deploy`) of Ray's own LLM application, a model per pool.

    Each pool gets its initial replicas; nothing scales it between its bounds.
    """
    models = []
    for pool in plan.pools:
        placement = _placement(plan, pool)
        models.append(
            {
                "model_loading_config": {
                    "model_id": pool.model.name,
                    "model_source": _weights(pool),
                },
                "engine_kwargs": dict(pool.engine_args),
                "deployment_config": {"num_replicas": max(pool.replicas.initial, 1)},
                "placement_group_config": {
                    "bundles": list(placement.bundles),
                    "strategy": placement.strategy,
                },
            }
        )
    application = {
        "name": "shardwise",
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": models},
    }
    text = yaml.safe_dump({"applications": [application]}, sort_keys=False)
    return (ExportFile(path="serve.yaml", text=text),)


def serve(plan: Plan, config: Config) -> tuple[ExportFile, ...]:
    """The Serve configuration of a RayService: the plan as `shardwise up` serves it."""
    return (ExportFile(path="serve.yaml", text=serve_text(plan, config)),)


def helm(plan: Plan, config: Config) -> tuple[ExportFile, ...]:
    """Values for the chart `helm/shardwise`."""
    return (ExportFile(path="values.yaml", text=helm_text(plan, config)),)


def _placement(plan: Plan, pool: PoolSection) -> PlacementBundles:
    return replica_bundles(
        pool.layout.to_layout(replicas=1),
        device_kind=plan.cluster.device_kind,
        devices_per_node=plan.cluster.devices_per_node,
    )


PLAIN: Mapping[str, Callable[[Plan], tuple[ExportFile, ...]]] = MappingProxyType(
    {"vllm": vllm, "nim": nim, "triton": triton, "ray-llm": ray_llm, "bundles": bundles}
)
CONFIGURED: Mapping[str, Callable[[Plan, Config], tuple[ExportFile, ...]]] = MappingProxyType(
    {"serve": serve, "helm": helm}
)
"""Formats that hold the serving configuration too."""
FORMATS = (*PLAIN, *CONFIGURED)
SAY_DIMS = frozenset({"bundles"})
"""Formats for which it does not matter how operators are cut."""


def _flag(name: str, value: object) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", value if isinstance(value, str) else json.dumps(value)]


def _pairs(words: list[str]) -> list[str]:
    """One option a line, with its value where it has one."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--"):
            lines.append("  " + word)
        else:
            lines[-1] += " " + shlex.quote(word)
    return lines


def _replicas(pool: PoolSection) -> str:
    bounds = pool.replicas
    return f"{bounds.minimum} to {bounds.maximum} replicas, {bounds.initial} at first"
