"""Options of `plan` that say how a replica is served: read, checked, and handed to the planner.

Invariant: a contradiction is an error before any layout is searched; the message names the option,
the limit and the fix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cluster.costmodel.calibration_file import load_calibration
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import Statistic
from cluster.costmodel.engine import BACKENDS
from cluster.costmodel.estimate import Serving
from cluster.costmodel.speculation import Speculation
from cluster.errors import InputError, UnknownNameError
from cluster.model.hardware import ClusterSpec
from cluster.model.model_spec import ModelSpec
from rl_search.serving_args import DRAFT_METHODS

GIB = 1024.0**3
DRAFT_SHARE = 0.02  # of a step, a drafted token: heads trained with the model

BackendOption = Annotated[
    str, typer.Option("--backend", help=f"Engine to estimate: {', '.join(BACKENDS)}.")
]
PrefixHitOption = Annotated[
    float, typer.Option("--prefix-hit", help="Share of prompt tokens in the prefix cache.")
]
DraftTokensOption = Annotated[
    int | None, typer.Option("--draft-tokens", help="Speculative decoding: tokens drafted a step.")
]
DraftAcceptanceOption = Annotated[
    float | None,
    typer.Option("--draft-acceptance", help="Chance that a drafted token is kept, below 1."),
]
DraftShareOption = Annotated[
    float | None,
    typer.Option("--draft-share", help=f"Time of a draft over a step. Default {DRAFT_SHARE}."),
]
DraftModelOption = Annotated[
    str | None,
    typer.Option("--draft-model", help="What drafts: a model, `ngram` (default) or `mtp`."),
]
OffloadOption = Annotated[
    float, typer.Option("--offload", help="GiB of each device's weights in host memory.")
]
CalibrationOption = Annotated[
    Path | None, typer.Option("--calibration", help="YAML file laid over the shipped calibration.")
]
PercentileOption = Annotated[
    Statistic, typer.Option("--percentile", help="Which TTFT and TPOT the bounds are for.")
]
DisaggregateOption = Annotated[
    bool,
    typer.Option("--disaggregate", help="Compare with separate prefill and decode replicas."),
]


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """What the options came to. `coefficients` None is the shipped calibration."""

    serving: Serving
    prefix_hit: float
    coefficients: Coefficients | None
    drafter: str | None


def serving_options(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    backend: str = "vllm",
    prefix_hit: float = 0.0,
    draft_tokens: int | None = None,
    draft_acceptance: float | None = None,
    draft_share: float | None = None,
    draft_model: str | None = None,
    offload: float = 0.0,
    calibration: Path | None = None,
) -> ServingOptions:
    """Check and convert. Raises InputError (UnknownNameError, ConfigError) naming the option."""
    if backend not in BACKENDS:
        raise UnknownNameError(kind="--backend", name=backend, known=BACKENDS)
    if not 0.0 <= prefix_hit < 1.0:
        raise InputError(
            f"--prefix-hit {prefix_hit:g} is no share in [0, 1): at least one prompt token has to "
            "be computed. Fix: pass e.g. 0.5 if half of the prompt tokens are cached."
        )
    speculation = _speculation(draft_tokens, draft_acceptance, draft_share, draft_model)
    return ServingOptions(
        serving=Serving(
            backend=backend,
            speculation=speculation,
            offload_bytes=_offload_bytes(offload, model, cluster),
        ),
        prefix_hit=prefix_hit,
        coefficients=None if calibration is None else load_calibration(calibration),
        drafter=draft_model,
    )


def _speculation(
    tokens: int | None, acceptance: float | None, share: float | None, drafter: str | None
) -> Speculation | None:
    if tokens is None:
        for option, value in (
            ("--draft-acceptance", acceptance),
            ("--draft-share", share),
            ("--draft-model", drafter),
        ):
            if value is not None:
                raise InputError(
                    f"{option} says how drafts are made, but none are asked for. "
                    "Fix: pass --draft-tokens N, or leave it out."
                )
        return None
    if tokens < 1:
        raise InputError(
            f"--draft-tokens {tokens} must be at least 1. Fix: leave it out for no speculation."
        )
    if acceptance is None:
        raise InputError(
            "--draft-tokens needs --draft-acceptance, the chance that a drafted token is kept. "
            "Fix: measure it on your traffic; 0.6 to 0.8 is common."
        )
    if not 0.0 <= acceptance < 1.0:
        raise InputError(
            f"--draft-acceptance {acceptance:g} is no probability in [0, 1). "
            "Fix: measure it on your traffic; 0.6 to 0.8 is common."
        )
    if share is not None and not 0.0 <= share < math.inf:
        raise InputError(
            f"--draft-share {share:g} must be at least 0: the time of one drafted token over a "
            "step of the model. Fix: pass e.g. 0.02 for trained heads."
        )
    if drafter is not None and not drafter.strip():
        raise InputError(
            f"--draft-model is empty. Fix: name a model, {' or '.join(DRAFT_METHODS)}."
        )
    return Speculation(
        drafts=tokens,
        acceptance=acceptance,
        draft_share=DRAFT_SHARE if share is None else share,
    )


def _offload_bytes(gib: float, model: ModelSpec, cluster: ClusterSpec) -> float:
    if not 0.0 <= gib < math.inf:
        raise InputError(f"--offload {gib:g} must be at least 0 GiB.")
    if gib == 0.0:
        return 0.0
    if all(group.device.kind == "cpu" for group in cluster.groups):
        raise InputError(
            "--offload moves weights from a GPU to host memory; on CPU cores they are there "
            "already. Fix: leave it out."
        )
    limit = model.weight_bytes / GIB
    if gib > limit:
        raise InputError(
            f"--offload {gib:g} GiB a device is more than all weights of {model.name}, "
            f"{limit:.1f} GiB. Fix: pass at most {math.floor(limit * 10.0) / 10.0:g}, less what a "
            "device should keep."
        )
    return gib * GIB
