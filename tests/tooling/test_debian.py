"""Programs from Debian: those of the machine first, else unpacked once; errors say what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.tooling import debian
from tests.tooling.debian import ToolMissingError, tool


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with nothing on its PATH but what a test puts there, and an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_program_of_the_machine_is_taken(machine: Path) -> None:
    program(machine / "bin", "promtool", "true")
    assert tool("promtool") == machine / "bin" / "promtool"
    assert not debian.cache().exists()


def test_without_apt_the_error_says_what_to_install(machine: Path) -> None:
    with pytest.raises(ToolMissingError, match=r"no apt-get.*install 'prometheus'"):
        tool("promtool")


def test_where_apt_fails_the_error_has_its_words(machine: Path) -> None:
    program(machine / "bin", "apt-get", "echo 'no network' >&2; exit 100")
    program(machine / "bin", "dpkg-deb", "true")
    with pytest.raises(ToolMissingError, match="no network"):
        tool("promtool")
    assert list(debian.cache().iterdir()) == []


def test_the_real_package_is_unpacked_once_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian.shutil, "which", lambda name: None if name == "promtool" else name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tool("promtool")
    before = path.stat()
    assert tool("promtool").stat().st_mtime_ns == before.st_mtime_ns
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    assert "promtool, version" in said.stdout + said.stderr
