"""What do a layout's dims come to, in words? Operator by operator, beside the Megatron scheme.

Dims are those of the weights: along dim 1 is by output (column), along dim 0 by input (row). Bytes
are what each of n tensor-parallel ranks sends per token, as rings move them: (n - 1)/n of a payload
to gather or scatter it, twice that to all-reduce it.

Invariants: the exchanges of all operators are those of `sharding.recipe`; nothing is said that is
not counted here or estimated in `dims_gains`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from cluster.costmodel.sharding import RESIDUAL, read
from cluster.costmodel.sharding_states import Collective, Exchange, Experts, Unit
from cluster.costmodel.sharding_walk import ATTENTION_CORE
from cluster.model.hardware import Device
from cluster.model.layout import Dim, Layout
from cluster.model.model_spec import ModelSpec
from rl_search.dims_gains import Gains, OperatorGain, StepGain, both_walks, experts_of

_WORDS = {
    Dim.COLUMN: "along dim 1",
    Dim.ROW: "along dim 0",
    Dim.REPLICATED: "whole on every rank",
}
_CORE = {Dim.COLUMN: "by heads", Dim.REPLICATED: "with all heads on every rank"}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
_VISIBLE_S = 5e-7  # half a microsecond: what kernels change by less goes without saying
_WORTH = 0.01  # of all that changed: parts that changed less go without saying


@dataclass(frozen=True, kw_only=True)
class OperatorLine:
    """One operator of one layer kind: its dim, Megatron's, and the collectives met at it.

    The residual stream is a line of all layers, without collectives: those are of operators.
    """

    kind: str
    layers: int
    operator: str
    dim: Dim
    megatron: Dim
    exchanges: tuple[Exchange, ...] = ()
    megatron_exchanges: tuple[Exchange, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether it is cut otherwise than by Megatron."""
        return self.dim is not self.megatron

    @property
    def words(self) -> str:
        """The operator and its dim, `attention_out along dim 1`."""
        if self.operator == RESIDUAL:
            where = "cut by tokens" if self.dim is Dim.ROW else "whole on every rank"
            return f"residual stream {where}"
        return f"{self.operator} {self._where(self.dim)}"

    @property
    def compared(self) -> str:
        """The same, with Megatron's dim where it is another."""
        before = f" (Megatron: {self._where(self.megatron)})" if self.differs else ""
        return f"{self.words}{before}"

    def _where(self, dim: Dim) -> str:
        return (_CORE if self.operator == ATTENTION_CORE else _WORDS)[dim]


@dataclass(frozen=True)
class Traffic:
    """Collectives of layers' tensor-parallel ranks: how many, and bytes per token of each rank."""

    counts: Mapping[Collective, int]
    bytes_: Mapping[Collective, float]

    @property
    def total(self) -> float:
        """Bytes of all of them."""
        return sum(self.bytes_.values())


def describe_dims(model: ModelSpec, layout: Layout) -> tuple[OperatorLine, ...]:
    """Every operator that a dim is chosen for, kind by kind, and the residual stream last.

    None with tp = 1, where all dims are the same. Raises as `sharding.read`.
    """
    if layout.tp == 1:
        return ()
    lines = [
        OperatorLine(
            kind=model.layers[step.slot.kind][0].name,
            layers=step.layers,
            operator=step.slot.name,
            dim=step.choice.dim,
            megatron=step.slot.default,
            exchanges=step.choice.exchanges,
            megatron_exchanges=plain.choice.exchanges,
        )
        for step, plain in both_walks(model, layout)
    ]
    _, tokens_cut = read(model, layout.dims)
    stream = OperatorLine(
        kind="",
        layers=model.num_layers,
        operator=RESIDUAL,
        dim=Dim.ROW if tokens_cut else Dim.REPLICATED,
        megatron=Dim.REPLICATED,
    )
    return (*lines, stream)


def activation_bytes(device: Device) -> float:
    """Bytes of an activation: 16 bits on an accelerator, 32 on a CPU."""
    return 4.0 if device.kind == "cpu" else 2.0


def traffic(
    exchanges: Iterable[tuple[Exchange, int]], model: ModelSpec, *, tp: int, width: float = 2.0
) -> Traffic:
    """What collectives, so many of each, move; `width` bytes an activation."""
    counts: Counter[Collective] = Counter()
    bytes_: dict[Collective, float] = dict.fromkeys(Collective, 0.0)
    # Visits are exchanged where experts are cut over all ranks: every rank has all of a token's.
    elements = {Unit.TOKEN: width, Unit.VISIT: width * model.experts_per_token, Unit.NORM: 4.0}
    for exchange, count in exchanges:
        once = exchange.features * elements[exchange.unit] * (tp - 1) / tp
        twice = 2.0 if exchange.collective is Collective.ALL_REDUCE else 1.0
        counts[exchange.collective] += count
        bytes_[exchange.collective] += count * twice * once
    return Traffic(counts, bytes_)


