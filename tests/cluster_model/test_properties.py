from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.model.catalogue import entries, get_model, model_names
from cluster.model.formats import NumberFormat
from cluster.model.hf_config import parse_config
from cluster.model.operators import COLUMN_FIRST, ROW_SECOND
from cluster.model.requantize import with_formats

NAMES = st.sampled_from(model_names())


@given(name=NAMES, context=st.integers(0, 200_000), more=st.integers(0, 200_000))
def test_cache_is_monotone_in_the_context_and_never_more_than_linear(name, context, more):
    model = get_model(name)
    shorter, longer = model.kv_bytes(context), model.kv_bytes(context + more)
    assert 0 <= shorter <= longer
    assert longer - shorter <= more * model.kv_bytes_per_token * (1 + 1e-9) + 1e-6


@given(name=NAMES)
def test_parameters_are_the_sum_of_their_parts(name):
    model = get_model(name)
    parts = [model.embedding.params, model.final_extra_params]
    parts += [model.head.params] if model.head else []
    parts += [op.params * count for kind, count in model.layers for op in kind.operators]
    assert model.params == sum(parts)
    assert model.active_params <= model.params
    assert (model.active_params == model.params) == (model.experts in (0, model.experts_per_token))


@given(name=NAMES, weights=st.sampled_from(NumberFormat))
def test_bytes_follow_the_format(name, weights):
    model = with_formats(get_model(name), weights=weights)
    assert model.params == get_model(name).params
    widest = 4.0 * model.params
    assert 0.5 * model.params <= model.weight_bytes <= widest * 1.001


@pytest.mark.parametrize("name", model_names())
def test_flops_per_token_are_two_per_active_weight(name):
    for kind, _ in get_model(name).layers:
        for op in kind.operators:
            assert op.flops_per_token == 2 * (op.active_params - op.extra_params)


@pytest.mark.parametrize("name", model_names())
def test_operator_names_are_distinct_and_paired(name):
    for kind, _ in get_model(name).layers:
        names = [op.name for op in kind.operators]
        assert len(set(names)) == len(names)
        columns = [n for n in names if n in COLUMN_FIRST]
        rows = [n for n in names if n in ROW_SECOND]
        assert columns and rows


@given(
    layers=st.integers(1, 40),
    scale=st.integers(1, 4),
    entry=st.sampled_from([e for e in entries() if "text_config" not in e.config.data]),
)
def test_parameters_are_linear_in_the_number_of_layers(layers, scale, entry):
    def params(count: int) -> int:
        config = {**entry.config.data, "num_hidden_layers": count, "first_k_dense_replace": 0}
        return parse_config(config, source=entry.name).params

    zero = 2 * params(8) - params(16)
    assert params(8 * layers * scale) - zero == layers * scale * (params(8) - zero)
