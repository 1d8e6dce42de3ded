"""In which number format each weight of a quantised checkpoint is stored.

Reads `quantization_config` of fp8, GPTQ, AWQ, bitsandbytes, mxfp4, ModelOpt (NVFP4, FP8) and
compressed-tensors. What a method quantises is every linear layer of the transformer blocks except
the modules it lists; routers, embeddings and the head stay in the base format in all of them
(GPTQ's `lm_head: true` apart), which is also what vLLM loads.

Patterns come in four spellings: `re:…` (matched from the start of the module's name), globs
(`model.layers.*.self_attn`), dotted names, and bare components (`gate`, `lm_head`).
Invariant: the answer depends on the module's name alone.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.model.config_fields import Fields
from cluster.model.formats import NumberFormat


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """`rules`: (patterns, format), the first that matches a module wins; `excluded` beats all."""

    base: NumberFormat
    rules: tuple[tuple[tuple[str, ...], NumberFormat], ...] = ()
    excluded: tuple[str, ...] = ()
    head: bool = False
    kv: NumberFormat | None = None
    notes: tuple[str, ...] = ()

    def format_of(self, module: str) -> NumberFormat:
        """Format of a linear layer of a block, by its name in the checkpoint."""
        if any(matches(pattern, module) for pattern in self.excluded):
            return self.base
        for patterns, number_format in self.rules:
            if any(pattern == "Linear" or matches(pattern, module) for pattern in patterns):
                return number_format
        return self.base

    @property
    def head_format(self) -> NumberFormat:
        """Format of the output head."""
        return self.format_of("lm_head") if self.head else self.base

    @property
    def kv_format(self) -> NumberFormat:
        """Format of the KV cache the checkpoint asks for (the base format by default)."""
        return self.kv or self.base


def matches(pattern: str, module: str) -> bool:
    """Whether a checkpoint's exclusion pattern names this module or one that holds it."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    pattern = pattern.replace("language_model.", "").removeprefix("model.").rstrip(".*")
    name = module.removeprefix("model.")
    if "*" in pattern or "?" in pattern:
        return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, pattern + ".*")
    return f".{pattern}." in f".{name}."


def read_quantization(fields: Fields, *, base: NumberFormat) -> Quantization:
    """Read `quantization_config` beside or inside the text configuration; none = all in `base`.

    Raises ConfigError for an unknown method, bit width, or a pattern that is no regular expression.
    """
    if not fields.present("quantization_config"):
        return Quantization(base=base)
    config = fields.section("quantization_config")
    method = config.text("quant_method", default=_guess_method(config)).lower().replace("_", "-")
    reader = _METHODS.get(method)
    if reader is None:
        known = ", ".join(sorted(_METHODS))
        config.fail(
            "quant_method",
            problem=f"is '{method}', known: {known}.",
            fix="use a checkpoint in one of these, or its unquantised original.",
        )
    quantization = reader(config, base)
    patterns = [*quantization.excluded, *(p for rule, _ in quantization.rules for p in rule)]
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error as error:
                config.fail(
                    "ignore",
                    problem=f"holds '{pattern}', not a regular expression ({error}).",
                    fix="mend or remove the pattern.",
                )
    return quantization


def _guess_method(config: Fields) -> str | None:
    return "modelopt" if config.present("quant_algo") else None


def _everything(
    number_format: NumberFormat,
) -> tuple[tuple[tuple[str, ...], NumberFormat], ...]:
    return ((("Linear",), number_format),)


def _fp8(config: Fields, base: NumberFormat) -> Quantization:
    block = config.integers("weight_block_size")
    number_format = NumberFormat.FP8_BLOCK if block else NumberFormat.FP8
    excluded = config.texts("modules_to_not_convert") + config.texts("ignored_layers")
    return Quantization(base=base, rules=_everything(number_format), excluded=excluded)


