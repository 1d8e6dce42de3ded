"""Nsight Systems summaries: real formats are read, broken ones refused, kernels known by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.calibration import kernel_names as names
from cluster.calibration.nsys import (
    COVERS,
    NOT_KERNELS,
    NsysSummary,
    Row,
    corrections,
    read_nsys,
    seconds_per_step,
)
from cluster.calibration.nsys_updates import TraceOf, coefficient_updates
from cluster.errors import ConfigError, InputError, UnknownNameError

DECODE = Path(__file__).parent / "data" / "nsys_decode.csv"
KERNELS = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
STEPS = 100

REAL_NAMES = {
    names.GEMM: (
        "nvjet_sm100_tst_64x24_64x16_1x2_h_bz_TNT",
        "nvjet_tss_32x64_64x16_4x2_2cta_h_bz_splitK_TNN",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false>(...)",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1",
        "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 16, 4, 1024>",
        "void marlin::Marlin<__nv_bfloat16, 2814749767107592l, 256, 1, 8, 8, false, 4, 8, false>",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 1u, (deep_gemm::GemmType)0>()",
        "_w8a8_block_fp8_matmul",
        "triton_tem_fused_mm_3",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1",
        "void tensorrt_llm::kernels::fp8_blockscale_gemm::fp8_gemm_kernel(...)",
        "void fused_a_gemm_kernel<1, 2112, 7168, 16, 256>(__nv_bfloat16*, ...)",
        "kernel_cutlass_kernel_flashinfergemmkernelsdense_blockscaled_gemm_sm100Sm100BlockScaled",
        "void tensorrt_llm::kernels::weight_only::fpA_intB_gemm<cutlass::WeightOnlyQuantOp>(...)",
    ),
    names.EXPERTS: (
        "fused_moe_kernel",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::"
        "GroupProblemShape<cute::tuple<long, long, long>>, cutlass::gemm::collective>>",
        "bmm_E2m1_E2m1E2m1_Fp32_Ab16_Bb16_Cb16_t128x8x512_s5_et128x8_swiGlu_dynB_sm100f",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_Ab32_Bb32_Cb32_t128x32x256_s5_et128x32_m256x32x32",
        "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, int>(float const*, bool const*)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int)",
        "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906843648l, 256, 4, 16, 4>(int4)",
        "void deep_gemm::sm100_fp8_gemm_1d1d_impl<(cute::UMMA::Major)0, (deep_gemm::GemmType)2>()",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu",
        "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16>",
        "void moe::dev::routing::routingCustom::routingIndicesClusterKernel<moe::dev::routing>",
    ),
    names.ATTENTION: (
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false>>",
        "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP16MultiCtasKvVarSeqQ8Kv128",
        "kernel_unified_attention_2d",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits>",
        "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8>>",
        "void deep_gemm::sm100_fp8_paged_mqa_logits<1u, 64u, 128u, 64u, true>(unsigned int)",
        "_fwd_grouped_kernel_stage1",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
        "void vllm::paged_attention_v2_kernel<__nv_bfloat16, __nv_bfloat16, 128, 16, 128>",
    ),
    names.ALL_REDUCE: (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, ...)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>",
        "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4>",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)",
    ),
    names.ALL_GATHER: ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",),
    names.REDUCE_SCATTER: ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)",),
    names.ALL_TO_ALL: (
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*, int*, long*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*)",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<...>",
        "void tensorrt_llm::kernels::moeAllToAllKernel<...>",
    ),
    names.SEND_RECV: ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",),
    names.ELEMENTWISE: (
        "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, ...)",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(...)",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>(...)",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, ...)",
        "_silu_mul_fp8_quant_deep_gemm",
        "void tensorrt_llm::kernels::quantize_with_block_size<(BlockScaleQuantizationType)2>",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>>",
        "_layer_norm_fwd_1pass_kernel",
    ),
    names.SAMPLING: (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps",
        "_gumbel_sample_kernel",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>(...)",
    ),
    names.COPY: (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>, 2, 64>",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>",
    ),
    names.UNKNOWN: (
        "kernel_cutlass_device_kernel_tensorptrbf16gmemalign16o9616512div85121_tensorptri64",
        "my_company_secret_kernel(float *, int)",
    ),
}


@pytest.mark.parametrize(
    ("part", "kernel"), [(part, kernel) for part, many in REAL_NAMES.items() for kernel in many]
)
def test_real_kernels_are_known_by_name(part, kernel):
    assert names.part_of(kernel) == part


def test_a_whole_trace_is_read():
    summary = read_nsys([DECODE])
    assert summary.seconds[names.GEMM] == pytest.approx(0.4)
    assert summary.seconds[names.EXPERTS] == pytest.approx(0.2)
    assert summary.seconds[names.COPY] == pytest.approx(0.01)
    assert sum(summary.shares.values()) == pytest.approx(1.0)
    ((kernel, share),) = summary.unknown
    assert kernel.name == "my_company_secret_kernel(float *, int)"
    assert share == pytest.approx(0.02 / 1.01)
    assert summary.memory[0].bytes == pytest.approx(402.653e6)
    assert summary.times("execute_model") == STEPS
    assert summary.notes == ()
    assert {row.name: row.count for row in summary.calls}["cudaGraphLaunch_v10000"] == 100
    with pytest.raises(UnknownNameError, match="NVTX range 'step'"):
        summary.times("step")


def test_files_of_several_ranks_add_up():
    once, twice = read_nsys([DECODE]), read_nsys([DECODE, DECODE])
    assert twice.seconds == pytest.approx({k: 2.0 * v for k, v in once.seconds.items()})
    one = seconds_per_step(once, steps=STEPS)
    assert seconds_per_step(twice, steps=STEPS, devices=2) == pytest.approx(one)


def write(folder: Path, text: str | bytes, name: str = "x.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_columns_of_older_versions_are_read(tmp_path):
    path = write(
        tmp_path,
        "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n"
        "100.0,2000000,10,200000.0,1,2,volta_sgemm_128x64_nn\n\n"
        "Time(%),Total Time (ns),Operations,Average,Minimum,Maximum,Operation\n"
        "100.0,1000000,4,250000.0,1,2,[CUDA memcpy HtoD]\n",
    )
    summary = read_nsys([path])
    assert summary.seconds == pytest.approx({names.GEMM: 2e-3, names.COPY: 1e-3})


def test_units_and_thousands_are_read(tmp_path):
    header = KERNELS.replace("Total Time (ns)", "Total Time (us)")
    path = write(tmp_path, f'{header}\n90.0,"1,236,000.5","4,120",1,1,1,1,0,nvjet_a\n')
    (kernel,) = read_nsys([path]).kernels
    assert kernel.seconds == pytest.approx(1.2360005)
    assert kernel.count == 4120


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("hello world\n", "not a CSV of `nsys stats`"),
        ("a,b,c\n1,2,3\n", "not a CSV of `nsys stats`"),
        (b"SQLite format 3\0xyz", "an SQLite export, not a CSV"),
        (b"\x01\0\x02binary", "a binary report, not a CSV"),
        (
            "SKIPPED: t.sqlite does not contain CUDA kernel data.\n",
            r"nothing to report .*--cuda-graph-trace=node",
        ),
        (" Time (%)  Total Time (ns)\n --------  -------\n", "table for reading"),
        (
            " ** NVTX Range Summary (nvtx_sum):\n\nTime (%),Total Time (ns),Instances,Style,Range\n"
            "1,2,3,PushPop,:x\n",
            r"wrong report \(nvtx_sum\); needed is one of cuda_gpu_kern_sum",
        ),
        (
            " ** OS Runtime Summary (osrt_sum):\n\nTime (%),Total Time (ns),Num Calls,Name\n"
            "80.0,100,7,sem_wait\n",
            r"wrong report \(osrt_sum\)",
        ),
        (f"{KERNELS}\n50.0,100,1,100,100,1", "6 fields where the header has 9"),
        (f"{KERNELS}\n50.0,many,1,1,1,1,1,0,k\n", "'many' is not a number"),
        (f"{KERNELS}\n50.0,nan,1,1,1,1,1,0,k\n", "'nan' is not a number"),
        (
            f"{KERNELS}\n50.0,1,1,1,1,1,1,0,k\n".replace("(ns)", "(fortnights)"),
            "unknown unit 'fortnights'",
        ),
    ],
)
def test_broken_files_are_refused_with_what_they_are(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said) as caught:
        read_nsys([write(tmp_path, text)])
    assert "x.csv" in str(caught.value)


def test_a_missing_file_and_a_trace_without_kernels_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_nsys([tmp_path / "absent.csv"])
    path = write(tmp_path, "Time (%),Total Time (ns),Num Calls,Name\n80.0,100,7,cudaMalloc\n")
    with pytest.raises(InputError, match=r"no kernel summary .*\(cuda_api_sum\)"):
        read_nsys([path])
    with pytest.raises(InputError, match="no file: no kernel summary"):
        read_nsys([])


def test_every_part_of_the_cost_model_has_a_place():
    from cluster.costmodel.steps import PART_NAMES

    placed = {name for covered in COVERS.values() for name in covered} | NOT_KERNELS
    assert set(PART_NAMES) <= placed
    assert set(COVERS) == set(names.PARTS)


def test_corrections_compare_what_both_sides_have():
    predicted = {
        "projections": 2e-3,
        "ffn": 0.5e-3,
        "head": 0.7e-3,
        "experts": 2e-3,
        "attention": 1e-3,
        "all_reduce": 1e-3,
        "all_to_all": 0.0,
        "host": 9.0,
    }
    found = corrections(read_nsys([DECODE]), steps=STEPS, predicted=predicted)
    assert found == pytest.approx(
        {names.GEMM: 1.25, names.EXPERTS: 1.0, names.ATTENTION: 1.5, names.ALL_REDUCE: 1.0}
    )


@given(scale=st.floats(0.1, 10.0), steps=st.integers(1, 500), devices=st.integers(1, 8))
def test_a_prediction_scaled_scales_its_correction(scale, steps, devices):
    summary = read_nsys([DECODE])
    base = {"experts": 2e-3, "attention": 1e-3}
    one = corrections(summary, steps=steps, predicted=base, devices=devices)
    other = corrections(
        summary,
        steps=steps,
        predicted={part: value * scale for part, value in base.items()},
        devices=devices,
    )
    assert {part: ratio * scale for part, ratio in other.items()} == pytest.approx(one)


def test_point_to_point_kernels_are_the_all_to_all_where_one_is_predicted():
    summary = NsysSummary(kernels=(Row(name="ncclDevKernel_SendRecv(x)", count=10, seconds=0.02),))
    both = {"all_to_all": 1e-3, "send_recv": 0.0}
    assert corrections(summary, steps=10, predicted=both) == pytest.approx({"all_to_all": 2.0})
    pipeline = {"send_recv": 1e-3}
    assert corrections(summary, steps=10, predicted=pipeline) == pytest.approx({"send_recv": 2.0})


def test_a_trace_that_cannot_be_compared_is_refused():
    summary = read_nsys([DECODE])
    with pytest.raises(InputError, match="0 steps"):
        corrections(summary, steps=0, predicted={"experts": 1.0})
    with pytest.raises(UnknownNameError, match="attentoin"):
        corrections(summary, steps=1, predicted={"attentoin": 1.0})
    with pytest.raises(InputError, match="no part is in both"):
        corrections(summary, steps=1, predicted={"all_to_all": 1.0})
    with pytest.raises(InputError, match=r"2% of the kernel time .* my_company_secret_kernel"):
        corrections(summary, steps=1, predicted={"experts": 1.0}, most_unknown=0.01)


def test_kernels_hidden_in_graphs_are_noticed(tmp_path):
    path = write(
        tmp_path,
        f"{KERNELS}\n100.0,1000,20,50,50,50,50,0,fmhaSm100fKernel_x\n\n"
        "Time (%),Total Time (ns),Num Calls,Name\n"
        "50.0,100,900,cudaGraphLaunch_v10000\n50.0,100,21,cudaLaunchKernel\n",
    )
    summary = read_nsys([path])
    assert "--cuda-graph-trace=node" in summary.notes[0]
    with pytest.raises(InputError, match="900 graph launches"):
        corrections(summary, steps=1, predicted={"attention": 1.0})


CURRENT = {
    "gemm.hopper.fp8.mbu": 0.6,
    "gemm.hopper.fp8.mfu": 0.6,
    "experts.hopper.fp8.mbu": 0.5,
    "attention.hopper.decode_mbu": 0.8,
    "link.hopper.latency_s": 3e-6,
    "link.hopper.efficiency": 0.7,
    "kernel.hopper.small_s": 2e-6,
    "elementwise.passes": 10.0,
}
TRACE = TraceOf(family="hopper", gemm="fp8", phase="decode")


def test_corrections_move_the_coefficient_that_bounds_a_part():
    predicted = {"projections": 2e-3, "attention": 1e-3, "all_reduce": 3e-3, "all_gather": 1e-3}
    updates = coefficient_updates(
        {"gemm": 1.25, "attention": 0.5, "all_reduce": 2.0, "all_gather": 1.0, "sampling": 3.0},
        predicted=predicted,
        current=CURRENT,
        trace=TRACE,
    )
    assert updates.values == pytest.approx(
        {
            "gemm.hopper.fp8.mbu": 0.48,
            "attention.hopper.decode_mbu": 1.0,
            "link.hopper.latency_s": 3e-6 * (3.0 * 2.0 + 1.0) / 4.0,
        }
    )
    assert any("decode_mbu would be 1.6" in note for note in updates.notes)
    assert any(note.startswith("sampling: 3.00 times") for note in updates.notes)


def test_prefill_and_stated_bounds_move_others():
    prefill = TraceOf(family="hopper", gemm="fp8", phase="prefill")
    arithmetic = coefficient_updates(
        {"gemm": 1.2, "elementwise": 1.5},
        predicted={"ffn": 1.0, "elementwise": 0.1},
        current=CURRENT,
        trace=prefill,
    )
    assert arithmetic.values == pytest.approx(
        {"gemm.hopper.fp8.mfu": 0.5, "elementwise.passes": 15.0}
    )
    stated = coefficient_updates(
        {"all_reduce": 1.4},
        predicted={"all_reduce": 1.0},
        current=CURRENT,
        trace=TRACE,
        bounds={"all_reduce": "bandwidth"},
    )
    assert stated.values == pytest.approx({"link.hopper.efficiency": 0.5})


def test_an_engine_with_links_of_its_own_gets_its_own_latency():
    own = {**CURRENT, "link.vllm.hopper.latency_s": 2e-6}
    for backend, name in (
        ("vllm", "link.vllm.hopper.latency_s"),
        ("sglang", "link.hopper.latency_s"),
    ):
        updates = coefficient_updates(
            {"all_reduce": 1.5},
            predicted={"all_reduce": 1.0},
            current=own,
            trace=TraceOf(family="hopper", gemm="fp8", phase="decode", backend=backend),
        )
        assert updates.values == pytest.approx({name: 1.5 * own[name]})


def test_updates_need_a_coefficient_and_a_prediction():
    with pytest.raises(UnknownNameError, match=r"gemm\.ada\.fp8\.mbu"):
        coefficient_updates(
            {"gemm": 1.0},
            predicted={"ffn": 1.0},
            current=CURRENT,
            trace=TraceOf(family="ada", gemm="fp8", phase="decode"),
        )
    with pytest.raises(InputError, match="no time is predicted"):
        coefficient_updates({"gemm": 1.0}, predicted={}, current=CURRENT, trace=TRACE)
    with pytest.raises(InputError, match="no coefficient for being bound by latency"):
        coefficient_updates(
            {"gemm": 1.0},
            predicted={"ffn": 1.0},
            current=CURRENT,
            trace=TRACE,
            bounds={"gemm": "latency"},
        )
