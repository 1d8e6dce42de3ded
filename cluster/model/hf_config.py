"""Which model a Hugging Face `config.json` describes.

A table maps `model_type` to the parser of its family (`cluster.model.families`). A composite
configuration (vision and text) is read for its language model, found under `text_config`, which
names its own type. The published number of parameters may count more than the language model:
vision towers and multi-token-prediction layers are left out.

Invariant: any input ends in a ModelSpec or a ConfigError that names the file and the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.errors import ConfigError
from cluster.model.config_fields import Fields
from cluster.model.families import dense, experts, hybrid, latent
from cluster.model.families.common import FamilyConfig
from cluster.model.formats import NumberFormat
from cluster.model.model_spec import ModelSpec
from cluster.model.quantization import read_quantization

PARSERS: Mapping[str, Callable[[FamilyConfig], ModelSpec]] = {
    "llama": dense.llama,
    "mistral": dense.mistral,
    "phi3": dense.mistral,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "mixtral": experts.mixtral,
    "qwen3_moe": experts.qwen3_moe,
    "minimax_m2": experts.minimax_m2,
    "gpt_oss": experts.gpt_oss,
    "llama4_text": experts.llama4,
    "deepseek_v2": latent.deepseek,
    "deepseek_v3": latent.deepseek,
    "kimi_k2": latent.deepseek,
    "deepseek_v32": latent.deepseek_sparse,
    "glm_moe_dsa": latent.deepseek_sparse,
    "qwen3_next": hybrid.qwen3_next,
    "qwen3_5_moe_text": hybrid.qwen3_next,
    "gemma4_text": hybrid.gemma4,
}
# Vision-language wrappers: the language model is in `text_config`.
COMPOSITES = frozenset({"gemma3", "gemma4", "kimi_k25", "llama4", "qwen3_5_moe"})

_DTYPES = {
    "float32": NumberFormat.FP32,
    "bfloat16": NumberFormat.BF16,
    "float16": NumberFormat.FP16,
}
_MAX_FILE_BYTES = 16 * 1024 * 1024


def read_model(source: str | Path, *, name: str | None = None) -> ModelSpec:
    """Read a `config.json`, or the one of a directory.

    Raises ConfigError where it cannot be read, is not JSON, or does not describe a known model.
    """
    path = Path(source)
    if path.is_dir():
        path /= "config.json"
        if not path.is_file():
            raise ConfigError(
                source=str(path.parent),
                field="",
                problem="is a directory without a config.json.",
                fix="point at the directory the model was downloaded to.",
            )
    data = _load(path)
    stem = path.parent.resolve().name if path.name == "config.json" else path.stem
    return parse_config(data, source=str(path), name=name or stem)


def parse_config(data: Mapping[str, object], *, source: str, name: str | None = None) -> ModelSpec:
    """Read a configuration's mapping; `source` names it in errors and in the result."""
    top = Fields(data, source)
    fields, model_type = _language_model(top)
    parser = PARSERS[model_type]
    base = _base_format(fields, top=top)
    holder = fields if fields.present("quantization_config") else top
    tied = None
    for place in (fields, top):
        if tied is None and place.present("tie_word_embeddings"):
            tied = place.boolean("tie_word_embeddings", default=False)
    architectures = top.texts("architectures")
    composite = fields is not top
    return parser(
        FamilyConfig(
            fields=fields,
            name=name or source,
            architecture=architectures[0] if architectures else model_type,
            quantization=read_quantization(holder, base=base),
            tied=tied,
            notes=("language model only: the vision part is not counted",) if composite else (),
        )
    )


def _load(path: Path) -> Mapping[str, object]:
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise ConfigError(
                source=str(path),
                field="",
                problem=f"has {size} bytes, a config.json at most {_MAX_FILE_BYTES}.",
                fix="pass the config.json, not the weights.",
            )
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(
            source=str(path),
            field="",
            problem=f"is not JSON (line {error.lineno}, column {error.colno}: {error.msg}).",
            fix="pass the config.json of a Hugging Face model.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            source=str(path),
            field="",
            problem=f"cannot be read ({reason}).",
            fix="pass a config.json, the directory that holds it, or a catalogue name.",
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(
            source=str(path),
            field="",
            problem=f"holds a {type(data).__name__}, not an object.",
            fix="pass the config.json of a Hugging Face model.",
        )
    return data


def _language_model(top: Fields) -> tuple[Fields, str]:
    """The fields of the language model and its type."""
    model_type = top.text("model_type")
    if model_type not in COMPOSITES:
        if model_type in PARSERS:
            return top, model_type
        return _unknown(top, model_type)
    fields = top.section("text_config")
    model_type = fields.text("model_type", default=f"{model_type}_text")
    if model_type not in PARSERS:
        return _unknown(fields, model_type)
    return fields, model_type


def _unknown(fields: Fields, model_type: str) -> tuple[Fields, str]:
    supported = ", ".join(sorted(PARSERS.keys() | COMPOSITES))
    fields.fail(
        "model_type",
        problem=f"is '{model_type}', an architecture this release does not know.",
        fix=f"supported: {supported}.",
    )


def _base_format(fields: Fields, *, top: Fields) -> NumberFormat:
    for place in (fields, top):
        for name in ("dtype", "torch_dtype"):
            if not place.present(name):
                continue
            text = place.text(name).removeprefix("torch.")
            if text not in _DTYPES:
                place.fail(
                    name, problem=f"is '{text}'.", fix=f"known: {', '.join(sorted(_DTYPES))}."
                )
            return _DTYPES[text]
    return NumberFormat.BF16
