"""The plan file: layout + engine arguments + expectations. What `plan` writes and `serve` reads.

A plan has one pool per model it serves: the `main` pool, and optionally a `light` pool that
non-VIP traffic moves to in degradation tier 3. Durations in seconds, sizes in bytes.
The JSON Schema in `docs/plan.schema.json` is generated from these classes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cluster.errors import ConfigError
from cluster.model.layout import Dim, Layout

PLAN_VERSION: Final = 1
MAX_COUNT: Final = 1_000_000  # of devices, and so of anything a layout counts
_ENGINE_ARGUMENT = re.compile(r"[a-z][a-z0-9_]*")


def served_name_problem(name: str) -> str | None:
    """Why a model cannot answer under `name`, which is a part of paths and URLs; None if it can."""
    if not name:
        return "it is empty, at least 1 character is needed."
    if name in (".", "..") or name.startswith("/"):
        return "it must not be '.' or '..' nor start with '/'."
    return None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(_Strict):
    """Which model a pool serves."""

    name: str = Field(
        min_length=1, description="Name under which the pool's model answers (`model` in requests)"
    )
    source: str = Field(description="Catalogue name, Hugging Face id, or path of a model directory")
    params: int = Field(ge=0, description="Weights, counted from the configuration")
    weight_bytes: float = Field(ge=0, description="Bytes of all weights in their formats")
    max_context: int = Field(gt=0, description="Longest sequence the model accepts, tokens")

    @field_validator("name")
    @classmethod
    def _servable(cls, name: str) -> str:
        problem = served_name_problem(name)
        if problem:
            raise ValueError(f"is {name!r}: {problem}")
        return name


class ClusterSection(_Strict):
    """The devices the plan was made for."""

    spec: str = Field(description="As given: `4x8xH200` or the path of a cluster file")
    device: str
    nodes: int = Field(gt=0)
    devices_per_node: int = Field(gt=0)
    device_kind: Literal["gpu", "cpu"] = "gpu"

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.devices_per_node


class WorkloadSection(_Strict):
    """What the plan was made for."""

    isl: int = Field(gt=0, description="Prompt tokens of a request")
    osl: int = Field(gt=0, description="Output tokens of a request")
    rate: float | None = Field(default=None, gt=0, description="Requests per second, if known")


class ServingSection(_Strict):
    """How the expectation says that replicas are served; the engine is told by its arguments."""

    backend: Literal["vllm", "sglang", "trtllm"] = "vllm"
    prefix_hit: float = Field(
        default=0.0, ge=0, lt=1, description="Share of prompt tokens in the prefix cache"
    )
    draft_tokens: int | None = Field(
        default=None, ge=1, description="Tokens drafted per step; null: no speculation"
    )
    draft_acceptance: float = Field(
        default=0.0, ge=0, lt=1, description="Chance that a drafted token is kept"
    )
    draft_share: float = Field(
        default=0.0, ge=0, description="Time of a drafted token over a step of the model"
    )
    offload_bytes: float = Field(
        default=0.0, ge=0, description="Bytes of each device's weights in host memory"
    )


class SloSection(_Strict):
    """Latency bounds, seconds."""

    ttft_s: float | None = Field(default=None, gt=0)
    tpot_s: float | None = Field(default=None, gt=0)


class LayoutSection(_Strict):
    """`cluster.model.layout.Layout`, field by field."""

    tp: int = Field(default=1, ge=1, le=MAX_COUNT)
    dp: int = Field(default=1, ge=1, le=MAX_COUNT)
    pp: int = Field(default=1, ge=1, le=MAX_COUNT)
    moe_tp: int = Field(default=1, ge=1, le=MAX_COUNT)
    moe_ep: int = Field(default=1, ge=1, le=MAX_COUNT)
    max_num_seqs: int = Field(default=64, ge=1, le=MAX_COUNT)
    max_num_batched_tokens: int = Field(default=2048, ge=1, le=MAX_COUNT)
    dims: dict[str, Dim] = Field(default_factory=dict)

    def to_layout(self, *, replicas: int) -> Layout:
        """The frozen dataclass the core works with."""
        fields = self.model_dump(exclude={"dims"})
        return Layout(**fields, replicas=replicas, dims=tuple(sorted(self.dims.items())))

    @classmethod
    def from_layout(cls, layout: Layout) -> LayoutSection:
        """Inverse of `to_layout` (replicas live in the pool)."""
        names = set(cls.model_fields) - {"dims"}
        return cls(**{name: getattr(layout, name) for name in names}, dims=dict(layout.dims))


class ReplicaBounds(_Strict):
    """How many replicas a pool may have; `initial` is where it starts."""

    minimum: int = Field(default=1, ge=0, le=MAX_COUNT)
    initial: int = Field(default=1, ge=0, le=MAX_COUNT)
    maximum: int = Field(default=1, ge=1, le=MAX_COUNT)

    @model_validator(mode="after")
    def _ordered(self) -> ReplicaBounds:
        if not self.minimum <= self.initial <= self.maximum:
            raise ValueError(
                "replicas must satisfy minimum <= initial <= maximum, got "
                f"{self.minimum}, {self.initial}, {self.maximum}"
            )
        return self


class Expectation(_Strict):
    """What the cost model expects of one replica at the planned operating point."""

    ttft_s: float = Field(ge=0)
    tpot_s: float = Field(ge=0)
    concurrency: int = Field(ge=1, description="Sequences in flight per replica")
    tokens_per_s_per_device: float = Field(ge=0, description="Output tokens")
    tokens_per_s_per_user: float = Field(ge=0)
    goodput_rps: float = Field(ge=0, description="Requests/s of one replica within the SLO")
    prefill_tokens_per_s: float = Field(gt=0, description="Prompt tokens/s of one replica alone")
    decode_tokens_per_s: float = Field(gt=0, description="Output tokens/s at `concurrency`")
    kv_capacity_tokens: int = Field(ge=0, description="Tokens the KV cache of a replica holds")
    memory_bytes: dict[str, float] = Field(description="Per device: weights, kv, activations…")
    parts_s: dict[str, float] = Field(description="Decode step by named part, seconds")
    cost_per_million_tokens: float | None = Field(default=None, description="USD, output tokens")
    provenance: str = Field(description="Where the coefficients come from")


class PoolSection(_Strict):
    """Replicas of one model under one layout."""

    name: Literal["main", "light"]
    model: ModelSection
    layout: LayoutSection
    replicas: ReplicaBounds
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="vLLM engine arguments, as `vllm serve` names them"
    )
    expected: Expectation | None = None
    serving: ServingSection | None = Field(
        default=None, description="How replicas are served, where not plainly by vLLM"
    )

    @field_validator("engine_args")
    @classmethod
    def _named_as_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if not _ENGINE_ARGUMENT.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not an engine argument: names are lower-case letters, digits "
                    "and _, starting with a letter, such as max_model_len"
                )
        return arguments


class Plan(_Strict):
    """A plan file."""

    version: Literal[1] = PLAN_VERSION
    cluster: ClusterSection
    workload: WorkloadSection
    slo: SloSection
    pools: tuple[PoolSection, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _main_first(self) -> Plan:
        names = [pool.name for pool in self.pools]
        if names[0] != "main" or len(set(names)) != len(names):
            raise ValueError(f"pools must start with 'main' and have distinct names, got {names}")
        served = [pool.model.name for pool in self.pools]
        if len(set(served)) != len(served):
            raise ValueError(f"pools must serve models of distinct names, got {served}")
        return self

    @property
    def main(self) -> PoolSection:
        """The pool that serves the planned model."""
        return self.pools[0]

    @property
    def light(self) -> PoolSection | None:
        """The pool of the lighter model, if the plan has one."""
        return next((pool for pool in self.pools if pool.name == "light"), None)

    def dumps(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"


def load_plan(path: Path) -> Plan:
    """Read and validate a plan file. Raises ConfigError naming the file and the field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            source=str(path),
            field="",
            problem=f"cannot be read ({error}).",
            fix="write one with `shardwise plan … --out plan.json`.",
        ) from error
    return parse_plan(text, source=str(path))


def parse_plan(text: str, *, source: str) -> Plan:
    """Validate a plan's text. Raises ConfigError naming the source and the field."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            source=source,
            field="",
            problem=f"is not JSON (line {error.lineno}, column {error.colno}: {error.msg}).",
            fix="pass the file that `shardwise plan --out` wrote.",
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deep, or an integer too long
        raise ConfigError(
            source=source,
            field="",
            problem=f"cannot be read as JSON ({error}).",
            fix="pass the file that `shardwise plan --out` wrote.",
        ) from error
    if isinstance(data, dict) and "version" in data and data["version"] != PLAN_VERSION:
        raise ConfigError(
            source=source,
            field="version",
            problem=f"is {data['version']!r}, this release reads version {PLAN_VERSION}.",
            fix="make the plan again with this release.",
        )
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            source=source,
            field=".".join(str(part) for part in first["loc"]),
            problem=f"{first['msg']} ({error.error_count()} problem(s) in all).",
            fix="see docs/plan.schema.json for the format.",
        ) from error
