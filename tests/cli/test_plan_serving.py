from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from cli import check, plan
from cli.serving_options import serving_options
from cluster.costmodel.engine import BACKENDS
from cluster.errors import ConfigError, InputError, ShardwiseError, UnknownNameError
from cluster.export import export
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.plan import load_plan
from rl_search.serving_args import plain, serving_args

APP = typer.Typer()
APP.command("plan")(plan.command)
APP.command("check")(check.command)
DRAFTS = ("--draft-tokens", "3", "--draft-acceptance", "0.7")
MODEL, CLUSTER = get_model("llama-3.1-8b"), parse_cluster("1x8xH100")


def invoke(
    tmp_path, *extra: str, model: str = "llama-3.1-8b", ttft: str = "4s", tpot: str = "60ms"
):
    words = ["plan", "--model", model, "--cluster", "1x8xH100", "--isl", "2000", "--osl", "300"]
    words += ["--ttft", ttft, "--tpot", tpot, "--out", str(tmp_path / "plan.json")]
    words += ["--plot", str(tmp_path / "plan.html"), *extra]
    return CliRunner().invoke(APP, words)


def planned(tmp_path, *extra: str, **options: str):
    result = invoke(tmp_path, *extra, **options)
    assert result.exit_code == 0, result.output
    return result, load_plan(tmp_path / "plan.json")


def test_serving_options_reach_the_engine(tmp_path):
    result, made = planned(tmp_path, "--prefix-hit", "0.5", *DRAFTS, "--offload", "1.5")
    args = made.main.engine_args
    assert args["enable_prefix_caching"] is True
    assert args["cpu_offload_gb"] == 1.5
    drafts = args["speculative_config"]
    assert (drafts["method"], drafts["num_speculative_tokens"]) == ("ngram", 3)
    assert "a step keeps 2.53 of 4 tokens" in result.output
    (script,) = export(made, "vllm")
    for words in ("--enable-prefix-caching", "--cpu-offload-gb 1.5", "--speculative-config '{"):
        assert words in script.text


def test_a_plan_says_how_it_is_served_and_is_checked_so(tmp_path):
    _, made = planned(tmp_path, "--prefix-hit", "0.5", *DRAFTS, "--offload", "1.5")
    section = made.main.serving
    assert section is not None
    assert (section.prefix_hit, section.draft_tokens, section.draft_acceptance) == (0.5, 3, 0.7)
    assert section.offload_bytes == 1.5 * 1024**3
    found = CliRunner().invoke(APP, ["check", str(tmp_path / "plan.json")])
    assert found.exit_code == 0, found.output


def test_a_drafter_is_a_method_or_a_model(tmp_path):
    options = ["--draft-tokens", "2", "--draft-acceptance", "0.5", "--draft-model"]
    for drafter, expected in (
        ("mtp", {"method": "mtp", "num_speculative_tokens": 2}),
        ("org/eagle", {"model": "org/eagle", "num_speculative_tokens": 2}),
    ):
        _, made = planned(tmp_path, *options, drafter)
        assert made.main.engine_args["speculative_config"] == expected


def test_without_options_nothing_is_added(tmp_path):
    _, made = planned(tmp_path)
    added = {"enable_prefix_caching", "cpu_offload_gb", "speculative_config"}
    assert not added & set(made.main.engine_args)
    assert made.main.serving is None


def test_vllm_knows_the_names():
    arg_utils = pytest.importorskip("vllm.engine.arg_utils", reason="vLLM is not installed")
    found = serving_options(
        MODEL, CLUSTER, prefix_hit=0.5, draft_tokens=3, draft_acceptance=0.7, offload=2.0
    )
    args = serving_args(found.serving, drafter=None, prefix_hit=found.prefix_hit)
    assert args
    assert set(args) <= set(arg_utils.EngineArgs.__dataclass_fields__)


def test_cached_prompts_lower_the_expected_ttft(tmp_path):
    expected = []
    for hit in ("0", "0.8"):
        _, made = planned(tmp_path, "--prefix-hit", hit, "--priority", "interactive")
        expected.append(made.main.expected.ttft_s)
    assert expected[1] < expected[0]


def test_the_light_pool_is_served_plainly(tmp_path):
    _, made = planned(tmp_path, "--light", "qwen3-0.6b", *DRAFTS, "--offload", "1")
    assert "speculative_config" in made.main.engine_args
    assert made.light is not None
    assert not {"speculative_config", "cpu_offload_gb"} & set(made.light.engine_args)
    found = serving_options(MODEL, CLUSTER, draft_tokens=3, draft_acceptance=0.7, offload=1.0)
    assert plain(found.serving) == serving_options(MODEL, CLUSTER).serving


