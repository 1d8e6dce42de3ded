"""The same model stored in other number formats: what a quantised checkpoint of it would be.

Only formats change; shapes, counts and names stay. Plans ask "and in FP8?" with this.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.model.formats import NumberFormat
from cluster.model.model_spec import ModelSpec
from cluster.model.operators import ROUTER


def with_formats(
    model: ModelSpec,
    *,
    weights: NumberFormat | None = None,
    kv: NumberFormat | None = None,
) -> ModelSpec:
    """The same model with the linear layers of its blocks, or its KV cache, in another format.

    Routers, embedding and head keep theirs, as quantised checkpoints do.
    """
    if kv is not None:
        model = replace(model, kv_format=kv)
    if weights is None:
        return model
    layers = []
    for kind, count in model.layers:
        operators = tuple(
            op if op.name == ROUTER else replace(op, format=weights) for op in kind.operators
        )
        layers.append((replace(kind, operators=operators), count))
    return replace(model, layers=tuple(layers))
