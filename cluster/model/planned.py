"""Which model does a pool of a plan serve, and on which devices, as the cost model knows them?"""

from __future__ import annotations

from cluster.errors import ConfigError, InputError
from cluster.model.catalogue import get_model
from cluster.model.devices import get_device
from cluster.model.hardware import NodeGroup
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import ClusterSection, PoolSection


def planned_model(pool: PoolSection, *, source: str) -> ModelSpec:
    """By source, or by name where the source is a repository that the catalogue does not hold.

    Raises ConfigError naming `source`, the plan's file.
    """
    try:
        return get_model(pool.model.source)
    except InputError as first:
        try:
            return get_model(pool.model.name)
        except InputError:
            raise ConfigError(
                source=source,
                field=f"pools.{pool.name}.model.source",
                problem=str(first),
                fix="name a model of the catalogue or the path of its config.json.",
            ) from first


def planned_group(cluster: ClusterSection) -> NodeGroup:
    """The devices a plan was made for, by their name in the catalogue.

    Raises UnknownNameError for a device that only the plan's cluster file describes.
    """
    return NodeGroup(
        nodes=cluster.nodes,
        devices_per_node=cluster.devices_per_node,
        device=get_device(cluster.device),
    )