def test_a_bound_on_a_percentile_asks_for_more(tmp_path):
    goodput = {}
    for statistic in ("mean", "p99"):
        result, made = planned(
            tmp_path, "--percentile", statistic, "--priority", "throughput", ttft="500ms"
        )
        goodput[statistic] = made.main.expected.tokens_per_s_per_device
        assert made.main.expected.goodput_rps > 0.0
    assert goodput["p99"] < goodput["mean"]
    assert "p99" in result.output
    tight = invoke(tmp_path, "--percentile", "p99", tpot="1us")
    assert "p99 TPOT" in str(tight.exception)


def test_percentiles_are_printed_and_a_rate_is_looked_at(tmp_path):
    result, _ = planned(tmp_path, "--rate", "5")
    for text in ("TTFT", "TPOT", "ITL", "p50", "p90", "p99", "at random over", "in flight per"):
        assert text in result.output
    swamped, _ = planned(tmp_path, "--rate", "1e5", "--max-replicas", "1")
    assert "unstable, a replica sustains" in swamped.output
    assert "are needed" in swamped.output


def test_xpyd_is_put_beside_the_layout(tmp_path):
    result, made = planned(tmp_path, "--disaggregate", "--priority", "throughput")
    for text in ("aggregated", "disaggregated", "P of TP", "D of TP", "gain", "does not serve"):
        assert text in result.output
    assert made.version == 1  # the plan stays that of the aggregated layout
    assert "disaggregated" not in planned(tmp_path)[0].output


def test_another_engine_is_estimated_and_said_not_to_be_served(tmp_path):
    expected = {}
    for backend in BACKENDS:
        result, made = planned(tmp_path, "--backend", backend)
        expected[backend] = (made.main.expected.ttft_s, made.main.expected.tpot_s)
        assert ("engine arguments are vLLM's" in result.output) is (backend != "vllm")
    assert expected["vllm"] != expected["sglang"]


def test_a_calibration_is_laid_over_the_shipped_one(tmp_path):
    path = tmp_path / "mine.yaml"
    text = "format: 1\nname: mine\nprovenance: measured on my node\nparameters:\n"
    path.write_text(text + "  engine.vllm.step_s: 0.02\n")
    _, base = planned(tmp_path)
    result, slower = planned(tmp_path, "--calibration", str(path))
    assert slower.main.expected.tpot_s > base.main.expected.tpot_s
    assert slower.main.expected.provenance == "measured on my node"
    assert "measured on my node" in result.output


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ("--prefix-hit 1", InputError, r"--prefix-hit 1 .*\[0, 1\)"),
        ("--prefix-hit -0.1", InputError, "--prefix-hit"),
        ("--prefix-hit nan", InputError, "--prefix-hit"),
        ("--draft-tokens 3", InputError, "--draft-acceptance"),
        ("--draft-tokens 0 --draft-acceptance 0.5", InputError, "at least 1"),
        ("--draft-tokens 3 --draft-acceptance 1", InputError, r"--draft-acceptance 1 .*\[0, 1\)"),
        ("--draft-tokens 3 --draft-acceptance nan", InputError, "--draft-acceptance"),
        (
            "--draft-tokens 3 --draft-acceptance 0.5 --draft-share -1",
            InputError,
            "--draft-share -1 must be at least 0",
        ),
        ("--draft-acceptance 0.5", InputError, "--draft-tokens"),
        ("--draft-share 0.1", InputError, "--draft-tokens"),
        ("--draft-model ngram", InputError, "--draft-tokens"),
        ("--offload 500", InputError, r"more than all weights of llama-3.1-8b, 15\.0 GiB"),
        ("--offload -1", InputError, "at least 0 GiB"),
        ("--offload inf", InputError, "at least 0 GiB"),
        ("--backend ollama", UnknownNameError, "vllm"),
        ("--calibration missing.yaml", ConfigError, "missing.yaml"),
        ("--disaggregate --light qwen3-0.6b", InputError, "--light"),
    ],
)
def test_what_contradicts_itself_is_said_before_the_search(tmp_path, options, error, message):
    result = invoke(tmp_path, *options.split())
    assert isinstance(result.exception, error)
    assert isinstance(result.exception, ShardwiseError)
    with pytest.raises(error, match=message):
        raise result.exception
    assert "considered" not in result.output
    assert not (tmp_path / "plan.json").exists()


def test_cpu_cores_offload_nothing():
    local = parse_cluster("1x8xH100")
    cores = tuple(
        group.__class__(
            nodes=1,
            devices_per_node=2,
            device=group.device.__class__(**{**vars(group.device), "kind": "cpu"}),
        )
        for group in local.groups
    )
    with pytest.raises(InputError, match="CPU cores"):
        serving_options(MODEL, local.__class__(name="cpu", groups=cores), offload=1.0)


def test_an_unknown_percentile_lists_the_known_ones(tmp_path):
    result = invoke(tmp_path, "--percentile", "p95")
    assert result.exit_code == 2
    assert "p90" in result.output
