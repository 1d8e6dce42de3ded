from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError, UnknownNameError
from cluster.model.catalogue import get_model, model_names
from cluster.model.hf_config import PARSERS, parse_config, read_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"model_type": "mamba"}, "model_type", "supported: .*llama"),
        ({"model_type": None}, "model_type", "is missing"),
        ({"model_type": 3}, "model_type", "is 3"),
        ({"hidden_size": None}, "hidden_size", "is missing"),
        ({"hidden_size": "576"}, "hidden_size", "'576' .str."),
        ({"hidden_size": 576.5}, "hidden_size", "576.5"),
        ({"hidden_size": True}, "hidden_size", "True"),
        ({"hidden_size": [576]}, "hidden_size", "whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "is 0, outside 1…10000"),
        ({"num_hidden_layers": -3}, "num_hidden_layers", "-3"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "outside"),
        ({"vocab_size": 10**12}, "vocab_size", "outside"),
        ({"num_key_value_heads": 2}, "num_key_value_heads", "does not divide"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "head_dim", "no multiple"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false"),
        ({"torch_dtype": "float8"}, "torch_dtype", "bfloat16"),
        ({"layer_types": ["full_attention"]}, "layer_types", "lists 1 layers"),
        ({"layer_types": ["odd"] * 30}, "layer_types", "'odd'"),
        ({"layer_types": "full_attention"}, "layer_types", "list of strings"),
        ({"quantization_config": "fp8"}, "quantization_config", "object"),
    ],
)
def test_a_bad_field_is_named_with_its_value(change, field, said):
    with pytest.raises(ConfigError, match=said) as error:
        parse_config({**LLAMA, **change}, source="here.json")
    assert error.value.field == field
    assert "here.json" in str(error.value)


def test_fields_of_a_nested_configuration_are_named_in_full():
    with pytest.raises(ConfigError) as error:
        parse_config({"model_type": "llama4", "text_config": {}}, source="x")
    assert error.value.field == "text_config.num_attention_heads"
    with pytest.raises(ConfigError) as error:
        parse_config({"model_type": "kimi_k25"}, source="x")
    assert error.value.field == "text_config"


def test_more_experts_per_token_than_experts():
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9}
    with pytest.raises(ConfigError, match="more than the 8 experts"):
        parse_config(config, source="x")


def test_per_layer_embeddings_are_refused():
    text = {**LLAMA, "model_type": "gemma4_text", "hidden_size_per_layer_input": 256}
    with pytest.raises(ConfigError, match="not modelled"):
        parse_config({"model_type": "gemma4", "text_config": text}, source="x")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON .line 1"),
        (b"[1]", "holds a list"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[" * 100_000, "cannot be read|not JSON"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, content, said):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_model(path)


def test_directories(tmp_path):
    with pytest.raises(ConfigError, match=r"without a config\.json"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_model(tmp_path).name == tmp_path.name
    assert get_model(str(tmp_path)) == read_model(tmp_path / "config.json")
    assert read_model(tmp_path, name="mine").name == "mine"


def test_a_missing_file_is_no_traceback():
    with pytest.raises(ConfigError, match="No such file"):
        get_model("nowhere/config.json")


@pytest.mark.parametrize("name", ["lama-3.1-8b", "", "a" * 5000, "\0"])
def test_unknown_names(name):
    with pytest.raises(UnknownNameError, match=r"path of a config\.json"):
        get_model(name)


def test_near_misses_and_spellings():
    with pytest.raises(UnknownNameError, match=r"Did you mean llama-3\.1-8b"):
        get_model("lama-3.1-8b")
    assert get_model("DeepSeek-AI/deepseek-v3") is get_model(" DeepSeek-V3 ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    name=st.sampled_from(model_names()), data=st.data(), model_type=st.sampled_from(sorted(PARSERS))
)
def test_any_value_in_any_field_ends_in_a_model_or_a_config_error(name, data, model_type):
    from cluster.model.catalogue import entries

    config = dict(next(entry for entry in entries() if entry.name == name).config.data)
    field = data.draw(st.sampled_from(sorted(config)))
    config[field] = data.draw(JSON)
    if data.draw(st.booleans()):
        config["model_type"] = model_type
    try:
        model = parse_config(config, source="x")
    except ConfigError as error:
        assert "x" in str(error)
    else:
        assert model.params > 0
