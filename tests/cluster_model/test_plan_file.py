from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.model.plan import parse_plan


def data() -> dict[str, Any]:
    model = {"name": "m", "source": "m", "params": 1, "weight_bytes": 2.0, "max_context": 100}
    return {
        "cluster": {"spec": "8xH100", "device": "h100", "nodes": 1, "devices_per_node": 8},
        "workload": {"isl": 10, "osl": 10},
        "slo": {},
        "pools": [
            {
                "name": "main",
                "model": model,
                "layout": {},
                "replicas": {},
                "engine_args": {"max_model_len": 100, "kv_cache_dtype": "fp8_e4m3"},
            }
        ],
    }


def test_a_plan_reads_back():
    plan = parse_plan(json.dumps(data()), source="test")
    assert parse_plan(plan.dumps(), source="test") == plan


@pytest.mark.parametrize(
    ("section", "name", "value", "said"),
    [
        ("layout", "tp", 10**7, "1000000"),
        ("layout", "max_num_seqs", 10**12, "1000000"),
        ("replicas", "maximum", 10**9, "1000000"),
        ("model", "name", "", "at least 1 character"),
        ("model", "name", ".", "must not be"),
        ("model", "name", "..", "must not be"),
        ("model", "name", "/etc", "start with"),
        ("model", "weight_bytes", float("inf"), "finite"),
        ("engine_args", "max-model-len", 5, "not an engine argument"),
        ("engine_args", "x y", 5, "not an engine argument"),
        ("engine_args", "", 5, "not an engine argument"),
        ("engine_args", "tp\n", 5, "not an engine argument"),
    ],
)
def test_an_impossible_value_is_named_with_its_field(section, name, value, said):
    made = data()
    made["pools"][0][section][name] = value
    with pytest.raises(ConfigError, match=said) as error:
        parse_plan(json.dumps(made), source="test")
    assert error.value.field.startswith(f"pools.0.{section}")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"version": ' + "9" * 5000 + "}"])
def test_json_beyond_the_reader_is_a_config_error(text):
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        parse_plan(text, source="test")
