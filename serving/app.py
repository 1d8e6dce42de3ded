"""From a plan to a Ray Serve application: deployments, placement groups, controller.

    gateway ─► main   (engine replicas, one placement group each)
            └► light  (the lighter model of tier 3, if the plan has one)

Pools are scaled from outside (`serving.control.controller_actor`), so Serve's autoscaler is off.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import serve

from cluster.model.plan import Plan, PoolSection
from cluster.planned_work import planned_work
from cluster.pool_capacity import replica_limits
from cluster.ray_backend.bundles import PlacementBundles, replica_bundles
from cluster.ray_backend.capacity import PoolNeed
from serving.control.controller_actor import ControllerActor, ControllerSpec
from serving.engine.replica import EngineReplica
from serving.gateway import Gateway, GatewaySpec
from serving.keeper.keepers import KeeperSpec
from serving.keeper.mark import application_id
from serving.keeper.vacant import HEAD
from serving.layout.layouts import Apps, Layouts, Nodes
from serving.messages import EngineSpec, Warmup
from serving.settings.config import HttpSection, ServeConfig, WarmupSection
from serving.settings.steering_config import controller_params
from serving.sources import with_sources
from serving.weights.cluster import start_store
from serving.weights.spec import WeightsSpec, model_key

CONTROLLER = "shardwise-controller"
# No limit in practice: the gateway's line is what holds requests back, not Serve.
_MAX_ONGOING = 4096


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What is deployed, where. `sources`: model directory or hub id per pool.

    `link_secret`: what gateways and engine replicas know, and nobody else. `engine`: what engine
    replicas are.
    """

    plan: Plan
    config: ServeConfig
    sources: dict[str, str]
    app: str
    namespace: str
    dashboard_url: str
    token: str | None
    log_path: str
    link_secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    engine: type[EngineReplica] = field(default_factory=lambda: EngineReplica)


def start_controller(deployment: Deployment, apps: Apps, nodes: Nodes) -> Any:
    """Start the controller actor; it outlives the process that deploys.

    `apps`: with which it deploys other layouts. `nodes`: with which it asks for room for them.
    """
    spec = ControllerSpec(
        params=controller_params(deployment.plan, deployment.config.steering),
        deployments={pool.name: pool.name for pool in deployment.plan.pools},
        dashboard_url=deployment.dashboard_url,
        app=deployment.app,
        token=deployment.token,
        log_path=deployment.log_path,
        keeper=_keeper_spec(deployment),
        layouts=Layouts(
            plan=with_sources(deployment.plan, deployment.sources),
            steering=deployment.config.steering,
            apps=apps,
            nodes=nodes,
            link_secret=deployment.link_secret,
        ),
        half_life_s=deployment.config.steering.replan.half_life_s,
        config=deployment.config.model_dump_json(),
    )
    actor = ray.remote(ControllerActor).options(
        name=CONTROLLER,
        namespace=deployment.namespace,
        lifetime="detached",
        max_restarts=-1,
        max_concurrency=64,
        num_cpus=0,
        # No node that comes and goes with the load is held by it.
        resources={HEAD: 0.001},
    )
    return actor.remote(spec)


def _keeper_spec(deployment: Deployment) -> KeeperSpec:
    keeper = deployment.config.steering.keeper
    return KeeperSpec(
        application=application_id(deployment.link_secret),
        app=deployment.app,
        namespace=deployment.namespace,
        look_s=keeper.look_s,
        orphan_grace_s=keeper.orphan_grace_s,
        placement_timeout_s=keeper.placement_timeout_s,
        node_timeout_s=keeper.node_timeout_s,
        leave_s=keeper.leave_s,
    )


def start_weight_store(deployment: Deployment) -> Any:
    """Start this node's weight store, which gives the plan's models to nodes that lack them."""
    sources = set(deployment.sources.values())
    places = {
        model_key(source): source if Path(source).is_absolute() else None for source in sources
    }
    cache_dir = _cache_dir(deployment.config)
    return start_store(places, namespace=deployment.namespace, cache_dir=cache_dir)


