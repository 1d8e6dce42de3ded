"""Article C's claims on GPT-MoE-1.8T, 64 GPUs of 192 GB: the article's figure and ours.

    python -m bench.gpt_moe_1p8t [--quick] [--isl N] [--osl N] [--json FILE]

The article names the model, the number of GPUs and their memory. It names no workload: the default,
32,768 tokens in and 1,024 out, is the one we remember NVIDIA to state with its GPT-MoE-1.8T
figures; it was not checked again. Everything printed as ours is computed by the cost model; the
article's figures are only printed beside it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from bench.gpt_moe_claims import (
    ARTICLE_COUNT,
    Claim,
    choice_claim,
    chunk_claim,
    combinations,
    experts_claim,
    least_devices_for_weights,
    tensor_claim,
    trade_claim,
)
from bench.gpt_moe_curves import (
    EXPERTS,
    MEMORY,
    Setting,
    fp4,
    hardware,
    hardware_in_eights,
    layout_of,
    reported_model,
)
from cluster.costmodel.estimate import estimate
from cluster.model.catalogue import get_model
from cluster.model.layout import LayoutTable
from cluster.model.rules import check_layouts
from cluster.model.workload import Workload


def count_claim(setting: Setting) -> Claim:
    """73 basic configurations."""
    need = least_devices_for_weights(setting.model)
    every, layers = combinations(), setting.model.num_layers
    table = LayoutTable.from_layouts(layout_of(degrees) for degrees in every)
    made = estimate(
        setting.model, setting.group, table, setting.workload, concurrency=table.max_num_seqs
    )
    valid = check_layouts(setting.model, setting.group, table, cross_domain_tp=True).ok & made.fits
    stated = combinations(most_ep=EXPERTS, least_devices=need)
    counts = {
        "TP * EP * PP * DP = 64 in powers of two": len(every),
        f"… with EP <= {EXPERTS} experts": len(combinations(most_ep=EXPERTS)),
        f"… and a copy on >= {need} GPUs": len(stated),
        f"… and PP dividing {layers} layers": len(
            combinations(most_ep=EXPERTS, least_devices=need, layers=layers)
        ),
        f"a copy on >= {need} GPUs, but EP <= {2 * EXPERTS}": len(
            combinations(most_ep=2 * EXPERTS, least_devices=need)
        ),
        "our planner's rules and memory (20 % free, one request)": int(valid.sum()),
    }
    same = [rule for rule, count in counts.items() if count == ARTICLE_COUNT]
    return Claim(
        name="basic configurations on 64 GPUs",
        article=f"{ARTICLE_COUNT}",
        ours=f"{len(stated)} by the limits the article states",
        why=(
            *(f"{count:>3}  {rule}" for rule, count in counts.items()),
            f"the article gives no rule; {ARTICLE_COUNT} is {same[0] if same else 'none of these'}",
            f"(EP {2 * EXPERTS} holds every expert twice; its source says that EP is limited by "
            f"the {EXPERTS} experts)",
        ),
        values={"counts": counts},
    )


def memory_claim(setting: Setting) -> Claim:
    """FP4 weights need at least 5 GPUs."""
    model = setting.model
    need = least_devices_for_weights(model)
    stored = math.ceil(model.weight_bytes / MEMORY)
    shapes = [
        (tp, ep, pp)
        for tp, ep, pp in product((1, 2, 4, 8), (1, 2, 4, 8, 16), range(1, 17))
        if tp * ep * pp <= 16
    ]
    fitting: dict[str, int] = {}
    for headroom in (0.0, 0.2):
        table = LayoutTable.from_layouts(layout_of(degrees) for degrees in shapes)
        made = estimate(
            model, setting.group, table, setting.workload, concurrency=1, headroom=headroom
        )
        fitting[f"{headroom:.0%}"] = int(table.devices_per_replica[made.fits].min())
    return Claim(
        name="GPUs for FP4 weights",
        article=">= 5",
        ours=f">= {need} for half a byte per parameter",
        why=(
            f">= {stored} as stored: NVFP4 takes 4.5 bits with its scales, embedding, head and "
            f"router stay in bf16 ({model.weight_bytes / 1e9:,.0f} GB)",
            *(
                f">= {count} with reserve, activations and one request of the workload, "
                f"{free} of the memory left free"
                for free, count in fitting.items()
            ),
        ),
        values={"half_byte": need, "as_stored": stored, "layout_fits": fitting},
    )


CLAIMS: tuple[Callable[[Setting], Claim], ...] = (
    count_claim,
    memory_claim,
    experts_claim,
    tensor_claim,
    chunk_claim,
    trade_claim,
    choice_claim,
)


def settings_of(*, quick: bool, workload: Workload) -> dict[str, Setting]:
    """What is computed: quick, one setting on a coarse grid; else also what might matter."""
    reported, group = fp4(reported_model()), hardware()
    main = Setting(model=reported, group=group, workload=workload)
    if quick:
        coarse = (32, 64, 128, 256, 512, 896, 2048, 8192)
        return {
            "reported shapes": replace(main, batches=(1, 2, 8, 32, 128, 512, 2048), chunks=coarse)
        }
    return {
        "reported shapes": main,
        "catalogue shapes": replace(main, model=fp4(get_model("gpt-moe-1.8t"))),
        "4,096 in": replace(main, workload=Workload(isl=4096, osl=1024)),
        "domains of 8": replace(main, group=hardware_in_eights()),
    }


def report(settings: dict[str, Setting]) -> dict[str, list[Claim]]:
    """Every claim of every setting."""
    return {name: [claim(setting) for claim in CLAIMS] for name, setting in settings.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one setting, a coarse grid")
    parser.add_argument("--isl", type=int, default=32_768, help="prompt tokens of a request")
    parser.add_argument("--osl", type=int, default=1024, help="output tokens of a request")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args(arguments)
    settings = settings_of(quick=args.quick, workload=Workload(isl=args.isl, osl=args.osl))
    found = report(settings)
    for name, claims in found.items():
        setting = settings[name]
        model = setting.model
        print(
            f"\n== {name}: {model.params / 1e12:.3f} T parameters, "
            f"{model.active_params / 1e9:.0f} B active, {setting.workload.isl:,} in / "
            f"{setting.workload.osl:,} out, 64 GPUs of 192 GB"
        )
        for claim in claims:
            print(f"\n{claim.name}\n  article  {claim.article}\n  ours     {claim.ours}")
            for line in claim.why:
                print(f"           {line}")
    if args.json:
        data = {name: [asdict(claim) for claim in claims] for name, claims in found.items()}
        args.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
