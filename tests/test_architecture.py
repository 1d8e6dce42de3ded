"""The import contracts of pyproject.toml hold, and every package says what it is for."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cli import schema

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports; "
    code += f"sys.exit(lint_imports(config_filename={str(config)!r}, no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_import_contracts_hold():
    found = lint_imports(ROOT / "pyproject.toml")
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_broken_contract_is_noticed(tmp_path):
    # The inventory reads the machine, so calling it pure must fail.
    config = tmp_path / "contracts.toml"
    config.write_text(
        """
        [tool.importlinter]
        root_packages = ["cluster"]
        include_external_packages = true
        [[tool.importlinter.contracts]]
        name = "the inventory is pure"
        type = "forbidden"
        source_modules = ["cluster.ray_backend.inventory"]
        forbidden_modules = ["os"]
        """
    )
    found = lint_imports(config)
    assert found.returncode == 1
    assert "BROKEN" in found.stdout


def test_the_contracts_cover_what_is_shipped():
    assert sorted(SETTINGS["tool"]["importlinter"]["root_packages"]) == sorted(PACKAGES)
    assert sorted(SETTINGS["tool"]["mypy"]["packages"]) == sorted(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is_for(package):
    silent = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / package).rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_the_schema_of_plans_is_current():
    assert schema.SCHEMA_PATH.read_text(encoding="utf-8") == schema.schema_text(), (
        "write it again: python -m cli.schema --write"
    )


def test_the_schema_of_the_chart_s_values_knows_the_serving_configuration_as_it_is():
    assert schema.VALUES_PATH.read_text(encoding="utf-8") == schema.values_text(), (
        "write it again: python -m cli.schema --write"
    )
