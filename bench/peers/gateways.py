"""Which gateways are compared, and how is each started?

One process of each (the Rust routers have threads), on the loopback interface, one engine behind
it, nothing logged per request, the cheapest routing it has: settings that favour the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.gateway_parts.load import Target
from bench.gateway_parts.process import free_port, module, own_environment, running
from bench.gateway_parts.shardwise import shardwise
from bench.gateway_parts.table import ENGINE, OURS
from bench.peers.environment import installed, surroundings
from serving.bundled import HEAVY, bundled_path


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory for what a gateway writes, and the port of the engine it is to use."""

    directory: Path
    engine_port: int

    @property
    def engine_url(self) -> str:
        """Where the engine is."""
        return f"http://127.0.0.1:{self.engine_port}"


Gateway = Callable[[Place], AbstractContextManager[Target]]


@contextmanager
def bare_engine(place: Place) -> Iterator[Target]:
    """No gateway at all: what the load generator and the engine can do by themselves."""
    yield Target(port=place.engine_port, model=HEAVY)


def ours(place: Place) -> AbstractContextManager[Target]:
    """Our gateway; it has the same engine in a replica of its own, behind its own wire."""
    return shardwise(place.directory)


def production_stack(place: Place) -> AbstractContextManager[Target]:
    """The router of vLLM's production-stack."""
    port = free_port()
    program = str(installed("production-stack") / "vllm-router")
    return _peer(
        "production-stack",
        place,
        port,
        [
            *(program, "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"),
            *("--service-discovery", "static", "--static-backends", place.engine_url),
            *("--static-models", HEAVY, "--routing-logic", "roundrobin"),
        ],
    )


def vllm_router(place: Place) -> AbstractContextManager[Target]:
    """The router in Rust of the vLLM project."""
    program = [str(installed("vllm-router") / "vllm-router")]
    return _rust("vllm-router", place, program)


def sglang_router(place: Place) -> AbstractContextManager[Target]:
    """SGLang's router in Rust."""
    python = str(installed("sglang-router") / "python")
    return _rust("sglang-router", place, [python, "-m", "sglang_router.launch_router"])


def litellm(place: Place) -> AbstractContextManager[Target]:
    """LiteLLM's proxy, without a database and without keys, as ours runs here."""
    port = free_port()
    engine = {"model": f"openai/{HEAVY}", "api_base": f"{place.engine_url}/v1", "api_key": "none"}
    config = place.directory / "litellm.yaml"
    config.write_text(
        yaml.safe_dump({"model_list": [{"model_name": HEAVY, "litellm_params": engine}]})
    )
    program = str(installed("litellm") / "litellm")
    return _peer(
        "litellm",
        place,
        port,
        [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        LITELLM_LOG="ERROR",
        LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY="true",
    )


def serve_llm(place: Place) -> AbstractContextManager[Target]:
    """Ray Serve LLM as it comes."""
    return _serve_llm("serve-llm", place)


def serve_llm_haproxy(place: Place) -> AbstractContextManager[Target]:
    """Ray Serve LLM behind HAProxy."""
    return _serve_llm("serve-llm-haproxy", place, RAY_SERVE_ENABLE_HA_PROXY="1")


def serve_llm_direct(place: Place) -> AbstractContextManager[Target]:
    """Ray Serve LLM behind HAProxy, which sends requests to the engine's own server."""
    return _serve_llm(
        "serve-llm-direct",
        place,
        RAY_SERVE_ENABLE_HA_PROXY="1",
        RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING="1",
    )


GATEWAYS: dict[str, Gateway] = {
    ENGINE: bare_engine,
    OURS: ours,
    "production-stack": production_stack,
    "litellm": litellm,
    "vllm-router": vllm_router,
    "sglang-router": sglang_router,
    "serve-llm": serve_llm,
}
# Ray makes these listen on every interface of the machine: only for who names them.
EXPOSED: dict[str, Gateway] = {
    "serve-llm-haproxy": serve_llm_haproxy,
    "serve-llm-direct": serve_llm_direct,
}


def _peer(
    name: str, place: Place, port: int, command: list[str], **environment: str
) -> AbstractContextManager[Target]:
    return running(
        command,
        target=Target(port=port, model=HEAVY),
        environment=surroundings(place.directory, **environment),
        log=place.directory / f"{name}.log",
    )


def _rust(name: str, place: Place, program: list[str]) -> AbstractContextManager[Target]:
    port = free_port()
    return _peer(
        name,
        place,
        port,
        [
            *(*program, "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"),
            *("--worker-urls", place.engine_url, "--policy", "round_robin"),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        ],
    )


def _serve_llm(name: str, place: Place, **environment: str) -> AbstractContextManager[Target]:
    port = free_port()
    source = str(bundled_path(HEAVY))
    return running(
        module(
            "bench.peers.serve_llm_app",
            *("--port", str(port), "--model", HEAVY, "--source", source),
        ),
        target=Target(port=port, model=HEAVY),
        environment=own_environment(
            RAYLLM_VLLM_ENGINE_CLS="bench.peers.serve_llm_engine.FakeServeEngine", **environment
        ),
        log=place.directory / f"{name}.log",
    )
