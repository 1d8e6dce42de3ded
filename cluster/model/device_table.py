"""The rows of the device catalogue: peaks, links and prices, each with its source.

Peaks are dense (no sparsity), bandwidths one direction. Sources, where a row names no other:
NVIDIA datasheets as collected in the system files of ai-dynamo/aiconfigurator (commit
095f58a51c4c). Fields that come from one place for many rows:

- `link_latency_s`: the alpha of t = alpha + bytes/bandwidth fitted to NCCL all-reduce between two
  devices of a node (aiconfigurator's measured tables, NCCL 2.27 to 2.29); rows without a
  measurement take that of their interconnect's nearest relative and say so.
- `network_latency_s`: send/recv of 2 KiB between nodes measured by microsoft/vidur on A100 (24 us)
  and H100 (17 us) DGX; ConnectX-7 and later take the latter.
- `launch_overhead_s`: cudaLaunchKernel, 4 to 6 us as reported; a CUDA graph saves most of it.
- `reserved_bytes`: NCCL buffers (392 MiB) and what the runtime keeps (3.5 GiB), the reserve that
  aiconfigurator settled on for deployments.
- `price_per_hour`: on-demand list prices per device, USD. CoreWeave rows: its list of February
  2026; other rows: list prices of 2025, not re-checked since; None where no public price was at
  hand. Prices age: a cluster file overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device

_TERA = 1e12
_GIGA = 1e9
_MIB = 2.0**20
_MICRO = 1e-6
_RESERVED = (3.5 * 1024 + 392) * _MIB


def _flops(
    *,
    fp32: float,
    bf16: float | None = None,
    int8: float | None = None,
    fp8: float | None = None,
    fp4: float | None = None,
) -> Mapping[NumberFormat, float]:
    """Peaks in TFLOP/s to a table; formats of one width share a unit."""
    rates = {
        NumberFormat.FP32: fp32,
        NumberFormat.BF16: bf16,
        NumberFormat.FP16: bf16,
        NumberFormat.INT8: int8,
        NumberFormat.FP8: fp8,
        NumberFormat.FP8_BLOCK: fp8,
        NumberFormat.NVFP4: fp4,
        NumberFormat.MXFP4: fp4,
    }
    return MappingProxyType({key: rate * _TERA for key, rate in rates.items() if rate is not None})


def _gpu(
    name: str,
    *,
    mib: float,
    tb_s: float,
    flops: Mapping[NumberFormat, float],
    link_gb_s: float,
    link_us: float,
    domain: int = 8,
    network_gb_s: float,
    network_us: float = 17.0,
    host_gb_s: float,
    watts: float,
    price: float | None,
    source: str,
    domain_spans_nodes: bool = False,
) -> Device:
    return Device(
        name=name,
        memory_bytes=mib * _MIB,
        memory_bandwidth=tb_s * _TERA,
        flops=flops,
        link_bandwidth=link_gb_s * _GIGA,
        link_latency_s=link_us * _MICRO,
        domain=domain,
        network_bandwidth=network_gb_s * _GIGA,
        network_latency_s=network_us * _MICRO,
        host_bandwidth=host_gb_s * _GIGA,
        power_w=watts,
        launch_overhead_s=5.0 * _MICRO,
        reserved_bytes=_RESERVED,
        price_per_hour=price,
        source=source,
        domain_spans_nodes=domain_spans_nodes,
    )


ALL_DEVICES: tuple[Device, ...] = (
    _gpu(
        "a100-40",
        mib=40_960,
        tb_s=1.555,
        flops=_flops(fp32=19.5, bf16=312, int8=624),
        link_gb_s=300,
        link_us=11.7,
        network_gb_s=25,
        network_us=24,
        host_gb_s=32,
        watts=400,
        price=3.67,
        source="NVIDIA A100 datasheet, links as a100-80; price: GCP a2-highgpu-1g, us-central1",
    ),
    _gpu(
        "a100-80",
        mib=81_920,
        tb_s=2.039,
        flops=_flops(fp32=19.5, bf16=312, int8=624),
        link_gb_s=300,
        link_us=11.7,
        network_gb_s=25,
        network_us=24,
        host_gb_s=32,
        watts=400,
        price=2.70,
        source="aiconfigurator a100_sxm.yaml; price: CoreWeave list, 21.60 per 8",
    ),
    _gpu(
        "a100-80-pcie",
        mib=81_920,
        tb_s=1.935,
        flops=_flops(fp32=19.5, bf16=312, int8=624),
        link_gb_s=32,
        link_us=7.0,
        network_gb_s=25,
        network_us=24,
        host_gb_s=32,
        watts=300,
        price=None,
        source="aiconfigurator a100_pcie.yaml; link latency as l40s (PCIe)",
    ),
    _gpu(
        "h100",
        mib=81_920,
        tb_s=3.35,
        flops=_flops(fp32=67, bf16=989, int8=1978, fp8=1978),
        link_gb_s=450,
        link_us=6.9,
        network_gb_s=50,
        host_gb_s=64,
        watts=700,
        price=6.155,
        source="aiconfigurator h100_sxm.yaml; price: CoreWeave list, 49.24 per 8",
    ),
    _gpu(
        "h100-pcie",
        mib=81_920,
        tb_s=2.0,
        flops=_flops(fp32=51, bf16=756.5, int8=1513, fp8=1513),
        link_gb_s=64,
        link_us=7.0,
        network_gb_s=50,
        host_gb_s=64,
        watts=350,
        price=None,
        source="aiconfigurator h100_pcie.yaml; link latency as l40s (PCIe)",
    ),
    _gpu(
        "h200",
        mib=143_771,
        tb_s=4.8,
        flops=_flops(fp32=67, bf16=989, int8=1978, fp8=1978),
        link_gb_s=450,
        link_us=7.0,
        network_gb_s=50,
        host_gb_s=64,
        watts=700,
        price=6.305,
        source="aiconfigurator h200_sxm.yaml, memory as the driver reports it; "
        "price: CoreWeave list, 50.44 per 8",
    ),
    _gpu(
        "b200",
        mib=184_320,
        tb_s=7.7,
        flops=_flops(fp32=75, bf16=2250, int8=4500, fp8=4500, fp4=9000),
        link_gb_s=900,
        link_us=11.0,
        network_gb_s=50,
        host_gb_s=128,
        watts=1000,
        price=8.60,
        source="aiconfigurator b200_sxm.yaml; network of fielded machines (ConnectX-7, 400 Gb/s), "
        "the file says 100 GB/s; price: CoreWeave list, 68.80 per 8",
    ),
    _gpu(
        "b300",
        mib=275_040,
        tb_s=7.75,
        flops=_flops(fp32=75, bf16=2250, int8=153.5, fp8=4500, fp4=14_000),
        link_gb_s=900,
        link_us=11.0,
        network_gb_s=100,
        host_gb_s=128,
        watts=1100,
        price=None,
        source="aiconfigurator b300_sxm.yaml; link latency as b200",
    ),
    _gpu(
        "gb200",
        mib=189_471,
        tb_s=8.0,
        flops=_flops(fp32=80, bf16=2500, int8=5000, fp8=5000, fp4=10_000),
        link_gb_s=900,
        link_us=11.7,
        domain=72,
        domain_spans_nodes=True,
        network_gb_s=100,
        host_gb_s=64,
        watts=1200,
        price=10.50,
        source="aiconfigurator gb200.yaml (NVL72: 18 trays of 4); "
        "price: CoreWeave list, 42.00 per 4",
    ),
    _gpu(
        "gb300",
        mib=284_208,
        tb_s=8.0,
        flops=_flops(fp32=80, bf16=2500, int8=153.5, fp8=5000, fp4=15_000),
        link_gb_s=900,
        link_us=11.7,
        domain=72,
        domain_spans_nodes=True,
        network_gb_s=100,
        host_gb_s=64,
        watts=1400,
        price=None,
        source="aiconfigurator gb300.yaml (NVL72: 18 trays of 4); link latency as gb200, "
        "int8 as b300",
    ),
    _gpu(
        "l40s",
        mib=46_068,
        tb_s=0.864,
        flops=_flops(fp32=91.6, bf16=362, int8=733, fp8=733),
        link_gb_s=32,
        link_us=7.0,
        network_gb_s=50,
        host_gb_s=32,
        watts=350,
        price=2.25,
        source="aiconfigurator l40s.yaml (no NVLink); price: CoreWeave list, 18.00 per 8",
    ),
    _gpu(
        "l4",
        mib=23_034,
        tb_s=0.300,
        flops=_flops(fp32=30.3, bf16=121, int8=242, fp8=242),
        link_gb_s=32,
        link_us=7.0,
        network_gb_s=25,
        host_gb_s=32,
        watts=72,
        price=0.80,
        source="aiconfigurator l4.yaml, memory as the driver reports it; link latency as l40s; "
        "price: AWS g6.xlarge, us-east-1",
    ),
    _gpu(
        "a6000",
        mib=49_140,
        tb_s=0.768,
        flops=_flops(fp32=38.7, bf16=154.8, int8=309.7),
        link_gb_s=56,
        link_us=11.7,
        domain=2,
        network_gb_s=25,
        network_us=24,
        host_gb_s=32,
        watts=300,
        price=None,
        source="NVIDIA RTX A6000 datasheet from memory, not re-checked; NVLink bridge of a pair, "
        "link latency as a100, network assumed as a100's",
    ),
    _gpu(
        "mi300x",
        mib=196_608,
        tb_s=5.3,
        flops=_flops(fp32=163.4, bf16=1307.4, int8=2614.9, fp8=2614.9),
        link_gb_s=448,
        link_us=10.0,
        network_gb_s=50,
        host_gb_s=64,
        watts=750,
        price=6.00,
        source="AMD MI300X datasheet; xGMI full mesh, 7 links of 64 GB/s; link latency: the "
        "generic 10 us of aiconfigurator; price: Oracle Cloud list",
    ),
    _gpu(
        "rtx-pro-6000",
        mib=97_887,
        tb_s=1.792,
        flops=_flops(fp32=120, bf16=467.8, fp8=935.6, fp4=1871),
        link_gb_s=64,
        link_us=7.0,
        network_gb_s=50,
        host_gb_s=64,
        watts=600,
        price=2.50,
        source="aiconfigurator rtx_pro_6000_server.yaml (its network figure is a placeholder); "
        "link latency as l40s; price: CoreWeave list, 20.00 per 8",
    ),
    Device(
        name="cpu",
        memory_bytes=8 * 1024 * _MIB,
        memory_bandwidth=24 * _GIGA,
        flops=_flops(fp32=0.1, int8=0.4),
        link_bandwidth=1 * _GIGA,
        link_latency_s=25 * _MICRO,
        domain=256,
        network_bandwidth=3.125 * _GIGA,
        network_latency_s=50 * _MICRO,
        host_bandwidth=24 * _GIGA,
        power_w=4.0,
        launch_overhead_s=1.2 * _MICRO,
        reserved_bytes=1.5 * 1024 * _MIB,
        price_per_hour=0.0513,
        kind="cpu",
        source="one core, measured by bench/cpu_device.py on an AMD EPYC (2 cores): fp32 matrix "
        "product, memory read, torch dispatch, pipe between two processes (0.8 to 3.3 GB/s from "
        "run to run: the low end); int8: four times fp32 (AVX-512 VNNI); reserved: "
        "an engine's processes beside weights and cache (bench/cpu_engine.py); a core's share of "
        "memory depends on the machine (8 GiB assumed), network (25 Gb/s) and power are assumed; "
        "price: AWS c7a, us-east-1, per core",
    ),
)
