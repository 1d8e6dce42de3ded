"""What lies in a node's cache is used only if it is what was fetched."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from serving.weights import cache as cache_module
from serving.weights.cache import ModelCache, default_cache
from serving.weights.manifest import Manifest, is_whole, needed, safe, scan
from serving.weights.spec import model_key
from tests.weights.nodes import model


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache", "key")


def filled(cache: ModelCache, tmp_path: Path) -> Manifest:
    """A whole copy."""
    manifest = scan(model(tmp_path / "original"))
    cache.begin(manifest)
    digests = {}
    for file in manifest.files:
        data = (tmp_path / "original" / file.name).read_bytes()
        digests[file.name] = hashlib.sha256(data).hexdigest()
        target = cache.partial(manifest.version) / file.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
    cache.finish(manifest, digests)
    return manifest


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "boot_id", lambda: "the next start")


def test_a_whole_copy_is_trusted(cache: ModelCache, tmp_path: Path) -> None:
    version = filled(cache, tmp_path).version
    assert cache.trusted(version) == cache.copy(version)
    assert cache.versions() == [version]
    assert not cache.underway()


def test_a_copy_that_has_lost_bytes_is_removed(cache: ModelCache, tmp_path: Path) -> None:
    version = filled(cache, tmp_path).version
    (cache.copy(version) / "model-0.safetensors").write_bytes(b"short")
    assert cache.trusted(version) is None
    assert not cache.copy(version).exists()


def test_after_a_start_of_the_machine_a_sound_copy_is_still_trusted(
    cache: ModelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = filled(cache, tmp_path).version
    start_again(monkeypatch)
    assert cache.trusted(version) == cache.copy(version)


def test_after_a_start_of_the_machine_a_copy_that_never_reached_the_disk_is_removed(
    cache: ModelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = filled(cache, tmp_path)
    shard = cache.copy(manifest.version) / "model-0.safetensors"
    shard.write_bytes(bytes(shard.stat().st_size))
    assert cache.trusted(manifest.version) is not None  # its size is right
    start_again(monkeypatch)
    assert cache.trusted(manifest.version) is None


def test_after_a_start_of_the_machine_a_part_is_begun_anew(
    cache: ModelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = scan(model(tmp_path / "original"))
    cache.begin(manifest)
    (cache.partial(manifest.version) / "config.json").write_text("{}")
    cache.keep(manifest, {"config.json": "digest"})
    assert cache.begin(manifest) == {"config.json": "digest"}
    start_again(monkeypatch)
    assert cache.begin(manifest) == {}
    assert not cache.finished(manifest.version)


def test_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    first, second = (ModelCache(tmp_path, "key") for _ in range(2))
    with first.lock() as ours:
        assert ours
        with second.lock() as theirs:
            assert not theirs
    with second.lock() as theirs:
        assert theirs


def test_the_cache_is_where_the_instance_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWISE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/weights")


def test_a_second_form_of_the_same_weights_is_left_out() -> None:
    names = ["config.json", "model.safetensors", "pytorch_model.bin", "original/a.pth"]
    names += ["onnx/model.onnx", "1_Pooling/config.json", "fp16/model.safetensors"]
    assert needed(names) == ["1_Pooling/config.json", "config.json", "model.safetensors"]
    assert needed(["pytorch_model.bin", "config.json"]) == ["config.json", "pytorch_model.bin"]


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", ".hidden", "a/.b", "", "a\0b"])
def test_names_that_lead_elsewhere_are_not_safe(name: str) -> None:
    assert not safe(name)


def test_a_snapshot_that_is_being_downloaded_is_not_whole(tmp_path: Path) -> None:
    assert not is_whole(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert not is_whole(tmp_path)
    index = '{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    (tmp_path / "m-1.safetensors").touch()
    assert not is_whole(tmp_path)
    (tmp_path / "m-2.safetensors").touch()
    assert is_whole(tmp_path)


def test_sources_of_the_same_last_name_have_different_keys() -> None:
    keys = {model_key(source) for source in ("/a/model", "/b/model", "org/model", "other/model")}
    assert len(keys) == 4
    assert all(key.startswith("model-") and "/" not in key for key in keys)
    assert model_key("/a/Llama-3.1 8B/").startswith("Llama-3-1-8B-")
