"""Which part of a step is a GPU kernel? Names of vLLM, SGLang and TensorRT-LLM kernels, by pattern.

The first pattern of the table that is found in a name (demangled, as Nsight Systems prints it)
decides; order matters, since names carry template arguments: a FlashAttention kernel is also a
`cutlass::device_kernel`, and a quantisation kernel may name the library it prepares data for. Names
come from the engines' sources and from published traces of them (vLLM and SGLang on Hopper and
Blackwell, TensorRT-LLM's layer benchmarks, NCCL 2.x, DeepEP); the categories of vLLM's own
`gputrc2graph.py` were the start.

Invariant: a name that no pattern knows is `UNKNOWN`, never guessed into a part.
"""

from __future__ import annotations

import re
from functools import cache

GEMM = "gemm"
EXPERTS = "experts"
ATTENTION = "attention"
ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
SEND_RECV = "send_recv"
ELEMENTWISE = "elementwise"
SAMPLING = "sampling"
COPY = "copy"
UNKNOWN = "unknown"

PARTS = (
    GEMM,
    EXPERTS,
    ATTENTION,
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    SEND_RECV,
    ELEMENTWISE,
    SAMPLING,
    COPY,
)
"""Parts a kernel can belong to. `elementwise` holds norms, activations, rotary embedding,
quantisation and cache writes; `send_recv` is NCCL's point to point, which an all-to-all over NCCL
is made of too."""

KERNELS: tuple[tuple[str, str], ...] = (
    # Inductor names a fused loop after everything in it (`..._to_copy_add_mean_mul_pow_rsqrt`).
    (ELEMENTWISE, r"triton_(poi|red|per)_"),
    # Communication first: fused kernels (all-reduce with norm) are named after their wait.
    # nccl{Dev,}Kernel_AllReduce_*, vllm|sglang::cross_device_reduce_{1,2}stage,
    # flashinfer::trtllm_allreduce_fusion, twoshotAllreduceKernel, multimem_all_reduce_kernel.
    (ALL_REDUCE, r"all_?reduce|cross_device_reduce|quick_?reduce|userbuffers_fp16_sum"),
    (REDUCE_SCATTER, r"reduce_?scatter"),
    (ALL_GATHER, r"all_?gather"),
    # deep_ep::{intranode,internode_ll}::{dispatch,combine}, pplx AllToAll, TRT-LLM moeA2A*.
    (ALL_TO_ALL, r"deep_ep::|all_?to_?all|moe_?a2a|moe_comm::|nixl_ep|mori::.*(dispatch|combine)"),
    (SEND_RECV, r"nccl(dev)?kernel_sendrecv"),
    # What prepares activations for experts or products, though it names the library it feeds.
    (ELEMENTWISE, r"_silu_(and_)?mul.*quant|(per_token|group).*_quant|quantize_with_block_size"),
    (ELEMENTWISE, r"flashinfer(norm|quantization)kernels|(layer|rms)_?norm"),
    (ELEMENTWISE, r"(reshape|concat)_and_cache"),
    # Routed experts: grouped products and their routing.
    (EXPERTS, r"fused_moe|moe_(align|sum|wna16|permute|unpermute|fused|gemm|kernel)|marlin_moe"),
    (EXPERTS, r"groupproblemshape|group(ed)?_?gemm|gemmtype\)[12]\b|m_?grouped|ptr_?array"),
    (EXPERTS, r"\bbmm_\w*(e2m1|e4m3|mxint4|bfloat16)\w*_|matmul_ogs|cutlass_kernels::.*moe"),
    (EXPERTS, r"moe::|topkgating|grouped_topk|topk_softmax|topk_sigmoid|_topk_forward"),
    (EXPERTS, r"expandinputrows|finalizemoe|doactivationkernel|computestridestma|routingindices"),
    (EXPERTS, r"expert|ep_(scatter|gather)|_combined_routing|_bitmatrix|_compute_writeback|moe"),
    # Attention, sparse selection (indexer) and recurrent layers.
    (ATTENTION, r"flash_?(fwd|attn|mla|_decode)|flash::|fmha|paged_?attention|unified_attention"),
    (ATTENTION, r"batch(prefill|decode)|singleprefill|cascade|merge_(attn_)?states|_mla_|mla::"),
    (ATTENTION, r"mqa_logits|indexer|xqa|multihead_attention|_attn_|attention|sparse_?mla"),
    (ATTENTION, r"_fwd_(kernel|grouped_kernel)_?(stage)?[12]?\b|reduce_segments|cutlass_mla"),
    (ATTENTION, r"delta_rule|causal_conv1d|selective_scan|chunk_(scan|state|fwd|gated)|mamba|ssd_"),
    # Dense products: cuBLAS (nvjet, xmma, splitK), CUTLASS, DeepGEMM, Marlin, Triton, hipBLASLt.
    (GEMM, r"nvjet|gemm|gemv|xmma|splitkreduce|deep_gemm|machete|marlin|matmul|cijk_|triton_tem_"),
    (GEMM, r"cutlass.*(scaled_mm|tensorop|simt)|scaled_mm|s\d+gemm|dot_kernel|fpa_intb|awq|gptq"),
    # Choosing the next token.
    (SAMPLING, r"sampl|argmax|arg_max|top_?k|top_?p|softmax|penalt|logits|radix_?sort|bitonic"),
    (SAMPLING, r"distribution_elementwise|exponential|rejection|gumbel|cumsum|devicescan|mbtopk"),
    # Moving data without computing.
    (COPY, r"catarray|direct_copy|memcpy|memset|copy_kernel|_copy_|gather_kernel|index_select"),
    (COPY, r"scatter_kernel|transpose|permute|split_with_sizes"),
    # The rest of a layer.
    (ELEMENTWISE, r"norm|act_and_mul|silu|gelu|swiglu|rotary|rope|quant|cvt_|convert|sigmoid"),
    (ELEMENTWISE, r"kv_?cache|cache_kernel|embedding|slot_map"),
    (ELEMENTWISE, r"elementwise|reduce_kernel|reduce_\d+kernel|fillfunctor"),
    (ELEMENTWISE, r"arange|index_?(put|add|kernel)|prepare_inputs|position|vectorized_|where_"),
)
"""(part, pattern), matched without regard to case, the first that is found."""

_COMPILED = tuple((part, re.compile(pattern, re.IGNORECASE)) for part, pattern in KERNELS)


@cache
def part_of(kernel: str) -> str:
    """The part of a step that `kernel` belongs to, `UNKNOWN` if no pattern knows it."""
    for part, pattern in _COMPILED:
        if pattern.search(kernel):
            return part
    return UNKNOWN
