"""`shardwise simulate`: every option, every error a user can cause, every file it writes."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli import replay, simulate, simulate_inputs, simulate_many, simulate_run
from cli.simulate_options import delay_or_never_s, window_s
from cluster.calibration.live_file import read_live
from cluster.costmodel.calibration_file import FOLDER
from cluster.errors import ConfigError, InputError, UnavailableError, UnknownNameError
from cluster.model.plan import (
    ClusterSection,
    LayoutSection,
    ModelSection,
    Plan,
    PoolSection,
    ReplicaBounds,
    SloSection,
    WorkloadSection,
)
from cluster.sim.failure_file import read_failures
from cluster.sim.simulation import Simulation
from cluster.sim.task import run_task

APP = typer.Typer()
APP.command("simulate")(simulate.command)
APP.command("replay")(replay.command)
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

TRACE = "constant:rate=10,count=40,isl=256,osl=32"


def pool(name: str, model: str, **replicas: int) -> PoolSection:
    return PoolSection(
        name=name,
        model=ModelSection(
            name=model, source=model, params=8_000_000_000, weight_bytes=16e9, max_context=8192
        ),
        layout=LayoutSection(max_num_seqs=16, max_num_batched_tokens=512),
        replicas=ReplicaBounds(**replicas),
    )


def plan_of(*pools: PoolSection, **cluster: object) -> Plan:
    return Plan(
        cluster=ClusterSection(
            **{"spec": "1x8xH100", "device": "h100", "nodes": 1, "devices_per_node": 8, **cluster}
        ),
        workload=WorkloadSection(isl=256, osl=32),
        slo=SloSection(ttft_s=2.0, tpot_s=0.05),
        pools=pools,
    )


MAIN = pool("main", "llama-3.1-8b", minimum=1, initial=1, maximum=4)
LIGHT = pool("light", "qwen3-0.6b", minimum=0, initial=0, maximum=1)


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan_of(MAIN).dumps())
    return path


def invoke(*arguments: object):
    return CliRunner().invoke(APP, ["simulate", *map(str, arguments)])


def figures(result, path):
    """The only run of the JSON file."""
    assert result.exit_code == 0, result.output + str(result.exception)
    (run,) = json.loads(path.read_text())["runs"]
    return run


def test_a_plan_under_a_synthetic_trace_with_all_its_files(plan, tmp_path):
    files = {
        option: tmp_path / "out" / f"x.{ending}"
        for option, ending in (
            ("--json", "json"),
            ("--chrome-trace", "trace.json"),
            ("--requests", "csv"),
        )
    }
    result = invoke(
        *("--plan", plan, "--trace", TRACE),
        *(word for pair in files.items() for word in pair),
        *("--plot", tmp_path / "x.png", "--plot", tmp_path / "x.html"),
    )
    run = figures(result, files["--json"])
    for text in (
        "constant:rate=10,count=40,isl=256,osl=32 (synthetic): 40 requests",
        "plan, main: llama-3.1-8b, TP1 x1, 1 replica,",
        *("TTFT", "TPOT", "ITL", "E2E", "p99", "within the SLO (TTFT 2,000 ms, TPOT 50.0 ms)"),
        *("output tokens/s", "device-hours", "cost, USD", "preemptions", "prefix cache"),
        "as fast as real time",
        f"written: {files['--json']}",
    ):
        assert text in result.output
    summary = run["summary"]
    assert summary["arrived"] == summary["completed"] == 40
    assert summary["output_tokens"] == 40 * 32
    assert summary["cost_usd"] > 0
    with files["--requests"].open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 40
    assert float(rows[0]["ttft_s"]) <= float(rows[0]["e2e_s"])
    assert {row["replica_id"] for row in rows} == {"main/0"}
    spans = json.loads(files["--chrome-trace"].read_text())["traceEvents"]
    assert sum(event["name"] == "prefill" for event in spans) == 40
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "x.html").read_text()
    assert "time to first token" in page
    assert '<script src="http' not in page  # opens offline


def test_the_document_says_what_went_in_and_what_happened_when(plan, tmp_path):
    file = tmp_path / "x.json"
    result = invoke("--plan", plan, "--trace", TRACE, "--json", file, "--seed", "7")
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert data["version"] == 1
    assert data["inputs"]["seed"] == 7
    assert data["inputs"]["plan"] == [str(plan)]
    assert data["inputs"]["trace"] == TRACE
    assert data["trace"]["requests"] == 40
    assert data["trace"]["prompt_tokens"]["mean"] == 256
    (run,) = data["runs"]
    assert run["slo"] == {"ttft_s": 2.0, "tpot_s": 0.05}
    assert run["pools"][0]["initial_replicas"] == 1
    assert set(run["summary"]["ttft_s"]) == {"mean", "p50", "p90", "p95", "p99"}
    windows = run["series"]["windows"]
    assert run["series"]["window_s"] == 1.0
    assert sum(window["arrived"] for window in windows) == 40
    assert sum(window["output_tokens"] for window in windows) == 40 * 32
    assert windows[0]["gauges"]["main ready"] == 1
    assert run["decisions"] == []


def test_same_seed_same_figures(plan, tmp_path):
    found = []
    for name in ("a", "b"):
        file = tmp_path / name
        trace = "poisson:rate=20,duration=4s,isl=512,osl=lognormal(64,1)"
        run = figures(
            invoke("--plan", plan, "--trace", trace, "--json", file, "--replicas", "2"), file
        )
        found.append((run["summary"], run["series"]))
    assert found[0] == found[1]


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.0,{100 + second},{10 + second}\n" for second in range(20)
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), (20, 19.0, 109.5)),
        (("--format", "azure"), (20, 19.0, 109.5)),
        (("--window", "5s:15s"), (10, 9.0, 109.5)),
        (("--window", "10s:"), (10, 9.0, 114.5)),
        (("--window", ":10s"), (10, 9.0, 104.5)),
        (("--speed-up", "2"), (20, 9.5, 109.5)),
        (("--limit", "5"), (5, 4.0, 102.0)),
        (("--prompt-scale", "2", "--output-scale", "0.5"), (20, 19.0, 219.0)),
        (("--window", "0s:10s", "--speed-up", "2", "--limit", "4"), (4, 1.5, 101.5)),
    ],
)
def test_a_file_is_cut_and_scaled(plan, tmp_path, options, expected):
    requests, duration_s, prompt = expected
    trace, file = tmp_path / "t.csv", tmp_path / "x.json"
    trace.write_text(AZURE)
    result = invoke("--plan", plan, "--trace", trace, "--json", file, *options)
    assert figures(result, file)["summary"]["completed"] == requests
    found = json.loads(file.read_text())["trace"]
    assert (found["format"], found["requests"]) == ("azure", requests)
    assert found["duration_s"] == pytest.approx(duration_s)
    assert found["prompt_tokens"]["mean"] == pytest.approx(prompt)


def test_rate_scale_sends_more_in_the_same_time_and_rows_left_out_are_said(plan, tmp_path):
    trace, file = tmp_path / "t.csv", tmp_path / "x.json"
    trace.write_text(AZURE + "2023-11-16 18:15:20.0,100,0\n")
    result = invoke("--plan", plan, "--trace", trace, "--json", file, "--rate-scale", "3")
    assert figures(result, file)["summary"]["arrived"] == 60
    assert json.loads(file.read_text())["trace"]["duration_s"] == pytest.approx(19.0)
    assert "left out: 1 rows, no output tokens" in result.output


def test_classes_are_drawn_and_honoured(plan, tmp_path):
    file = tmp_path / "x.json"
    options = ("--vip-share", "0.3", "--batch-share", "0.2", "--chrome-trace", file)
    assert invoke("--plan", plan, "--trace", TRACE, *options).exit_code == 0
    events = json.loads(file.read_text())["traceEvents"]
    classes = [e["args"]["class"] for e in events if e["ph"] == "X" and "args" in e]
    assert set(classes) == {"vip", "standard", "batch"}
    assert len(classes) == 40


def test_the_slo_of_the_options_replaces_the_plans(plan, tmp_path):
    file = tmp_path / "x.json"
    options = ("--ttft", "1ms", "--json", file)
    run = figures(invoke("--plan", plan, "--trace", TRACE, *options), file)
    assert run["slo"] == {"ttft_s": 0.001, "tpot_s": 0.05}
    assert run["summary"]["attainment"] == 0.0


OVERLOAD = "constant:rate=60,duration=40s,isl=2048,osl=256"


def test_the_live_controller_scales_and_its_log_replays(plan, tmp_path):
    file, log = tmp_path / "x.json", tmp_path / "d.jsonl"
    result = invoke(
        *("--plan", plan, "--trace", OVERLOAD, "--autoscale", "--max-replicas", "3"),
        *("--min-replicas", "1", "--cold-start", "5s", "--policy", "token_load"),
        *("--forecast", "last_value", "--json", file, "--decisions", log),
    )
    run = figures(result, file)
    assert "is steered by the controller (active): policy token_load" in result.output
    assert "main to " in result.output
    assert "decisions" in result.output
    scaled = [made for made in run["decisions"] if made["action"] == "scale"]
    assert max(made["value"] for made in scaled) == 3
    assert run["summary"]["replicas"]["main"]["most"] == 3
    assert json.loads(log.read_text().splitlines()[0])["params"]["pools"][0]["cold_start_s"] == 5
    assert run["pools"][0]["start_s"] == 5
    again = CliRunner().invoke(APP, ["replay", str(log)])
    assert again.exit_code == 0, again.output
    assert "replay is identical" in again.output


def test_replicas_begin_within_the_controllers_bounds(plan, tmp_path):
    file = tmp_path / "x.json"
    options = ("--autoscale", "--min-replicas", "2", "--json", file)
    run = figures(invoke("--plan", plan, "--trace", TRACE, *options), file)
    assert run["pools"][0]["initial_replicas"] == 2


def test_a_light_pool_takes_over_in_tier_3(tmp_path):
    path, file, config = tmp_path / "plan.json", tmp_path / "x.json", tmp_path / "serve.yaml"
    path.write_text(plan_of(MAIN, LIGHT).dumps())
    config.write_text(
        "limits: {output_cap: 64, max_queued: 300}\n"
        "steering: {cold_start_s: 1, tier_enter_s: 2, tier_leave_s: 2, wait_limit_s: 4}\n"
    )
    result = invoke(
        *("--plan", path, "--trace", OVERLOAD, "--autoscale", "--max-replicas", "1"),
        *("--vip-share", "0.2", "--config", config, "--json", file),
    )
    run = figures(result, file)
    assert [pool["start_s"] for pool in run["pools"]] == [1, 1]  # as the configuration says
    events = run["summary"]["events"]
    assert events["max-tokens=64"] > 0
    assert events["light-model"] > 0
    assert max(made["value"] for made in run["decisions"] if made["action"] == "tier") >= 3
    assert "tier 3 (light_model)" in result.output
    assert "ready replicas, light" in result.output


def test_failures_of_words_and_of_a_file(plan, tmp_path):
    file, script = tmp_path / "x.json", tmp_path / "f.yaml"
    script.write_text("- {kind: slow, at: 1s, target: main/1, for: 1s, factor: 2}\n")
    run = figures(
        invoke(
            *("--plan", plan, "--trace", TRACE, "--replicas", "2", "--cold-start", "0s"),
            *("--fail", "crash@2s:main/0", "--fail", "freeze@2s:main/9", "--failures", script),
            *("--resume-streams", "--batch-wait", "10ms", "--reschedule-after", "never"),
            *("--json", file),
        ),
        file,
    )
    events = run["summary"]["events"]
    assert events["replicas hit: crash"] == events["replicas hit: slow"] == 1
    assert events["resumed mid-stream"] > 0
    assert run["summary"]["completed"] == 40
    assert [failure["kind"] for failure in run["failures"]] == ["crash", "freeze", "slow"]


def test_a_failure_that_hits_nobody_is_said(plan):
    result = invoke("--plan", plan, "--trace", TRACE, "--fail", "crash@2s:main/9")
    assert result.exit_code == 0
    assert "no crash hit a replica" in result.output


def test_the_example_of_failures_is_one():
    assert [failure.kind for failure in read_failures(EXAMPLES / "failures.yaml")] == [
        *("crash", "freeze", "hang", "slow", "crash")
    ]


def test_prefill_and_decode_apart(plan, tmp_path):
    file = tmp_path / "x.json"
    options = ("--disaggregate", "1P2D", "--json", file)
    run = figures(invoke("--plan", plan, "--trace", TRACE, *options), file)
    assert [(p["name"], p["role"], p["initial_replicas"]) for p in run["pools"]] == [
        ("prefill", "prefill", 1),
        ("decode", "decode", 2),
    ]
    assert run["summary"]["events"]["KV caches sent"] == 40


def test_prompts_longer_than_the_context_are_refused_and_said(plan, tmp_path):
    file = tmp_path / "x.json"
    trace = "constant:rate=2,count=4,isl=10000000,osl=10"
    result = invoke("--plan", plan, "--trace", trace, "--json", file)
    assert figures(result, file)["summary"]["refused"] == {"longer than the model's context": 4}
    assert "refused: longer than the model's context" in result.output
    assert "the engine takes 8,192 together" in result.output
    assert figures(result, file)["summary"]["ttft_s"]["p50"] is None


LIVE = """\
format: 1
provenance: {model: tiny, engine: vllm, device: cpu, threads: 1, date: 2025-01-01T00:00,
  measured_s: 1.0, async_scheduling: true, kv_tokens: 1000, max_num_seqs: 8, max_model_len: 1024,
  chunk: 512}
