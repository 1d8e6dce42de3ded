"""`shardwise calibrate`: three sources make a file that loads, and nothing half-made is left."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from cli import calibrate, calibrate_runs, calibrate_sources
from cluster.calibration.curves import gemm_s
from cluster.calibration.points import (
    CollectiveKind,
    CollectivePoint,
    GemmPoint,
    LaunchPoint,
    LinkPath,
    Measurements,
)
from cluster.calibration.predict import predict
from cluster.calibration.runs import read_runs
from cluster.costmodel.calibration_file import (
    FOLDER,
    default_coefficients,
    load_calibration,
    operator_coefficients,
)
from cluster.errors import InputError, ShardwiseError, UnknownNameError
from cluster.model.devices import get_device
from tests.calibration.synthetic import FIND, ONCE, QWEN, as_csv, as_measured, grid
from tests.shared_data import require_shared_data

APP = typer.Typer()
APP.command("calibrate")(calibrate.command)
APP.callback()(lambda: None)
STEP = "engine.vllm.step_s"
TRACE = Path(__file__).parents[1] / "calibration" / "data" / "nsys_decode.csv"
SIZES = {"concurrencies": (1, 8, 64), "tps": (1, 2)}


@pytest.fixture
def called(tmp_path, monkeypatch):
    """The command, with fits of one iteration; writes to out.yaml."""
    monkeypatch.setattr(calibrate_runs, "STAGES", ONCE)

    def invoke(*arguments: object):
        given = ["calibrate", "--out", str(tmp_path / "out.yaml"), *map(str, arguments)]
        return CliRunner().invoke(APP, given)

    return invoke


@pytest.fixture
def runs(tmp_path):
    base = default_coefficients()
    truth = base.updated({STEP: base.value(STEP) * 3.0}, source="set")
    path = tmp_path / "runs.csv"
    path.write_text(as_csv(as_measured(grid(**SIZES), truth)))
    return path


def written(tmp_path) -> dict:
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    return yaml.safe_load((tmp_path / "out.yaml").read_text())


def tpot_error(path: Path, coefficients) -> float:
    table = read_runs(path)
    _, tpot = predict(table, FIND, coefficients=coefficients)
    return float(np.median(np.abs(tpot / [run.tpot_s for run in table] - 1.0)))


def test_runs_make_a_file_that_predicts_them(tmp_path, called, runs):
    result = called("--runs", runs)
    assert result.exit_code == 0, result.output
    fitted = load_calibration(tmp_path / "out.yaml")
    assert fitted.value(STEP) > 1.1 * default_coefficients().value(STEP)
    assert tpot_error(runs, fitted) < tpot_error(runs, default_coefficients()) / 3
    file = written(tmp_path)
    assert file["fit"]["rows"] == file["fit"]["distinct_runs"] == 24
    assert 0 < file["fit"]["effective_coefficients"] < file["fit"]["coefficients"]
    assert file["fit"]["loss_scales"] == [{"tpot": 0.1, "ttft": 0.2}]
    in_sample = file["fit"]["median_error_percent"]["in_sample"]
    assert in_sample["tpot"] == pytest.approx(100 * tpot_error(runs, fitted), abs=0.01)
    for text in ("24 distinct measured runs", "fitted, in sample", "furthest moved", STEP):
        assert text in result.output
    assert "over: " + default_coefficients().provenance in file["provenance"]


def test_only_what_differs_from_the_shipped_calibration_is_written(tmp_path, called, runs):
    assert called("--runs", runs, "--cross-validate", "none").exit_code == 0
    file, shipped = written(tmp_path), default_coefficients()
    assert file["cross_validation"] == {}
    assert len(file["parameters"]) < 60
    for name, value in file["parameters"].items():
        assert name.startswith("build.") or value != shipped.value(name)
    assert not any("blackwell" in name or "sglang" in name for name in file["parameters"])


def test_a_fit_from_the_operator_tables_forgets_what_was_fitted(tmp_path, called, runs):
    result = called("--runs", runs, "--from", "operators", "--cross-validate", "none")
    assert result.exit_code == 0, result.output
    file = written(tmp_path)
    assert file["fit"]["start"] == "operators"
    assert operator_coefficients().provenance in file["provenance"]
    # Also what the runs left where it was: it lies over other values.
    assert len(file["parameters"]) == file["fit"]["coefficients"]


def test_held_out_errors_are_by_what_was_asked(tmp_path, called):
    path = tmp_path / "runs.csv"
    sizes = {"concurrencies": (1, 4, 16, 32, 64), "tps": (1,)}
    path.write_text(as_csv(as_measured([*grid(**sizes), *grid(**sizes, config=QWEN)])))
    asked = ("--cross-validate", "models", "--cross-validate", "conditions")
    result = called("--runs", path, *asked, "--jobs", 1)
    assert result.exit_code == 0, result.output
    found = written(tmp_path)["cross_validation"]
    assert list(found) == ["models", "conditions"]
    assert set(found["models"]["folds"]) == {"meta-llama--Meta-Llama-3.1-8B", QWEN}
    assert found["models"]["median_error_percent"]["runs"] == 40
    assert len(found["conditions"]["folds"]) == 1
    figures = found["conditions"]["median_error_percent"]
    assert 4 < figures["runs"] < 20
    assert set(figures) == {"runs", "tpot", "ttft", "throughput_per_gpu", "layout_ratio"}
    assert figures["tpot"] < 2.0  # the runs are the model's own
    assert figures["layout_ratio"] is None  # one layout each
    assert "left out by models" in result.output


def test_what_cannot_be_left_out_is_said_before_the_fit(called, runs, monkeypatch):
    monkeypatch.setattr(calibrate_runs, "fit_runs", lambda *_, **__: pytest.fail("fitted first"))
    result = called("--runs", runs, "--cross-validate", "systems")
    assert isinstance(result.exception, InputError)
    assert "cannot be cross-validated by systems" in str(result.exception)


def test_too_few_runs_to_hold_any_out_are_fitted_all_the_same(tmp_path, called, runs):
    lines = runs.read_text().splitlines()
    runs.write_text("\n".join(lines[:22]) + "\n")
    result = called("--runs", runs)
    assert result.exit_code == 0, result.output
    assert "not cross-validated by conditions: no fold" in result.output
    assert written(tmp_path)["cross_validation"] == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((",h100_sxm,", ",h1000_sxm,"), r"run '{id}', column 'system': unknown system 'h1000_sxm'"),
        ((",vllm,", ",vlm,"), r"column 'backend': unknown backend 'vlm'. Did you mean vllm"),
        (
            ("--Meta-Llama-3.1-8B,", "--Llama-9-8B,"),
            r"column 'config': config 'meta-llama--Llama-9-8B'",
        ),
    ],
)
def test_unknown_names_are_told_with_their_row(tmp_path, called, runs, change, said):
    old, new = change
    lines = runs.read_text().splitlines()
    assert old in lines[5]
    lines[5] = lines[5].replace(old, new)
    runs.write_text("\n".join(lines) + "\n")
    result = called("--runs", runs)
    assert isinstance(result.exception, InputError)
    assert said.format(id=lines[5].split(",")[0]) in str(result.exception)
    assert f"run '{lines[5].split(',')[0]}'" in str(result.exception)
    assert not (tmp_path / "out.yaml").exists()


def test_runs_that_say_too_little_are_refused(tmp_path, called):
    path = tmp_path / "few.csv"
    measured = as_measured(grid(**SIZES))
    path.write_text(as_csv([replace(run, tpot_s=None) for run in measured]))
    assert "0 distinct runs with ttft_ms and tpot_ms" in str(called("--runs", path).exception)
    path.write_text(as_csv(measured[:8]))
    assert "8 distinct runs" in str(called("--runs", path).exception)
    path.write_text("id,model\n1,2\n")
    assert called("--runs", path).exception.exit_code == 2
    assert "cannot be read" in str(called("--runs", tmp_path / "absent.csv").exception)


def test_an_interrupted_fit_leaves_the_old_file(tmp_path, called, runs, monkeypatch):
    (tmp_path / "out.yaml").write_text("old")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate_runs, "fit_runs", interrupted)
    result = called("--runs", runs)
    assert result.exit_code == 130
    assert "nothing was written" in result.output
    assert (tmp_path / "out.yaml").read_text() == "old"


def test_an_interrupted_write_leaves_the_old_file(tmp_path, called, monkeypatch):
    (tmp_path / "out.yaml").write_text("old")
    monkeypatch.setattr(calibrate_sources, "measured", lambda *_, **__: measurements())

    def breaks_off(path, text, **_):
        with path.open("w") as file:
            file.write(text[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", breaks_off)
    assert called("--measure").exit_code == 130
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.yaml"]
    assert (tmp_path / "out.yaml").read_text() == "old"


@pytest.mark.parametrize("where", ["runs.csv", "absent/out.yaml", "."])
def test_inputs_are_never_written_over(tmp_path, called, runs, where):
    before = runs.read_text()
    result = called("--runs", runs, "--out", tmp_path / where)
    assert isinstance(result.exception, InputError)
    assert "--out" in str(result.exception)
    assert runs.read_text() == before


def test_the_shipped_calibration_is_not_written_over_by_what_lies_over_it(called, runs):
    path = FOLDER / "silicon.yaml"
    before = path.read_text()
    assert "also read" in str(called("--runs", runs, "--out", path).exception)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "exactly one of --runs, --measure, --nsys, --live, --show; given: none"),
        (("--measure", "--show"), "given: --measure, --show"),
        (("x.yaml", "--measure"), "'x.yaml' is no source"),
        (("--measure", "--local", "--address", "auto"), "--local and --address exclude"),
        (("--measure", "--budget", "60"), "--budget '60' is not a duration"),
        (("--measure", "--device", "h1000"), "unknown device 'h1000'"),
        (("--nsys", "t.csv"), "--nsys needs --model"),
        (("--nsys", "t.csv", "--tp", 4, "--moe-ep", 3), "--moe-ep 3 does not divide the 4"),
    ],
)
def test_what_makes_no_sense_is_refused(called, options, said):
    result = called(*options)
    assert isinstance(result.exception, ShardwiseError), result.output
    assert said in str(result.exception)


H100 = get_device("h100")
CURVE = {"mbu": 0.7, "mfu": 0.6, "half_tokens": 40.0, "floor_s": 3e-6, "serial_s": 2e-10}


def measurements(**changes: object) -> Measurements:
    """Matrix products of an H100 on exactly `CURVE`."""
    shapes = product((1, 8, 64, 512, 4096), (4096, 8192), (4096, 14336))
    blank = [GemmPoint(m, n, k, "bf16", 1.0) for m, n, k in shapes]
    seconds = gemm_s(blank, CURVE, device=H100)
    base = Measurements(
        node="here",
        device="NVIDIA H100 80GB HBM3",
        kind="gpu",
        devices=8,
        gemm=tuple(replace(p, seconds=float(s)) for p, s in zip(blank, seconds, strict=True)),
        launches=(LaunchPoint(True, 3e-6), LaunchPoint(False, 6e-6)),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_microbenchmarks_make_a_file(tmp_path, called, monkeypatch):
    monkeypatch.setattr(calibrate_sources, "measured", lambda *_, **__: measurements())
    result = called("--measure", "--budget", "1s")
    assert result.exit_code == 0, result.output
    assert "8 x NVIDIA H100 80GB HBM3, calibrated as 'h100' (hopper)" in result.output
    fitted = load_calibration(tmp_path / "out.yaml")
    assert fitted.value("gemm.hopper.bf16.mbu") == pytest.approx(0.7, rel=0.05)
    assert fitted.value("gemm.hopper.bf16.mfu") == pytest.approx(0.6, rel=0.05)
    assert fitted.value("kernel.hopper.small_s") == pytest.approx(3e-6)
    assert fitted.value("gemm.hopper.fp8.mbu") == default_coefficients().value(
        "gemm.hopper.fp8.mbu"
    )
    assert written(tmp_path)["fit"]["points"] == 20
    assert written(tmp_path)["provenance"].startswith("microbenchmarks on 8 x NVIDIA H100")


def test_a_device_may_be_named_and_an_unknown_one_must(tmp_path, called, monkeypatch):
    strange = measurements(device="ACME Warp 9")
    monkeypatch.setattr(calibrate_sources, "measured", lambda *_, **__: strange)
    result = called("--measure")
    assert isinstance(result.exception, InputError)
    assert "'ACME Warp 9'" in str(result.exception)
    assert "--device" in str(result.exception)
    assert called("--measure", "--device", "H200").exit_code == 0
    assert written(tmp_path)["fit"]["device"] == "h200"


def test_links_measured_too_sparsely_are_a_note(tmp_path, called, monkeypatch):
    one = CollectivePoint(
        kind=CollectiveKind.ALL_REDUCE,
        ranks=8,
        bytes=1024,
        seconds=1e-5,
        crosses_domain=False,
        path=LinkPath.NVLINK,
    )
    sparse = measurements(collectives=(one,))
    monkeypatch.setattr(calibrate_sources, "measured", lambda *_, **__: sparse)
    result = called("--measure")
    assert result.exit_code == 0, result.output
    assert "note: link.hopper: collectives were measured at 1 size" in result.output
    assert "link.hopper.latency_s" not in written(tmp_path)["parameters"]


def test_what_the_cost_model_has_no_place_for_is_not_written(tmp_path, called, monkeypatch):
    amd = get_device("mi300x")
    assert "gemm.cdna3.fp8.mbu" not in default_coefficients()
    points = [replace(point, format="fp8") for point in measurements().gemm]
    seconds = gemm_s(points, CURVE, device=amd)
    fp8 = tuple(replace(p, seconds=float(s)) for p, s in zip(points, seconds, strict=True))
    found = measurements(device="AMD Instinct MI300X", gemm=fp8)
    monkeypatch.setattr(calibrate_sources, "measured", lambda *_, **__: found)
    result = called("--measure")
    assert result.exit_code == 0, result.output
    assert "gemm.cdna3.fp8.mbu (not written)" in result.output
    assert list(written(tmp_path)["parameters"]) == ["kernel.cdna3.small_s"]


PROFILED = ("--nsys", TRACE, "--model", "Qwen/Qwen3-30B-A3B", "--device", "h100", "--phase")
PROFILED += ("decode", "--batch", 64, "--context", 2000)


def test_a_trace_corrects_the_coefficients_of_its_parts(tmp_path, called):
    result = called(*PROFILED, "--steps", 100, "--tp", 8, "--devices", 1)
    assert result.exit_code == 0, result.output
    assert "unknown kernel, 2.0% of the time: my_company_secret_kernel" in result.output
    file = written(tmp_path)
    assert file["fit"]["steps"] == 100
    ratios = file["fit"]["measured_over_predicted"]
    mbu = "experts.hopper.bf16.mbu"
    before = default_coefficients().value(mbu)
    after = load_calibration(tmp_path / "out.yaml").value(mbu)
    assert after == pytest.approx(min(before / ratios["experts"], 1.0), rel=1e-3)
    assert set(ratios) >= {"gemm", "experts", "attention", "all_reduce", "elementwise"}


def test_steps_may_be_counted_by_a_range_of_the_trace(tmp_path, called):
    options = ("--tp", 2, "--devices", 1)
    assert called(*PROFILED, "--steps", "execute_model", *options).exit_code == 0
    assert written(tmp_path)["fit"]["steps"] == 100
    result = called(*PROFILED, "--steps", "my_range", *options)
    assert isinstance(result.exception, UnknownNameError)
    assert "NVTX range 'my_range'" in str(result.exception)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--steps", 0), "a trace of 0 steps"),
        (("--steps", 100, "--backend", "tgi"), "unknown backend 'tgi'"),
        (("--steps", 100, "--model", "nobody/nothing-at-all"), "nobody/nothing-at-all"),
        (("--steps", 100, "--device", "h1000"), "unknown system 'h1000'"),
        (("--steps", 100, "--nsys", "absent.csv"), "absent.csv"),
    ],
)
def test_a_trace_of_something_unknown_is_refused(tmp_path, called, options, said):
    result = called(*PROFILED, *options)
    assert isinstance(result.exception, InputError), result.output
    assert said in str(result.exception)
    assert not (tmp_path / "out.yaml").exists()


def test_a_file_is_shown_beside_the_operator_tables(tmp_path, called):
    path = tmp_path / "mine.yaml"
    half = operator_coefficients().value(STEP) / 2
    path.write_text(
        f"name: mine\nprovenance: by hand\nsources: {{{STEP}: a stopwatch}}\nfit: {{rows: 77}}\n"
        f"parameters: {{{STEP}: {half}, build.vllm.9.9.time: 1.25}}\n"
    )
    result = called("--show", path)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    (row,) = (line for line in lines if line[:1] == [STEP])
    assert row[3:] == ["0.50", "a", "stopwatch"]
    (row,) = (line for line in lines if line[:1] == ["build.vllm.9.9.time"])
    assert row[1:4] == ["1.25", "1", "1.25"]
    assert "rows: 77" in result.output
    assert "gemm." not in result.output
    assert not (tmp_path / "out.yaml").exists()


def test_the_shipped_calibration_is_shown_whole(called):
    result = called("--show")
    assert result.exit_code == 0, result.output
    for name in default_coefficients().names:
        assert f"{name} " in result.output
    assert "…" not in result.output


def test_a_file_that_is_none_is_refused(tmp_path, called):
    result = called("--show", tmp_path / "absent.yaml")
    assert isinstance(result.exception, InputError)
    assert "absent.yaml" in str(result.exception)


def test_real_runs_are_fitted(tmp_path, called):
    data = require_shared_data()
    lines = (data / "silicon" / "runs.csv").read_text().splitlines()
    llama = [line for line in lines if "--Meta-Llama-3.1-8B,h100_sxm,trtllm" in line]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([lines[0], *llama[::3]]) + "\n")
    result = called("--runs", path, "--models", data / "models", "--from", "operators")
    assert result.exit_code == 0, result.output
    errors = written(tmp_path)["fit"]["median_error_percent"]
    assert errors["in_sample"]["tpot"] < min(errors["before"]["tpot"], 10.0)
    held = written(tmp_path)["cross_validation"]["conditions"]
    assert held["median_error_percent"]["tpot"] < held["before"]["tpot"]