def sentences(
    model: ModelSpec, layout: Layout, *, gained: Gains | None = None, width: float = 2.0
) -> tuple[str, ...]:
    """What differs from the Megatron scheme, kind by kind, and what it gains where that is given.

    `width`: `activation_bytes` of the device.
    """
    lines = describe_dims(model, layout)
    if not lines:
        return ("TP1: every operator is whole on its rank, there are no dims to choose.",)
    said: list[str] = []
    kinds = list(dict.fromkeys(line.kind for line in lines if line.kind))
    for kind in kinds:
        own = [line for line in lines if line.kind == kind]
        said += _kind(model, layout, own, gained=gained, width=width)
    if lines[-1].differs:
        said.append(_stream(layout, lines[-1], gained))
    if not said:
        said.append(_megatron(model, layout, lines, width=width))
    if model.experts and experts_of(model, layout) is not Experts.CUT:
        said.append(
            f"Routed experts: their grid, TP{layout.moe_tp} x EP{layout.moe_ep}, decides how "
            "expert_up and expert_down are cut; their dims are no choice."
        )
    if gained is not None and any(line.differs for line in lines):
        said.append(_gained(gained))
    return tuple(said)


def _kind(
    model: ModelSpec,
    layout: Layout,
    lines: Sequence[OperatorLine],
    *,
    gained: Gains | None,
    width: float,
) -> Iterator[str]:
    """One layer kind, where anything about it differs."""
    own, before = _traffic_of(model, layout, lines, width=width)
    changed = [line for line in lines if line.differs]
    if not changed and own == before:
        return
    text = ", ".join(line.compared for line in changed) or "operators as in the Megatron scheme"
    kind, layers = lines[0].kind, lines[0].layers
    yield (
        f"{kind} layers ({layers} of {model.num_layers}): {text}: {_counted(own)} a layer instead "
        f"of {_counted(before)} ({_bytes(own, before)}){_kind_s(kind, gained)}."
    )


def _traffic_of(
    model: ModelSpec, layout: Layout, lines: Sequence[OperatorLine], *, width: float
) -> tuple[Traffic, Traffic]:
    """One layer's collectives under the layout's dims, and under Megatron's."""
    own = [(exchange, 1) for line in lines for exchange in line.exchanges]
    before = [(exchange, 1) for line in lines for exchange in line.megatron_exchanges]
    return (
        traffic(own, model, tp=layout.tp, width=width),
        traffic(before, model, tp=layout.tp, width=width),
    )


def _kind_s(kind: str, gained: Gains | None) -> str:
    if gained is None:
        return ""
    own = [operator for operator in gained.operators if operator.kind == kind]
    return f"; {_steps(own)}"


def _steps(own: Sequence[OperatorGain]) -> str:
    """What some operators take in both kinds of step."""
    decode = reduce(add, (operator.decode for operator in own))
    mixed = reduce(add, (operator.mixed for operator in own))
    return f"of a decode step exchanges take {_step(decode)}; of one with prompts {_step(mixed)}"


def _step(made: StepGain) -> str:
    change = made.kernel_s - made.megatron_kernel_s
    text = f"{_ms(made.exchange_s)} ms instead of {_ms(made.megatron_exchange_s)} ms"
    if abs(change) < _VISIBLE_S:
        return text
    return f"{text} and kernels {_ms(abs(change))} ms {'more' if change > 0.0 else 'less'}"


def _stream(layout: Layout, line: OperatorLine, gained: Gains | None) -> str:
    text = (
        f"{line.words.capitalize()} (Megatron: whole): the embedding ends in a reduce-scatter "
        "instead of an all-reduce, the rows that logits are computed of are gathered, and each of "
        f"{layout.tp} ranks norms its share of the tokens"
    )
    if gained is not None:
        text += f"; {_steps([o for o in gained.operators if o.operator == RESIDUAL])}"
    return f"{text}."


def _megatron(
    model: ModelSpec, layout: Layout, lines: Sequence[OperatorLine], *, width: float
) -> str:
    counted = []
    for kind in dict.fromkeys(line.kind for line in lines if line.kind):
        own = [line for line in lines if line.kind == kind]
        made, _ = _traffic_of(model, layout, own, width=width)
        counted.append(f"{_counted(made)} a {kind} layer")
    if not counted:
        return "This model's operators are cut as in the Megatron scheme, without a choice of dims."
    return (
        "Every operator is cut as in the Megatron scheme, the first of a pair along dim 1 and the "
        f"second along dim 0: {', '.join(counted)}."
    )


def _gained(gained: Gains) -> str:
    changes = [part for part in gained.parts if part.gained_s]
    whole = sum(abs(part.gained_s) for part in changes)
    shown = [
        f"{part.part} {-part.gained_s * 1e3:+.3g} ms"
        for part in changes
        if abs(part.gained_s) >= _WORTH * whole
    ]
    speed, before = gained.tokens_per_s_per_device, gained.megatron_tokens_per_s_per_device
    short = "" if gained.megatron_fits else " with the smaller batch that fits there"
    return (
        f"Against Megatron's dims of the same layout{short}: {speed:.4g} tokens/s/device instead "
        f"of {before:.4g} ({speed / before - 1.0:+.1%}), TPOT {_ms(gained.tpot_s)} ms instead of "
        f"{_ms(gained.megatron_tpot_s)} ms: {', '.join(shown) or 'no part changes'}."
    )


def _counted(made: Traffic) -> str:
    found = [(made.counts[c], c.value.replace("_", "-")) for c in Collective if made.counts[c]]
    words = [
        f"{_NUMBERS[n] if n < len(_NUMBERS) else n} {name}{'' if n == 1 else 's'}"
        for n, name in found
    ]
    if not words:
        return "no collective"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _bytes(own: Traffic, before: Traffic) -> str:
    change = own.total - before.total
    if abs(change) < 0.5:
        return f"as many bytes, {own.total:,.0f} a token of each rank"
    return f"{abs(change):,.0f} bytes a token of each rank {'more' if change > 0.0 else 'less'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
