"""How is a run of the controller written down, so that it can be replayed?

One JSON object per line. A header carries all parameters and starts a run with a blank state (a
restarted controller appends a new header to the same file); every tick line carries the snapshot
the controller saw, what it decided and the tier it was in; a change puts other parameters in force
and keeps the state (the pool has moved to another layout). No I/O here: lines in, lines out.

    {"kind": "header", "version": 3, "params": {...}}
    {"kind": "tick", "snapshot": {...}, "decisions": [...], "tier": 0}
    {"kind": "change", "params": {...}}

Invariants: `parse_line(dump(record)) == record` for finite values; a number that is not finite is
written as null and read as NaN, which the controller treats alike: as unknown.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoscaler.json_reader import Json, Reader
from autoscaler.params import ControllerParams
from autoscaler.params_json import params_to_json, read_params
from autoscaler.reasons import Action, Reason
from autoscaler.snapshot import (
    ClusterSnapshot,
    Decision,
    LoadObservation,
    PoolObservation,
    ReplicaObservation,
    StartingReplica,
    Tier,
    WorkloadObservation,
)
from cluster.errors import ConfigError

LOG_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class Header:
    """A run starts, with these parameters and a blank state."""

    params: ControllerParams


@dataclass(frozen=True, kw_only=True)
class Change:
    """From here on these parameters hold."""

    params: ControllerParams


@dataclass(frozen=True, kw_only=True)
class Tick:
    """One step: what was seen, what was decided, and the tier after it."""

    snapshot: ClusterSnapshot
    decisions: tuple[Decision, ...]
    tier: Tier


Record = Header | Change | Tick


def dump(record: Record) -> str:
    """The record's line, without a line break."""
    match record:
        case Header(params=params):
            data: dict[str, Json] = {
                "kind": "header",
                "version": LOG_VERSION,
                "params": params_to_json(params),
            }
        case Change(params=params):
            data = {"kind": "change", "params": params_to_json(params)}
        case Tick():
            data = {
                "kind": "tick",
                "snapshot": _without_nan(dataclasses.asdict(record.snapshot)),
                "decisions": [_decision_to_json(item) for item in record.decisions],
                "tier": int(record.tier),
            }
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def parse(lines: Iterable[str], *, source: str) -> Iterator[tuple[int, Record]]:
    """(line number from 1, record) of each line that is not blank.

    Raises ConfigError naming `source`, the line and the field.
    """
    started = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = parse_line(line, source=f"{source}, line {number}")
        if not started and not isinstance(record, Header):
            raise ConfigError(
                source=f"{source}, line {number}",
                field="kind",
                problem="a log starts with a header line, this is none.",
                fix="replay the file from its beginning.",
            )
        started = True
        yield number, record
    if not started:
        raise ConfigError(
            source=source,
            field="",
            problem="has no header line: it is empty.",
            fix="pass a log that the controller wrote.",
        )


