"""Parameter counts that publishers state, to compare ours with.

`total`: the count and where it is stated. Counts of vision towers and multi-token-prediction layers
are not part of our models; where the published figure holds them, the note says so.
`active`: the published active count; `counts_lookup` says whether it includes the input embedding
(a look-up, which ModelSpec.active_params counts).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    total: float
    source: str
    active: float | None = None
    counts_lookup: bool = True


PUBLISHED: dict[str, Published] = {
    "smollm2-135m-instruct": Published(134_515_008, "safetensors of the repository"),
    "smollm2-135m-instruct-int8": Published(134_515_008, "scales are not counted as weights"),
    "llama-3.1-8b": Published(8_030_261_248, "safetensors of the repository"),
    "llama-3.1-70b": Published(70_553_706_496, "safetensors of the repository"),
    "llama-3.1-405b": Published(405_853_388_800, "safetensors of the repository"),
    "llama-4-maverick": Published(
        400e9, "model card (its safetensors, 401.6e9, hold the vision tower)", 17e9
    ),
    "qwen3-0.6b": Published(596_049_920, "0.6B of the model card; tied table counted once"),
    "qwen3-8b": Published(8_190_735_360, "safetensors of the repository"),
    "qwen3-32b": Published(32_762_123_264, "safetensors of the repository"),
    "qwen3-30b-a3b": Published(30_532_122_624, "safetensors of the repository", 3.3e9),
    "qwen3-235b-a22b": Published(235_093_634_560, "safetensors of the repository", 22e9),
    "qwen3.5-397b-a17b": Published(397e9, "model card", 17e9),
    "mixtral-8x7b": Published(46_702_792_704, "safetensors of the repository", 12.9e9),
    "mixtral-8x22b": Published(140_620_634_112, "safetensors of the repository", 39e9),
    "deepseek-v3": Published(
        671e9, "technical report (its safetensors, 685e9, hold the prediction layer)", 37e9
    ),
    "deepseek-r1": Published(671e9, "model card", 37e9),
    "kimi-k2": Published(1.04e12, "technical report, table 2", 32.6e9),
    "kimi-k2.5": Published(1.04e12, "as Kimi K2; the model card says 1T, 32B active", 32e9),
    "glm-5": Published(744e9, "model card", 40e9),
    "minimax-m2.5": Published(230e9, "model card of M2", 10e9, counts_lookup=False),
    "gpt-oss-120b": Published(116.83e9, "model card, table 1", 5.13e9, counts_lookup=False),
    "gpt-oss-20b": Published(20.91e9, "model card, table 1", 3.61e9, counts_lookup=False),
    "gemma-4-26b-a4b": Published(25.2e9, "model card", 3.8e9),
    "gpt-moe-1.8t": Published(1.8e12, "NVIDIA's name for it; dimensions are ours"),
    "moe-1.6t": Published(1.6e12, "stated total; dimensions are ours"),
    "moe-1.2t": Published(1.2e12, "stated total; dimensions are ours"),
}

# Families the catalogue has no entry of: published configuration, published count.
FAMILIES: dict[str, tuple[dict[str, object], float]] = {
    "Qwen/Qwen2.5-7B": (
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
            "max_position_embeddings": 131072,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "max_window_layers": 28,
        },
        7_615_616_512,
    ),
    "mistralai/Mistral-7B-v0.1": (
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
        },
        7_241_732_096,
    ),
    "microsoft/Phi-3-mini-4k-instruct": (
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 8192,
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
            "sliding_window": 2047,
        },
        3_821_079_552,
    ),
    "google/gemma-2b": (
        {
            "model_type": "gemma",
            "hidden_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 16384,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
        },
        2_506_172_416,
    ),
    "google/gemma-2-2b": (
        {
            "model_type": "gemma2",
            "hidden_size": 2304,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "intermediate_size": 9216,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
        },
        2_614_341_888,
    ),
    "google/gemma-3-1b-pt": (
        {
            "model_type": "gemma3_text",
            "hidden_size": 1152,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 6912,
            "vocab_size": 262144,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
        999_885_952,
    ),
    "deepseek-ai/DeepSeek-V2": (
        {
            "model_type": "deepseek_v2",
            "hidden_size": 5120,
            "num_hidden_layers": 60,
            "first_k_dense_replace": 1,
            "num_attention_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "topk_method": "group_limited_greedy",
            "vocab_size": 102400,
            "max_position_embeddings": 163840,
        },
        235_741_434_880,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        {
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "num_hidden_layers": 27,
            "first_k_dense_replace": 1,
            "num_attention_heads": 16,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "topk_method": "greedy",
            "vocab_size": 102400,
            "max_position_embeddings": 163840,
        },
        15_706_484_224,
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        {
            "model_type": "qwen3_next",
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "full_attention_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
        },
        80e9,
    ),
}
