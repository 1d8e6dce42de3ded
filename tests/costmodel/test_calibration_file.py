"""A calibration on disk: what is wrong with one is said, and what is right comes back."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.costmodel.calibration_file import (
    FOLDER,
    SHIPPED,
    CalibrationFile,
    default_coefficients,
    load_calibration,
    operator_coefficients,
    overlay,
    read_calibration,
)
from cluster.costmodel.coefficients import is_share
from cluster.errors import ConfigError

MBU, STEP = "gemm.hopper.bf16.mbu", "engine.vllm.step_s"
HEAD = "format: 1\nname: mine\nprovenance: by hand\n"


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_can_be_read(name):
    file = read_calibration(FOLDER / f"{name}.yaml")
    assert file.name == name
    assert file.provenance


def test_the_shipped_set_is_complete_and_physical():
    shipped, tables = default_coefficients(), operator_coefficients()
    assert set(tables.names) <= set(shipped.names)
    for name in shipped.names:
        value = shipped.value(name)
        assert 0.0 < value <= (1.0 if is_share(name) else math.inf)
        assert shipped.source(name) not in ("", "unknown")


def test_without_a_file_the_shipped_one_counts():
    assert load_calibration(None) is default_coefficients()


def test_a_user_s_file_lies_over_the_shipped_one(written):
    mine = load_calibration(written(f"{HEAD}parameters: {{{MBU}: 0.5}}\n"))
    assert mine.value(MBU) == 0.5
    assert mine.provenance == mine.source(MBU) == "by hand"
    shipped = default_coefficients()
    for name in shipped.names:
        if name != MBU:
            assert mine.value(name) == shipped.value(name)
            assert mine.source(name) == shipped.source(name)


def test_sources_go_to_the_longest_prefix(written):
    mine = load_calibration(
        written(
            f"{HEAD}sources: {{gemm.hopper: a lab, {MBU}: one run}}\n"
            f"parameters: {{{MBU}: 0.5, gemm.hopper.bf16.mfu: 0.5}}\n"
        )
    )
    assert mine.source(MBU) == "one run"
    assert mine.source("gemm.hopper.bf16.mfu") == "a lab"
    assert "lab" not in mine.source("gemm.blackwell.bf16.mfu")


def test_an_engine_version_may_bring_names_of_its_own(written):
    mine = load_calibration(written(f"{HEAD}parameters: {{build.vllm.77.0.time: 1.25}}\n"))
    assert mine.value("build.vllm.77.0.time") == 1.25


def test_numbers_without_a_point_are_numbers(written):
    # YAML 1.1 reads 5e-4 as text.
    assert load_calibration(written(f"{HEAD}parameters: {{{STEP}: 5e-4}}\n")).value(STEP) == 5e-4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "valid dictionary"),
        ("- a\n- b\n", "valid dictionary"),
        ("a: [1\n", "is not YAML"),
        (f"{HEAD}", "field 'parameters': Field required"),
        (f"{HEAD}parameters: [1]\n", "field 'parameters'"),
        (f"{HEAD}parameters: {{{MBU}: fast}}\n", f"field 'parameters.{MBU}': .*valid number"),
        (f"{HEAD}parameters: {{}}\nparametres: {{}}\n", "field 'parametres': Extra inputs"),
        (f"{HEAD}parameters: {{}}\n".replace("format: 1", "format: 2"), "field 'format'"),
        ("name: x\nprovenance: ''\nparameters: {}\n", "field 'provenance'"),
        ("provenance: x\nparameters: {}\n", "field 'name': Field required"),
        (f"{HEAD}parameters: {{gemm.hoper.bf16.mbu: 0.5}}\n", "'parameters.gemm.hoper.bf16.mbu'"),
        (f"{HEAD}parameters: {{{MBU}: 1.5}}\n", f"{MBU}.*1.5, more than the whole"),
        (f"{HEAD}parameters: {{{STEP}: 0}}\n", f"{STEP}.*is 0.0.*positive"),
        (f"{HEAD}parameters: {{{STEP}: -0.1}}\n", f"{STEP}.*is -0.1"),
        (f"{HEAD}parameters: {{{STEP}: .nan}}\n", f"{STEP}.*is nan"),
        (f"{HEAD}parameters: {{{STEP}: .inf}}\n", f"{STEP}.*is inf"),
        (f"{HEAD}parameters: {{build.vllm.9.time: -1}}\n", r"build\.vllm\.9\.time.*is -1"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(written, text, said):
    with pytest.raises(ConfigError, match=said) as caught:
        load_calibration(written(text))
    assert "mine.yaml" in str(caught.value)
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read"):
        load_calibration(tmp_path / "absent.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(ConfigError, match=r"bytes\.yaml"):
        load_calibration(tmp_path / "bytes.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_calibration(tmp_path)


POSITIVE = st.floats(1e-12, 1e3)


@given(
    parameters=st.dictionaries(st.sampled_from(operator_coefficients().names), POSITIVE),
    name=st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), min_size=1),
    rows=st.integers(0, 10**6),
)
def test_what_was_written_is_read_back(parameters, name, rows):
    file = CalibrationFile(
        name=name, provenance=f"of {name}", fit={"rows": rows}, parameters=parameters
    )
    again = CalibrationFile.model_validate(yaml.safe_load(file.dumps()))
    assert again == file


@given(values=st.dictionaries(st.sampled_from(operator_coefficients().names), st.floats(1e-9, 1.0)))
def test_laying_over_twice_is_once(values):
    file = CalibrationFile(name="x", provenance="y", parameters=values)
    once = overlay(operator_coefficients(), file, source="x")
    twice = overlay(once, file, source="x")
    assert twice.names == once.names
    assert (twice.values == once.values).all()
    assert twice.sources == once.sources
