"""What can an operator set about serving? One YAML file, every field optional.

Durations in seconds. Steering thresholds are those of `autoscaler.params`; a field that is not
known is an error that names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError, field_validator

from cluster.errors import ConfigError
from cluster.lengths.predictors import PREDICTORS
from serving.long_input.policies import CHOICES, REJECT
from serving.settings.config_section import Section
from serving.settings.steering_config import SteeringSection

_Section = TypeVar("_Section", bound=Section)


class HttpSection(Section):
    """Where the gateways listen, and how many there are.

    Those on one node share the port. One is busy with one core; a second needs another.
    `node_resource`: custom Ray resource of the nodes they go to, of which each takes one; None: any
    node.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    gateways: int = Field(default=1, ge=1)
    node_resource: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]+$")


class LimitsSection(Section):
    """What the gateway accepts.

    `queue_wait_s`: how long a request may wait in line before it is refused; `wake_wait_s`: where
    it waits for the first replica of a pool that may have none. `attempts`: replicas
    a request is tried on. `resumes`: how often a broken stream is taken up elsewhere. `reach_s`:
    how long connecting to a replica may take. `batch_wait_s`, `batch_tokens`: how long, and up to
    how many predicted tokens, requests are gathered while every replica is busy (0: not at all).
    `reschedule_s`: after how long without a first token
    a stream may be moved to a better replica, `moves` times. `output_cap`: longest output in tier 2
    and above.
    `length_predictor`: who says how long answers will be (`cluster.lengths.predictors`).
    `*_delay_s`: how long a class lets a VIP pass. `vip_slots`: of a pool, kept free for VIPs.
    `max_body_bytes`: the largest request body that is read, `body_s`: for how long. `silence_s`:
    longest gap between two events of a stream; `answer_s`: longest time to a whole answer. Then
    the replica counts as hung.
    """

    max_queued: int = Field(default=512, ge=1)
    queue_wait_s: float = Field(default=60.0, gt=0)
    wake_wait_s: float = Field(default=300.0, gt=0)
    attempts: int = Field(default=3, ge=1)
    resumes: int = Field(default=3, ge=0)
    batch_wait_s: float = Field(default=0.0, ge=0)
    batch_tokens: int = Field(default=4096, ge=1)
    reschedule_s: float = Field(default=0.5, gt=0)
    moves: int = Field(default=2, ge=0)
    reach_s: float = Field(default=10.0, gt=0)
    output_cap: int = Field(default=128, ge=1)
    length_predictor: str = "learned"
    standard_delay_s: float = Field(default=30.0, ge=0)
    batch_delay_s: float = Field(default=120.0, ge=0)
    vip_slots: int = Field(default=2, ge=0)
    silence_s: float = Field(default=120.0, gt=0)
    answer_s: float = Field(default=900.0, gt=0)
    body_s: float = Field(default=60.0, gt=0)
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1, le=128 * 1024 * 1024)

    @field_validator("length_predictor")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in PREDICTORS:
            raise ValueError(f"'{name}' is not one of {', '.join(PREDICTORS)}")
        return name


