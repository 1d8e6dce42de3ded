"""What does `simulate` put to the test? Plans become setups, and who steers them.

The gateway's rules are the serving configuration's limits; a replica starts as slowly for the
simulator as for the controller that reckons with it: what --cold-start says, else what the
configuration says, else what its weights take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autoscaler.params import ControllerParams
from autoscaler.simulated import Steered
from cli.console import resolve_cluster
from cluster.calibration.live_file import LiveFile
from cluster.costmodel.coefficients import Coefficients
from cluster.errors import ConfigError, InputError
from cluster.model.hardware import NodeGroup
from cluster.model.plan import Plan, load_plan
from cluster.model.planned import planned_group, planned_model
from cluster.model.workload import Slo
from cluster.priority import Priority
from cluster.sim.failures import Failure
from cluster.sim.from_plan import max_context, pool_setups
from cluster.sim.measured_times import MeasuredTimes
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from serving.settings.config import LimitsSection, ServeConfig
from serving.settings.steering_config import controller_params

Steering = partial[Steered]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How the controller is to steer, where not as the plan and the configuration say."""

    minimum: int | None = None
    maximum: int | None = None
    policy: str | None = None
    forecaster: str | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of every plan. `steered` None: nobody steers."""

    config: ServeConfig
    replicas: int | None = None
    steered: Bounds | None = None
    apart: tuple[int, int] | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    failures: tuple[Failure, ...] = ()
    cold_start_s: float | None = None
    resumes: bool | None = None
    router: str = "scored"
    length_predictor: str | None = None
    batch_wait_s: float | None = None
    reschedule_after_s: float | None = None
    coefficients: Coefficients | None = None
    measured: LiveFile | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan to simulate. `steering` makes the driver; None: nobody steers."""

    label: str
    path: Path
    plan: Plan
    setup: Setup
    steering: Steering | None
    params: ControllerParams | None
    notes: tuple[str, ...] = ()

    @property
    def contexts(self) -> dict[str, int]:
        """Tokens, prompt and output, that each pool's model accepts."""
        return _contexts(self.plan)


def cases(paths: Sequence[Path], question: Question) -> tuple[Case, ...]:
    """A case for each plan file. Raises InputError (ConfigError, UnknownNameError)."""
    return tuple(
        _case(path, label, question) for path, label in zip(paths, _labels(paths), strict=True)
    )


