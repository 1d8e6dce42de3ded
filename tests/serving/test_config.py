from pathlib import Path

import pytest
import yaml

from autoscaler.params import Mode
from cluster.errors import ConfigError, InputError
from cluster.model.plan import (
    ClusterSection,
    Expectation,
    LayoutSection,
    ModelSection,
    Plan,
    PoolSection,
    ReplicaBounds,
    SloSection,
    WorkloadSection,
)
from cluster.pool_capacity import in_flight_tokens, request_tokens
from serving.settings.config import ServeConfig, load_serve_config, load_steering
from serving.settings.steering_config import SteeringSection, controller_params


def plan(*, kv_capacity_tokens: int | None = None, goodput_rps: float = 2.0) -> Plan:
    expected = None
    if kv_capacity_tokens is not None:
        expected = Expectation(
            ttft_s=0.1,
            tpot_s=0.01,
            concurrency=4,
            tokens_per_s_per_device=1,
            tokens_per_s_per_user=1,
            goodput_rps=goodput_rps,
            prefill_tokens_per_s=1,
            decode_tokens_per_s=1,
            kv_capacity_tokens=kv_capacity_tokens,
            memory_bytes={},
            parts_s={},
            provenance="test",
        )
    model = ModelSection(name="m", source="m", params=1, weight_bytes=1, max_context=100)
    pool = PoolSection(
        name="main",
        model=model,
        layout=LayoutSection(max_num_seqs=4),
        replicas=ReplicaBounds(minimum=1, initial=1, maximum=3),
        expected=expected,
    )
    return Plan(
        cluster=ClusterSection(spec="cpu", device="cpu", nodes=1, devices_per_node=2),
        workload=WorkloadSection(isl=100, osl=50),
        slo=SloSection(),
        pools=(pool,),
    )


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["", "# nothing\n", "http: {}\n"])
def test_every_field_has_a_default(tmp_path: Path, text: str) -> None:
    assert load_serve_config(written(tmp_path, text)) == load_serve_config(None) == ServeConfig()


def test_the_default_address_is_local() -> None:
    assert ServeConfig().http.host == "127.0.0.1"


def test_fields_are_taken(tmp_path: Path) -> None:
    config = load_serve_config(written(tmp_path, "limits:\n  queue_wait_s: 5\n"))
    assert config.limits.queue_wait_s == 5


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("limits:\n  max_queue: 5\n", "limits.max_queue"),
        ("limits:\n  max_queued: 0\n", "limits.max_queued"),
        ("limits:\n  queue_wait_s: soon\n", "limits.queue_wait_s"),
        ("http:\n  port: 70000\n", "http.port"),
        ("steering:\n  mode: bold\n", "steering.mode"),
        ("logs:\n  access: stdoud\n", "logs.access"),
        ("logs:\n  access: logs/access.jsonl\n", "logs.access"),
        ("gateway: {}\n", "gateway"),
        ("- http\n", "holds a list"),
        ("http: [\n", "cannot be read"),
    ],
)
def test_mistakes_name_the_file_and_the_field(tmp_path: Path, text: str, named: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_serve_config(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_serve_config(tmp_path / "absent.yaml")


def test_a_replica_holds_its_batch_or_its_kv_cache_whichever_is_less() -> None:
    batch = 4 * (100 + 50 / 2) * 1.2
    for capacity, held in ((None, batch), (10**6, batch), (200, 200.0), (0, 1.0)):
        made = plan(kv_capacity_tokens=capacity)
        assert in_flight_tokens(made.main, plan=made) == pytest.approx(held)


def test_capacity_comes_from_the_expectation() -> None:
    made = plan(kv_capacity_tokens=10**6, goodput_rps=2.0)
    (pool,) = controller_params(made, SteeringSection()).pools
    assert pool.capacity_tokens_per_s == pytest.approx(2 * request_tokens(made))
    assert (pool.minimum, pool.maximum) == (1, 3)


@pytest.mark.parametrize("made", [plan(), plan(kv_capacity_tokens=100, goodput_rps=0)])
def test_without_an_expectation_capacity_is_still_positive(made: Plan) -> None:
    (pool,) = controller_params(made, SteeringSection()).pools
    assert pool.capacity_tokens_per_s > 0


def test_steering_that_cannot_work_is_refused_before_it_starts(tmp_path: Path) -> None:
    text = "steering:\n  target_utilisation: 0.5\n  down_utilisation: 0.9\n"
    with pytest.raises(ConfigError, match="utilisation"):
        controller_params(plan(), load_serve_config(written(tmp_path, text)).steering)


def test_advisory_mode_reaches_the_controller(tmp_path: Path) -> None:
    config = load_serve_config(written(tmp_path, "steering:\n  mode: advisory\n"))
    assert controller_params(plan(), config.steering).mode is Mode.ADVISORY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "method: prophet",
            "unknown forecaster 'prophet'.*auto, ewma, ewma_or_burst",
        ),
        ("season_s: 90000000", r"forecast\.season_s.*at most 172800"),
        ("history_s: 60", r"forecast\.history_s.*at least 1800"),
        ("switch_margin: 1.0", r"forecast\.switch_margin.*below 1"),
    ],
)
def test_forecasts_that_cannot_work_are_refused_with_the_limit(
    tmp_path: Path, text: str, expected: str
) -> None:
    config = load_serve_config(written(tmp_path, f"steering:\n  forecast:\n    {text}\n"))
    with pytest.raises(InputError, match=expected):
        controller_params(plan(), config.steering)


def test_forecast_settings_reach_the_controller(tmp_path: Path) -> None:
    text = "steering:\n  forecast:\n    method: auto\n    refit_s: 120\n"
    found = controller_params(plan(), load_serve_config(written(tmp_path, text)).steering).forecast
    assert (found.method, found.refit_s) == ("auto", 120.0)


@pytest.mark.parametrize("text", ["tick_s: 3\n", "http: {}\nsteering:\n  tick_s: 3\n"])
def test_steering_is_read_alone_or_from_a_whole_configuration(tmp_path: Path, text: str) -> None:
    assert load_steering(written(tmp_path, text)).tick_s == 3.0


@pytest.mark.parametrize("access", ["ray", "stdout", "/var/log/access.jsonl", None])
def test_the_request_log_goes_where_it_is_told_to(tmp_path: Path, access: str | None) -> None:
    text = f"logs:\n  access: {'null' if access is None else access}\n"
    found = load_serve_config(written(tmp_path, text)).logs.access
    assert (None if found is None else str(found)) == access


def test_an_unknown_long_input_policy_is_told_which_there_are(tmp_path: Path) -> None:
    path = written(tmp_path, "long_input:\n  policy: shorten\n")
    with pytest.raises(ConfigError, match=r"long_input\.policy.*reject, sliding_window"):
        load_serve_config(path)


def test_the_example_holds_every_setting_with_its_default() -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "serve.yaml"
    written_out = yaml.safe_load(example.read_text(encoding="utf-8"))
    assert written_out == ServeConfig().model_dump(mode="json")


@pytest.mark.parametrize(
    ("sections", "open_to_all"),
    [
        ({}, False),
        ({"http": {"host": "localhost"}}, False),
        ({"http": {"host": "0.0.0.0"}}, True),
        ({"http": {"host": "10.0.0.7"}}, True),
        ({"http": {"host": "::"}, "access": {"keys_file": "/etc/keys.yaml"}}, False),
    ],
)
def test_a_service_for_others_without_keys_is_known_as_open(sections, open_to_all) -> None:
    assert ServeConfig.model_validate(sections).open_to_all is open_to_all