class AccessSection(Section):
    """Who may ask. `keys_file`: absolute, read by the gateways on their nodes; None: anyone."""

    keys_file: Path | None = None

    @field_validator("keys_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError(f"'{path}' is not an absolute path; gateways read it on their nodes")
        return path


class WarmupSection(Section):
    """Beginnings of prompts that a new replica computes before it takes requests.

    `system_prompts`: of chats; `prompts`: of completions.
    """

    system_prompts: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()


class LogsSection(Section):
    """What is written of requests that have ended.

    `access`: where, one line each: `ray` (beside the gateway's own log in Ray's directory),
    `stdout`, an absolute path on the gateways' nodes, or None for nowhere. `prompts`: whether the
    lines hold the text of prompts and answers.
    """

    access: Literal["ray", "stdout"] | Path | None = "ray"
    prompts: bool = False

    @field_validator("access")
    @classmethod
    def _known(cls, access: str | Path | None) -> str | Path | None:
        if isinstance(access, Path) and not access.is_absolute():
            raise ValueError(f"'{access}' is neither ray, stdout, null nor an absolute path")
        return access


class LongInputSection(Section):
    """What is done with prompts that do not fit; tokens.

    `policy`: unless a request names one. `limit_tokens`: the longest prompt there may be, None:
    what the model's context leaves. `longest_tokens`: a longer one is refused and not cut.
    `output_tokens`: room for the answer beside a prompt that was cut, where the caller sets no
    limit. `segment_tokens`: the longest segment of a text that is ranked or remembered. `memory_*`:
    conversations kept, tokens in each, tokens of a prompt that may come from earlier turns, seconds
    after a conversation's last use.
    """

    policy: str = REJECT
    limit_tokens: int | None = Field(default=None, ge=1)
    longest_tokens: int = Field(default=262144, ge=1)
    output_tokens: int = Field(default=256, ge=1)
    segment_tokens: int = Field(default=128, ge=8)
    memory_conversations: int = Field(default=1000, ge=1)
    memory_tokens: int = Field(default=16384, ge=1)
    memory_recall_tokens: int = Field(default=1024, ge=1)
    memory_ttl_s: float = Field(default=3600.0, gt=0)

    @field_validator("policy")
    @classmethod
    def _known(cls, policy: str) -> str:
        if policy not in CHOICES:
            raise ValueError(f"'{policy}' is not one of {', '.join(CHOICES)}")
        return policy


class WeightsSection(Section):
    """How weights reach a node.

    `cache_dir`: absolute, where a node keeps what it fetched from another; None:
    $SHARDWISE_HOME/weights or the user's cache directory, on each node.
    """

    cache_dir: Path | None = None

    @field_validator("cache_dir")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError(f"'{path}' is not an absolute path; every node has it of its own")
        return path


class ServeConfig(Section):
    """The whole file."""

    http: HttpSection = HttpSection()
    limits: LimitsSection = LimitsSection()
    access: AccessSection = AccessSection()
    warmup: WarmupSection = WarmupSection()
    logs: LogsSection = LogsSection()
    long_input: LongInputSection = LongInputSection()
    weights: WeightsSection = WeightsSection()
    steering: SteeringSection = SteeringSection()

    @property
    def open_to_all(self) -> bool:
        """Whether callers of other machines may ask without a key."""
        host = self.http.host
        here = host in ("localhost", "::1") or host.startswith("127.")
        return not here and self.access.keys_file is None


def load_serve_config(path: Path | None) -> ServeConfig:
    """Read a configuration file; None gives the defaults. Raises ConfigError."""
    if path is None:
        return ServeConfig()
    return _validated(ServeConfig, _sections(path), source=str(path))


def read_serve_config(data: dict[Any, Any], *, source: str) -> ServeConfig:
    """A configuration that was read already. Raises ConfigError naming `source`."""
    return _validated(ServeConfig, data, source=source)


def load_steering(path: Path) -> SteeringSection:
    """The steering settings of a configuration file, or of one that holds nothing else.

    Raises ConfigError.
    """
    data = _sections(path)
    if data.keys() & ServeConfig.model_fields.keys():
        return _validated(ServeConfig, data, source=str(path)).steering
    return _validated(SteeringSection, data, source=str(path))


def _sections(path: Path) -> dict[Any, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            source=str(path), field="", problem=f"cannot be read ({error})."
        ) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            source=str(path),
            field="",
            problem=f"holds a {type(data).__name__}, not sections.",
            fix=f"write sections {', '.join(ServeConfig.model_fields)} (docs/operations.md).",
        )
    return data


def _validated(section: type[_Section], data: dict[Any, Any], *, source: str) -> _Section:
    try:
        return section.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            source=source,
            field=".".join(str(part) for part in first["loc"]),
            problem=f"{first['msg']} ({error.error_count()} problem(s) in all).",
            fix="docs/operations.md lists every field.",
        ) from error