def parse_line(line: str, *, source: str) -> Record:
    """The record of one line. Raises InputError naming `source` and the field."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(
            source=source,
            field="",
            problem=f"is not JSON (column {error.colno}: {error.msg}).",
            fix="if the writer was interrupted in its last line, remove that line.",
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deep, or an integer too long
        raise ConfigError(
            source=source,
            field="",
            problem=f"cannot be read as JSON ({error}).",
            fix="remove the line: the controller did not write it.",
        ) from error
    reader = Reader(data, source=source)
    kind = reader.text("kind")
    if kind == "header":
        version = reader.integer("version")
        if version != LOG_VERSION:
            raise reader.error("version", f"is {version}, this release reads {LOG_VERSION}.")
        record: Record = Header(params=read_params(reader.child("params")))
    elif kind == "change":
        record = Change(params=read_params(reader.child("params")))
    elif kind == "tick":
        record = Tick(
            snapshot=_snapshot(reader.child("snapshot")),
            decisions=tuple(_decision(child) for child in reader.children("decisions")),
            tier=_tier(reader),
        )
    else:
        raise reader.error("kind", f"is '{kind}', not header, change or tick.")
    reader.done()
    return record


def _decision_to_json(decision: Decision) -> dict[str, Json]:
    return {
        "action": decision.action.value,
        "pool": decision.pool,
        "value": decision.value,
        "kind": decision.kind.value,
        "reason": decision.reason,
        "numbers": dict(decision.numbers),
        "subject": decision.subject,
    }


def _without_nan(value: Json) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _tier(reader: Reader) -> Tier:
    value = reader.integer("tier")
    if value not in list(Tier):
        raise reader.error("tier", f"is {value}, not 0 to {int(Tier.SHED)}.")
    return Tier(value)


def _decision(reader: Reader) -> Decision:
    action = reader.text("action")
    if action not in list(Action):
        raise reader.error("action", f"is '{action}', not one of {', '.join(Action)}.")
    kind = reader.text("kind")
    if kind not in list(Reason):
        raise reader.error("kind", f"is '{kind}', not one of {', '.join(Reason)}.")
    decision = Decision(
        action=Action(action),
        pool=reader.text("pool"),
        value=reader.integer("value"),
        kind=Reason(kind),
        reason=reader.text("reason"),
        numbers=reader.named_numbers("numbers"),
        subject=reader.text("subject"),
    )
    reader.done()
    return decision


def _snapshot(reader: Reader) -> ClusterSnapshot:
    snapshot = ClusterSnapshot(
        now_s=reader.number("now_s"),
        pools=tuple(_pool(child) for child in reader.children("pools")),
        loads=tuple(_load(child) for child in reader.children("loads")),
        workloads=tuple(_workload(child) for child in reader.children("workloads")),
    )
    reader.done()
    return snapshot


def _pool(reader: Reader) -> PoolObservation:
    pool = PoolObservation(
        pool=reader.text("pool"),
        observed_s=reader.number_or_nan("observed_s"),
        target=reader.integer("target"),
        ready=reader.integer("ready"),
        pending=reader.integer("pending"),
        replicas=tuple(_replica(child) for child in reader.children("replicas")),
        starting=tuple(_starting(child) for child in reader.children("starting")),
        unmet=reader.text("unmet"),
        start_failure=reader.text("start_failure"),
        moving=reader.text("moving"),
        deploying=reader.boolean("deploying"),
    )
    reader.done()
    return pool


def _replica(reader: Reader) -> ReplicaObservation:
    replica = ReplicaObservation(
        replica_id=reader.text("replica_id"),
        observed_s=reader.number_or_nan("observed_s"),
        running=reader.integer("running"),
        waiting=reader.integer("waiting"),
        kv_usage=reader.number_or_nan("kv_usage"),
        steps=reader.integer("steps"),
        owed_s=reader.number_or_nan("owed_s"),
        in_flight=reader.integer("in_flight"),
        prompt_tokens=reader.integer("prompt_tokens"),
        output_tokens=reader.integer("output_tokens"),
        host_bytes=reader.number_or_nan("host_bytes"),
        device_bytes=reader.number_or_nan("device_bytes"),
        device_fault=reader.text("device_fault"),
    )
    reader.done()
    return replica


def _starting(reader: Reader) -> StartingReplica:
    starting = StartingReplica(
        replica_id=reader.text("replica_id"), since_s=reader.number_or_nan("since_s")
    )
    reader.done()
    return starting


def _load(reader: Reader) -> LoadObservation:
    load = LoadObservation(
        pool=reader.text("pool"),
        observed_s=reader.number_or_nan("observed_s"),
        arrival_tokens_per_s=reader.number_or_nan("arrival_tokens_per_s"),
        in_flight_tokens=reader.number_or_nan("in_flight_tokens"),
        queued_tokens=reader.number_or_nan("queued_tokens"),
        queued_requests=reader.integer("queued_requests"),
        oldest_wait_s=reader.number_or_nan("oldest_wait_s"),
        arrival_work=reader.number_or_nan("arrival_work"),
        in_flight_work=reader.number_or_nan("in_flight_work"),
        queued_work=reader.number_or_nan("queued_work"),
    )
    reader.done()
    return load


def _workload(reader: Reader) -> WorkloadObservation:
    workload = WorkloadObservation(
        pool=reader.text("pool"),
        observed_s=reader.number_or_nan("observed_s"),
        requests=reader.number_or_nan("requests"),
        requests_per_s=reader.number_or_nan("requests_per_s"),
        prompt_tokens=reader.number_or_nan("prompt_tokens"),
        output_tokens=reader.number_or_nan("output_tokens"),
        streams=reader.number_or_nan("streams"),
        ttft_s=reader.number_or_nan("ttft_s"),
        tpot_s=reader.number_or_nan("tpot_s"),
        in_flight=reader.number_or_nan("in_flight"),
    )
    reader.done()
    return workload
