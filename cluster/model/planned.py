"""Which model does a pool of a plan serve, as the cost model knows it?"""

from __future__ import annotations

from cluster.errors import ConfigError, InputError
from cluster.model.catalogue import get_model
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import PoolSection


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
