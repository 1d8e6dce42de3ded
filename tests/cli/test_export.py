from __future__ import annotations

import json
import shlex
from importlib import import_module

import pytest
import typer
import yaml
from typer.testing import CliRunner

from cli.export import command
from cluster.errors import InputError, UnknownNameError
from cluster.export import CONFIGURED, FORMATS, export
from cluster.model.plan import parse_plan
from serving.rayservice.wanted import read_wanted

PLAN = """{
  "cluster": {"spec": "4x8xH200", "device": "h200", "nodes": 4, "devices_per_node": 8},
  "workload": {"isl": 4000, "osl": 500},
  "slo": {},
  "pools": [
    {
      "name": "main",
      "model": {"name": "chat", "source": "deepseek-ai/DeepSeek-V3", "params": 1,
                "weight_bytes": 1, "max_context": 8192},
      "layout": {"tp": 2, "dp": 8, "pp": 1, "moe_ep": 16, "max_num_batched_tokens": 1024},
      "replicas": {"minimum": 1, "initial": 1, "maximum": 2},
      "engine_args": {"tensor_parallel_size": 2, "data_parallel_size": 8,
                      "enable_expert_parallel": true, "gpu_memory_utilization": 0.8}
    },
    {
      "name": "light",
      "model": {"name": "org/small", "source": "/models/with space", "params": 1,
                "weight_bytes": 1, "max_context": 8192},
      "layout": {},
      "replicas": {"minimum": 0, "initial": 0, "maximum": 1},
      "engine_args": {"tensor_parallel_size": 1, "enable_expert_parallel": false}
    }
  ]
}"""

SERVE = """\
#!/bin/sh
# One replica of each pool; ports and machines are up to the caller.

# pool main: 1 to 2 replicas, 1 at first
vllm serve deepseek-ai/DeepSeek-V3 \\
  --served-model-name chat \\
  --tensor-parallel-size 2 \\
  --data-parallel-size 8 \\
  --enable-expert-parallel \\
  --gpu-memory-utilization 0.8

# pool light: 0 to 1 replicas, 0 at first
vllm serve '/models/with space' \\
  --served-model-name org/small \\
  --tensor-parallel-size 1 \\
  --no-enable-expert-parallel
"""

NIM = """\
--model deepseek-ai/DeepSeek-V3 --parallelism tp=2,ep=16,pp=1,dp=8 --chunk_size 1024
--model '/models/with space' --parallelism tp=1,ep=1,pp=1 --chunk_size 2048
"""

CONFIG = """\
# pool light: 0 to 1 replicas, 0 at first, a server each
name: "org--small"
backend: "vllm"
# The engine batches and places its ranks itself.
instance_group [
  {
    count: 1
    kind: KIND_MODEL
  }
]
"""


# One engine a replica, as gateways here serve it.
SERVED = PLAN.replace('"dp": 8, "pp": 1, "moe_ep": 16', '"dp": 1, "pp": 8, "moe_ep": 2').replace(
    '"data_parallel_size": 8', '"pipeline_parallel_size": 8'
)


def text_of(name: str) -> str:
    return SERVED if name in CONFIGURED else PLAN


def texts(name: str) -> dict[str, str]:
    plan = parse_plan(text_of(name), source="test")
    return {file.path: file.text for file in export(plan, name)}


def test_vllm_is_a_script_of_command_lines():
    assert texts("vllm") == {"serve.sh": SERVE}
    line = SERVE.split("# pool light")[1].split("\n", 1)[1]
    assert shlex.split(line.replace("\\\n", ""))[2] == "/models/with space"


def test_nim_says_dp_only_where_it_is_not_ep():
    assert texts("nim") == {"nim.txt": NIM}


def test_triton_is_a_repository_with_a_directory_per_pool():
    files = texts("triton")
    assert sorted(files) == [
        "chat/1/model.json",
        "chat/config.pbtxt",
        "org--small/1/model.json",
        "org--small/config.pbtxt",
    ]
    assert files["org--small/config.pbtxt"] == CONFIG
    assert json.loads(files["chat/1/model.json"]) == {
        "model": "deepseek-ai/DeepSeek-V3",
        "tensor_parallel_size": 2,
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
        "gpu_memory_utilization": 0.8,
    }