def build(deployment: Deployment) -> serve.Application:
    """The Serve application, to be given to `serve.run`."""
    spec = GatewaySpec(
        plan=deployment.plan,
        work={
            pool.name: planned_work(pool, plan=deployment.plan) for pool in deployment.plan.pools
        },
        config=deployment.config,
        sources=deployment.sources,
        controller=CONTROLLER,
        namespace=deployment.namespace,
        link_secret=deployment.link_secret,
    )
    pools = {}
    for pool in deployment.plan.pools:
        engine, engine_spec = pool_deployment(pool, deployment)
        pools[pool.name] = engine.bind(engine_spec)
    gateway = serve.deployment(
        Gateway,
        name="gateway",
        num_replicas=deployment.config.http.gateways,
        max_ongoing_requests=_MAX_ONGOING,
        ray_actor_options={"num_cpus": 0, "resources": gateway_resources(deployment.config.http)},
        health_check_period_s=2,
        health_check_timeout_s=8,
        graceful_shutdown_wait_loop_s=0.1,  # Serve sees no answers that it could wait for
        # A gateway that is replaced finishes the answers it has begun.
        graceful_shutdown_timeout_s=deployment.config.limits.answer_s,
    )
    return gateway.bind(spec, **pools)


def gateway_resources(http: HttpSection) -> dict[str, float]:
    """What a gateway takes of its node."""
    return {} if http.node_resource is None else {http.node_resource: 1.0}


def first_replicas(plan: Plan) -> list[PoolNeed]:
    """What the pools ask Ray for when they start."""
    return [
        PoolNeed(pool=pool.name, replicas=pool.replicas.initial, placement=_placement(pool, plan))
        for pool in plan.pools
    ]


def _placement(pool: PoolSection, plan: Plan) -> PlacementBundles:
    return replica_bundles(
        pool.layout.to_layout(replicas=1),
        device_kind=plan.cluster.device_kind,
        devices_per_node=plan.cluster.devices_per_node,
    )


def pool_deployment(
    pool: PoolSection, deployment: Deployment
) -> tuple[serve.Deployment, EngineSpec]:
    """The deployment of a pool's engine replicas, and what each is started with."""
    placement = _placement(pool, deployment.plan)
    engine = serve.deployment(
        deployment.engine,
        name=pool.name,
        num_replicas=max(1, pool.replicas.initial),
        max_ongoing_requests=_MAX_ONGOING,
        # A dead process is noticed at once; this is for one that hangs.
        health_check_period_s=2,
        health_check_timeout_s=8,
        graceful_shutdown_wait_loop_s=0.1,  # Serve sees no answers that it could wait for
        # A replica that is scaled away finishes the answers it has begun.
        graceful_shutdown_timeout_s=deployment.config.limits.answer_s,
        # The replica itself holds no device: its ranks do, in the bundles.
        ray_actor_options={"num_cpus": 0},
        placement_group_bundles=[dict(bundle) for bundle in placement.bundles],
        placement_group_strategy=placement.strategy,
    )
    # Serve scales to zero but will not start there: its decorator refuses 0, its configuration and
    # its controller do not. Starting the light pool to stop it again would double a cold start.
    engine._deployment_config.num_replicas = pool.replicas.initial
    return engine, _engine_spec(pool, placement=placement, deployment=deployment)


def _engine_spec(
    pool: PoolSection, *, placement: PlacementBundles, deployment: Deployment
) -> EngineSpec:
    return EngineSpec(
        pool=pool.name,
        model_name=pool.model.name,
        model_source=deployment.sources[pool.name],
        engine_args=dict(pool.engine_args),
        device_kind=deployment.plan.cluster.device_kind,
        bundles=placement.bundles,
        controller=CONTROLLER,
        namespace=deployment.namespace,
        link_secret=deployment.link_secret,
        warmup=_warmup(deployment.config.warmup),
        limits=replica_limits(pool, plan=deployment.plan),
        weights=WeightsSpec(
            key=model_key(deployment.sources[pool.name]),
            namespace=deployment.namespace,
            arbiter=CONTROLLER,
            cache_dir=_cache_dir(deployment.config),
        ),
    )


def _cache_dir(config: ServeConfig) -> str | None:
    directory = config.weights.cache_dir
    return None if directory is None else str(directory)


def _warmup(section: WarmupSection) -> Warmup:
    return Warmup(system_prompts=section.system_prompts, prompts=section.prompts)
