from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster.model.catalogue import get_model
from rl_search.enumeration import Space, SpaceOptions, expand, strategies
from tests.costmodel import specs


def rows(table):
    return {table.row(index) for index in range(len(table))}


@pytest.mark.parametrize("space", list(Space))
@pytest.mark.parametrize("model", [specs.dense(), specs.moe()])
def test_every_row_is_a_layout_of_the_group_and_none_comes_twice(space, model):
    table = strategies(model, specs.group(nodes=2), SpaceOptions(space=space))
    assert (table.tp * table.dp == table.moe_tp * table.moe_ep).all()
    assert (table.devices_per_replica <= 16).all()
    assert (table.devices_per_replica * table.replicas <= 16).all()
    assert len(rows(table)) == len(table)


def test_degrees_follow_the_heads_and_not_only_powers_of_two():
    table = strategies(
        get_model("smollm2-135m-instruct"), specs.group(devices_per_node=9), SpaceOptions()
    )
    assert {1, 3, 9} <= set(table.tp.tolist())


def test_a_dense_model_is_replicated_and_not_data_parallel():
    table = strategies(specs.dense(), specs.group(), SpaceOptions())
    assert set(table.dp.tolist()) == {1}


def test_the_engine_s_space_cuts_or_spreads_experts_and_any_also_mixes():
    group = specs.group()
    engine = strategies(specs.moe(), group, SpaceOptions())
    assert ((engine.moe_ep == 1) | (engine.moe_tp == 1)).all()
    mixed = strategies(specs.moe(), group, SpaceOptions(space=Space.ANY))
    assert rows(engine) < rows(mixed)
    assert ((mixed.moe_ep > 1) & (mixed.moe_tp > 1)).any()


def test_expanding_makes_every_combination_once():
    options = SpaceOptions(batches=(1, 2, 3), chunks=(128, 256))
    table = strategies(specs.dense(), specs.group(), options)
    wide = expand(table, options)
    assert len(wide) == len(table) * options.combinations == len(rows(wide))
    one = wide.take(np.flatnonzero((wide.tp == 2) & (wide.pp == 1)))
    assert {(r.max_num_seqs, r.max_num_batched_tokens) for r in rows(one)} == {
        (b, c) for b in (1, 2, 3) for c in (128, 256)
    }


def test_a_limit_on_devices_holds():
    options = SpaceOptions(max_devices=3)
    assert strategies(specs.dense(), specs.group(), options).devices_per_replica.max() <= 3
    assert replace(options, max_devices=None).max_devices is None
