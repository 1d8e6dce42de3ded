"""The Serve configuration in a RayService: what `shardwise export` writes, what `up` deploys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.export import export
from cluster.model.plan import parse_plan
from serving.rayservice.wanted import Wanted, read_wanted
from serving.settings.config import load_serve_config
from tests.helm.chart import render
from tests.helm.plans import DEEPSEEK, LLAMA, planned

# Importing Ray's deployments and schemas warns of things that are Ray's own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

PLANS = pytest.mark.parametrize("made", [LLAMA, DEEPSEEK], ids=["llama", "deepseek"])
CONFIG = {"limits": {"max_queued": 64}, "steering": {"cold_start_s": 240.0}}


def arguments(folder: Path, made: tuple[str, ...]) -> dict[str, Any]:
    (application,) = render(folder, {"config": CONFIG}, plan=planned(*made)).serve_config[
        "applications"
    ]
    return dict(application["args"])


@PLANS
def test_it_is_what_export_writes(tmp_path: Path, made: tuple[str, ...]) -> None:
    rendered = render(tmp_path, {"config": CONFIG}, plan=planned(*made)).serve_config
    config = rendered["applications"][0]["args"]["config"]
    (file,) = export(parse_plan(planned(*made), source="plan"), "serve", config=config)
    assert rendered == yaml.safe_load(file.text)


@PLANS
def test_ray_serve_and_our_own_classes_take_it(tmp_path: Path, made: tuple[str, ...]) -> None:
    from ray.serve.schema import ServeDeploySchema

    rendered = render(tmp_path, {"config": CONFIG}, plan=planned(*made)).serve_config
    (application,) = ServeDeploySchema.model_validate(rendered).applications
    wanted = read_wanted(application.args)
    assert wanted.plan == parse_plan(planned(*made), source="plan")
    assert wanted.config.limits.max_queued == 64
    assert wanted.config.http.node_resource == "shardwise-gateway"


@PLANS
def test_it_deploys_what_up_deploys(tmp_path: Path, made: tuple[str, ...]) -> None:
    given = arguments(tmp_path, made)
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(given["config"]))
    up = Wanted(
        plan=parse_plan(planned(*made), source="plan"),
        config=load_serve_config(tmp_path / "serve.yaml"),
    )
    deployed = deployments(read_wanted(given))
    assert deployed == deployments(up)
    placed = deployed["main"]["placement_group_bundles"]
    assert len(placed) == up.plan.main.layout.to_layout(replicas=1).devices_per_replica
    assert deployed["gateway"]["ray_actor_options"]["resources"] == {"shardwise-gateway": 1.0}


@PLANS
def test_serve_builds_one_small_replica_of_it_on_the_head(
    tmp_path: Path, made: tuple[str, ...]
) -> None:
    from ray._common.utils import import_attr
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
    from ray.serve._private.build_app import build_app

    (application,) = render(tmp_path, {}, plan=planned(*made)).serve_config["applications"]
    builder = import_attr(application["import_path"])
    built = call_user_app_builder_with_args_if_necessary(builder, application["args"])
    (reconciler,) = build_app(built, name=application["name"]).deployments
    replica = reconciler._replica_config
    assert reconciler.num_replicas == 1
    assert replica.ray_actor_options["num_cpus"] == 0
    assert replica.ray_actor_options["resources"] == {"node:__internal_head__": 0.001}


def deployments(wanted: Wanted) -> dict[str, dict[str, Any]]:
    """What Serve is told of each deployment, with what it is started with."""
    from ray.serve._private.build_app import build_app

    from serving.app import Deployment, build
    from serving.deploy import APP, NAMESPACE

    deployment = Deployment(
        plan=wanted.plan,
        config=wanted.config,
        sources=wanted.sources,
        app=APP,
        namespace=NAMESPACE,
        dashboard_url="http://head:8265",
        token=None,
        log_path="decisions.jsonl",
        link_secret="secret",
    )
    built = build_app(build(deployment), name=APP)
    return {made.name: _told(made) for made in built.deployments}


def _told(deployment: Any) -> dict[str, Any]:
    replica = deployment._replica_config
    return {
        **deployment._deployment_config.model_dump(),
        "placement_group_bundles": replica.placement_group_bundles,
        "placement_group_strategy": replica.placement_group_strategy,
        "ray_actor_options": replica.ray_actor_options,
        "spec": replica.init_args[0],
    }
