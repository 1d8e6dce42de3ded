"""What kinds of decision are there, and for which kinds of reason?

Of a decision the words (`Decision.reason`) are for people; its kind is for what counts, alerts and
explains: metrics have one series for each, `docs/runbook.md` one section. A reason belongs to one
action.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Action(StrEnum):
    """Kinds of decision."""

    SCALE = "scale"
    TIER = "tier"
    HOLD = "hold"
    RESTART = "restart"
    RETIRE = "retire"
    REPLAN = "replan"


class Reason(StrEnum):
    """Kinds of reason."""

    # SCALE
    OUT_OF_BOUNDS = "out_of_bounds"
    LOAD_NEEDS_MORE = "load_needs_more"
    OTHERS_CARRY = "others_carry"
    NO_LOAD = "no_load"
    SURGE = "surge"
    SURGE_GIVEN_BACK = "surge_given_back"
    # TIER
    SATURATED = "saturated"
    CALM = "calm"
    PROBE = "probe"
    NO_DATA_FOR_LONG = "no_data_for_long"
    # HOLD: of replicas
    DATA_MISSING = "data_missing"
    LAYOUT_MOVES = "layout_moves"
    UP_DELAY = "up_delay"
    DOWN_DELAY = "down_delay"
    ZERO_DELAY = "zero_delay"
    AT_MAXIMUM = "at_maximum"
    KEPT = "kept"
    # HOLD: of the tier
    TIER_BLIND = "tier_blind"
    DEMAND_EXCEEDS = "demand_exceeds"
    REPLICAS_COME = "replicas_come"
    # HOLD: of repairs
    STARTS_HELD = "starts_held"
    RESTART_HELD = "restart_held"
    LEAK_HELD = "leak_held"
    # RESTART
    DEVICE_FAULT = "device_fault"
    STALLED = "stalled"
    NEVER_REPORTED = "never_reported"
    START_TOO_LONG = "start_too_long"
    LEAK_REPLACED = "leak_replaced"
    # RETIRE
    LEAK = "leak"
    # REPLAN
    DRIFT = "drift"


REASONS: Mapping[Action, tuple[Reason, ...]] = {
    Action.SCALE: (
        Reason.OUT_OF_BOUNDS,
        Reason.LOAD_NEEDS_MORE,
        Reason.OTHERS_CARRY,
        Reason.NO_LOAD,
        Reason.SURGE,
        Reason.SURGE_GIVEN_BACK,
    ),
    Action.TIER: (Reason.SATURATED, Reason.CALM, Reason.PROBE, Reason.NO_DATA_FOR_LONG),
    Action.HOLD: (
        Reason.DATA_MISSING,
        Reason.LAYOUT_MOVES,
        Reason.UP_DELAY,
        Reason.DOWN_DELAY,
        Reason.ZERO_DELAY,
        Reason.AT_MAXIMUM,
        Reason.KEPT,
        Reason.TIER_BLIND,
        Reason.DEMAND_EXCEEDS,
        Reason.REPLICAS_COME,
        Reason.STARTS_HELD,
        Reason.RESTART_HELD,
        Reason.LEAK_HELD,
    ),
    Action.RESTART: (
        Reason.DEVICE_FAULT,
        Reason.STALLED,
        Reason.NEVER_REPORTED,
        Reason.START_TOO_LONG,
        Reason.LEAK_REPLACED,
    ),
    Action.RETIRE: (Reason.LEAK,),
    Action.REPLAN: (Reason.DRIFT,),
}
