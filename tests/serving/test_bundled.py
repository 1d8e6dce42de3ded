"""Bundled models: made once, and made again where one is of an earlier kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving import bundled


def made(folder: Path, config: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_model_that_is_quantised_as_it_once_was_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path))
    monkeypatch.setattr(
        bundled, "_quantize", lambda at: made(at, {"quantization_config": bundled._INT8_CONFIG})
    )
    made(tmp_path / "models" / bundled.HEAVY, {})
    made(tmp_path / "models" / bundled.LIGHT, {"quantization_config": {"format": "earlier"}})
    (tmp_path / "models" / bundled.LIGHT / "left-over").touch()
    said: list[str] = []
    bundled.prepare(said.append)
    assert said == [f"{bundled.HEAVY}: already there", f"{bundled.LIGHT}: converting"]
    assert [path.name for path in (tmp_path / "models" / bundled.LIGHT).iterdir()] == [
        "config.json"
    ]
    bundled.prepare(said.append)
    assert said[2:] == [f"{name}: already there" for name in bundled.BUNDLED]