points: [{kind: decode, sequences: 1, context: 10, seconds: 0.1, spread: 0.01, samples: 5}]
front: {into_s: 0.0, into_token_s: 0.0, out_s: 0.0, out_spread_s: 0.0, client_over_engine: 1.0,
  samples: 5}
fitted: {decode: {at: [1, 64], seconds: [0.1, 0.1]}, prompt: {at: [1, 512], seconds: [0.1, 0.1]},
  sequence_s: 0.0, context_token_s: 0.0, pair_s: 0.0,
  residuals: {median: 0.0, worst: 0.0, worst_point: none}}
"""


def test_measured_step_times_replace_the_cost_models(plan, tmp_path):
    file, times = tmp_path / "x.json", tmp_path / "live.yaml"
    times.write_text(LIVE)
    try:
        read_live(times)
    except ConfigError as error:
        pytest.skip(f"the file format has changed: {error}")
    result = invoke(
        *("--plan", plan, "--trace", "constant:rate=1,duration=3s,isl=64,osl=8"),
        *("--times", times, "--json", file),
    )
    assert figures(result, file)["summary"]["tpot_s"]["p50"] == pytest.approx(0.1, rel=0.01)
    assert "step times of tiny on cpu" in result.output


def test_a_calibration_is_laid_over_the_shipped_one(plan, tmp_path):
    assert (
        invoke("--plan", plan, "--trace", TRACE, "--calibration", FOLDER / "silicon.yaml").exit_code
        == 0
    )


def test_a_local_plan_of_other_devices_keeps_them(tmp_path):
    path, file = tmp_path / "plan.json", tmp_path / "x.json"
    path.write_text(plan_of(MAIN, spec="local", device="a100-80").dumps())
    run = figures(invoke("--plan", path, "--trace", TRACE, "--json", file), file)
    assert run["summary"]["completed"] == 40


def test_more_replicas_than_the_cluster_has_devices_for_is_noted(plan):
    result = invoke("--plan", plan, "--trace", TRACE, "--replicas", "9")
    assert "note: 9 devices for 9 replicas at most; the plan's cluster has 8" in result.output


# Several plans


@pytest.fixture
def two_plans(plan, tmp_path):
    other = tmp_path / "two.json"
    other.write_text(plan_of(pool("main", "llama-3.1-8b", initial=2, maximum=2)).dumps())
    return ("--plan", plan, "--plan", other)


def test_plans_are_compared_and_the_best_of_a_column_is_marked(two_plans, tmp_path, monkeypatch):
    def run_here(cases, requests, *, seed, address):
        assert address == "auto"
        tasks = [simulate_many.task_of(case, seed=seed) for case in cases]
        return (*(run_task(task, requests) for task in tasks[:-1]), "died. Fix: none.")

    monkeypatch.setattr(simulate, "run_cases", run_here)
    file, third_plan = tmp_path / "x.json", tmp_path / "three.json"
    third_plan.write_text(plan_of(MAIN).dumps())
    result = invoke(
        *(*two_plans, "--plan", third_plan, "--autoscale"),
        *("--trace", OVERLOAD, "--json", file, "--address", "auto"),
    )
    assert result.exit_code == 0, result.output + str(result.exception)
    first, second, third = json.loads(file.read_text())["runs"]
    assert first["summary"]["attained"] < second["summary"]["attained"]
    assert third["failed"] == "died. Fix: none."
    assert "series" not in first
    table = result.output.partition("* best of its column")[2].splitlines()
    (row,) = [line for line in table if line.startswith("two ")]
    assert f"{second['summary']['goodput_rps']:.3g}*" in row
    assert "died. Fix: none." in result.output


@pytest.mark.live
def test_plans_are_simulated_on_ray(two_plans, tmp_path):
    file = tmp_path / "x.json"
    result = invoke(*two_plans, "--trace", TRACE, "--json", file, "--autoscale")
    assert result.exit_code == 0, result.output + str(result.exception)
    runs = json.loads(file.read_text())["runs"]
    assert [run["summary"]["completed"] for run in runs] == [40, 40]
    assert "simulated 2 plans" in result.output


# Errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--trace", "nowhere.csv"), "is no file"),
        (("--trace", "x" * 5000), "is no file"),
        (("--trace", "posson:rate=5"), "unknown arrival process 'posson'"),
        (("--trace", "poisson:rate=x,duration=1s,isl=1,osl=1"), "field 'rate'"),
        (("--trace", "poisson:rate=5,duration=1s,isl=1"), "field 'osl'"),
        (("--format", "azure"), "--format is of files"),
        (("--window", "5s"), "START:END"),
        (("--window", "5:6"), "--window '5' is not a duration"),
        (("--window", "9s:3s"), "ends before it begins"),
        (("--window", "1h:"), "no request is left"),
        (("--rate-scale", "0"), "--rate-scale 0"),
        (("--speed-up", "-1"), "--speed-up -1"),
        (("--prompt-scale", "nan"), "--prompt-scale nan"),
        (("--output-scale", "inf"), "--output-scale inf"),
        (("--vip-share", "0.8", "--batch-share", "0.5"), "--vip-share"),
        (("--replicas", "0"), "serve nobody"),
        (("--replicas", "-2"), "must be at least 0"),
        (("--replicas", "2", "--autoscale"), "exclude each other"),
        (("--autoscale", "--disaggregate", "1P1D"), "exclude each other"),
        (("--replicas", "2", "--disaggregate", "1P1D"), "exclude each other"),
        (("--replicas", "0", "--autoscale"), "exclude each other"),
        (("--min-replicas", "0"), "--min-replicas is of the controller"),
        (("--min-replicas", "2"), "--min-replicas is of the controller"),
        (("--policy", "x"), "--policy is of the controller"),
        (("--decisions", "d.jsonl"), "--decisions is of the controller"),
        (
            ("--autoscale", "--policy", "x"),
            "unknown scaling policy 'x'. Known: engine_work, token_load",
        ),
        (("--autoscale", "--forecast", "x"), "unknown forecaster 'x'"),
        (("--autoscale", "--min-replicas", "9"), "contradict each other"),
        (("--disaggregate", "0P1D"), "--disaggregate '0P1D'"),
        (("--disaggregate", "many"), "--disaggregate 'many'"),
        (("--ttft", "2"), "--ttft '2' is not a duration"),
        (("--cold-start", "soon"), "--cold-start 'soon' is not a duration"),
        (("--batch-wait", "never"), "--batch-wait 'never' is not a duration"),
        (("--fail", "crush@1s:main/0"), "is no failure"),
        (("--fail", "crash@1s:other/0"), "is no pool"),
        (("--failures", "nowhere.yaml"), "nowhere.yaml"),
        (("--config", "nowhere.yaml"), "nowhere.yaml"),
        (("--calibration", "nowhere.yaml"), "nowhere.yaml"),
        (("--times", "nowhere.yaml"), "nowhere.yaml"),
        (("--plot", "x.svg"), "must end with"),
        (("--json", "/proc/no/x.json"), "--json /proc/no/x.json cannot be written"),
        (("--requests", "/"), "--requests / cannot be written"),
        (("--address", "auto"), "--address is where several plans"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_simulated(plan, options, said, monkeypatch):
    monkeypatch.setattr(Simulation, "run", lambda *_: pytest.fail("simulated"))
    trace = () if options[0] == "--trace" else ("--trace", TRACE)
    result = invoke("--plan", plan, *trace, *options)
    assert isinstance(result.exception, InputError), result.output
    assert said in str(result.exception)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"cluster": "4x8xFOO"}, ConfigError, "field 'cluster.spec': unknown device 'FOO'"),
        ({"cluster": "2x8xA100"}, ConfigError, "field 'cluster.device': is h100"),
        ({"model": "llama-9"}, ConfigError, "pools.main.model.source"),
    ],
)
def test_a_plan_that_cannot_be_simulated_is_named(tmp_path, changes, error, said):
    path = tmp_path / "plan.json"
    data = json.loads(plan_of(MAIN).dumps())
    data["cluster"]["spec"] = changes.get("cluster", "1x8xH100")
    if "model" in changes:
        data["pools"][0]["model"] |= {"source": changes["model"], "name": changes["model"]}
    path.write_text(json.dumps(data))
    result = invoke("--plan", path, "--trace", TRACE)
    assert isinstance(result.exception, error)
    assert said in str(result.exception)
    assert str(path) in str(result.exception)


@pytest.mark.parametrize("text", [None, "", "{}", "[1]", '{"version": 9}'])
def test_a_file_that_is_no_plan_is_named(tmp_path, text):
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    result = invoke("--plan", path, "--trace", TRACE)
    assert isinstance(result.exception, ConfigError)
    assert str(path) in str(result.exception)


def test_a_bad_row_and_an_unknown_format_are_named(plan, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text(AZURE + "2023-11-16 18:15:30.0,many,5\n")
    result = invoke("--plan", plan, "--trace", trace)
    assert isinstance(result.exception, ConfigError)
    assert f"{trace}, line 22" in str(result.exception)
    result = invoke("--plan", plan, "--trace", trace, "--format", "azur")
    assert isinstance(result.exception, UnknownNameError)
    assert "Did you mean azure" in str(result.exception)


def test_what_is_of_one_plan_is_refused_with_several(two_plans):
    for options in (("--plot", "x.png"), ("--chrome-trace", "x"), ("--requests", "x")):
        result = invoke(*two_plans, "--trace", TRACE, *options)
        assert isinstance(result.exception, InputError)
        assert f"{options[0]} is of one simulation" in str(result.exception)


def test_without_ray_several_plans_say_so(two_plans, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cluster.ray_backend.sim_pool", None)
    result = invoke(*two_plans, "--trace", TRACE)
    assert isinstance(result.exception, UnavailableError)
    assert "shardwise[serve]" in str(result.exception)


def test_two_results_need_two_files_and_a_check_leaves_files_alone(plan, tmp_path):
    file = tmp_path / "x"
    result = invoke("--plan", plan, "--trace", TRACE, "--json", file, "--requests", file)
    assert "--json and --requests are both" in str(result.exception) or (
        "--requests and --json are both" in str(result.exception)
    )
    assert not file.exists()
    file.write_text("kept")
    result = invoke("--plan", plan, "--trace", "x:", "--json", file)
    assert isinstance(result.exception, InputError)
    assert file.read_text() == "kept"


def test_an_interrupt_leaves_with_one_line_and_130(plan, tmp_path, monkeypatch):
    def interrupted(self, requests):
        raise KeyboardInterrupt

    monkeypatch.setattr(Simulation, "run", interrupted)
    file = tmp_path / "x.json"
    result = invoke("--plan", plan, "--trace", TRACE, "--json", file)
    assert result.exit_code == simulate_run.INTERRUPTED == 130
    assert result.stderr.count("\n") == 1
    assert "interrupted at 0.0 s of the trace" in result.stderr
    assert not file.exists()


def test_plans_have_names_that_tell_them_apart():
    def labels(*names):
        return simulate_inputs._labels([Path(name) for name in names])

    assert labels("a/x.json", "a/y.json") == ["x", "y"]
    assert labels("a/x.json", "b/x.json") == ["a/x.json", "b/x.json"]
    assert labels("a/x.json", "a/x.json", "b.json") == [*("a/x.json (1)", "a/x.json (2)", "b.json")]


def test_delays_and_windows():
    assert delay_or_never_s("never", option="--x") == math.inf
    assert delay_or_never_s("0s", option="--x") == 0.0
    assert window_s("1min:1h") == (60.0, 3600.0)
    assert window_s(":5s") == (0.0, 5.0)
    assert window_s("5s:") == (5.0, math.inf)