def _integer_groups(config: Fields, base: NumberFormat) -> Quantization:
    bits = config.integer("bits")
    number_format = _INTEGER.get(bits)
    if number_format is None:
        config.fail("bits", problem=f"is {bits}.", fix="4 and 8 are supported.")
    return Quantization(
        base=base,
        rules=_everything(number_format),
        excluded=config.texts("modules_to_not_convert"),
        head=config.boolean("lm_head", default=False),
    )


def _bitsandbytes(config: Fields, base: NumberFormat) -> Quantization:
    four = config.boolean("load_in_4bit", default=False)
    return Quantization(
        base=base,
        rules=_everything(NumberFormat.INT4 if four else NumberFormat.INT8),
        excluded=config.texts("llm_int8_skip_modules"),
    )


def _mxfp4(config: Fields, base: NumberFormat) -> Quantization:
    return Quantization(
        base=base,
        rules=_everything(NumberFormat.MXFP4),
        excluded=config.texts("modules_to_not_convert"),
    )


def _modelopt(config: Fields, base: NumberFormat) -> Quantization:
    algorithm = config.text("quant_algo", default="NVFP4").upper()
    number_format = _MODELOPT.get(algorithm)
    if number_format is None:
        config.fail(
            "quant_algo",
            problem=f"is '{algorithm}'.",
            fix=f"known: {', '.join(sorted(_MODELOPT))}.",
        )
    kv = config.text("kv_cache_quant_algo", default="").upper()
    return Quantization(
        base=base,
        rules=_everything(number_format),
        excluded=config.texts("exclude_modules") + config.texts("ignore"),
        kv=NumberFormat.FP8 if kv == "FP8" or _fp8_cache(config) else None,
    )


def _compressed_tensors(config: Fields, base: NumberFormat) -> Quantization:
    groups = config.section("config_groups")
    rules = []
    notes: list[str] = []
    for name in groups.data:
        group = groups.section(name)
        if not group.present("weights"):
            continue
        weights = group.section("weights")
        number_format = _compressed_format(weights)
        size = weights.optional_integer("group_size")
        if number_format is NumberFormat.INT4 and size not in (None, 128):
            notes.append(
                f"int4 in groups of {size}: stored {4 + 16 / (size or 1):.2f} bits per weight, "
                "counted 4.16"
            )
        rules.append((group.texts("targets") or ("Linear",), number_format))
    if not rules:
        config.fail("config_groups", problem="quantises no weights.", fix="remove the section.")
    return Quantization(
        base=base,
        rules=tuple(rules),
        excluded=config.texts("ignore"),
        kv=NumberFormat.FP8 if _fp8_cache(config) else None,
        notes=tuple(notes),
    )


def _compressed_format(weights: Fields) -> NumberFormat:
    bits, kind = weights.integer("num_bits"), weights.text("type", default="int")
    if kind not in ("int", "float") or bits not in (4, 8):
        weights.fail(
            "num_bits",
            problem=f"is {bits} of type '{kind}'.",
            fix="int 4 or 8 and float 4 or 8 are supported.",
        )
    if kind == "int":
        return _INTEGER[bits]
    if bits == 8:
        block = weights.text("strategy", default="") == "block"
        return NumberFormat.FP8_BLOCK if block else NumberFormat.FP8
    size = weights.integer("group_size", default=16)
    return NumberFormat.MXFP4 if size == 32 else NumberFormat.NVFP4


def _fp8_cache(config: Fields) -> bool:
    if not config.present("kv_cache_scheme"):
        return False
    scheme = config.section("kv_cache_scheme")
    return scheme.integer("num_bits", default=8) == 8


_INTEGER = {4: NumberFormat.INT4, 8: NumberFormat.INT8}
_MODELOPT = {
    "NVFP4": NumberFormat.NVFP4,
    "NVFP4_AWQ": NumberFormat.NVFP4,
    "FP8": NumberFormat.FP8,
    "FP8_PB_WO": NumberFormat.FP8_BLOCK,
    "W4A16_AWQ": NumberFormat.INT4,
}
_METHODS: Mapping[str, Callable[[Fields, NumberFormat], Quantization]] = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "gptq": _integer_groups,
    "awq": _integer_groups,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "compressed-tensors": _compressed_tensors,
}
