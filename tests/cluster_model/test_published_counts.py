from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.model.catalogue import entries, get_model, model_names
from cluster.model.formats import NumberFormat
from cluster.model.hf_config import PARSERS, parse_config, read_model
from cluster.model.model_spec import AttentionKind
from serving.bundled import _INT8_CONFIG, HEAVY, LIGHT
from tests.cluster_model.published import FAMILIES, PUBLISHED
from tests.shared_data import require_shared_data


def test_every_catalogue_model_has_a_published_count():
    assert set(model_names()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_within_two_percent_of_the_published_count(name):
    assert get_model(name).params == pytest.approx(PUBLISHED[name].total, rel=0.02)


@pytest.mark.parametrize("name", [n for n, row in PUBLISHED.items() if row.active])
def test_active_parameters_within_five_percent_of_the_published_count(name):
    model, published = get_model(name), PUBLISHED[name]
    active = model.active_params
    if not published.counts_lookup:
        active -= model.embedding.params
    assert active == pytest.approx(published.active, rel=0.05)


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_of_families_outside_the_catalogue(name):
    config, published = FAMILIES[name]
    assert parse_config(config, source=name).params == pytest.approx(published, rel=0.005)


def test_every_parser_is_covered_by_a_published_count():
    covered = {config["model_type"] for config, _ in FAMILIES.values()}
    for entry in entries():
        data = entry.config.data
        covered.add(data.get("text_config", data)["model_type"])
    # DeepSeek-V3.2 shares its parser with GLM-5, which is covered.
    assert covered | {"deepseek_v32"} == set(PARSERS)


def test_all_shared_configs_parse_to_their_catalogue_entry():
    files = sorted((require_shared_data() / "models").glob("*.json"))
    assert len(files) == 21
    for path in files:
        read, known = read_model(path), get_model(path.stem.replace("--", "/"))
        assert read.params == pytest.approx(PUBLISHED[known.name].total, rel=0.02)
        assert replace(read, name="", source="") == replace(known, name="", source="")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("deepseek-v3", 671e9 * 1.003),  # fp8 but for embedding, head and routers
        ("gpt-oss-120b", 65.2e9),  # 60.8 GiB, model card table 1
        ("gpt-oss-20b", 13.8e9),  # 12.8 GiB, model card table 1
        ("llama-3.1-8b", 16.06e9),  # safetensors index: 16060522496
        ("smollm2-135m-instruct", 4 * 134_515_008),
        ("smollm2-135m-instruct-int8", 220.2e6),  # the file that `shardwise setup` writes
    ],
)
def test_weight_bytes_match_published_checkpoint_sizes(name, size):
    assert get_model(name).weight_bytes == pytest.approx(size, rel=0.01)


def test_the_int8_entry_is_what_set_up_writes():
    config = next(entry.config.data for entry in entries() if entry.name == HEAVY)
    written = parse_config(
        {**config, "quantization_config": _INT8_CONFIG}, source="", name="written"
    )
    known = get_model(LIGHT)
    assert replace(written, name="", source="") == replace(known, name="", source="")
    linear = [op for kind, _ in known.layers for op in kind.operators if op.rows]
    assert {op.format for op in linear} == {NumberFormat.INT8}
    assert known.embedding.format is NumberFormat.FP32


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("llama-3.1-70b", 80 * 2 * 8 * 128),
        ("deepseek-v3", 61 * 576),  # DeepSeek-V3 report: 70.272 KB per token in bf16
        ("qwen3.5-397b-a17b", 15 * 2 * 2 * 256),
        ("glm-5", 78 * (576 + 128)),
        ("gemma-4-26b-a4b", 25 * 2 * 8 * 256 + 5 * 2 * 2 * 512),
    ],
)
def test_cache_per_token(name, elements):
    assert get_model(name).kv_bytes_per_token == 2 * elements


def test_windows_bound_the_cache():
    model = get_model("gpt-oss-20b")
    per_layer = 2 * 8 * 64 * 2
    assert model.kv_bytes(1000) == 12 * per_layer * (1000 + 128)


def test_kinds_of_llama_4_maverick():
    kinds = {kind.name: (kind, count) for kind, count in get_model("llama-4-maverick").layers}
    assert {name: count for name, (_, count) in kinds.items()} == {
        "dense/sliding": 24,
        "moe/sliding": 12,
        "moe/full": 12,
    }
    assert kinds["moe/sliding"][0].attention.context_limit == 8192
    assert kinds["moe/full"][0].attention.context_limit is None


def test_latent_and_sparse_attention():
    kind, _ = get_model("glm-5").layers[1]
    attention = kind.attention
    assert attention.kind is AttentionKind.MLA
    assert (attention.context_limit, attention.window) == (2048, None)
    assert (attention.qk_dim, attention.decode_qk_dim, attention.decode_v_dim) == (256, 576, 512)


def test_linear_attention_holds_a_state_and_no_cache():
    model = get_model("qwen3.5-397b-a17b")
    linear, count = next(item for item in model.layers if item[0].name == "linear")
    assert count == 45
    assert linear.attention.kv_elements == 0
    state = 64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2  # fp32 state, bf16 convolution
    assert model.kv_bytes(0) == 45 * state


def test_quantised_experts_of_kimi_k2_5():
    kind, _ = get_model("kimi-k2.5").layers[1]
    formats = {op.name: op.format for op in kind.operators}
    assert formats["expert_up"] is NumberFormat.INT4
    assert {formats[n] for n in ("q_up", "shared_up", "router")} == {NumberFormat.BF16}


def test_reconstructions_say_so():
    ours = {entry.name for entry in entries() if entry.is_reconstruction}
    assert ours == {"gpt-moe-1.8t", "moe-1.6t", "moe-1.2t"}
    assert all("our reconstruction" in get_model(name).source for name in ours)