def _labels(paths: Sequence[Path]) -> list[str]:
    """Names of files, as short as tells them apart."""
    stems = [path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    names = [str(path) for path in paths]
    return [
        name if names.count(name) == 1 else f"{name} ({index})"
        for index, name in enumerate(names, start=1)
    ]


def _case(path: Path, label: str, question: Question) -> Case:
    plan, config = load_plan(path), question.config
    group = _group(plan, source=str(path))
    pools = _pools(plan, question, group=group, source=str(path))
    params = None
    if question.steered is not None:
        params = _params(plan, question.steered, config=config, pools=pools)
        pools = _within(pools, params)
    _somebody_serves(pools, params, path=path)
    setup = Setup(
        pools=pools,
        gateway=_rules(question, config.limits, expected=plan.workload.osl),
        failures=question.failures,
        slo=Slo(
            ttft_s=plan.slo.ttft_s if question.ttft_s is None else question.ttft_s,
            tpot_s=plan.slo.tpot_s if question.tpot_s is None else question.tpot_s,
        ),
    )
    steering = None
    if params is not None:
        steering = partial(
            Steered,
            params,
            contexts=_contexts(plan),
            output_cap=config.limits.output_cap,
        )
    return Case(
        label=label,
        path=path,
        plan=plan,
        setup=setup,
        steering=steering,
        params=params,
        notes=_notes(pools, params, group=group, question=question),
    )


def _pools(
    plan: Plan, question: Question, *, group: NodeGroup, source: str
) -> tuple[PoolSetup, ...]:
    cold_start_s = question.cold_start_s
    steering = question.config.steering
    if cold_start_s is None and "cold_start_s" in steering.model_fields_set:
        cold_start_s = steering.cold_start_s
    make = partial(
        pool_setups,
        plan,
        models=partial(planned_model, source=source),
        group=group,
        replicas=question.replicas,
        disaggregated=question.apart,
        cold_start_s=cold_start_s,
        coefficients=question.coefficients,
    )
    modelled = make()
    if question.measured is None:
        return modelled
    # One engine was measured, the main pool's; a light model is another.
    measured = make(times=MeasuredTimes.of(question.measured))
    return tuple(
        theirs if ours.name == "light" else ours
        for ours, theirs in zip(measured, modelled, strict=True)
    )


def _group(plan: Plan, *, source: str) -> NodeGroup:
    """The plan's nodes; a plan made `local` elsewhere keeps the devices it was made for."""
    wanted = plan.cluster
    try:
        spec = resolve_cluster(wanted.spec)
    except InputError as error:
        raise ConfigError(source=source, field="cluster.spec", problem=str(error)) from error
    for group in spec.groups:
        if group.device.name == wanted.device:
            return group
    if wanted.spec.strip().lower() == "local":
        return planned_group(wanted)
    raise ConfigError(
        source=source,
        field="cluster.device",
        problem=f"is {wanted.device}, but {wanted.spec} has "
        f"{', '.join(group.device.name for group in spec.groups)}.",
        fix="make the plan anew for this cluster.",
    )


def _rules(question: Question, limits: LimitsSection, *, expected: int) -> GatewayRules:
    rules = GatewayRules(
        expected_output=expected,
        max_queued=limits.max_queued,
        queue_wait_s=limits.queue_wait_s,
        attempts=limits.attempts,
        delays_s={
            Priority.VIP: 0.0,
            Priority.STANDARD: limits.standard_delay_s,
            Priority.BATCH: limits.batch_delay_s,
        },
        batch_wait_s=limits.batch_wait_s,
        batch_tokens=limits.batch_tokens,
        vip_slots=limits.vip_slots,
        reschedule_after_s=limits.reschedule_s,
        max_moves=limits.moves,
        resumes=limits.resumes > 0 if question.resumes is None else question.resumes,
        router=question.router,
        length_predictor=question.length_predictor or limits.length_predictor,
    )
    if question.batch_wait_s is not None:
        rules = replace(rules, batch_wait_s=question.batch_wait_s)
    if question.reschedule_after_s is not None:
        rules = replace(rules, reschedule_after_s=question.reschedule_after_s)
    return rules


def _params(
    plan: Plan, bounds: Bounds, *, config: ServeConfig, pools: Sequence[PoolSetup]
) -> ControllerParams:
    params = controller_params(plan, config.steering)
    main = params.main
    minimum = main.minimum if bounds.minimum is None else bounds.minimum
    maximum = main.maximum if bounds.maximum is None else bounds.maximum
    if minimum > maximum:
        raise InputError(
            f"at least {minimum} replicas and at most {maximum} contradict each other. Fix: pass "
            "--min-replicas and --max-replicas that fit, or leave one out for the plan's bound."
        )
    bounded = (replace(main, minimum=minimum, maximum=maximum), *params.pools[1:])
    return replace(
        params,
        pools=tuple(
            replace(pool, cold_start_s=setup.spec.start_s)
            for pool, setup in zip(bounded, pools, strict=True)
        ),
        scaling=replace(params.scaling, policy=bounds.policy or params.scaling.policy),
        forecast=replace(params.forecast, method=bounds.forecaster or params.forecast.method),
    )


def _within(pools: Sequence[PoolSetup], params: ControllerParams) -> tuple[PoolSetup, ...]:
    """Pools that start inside the controller's bounds."""
    return tuple(
        replace(pool, replicas=min(max(pool.replicas, bounds.minimum), bounds.maximum))
        for pool, bounds in zip(pools, params.pools, strict=True)
    )


def _contexts(plan: Plan) -> dict[str, int]:
    """As the gateway reckons them."""
    return {pool.name: max_context(pool) for pool in plan.pools}


def _somebody_serves(
    pools: Sequence[PoolSetup], params: ControllerParams | None, *, path: Path
) -> None:
    if params is None and pools[0].replicas < 1:
        raise InputError(
            f"{path}: {pools[0].replicas} replicas of the pool {pools[0].name} serve nobody. "
            "Fix: pass --replicas 1 or more, or --autoscale."
        )


def _notes(
    pools: Sequence[PoolSetup],
    params: ControllerParams | None,
    *,
    group: NodeGroup,
    question: Question,
) -> tuple[str, ...]:
    most = (
        [pool.replicas for pool in pools]
        if params is None
        else [pool.maximum for pool in params.pools]
    )
    needed = sum(n * pool.spec.devices for n, pool in zip(most, pools, strict=True))
    notes = []
    if needed > group.devices:
        notes.append(
            f"{needed} devices for {' + '.join(map(str, most))} replicas at most; the plan's "
            f"cluster has {group.devices}"
        )
    live = question.measured
    if live is not None:
        said = live.provenance
        notes.append(f"step times of {said.model} on {said.device}, measured {said.date}")
    return tuple(notes)
