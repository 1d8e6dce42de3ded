"""The cases of the search comparison: two large mixtures of experts on three sizes of cluster.

Article A names only "a 1.2T MoE" and "a 1.6T MoE" at 16k context, on H100 nodes: one (8 devices),
eight (64), and up to 24k devices. The architectures below are ours, and stated in full:
grouped-query attention, four dense layers, then mixtures of 128 experts of which a token visits 8
beside one shared expert; every width splits over 8.

    model   layers  hidden  heads / KV  experts x width  dense width  parameters
    1.2T    64      8192    64 / 8      128 x 6272       32768        1.21e12
    1.6T    80      8192    64 / 8      128 x 6656       32768        1.60e12

On 64 devices and more the weights are bf16, as in the article (3.2 TB for 1.6T). One node of 8 x
80 GB cannot hold that, nor fp8: there the weights are 4 bits wide, and what still does not fit is
read from host memory (`offload_bytes` a device).
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.costmodel.estimate import PLAIN, Serving
from cluster.model.cluster_file import parse_cluster
from cluster.model.hf_config import parse_config
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Slo, Workload

CONTEXT = Workload(isl=15_360, osl=1_024)
DENSE_LAYERS = 4
BOUND = Slo(tpot_s=0.2)  # the article's example of a latency bound, 200 ms
SLOW = Slo(tpot_s=2.0)  # reading weights from host memory alone takes longer than 200 ms


@dataclass(frozen=True, kw_only=True)
class SearchCase:
    """One question of the comparison."""

    name: str
    model: ModelSpec
    cluster: str
    serving: Serving = PLAIN
    workload: Workload = CONTEXT
    slo: Slo = BOUND

    @property
    def devices(self) -> int:
        """Devices of the cluster."""
        return parse_cluster(self.cluster).groups[0].devices


def mixture(name: str, *, layers: int, width: int, four_bits: bool) -> ModelSpec:
    """One of the two mixtures of experts, in the words of a Llama 4 configuration."""
    config: dict[str, object] = {
        "model_type": "llama4_text",
        "hidden_size": 8192,
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": width,
        "intermediate_size_mlp": 4 * 8192,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "moe_layers": list(range(DENSE_LAYERS, layers)),
        "layer_types": ["full_attention"] * layers,
        "vocab_size": 131_072,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if four_bits:
        config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128}
    return parse_config(config, source=name, name=name)


def cases() -> tuple[SearchCase, ...]:
    """All of them: two models on each size of cluster."""
    made = []
    for size, layers, width, offload in (("1.2T", 64, 6272, 30e9), ("1.6T", 80, 6656, 60e9)):
        wide = mixture(f"moe-{size}", layers=layers, width=width, four_bits=False)
        small = mixture(f"moe-{size}-int4", layers=layers, width=width, four_bits=True)
        one = Serving(offload_bytes=offload)
        made += [
            SearchCase(name=f"{size} on 8", model=small, cluster="1x8xH100", serving=one, slo=SLOW),
            SearchCase(name=f"{size} on 64", model=wide, cluster="8x8xH100"),
            SearchCase(name=f"{size} on 24k", model=wide, cluster="3072x8xH100"),
        ]
    return tuple(made)