def test_bundles_are_one_per_rank():
    groups = json.loads(texts("bundles")["bundles.json"])
    assert groups["main"]["strategy"] == "PACK"  # 16 ranks on nodes of 8
    assert groups["main"]["bundles"] == [{"CPU": 1.0, "GPU": 1.0}] * 16
    assert groups["light"]["strategy"] == "STRICT_PACK"
    assert groups["light"]["replicas"] == {"minimum": 0, "initial": 0, "maximum": 1}


def call(tmp_path, *arguments: str, plan: str = PLAN):
    path = tmp_path / "plan.json"
    path.write_text(plan)
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(path), *arguments])


def test_a_single_file_goes_to_stdout_as_it_is(tmp_path):
    assert call(tmp_path, "--format", "vllm").output == SERVE


def test_several_files_are_told_apart(tmp_path):
    output = call(tmp_path, "--format", "triton").output
    assert "# chat/1/model.json\n{" in output


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_can_be_written_to_a_directory(tmp_path, name):
    result = call(tmp_path, "--format", name, "--out", str(tmp_path / "to"), plan=text_of(name))
    assert result.exit_code == 0, result.output
    for path, text in texts(name).items():
        assert (tmp_path / "to" / path).read_text() == text


@pytest.mark.parametrize("name", FORMATS)
def test_a_layout_that_was_broken_by_hand_is_not_exported(tmp_path, name):
    broken = text_of(name).replace('"tp": 2', '"tp": 3').replace('_size": 2', '_size": 3')
    result = call(tmp_path, "--format", name, "--out", str(tmp_path / "to"), plan=broken)
    assert isinstance(result.exception, InputError)
    assert "pool 'main' of the plan: " in str(result.exception)
    assert not (tmp_path / "to").exists()


def test_an_unknown_format_names_the_known_ones(tmp_path):
    result = call(tmp_path, "--format", "vlm")
    assert isinstance(result.exception, UnknownNameError)
    assert "Did you mean vllm" in str(result.exception)


def test_a_catalogue_name_is_exported_as_its_repository() -> None:
    named = parse_plan(PLAN.replace("deepseek-ai/DeepSeek-V3", "deepseek-v3"), source="test")
    assert export(named, "vllm") == export(parse_plan(PLAN, source="test"), "vllm")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, at import
def test_ray_s_own_llm_application_takes_its_configuration():
    from ray.serve.llm import LLMConfig
    from ray.serve.schema import ServeDeploySchema

    made = yaml.safe_load(texts("ray-llm")["serve.yaml"])
    application = ServeDeploySchema.model_validate(made).applications[0]
    assert application.import_path == "ray.serve.llm:build_openai_app"
    main, light = (LLMConfig(**model) for model in application.args["llm_configs"])
    assert main.model_id == "chat"
    assert main.engine_kwargs["tensor_parallel_size"] == 2
    assert len(main.placement_group_config["bundles"]) == 16
    assert light.deployment_config["num_replicas"] == 1


def test_ray_serve_takes_the_configuration_and_its_application_the_arguments():
    from ray.serve.schema import ServeDeploySchema

    made = ServeDeploySchema.model_validate(yaml.safe_load(texts("serve")["serve.yaml"]))
    (application,) = made.applications
    assert made.proxy_location.value == "Disabled"
    module, name = application.import_path.split(":")
    assert hasattr(import_module(module), name)
    assert read_wanted(application.args).plan == parse_plan(SERVED, source="test")


def test_helm_values_hold_the_plan():
    values = yaml.safe_load(texts("helm")["values.yaml"])
    assert parse_plan(values["plan"], source="values.yaml") == parse_plan(SERVED, source="plan")


def test_a_serving_configuration_is_checked_and_written_as_it_was_given(tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text("http: {port: 9000}")
    result = call(tmp_path, "--format", "serve", "--config", str(config), plan=SERVED)
    (application,) = yaml.safe_load(result.output)["applications"]
    assert application["args"]["config"] == {"http": {"port": 9000}}
    config.write_text("http: {prot: 9000}")
    refused = call(tmp_path, "--format", "serve", "--config", str(config), plan=SERVED)
    assert "field 'http.prot'" in str(refused.exception)


def test_formats_without_a_place_for_it_refuse_a_serving_configuration(tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text("")
    result = call(tmp_path, "--format", "nim", "--config", str(config))
    assert "no place in nim. Fix: leave it out; serve and helm have one" in str(result.exception)


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_layout_that_gateways_cannot_serve_is_refused(tmp_path, name):
    result = call(tmp_path, "--format", name)
    assert "dp = 8" in str(result.exception)
    assert "Fix: plan with --max-dp 1" in str(result.exception)
