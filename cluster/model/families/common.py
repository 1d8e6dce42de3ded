"""What the configurations of all families have in common.

A parser gets a `FamilyConfig` and returns `assemble(…)` of its per-layer labels and a builder of
one layer. Fields that transformers defaults and most configurations write (heads per group, head
dimension, tying) get the same default here; sizes that decide the parameter count do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.model.config_fields import MAX_LAYERS, Fields
from cluster.model.model_spec import Group, LayerKind, ModelSpec, Operator
from cluster.model.operators import LayerContext, stack
from cluster.model.quantization import Quantization

FULL = "full"
SLIDING = "sliding"
LINEAR = "linear"
_LAYER_TYPES = {
    "full_attention": FULL,
    "sliding_attention": SLIDING,
    "chunked_attention": SLIDING,
    "linear_attention": LINEAR,
}


@dataclass(frozen=True, kw_only=True)
class FamilyConfig:
    """A language model's configuration: its fields, and what was read around them."""

    fields: Fields
    name: str
    architecture: str
    quantization: Quantization
    tied: bool | None
    notes: tuple[str, ...] = ()

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.fields.integer("hidden_size")

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return self.fields.integer("num_hidden_layers", maximum=MAX_LAYERS)

    def layer(self, index: int) -> LayerContext:
        """The context that operator builders take."""
        return LayerContext(hidden=self.hidden, index=index, quantization=self.quantization)


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Query heads, key-value heads, and elements per head."""

    heads: int
    kv_heads: int
    head_dim: int


def read_heads(fields: Fields, *, head_dim: int | None = None) -> Heads:
    """Read the attention geometry. Raises ConfigError where heads do not divide."""
    heads = fields.integer("num_attention_heads", maximum=65_536)
    kv_heads = fields.integer("num_key_value_heads", default=heads, maximum=65_536)
    if heads % kv_heads:
        fields.fail(
            "num_key_value_heads",
            problem=f"is {kv_heads}, which does not divide num_attention_heads = {heads}.",
            fix="write a divisor.",
        )
    if head_dim is None and not fields.present("head_dim"):
        hidden = fields.integer("hidden_size")
        if hidden % heads:
            fields.fail(
                "head_dim",
                problem=f"is missing and hidden_size = {hidden} is no multiple of "
                f"num_attention_heads = {heads}.",
                fix="write head_dim.",
            )
        head_dim = hidden // heads
    return Heads(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.integer("head_dim", default=head_dim, maximum=65_536),
    )


def read_layer_types(fields: Fields, *, layers: int) -> list[str] | None:
    """FULL, SLIDING or LINEAR per layer from `layer_types`, None where the field is absent."""
    names = fields.texts("layer_types")
    if not names:
        return None
    if len(names) != layers:
        fields.fail(
            "layer_types",
            problem=f"lists {len(names)} layers, num_hidden_layers is {layers}.",
            fix="make them agree.",
        )
    unknown = sorted(set(names) - set(_LAYER_TYPES))
    if unknown:
        fields.fail(
            "layer_types",
            problem=f"holds '{unknown[0]}'.",
            fix=f"known: {', '.join(sorted(_LAYER_TYPES))}.",
        )
    return [_LAYER_TYPES[name] for name in names]


def every_nth(*, layers: int, period: int, nth: str, other: str) -> list[str]:
    """`nth` at layers period-1, 2·period-1, …; `other` elsewhere."""
    return [nth if (index + 1) % period == 0 else other for index in range(layers)]


def read_per_token(fields: Fields, name: str, *, experts: int) -> int:
    """Experts a token is routed to. Raises ConfigError where it exceeds their number."""
    per_token = fields.integer(name)
    if per_token > experts:
        fields.fail(
            name,
            problem=f"is {per_token}, more than the {experts} experts of a layer.",
            fix="write at most the number of experts.",
        )
    return per_token


def assemble(
    config: FamilyConfig,
    *,
    labels: Sequence[str],
    build: Callable[[str, int], LayerKind],
    heads: Heads,
    experts: int = 0,
    experts_per_token: int = 0,
    tied: bool = False,
    vocab: int | None = None,
    max_context: int | None = None,
) -> ModelSpec:
    """A ModelSpec of the layers that `build(label, index)` returns.

    `tied`: the family's default for `tie_word_embeddings`; `vocab`, `max_context`: transformers'
    defaults of families whose published files leave them out.
    """
    fields, quantization = config.fields, config.quantization
    hidden = config.hidden
    vocab = fields.integer("vocab_size", default=vocab)
    is_tied = tied if config.tied is None else config.tied
    head = Operator(
        name="head",
        group=Group.VOCABULARY,
        rows=hidden,
        cols=vocab,
        format=quantization.head_format,
    )
    notes = config.notes + quantization.notes
    return ModelSpec(
        name=config.name,
        architecture=config.architecture,
        hidden=hidden,
        vocab=vocab,
        max_context=fields.integer("max_position_embeddings", default=max_context, maximum=10**9),
        layers=stack(labels, build),
        embedding=Operator(
            name="embedding",
            group=Group.VOCABULARY,
            rows=vocab,
            cols=hidden,
            format=quantization.base,
        ),
        head=None if is_tied else head,
        final_extra_params=hidden,
        experts=experts,
        experts_per_token=experts_per_token,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        kv_format=quantization.kv_format,
        source=fields.source,
        notes=notes,
    )
