"""One vLLM engine under Ray Serve's LLM server: start it, ask it, watch it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from serving.engine import fast_start
from serving.engine.steps import Steps
from serving.messages import EngineError, EngineReply, EngineRequest, EngineSpec
from serving.telemetry.contract import CONTRACT
from serving.telemetry.engine_rows import READ
from serving.tracing import otlp_endpoint

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

    from prometheus_client import CollectorRegistry
    from ray.serve.llm import LLMConfig


class Engine:
    """A started engine. Use `await Engine.start(spec)`."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._steps = Steps(server.engine._engine_client)

    @classmethod
    async def start(cls, spec: EngineSpec) -> Engine:
        """Load the model and start the engine processes; takes as long as the model loads."""
        _set_environment(spec)  # before any process is started or vLLM imported
        fork_server: ForkServerContext | None = None
        if spec.device_kind == "cpu":
            # Three serial imports become one and a fork: the difference is most of a cold start.
            fork_server = fast_start.preload_engine_processes()
        with fast_start.undisturbed_imports():
            server_class, config = await asyncio.to_thread(_configure, spec)
        if fork_server is not None:
            fast_start.use_for_engine_core(fork_server)
        server = server_class.sync_init(config)
        await server.start()
        return cls(server)

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        """Stream the engine's replies: SSE payloads while streaming, else one response.

        Closing the iterator aborts the request inside the engine.
        """
        from ray.llm._internal.serve.core.configs.openai_api_models import (
            ChatCompletionRequest,
            CompletionRequest,
            EmbeddingCompletionRequest,
        )
        from ray.llm._internal.serve.core.protocol import RawRequestInfo

        body = {**request.body, "request_id": request.request_id}
        engine = self._server.engine
        headers = RawRequestInfo(headers=dict(request.trace))
        try:
            if request.kind == "chat":
                replies = engine.chat(ChatCompletionRequest(**body), headers)
            elif request.kind == "completions":
                replies = engine.completions(CompletionRequest(**body), headers)
            else:
                replies = engine.embeddings(EmbeddingCompletionRequest(**body), headers)
        except ValueError as error:  # pydantic's: a field only the engine knows the rules of
            yield EngineError(status=400, message=_first_problem(error), retryable=False)
            return
        # Not the server's own chat(): that holds every token back for its batching interval.
        async for reply in replies:
            yield _translate(reply)

    async def check(self) -> None:
        """Raise if the engine is dead."""
        await self._server.check_health()

    def stats(self) -> dict[str, float]:
        """Sequences, KV usage and tokens since the start by the engine's metrics, and its steps."""
        from prometheus_client import REGISTRY

        return read_metrics(REGISTRY) | {"steps": float(self._steps.count)}


def read_metrics(registry: CollectorRegistry) -> dict[str, float]:
    """What of the engine's own metrics is reported, over all its engines; 0 what is not there."""
    values = dict.fromkeys(READ, 0.0)
    names = {CONTRACT[name].base: key for key, name in READ.items()}
    for family in registry.collect():
        if family.name in names:
            values[names[family.name]] = sum(
                sample.value
                for sample in family.samples
                if not sample.name.endswith("_created")  # when a counter began
            )
    return values


def _configure(spec: EngineSpec) -> tuple[Any, LLMConfig]:
    from ray.llm._internal.common.callbacks.base import CallbackBase, CallbackConfig
    from ray.serve.llm import LLMConfig
    from ray.serve.llm.deployment import LLMServer

    class QuietServer(LLMServer):  # type: ignore[misc]  # Ray's is untyped
        # Otherwise every start waits seconds for an actor that reports usage, switched off or not.
        async def _start_engine(self) -> None:
            await self.engine.start()

    class LoadInPlace(CallbackBase):  # type: ignore[misc]  # Ray's is untyped
        # Otherwise every start waits for a task per node that imports vLLM only to look whether
        # the model is there; vLLM finds a directory or fetches a hub id by itself.
        async def on_before_node_init(self) -> None:
            self.ctx.run_init_node = False

    config = LLMConfig(
        model_loading_config={"model_id": spec.model_name, "model_source": spec.model_source},
        engine_kwargs=_traced() | spec.engine_args,
        placement_group_config={"bundles": [dict(bundle) for bundle in spec.bundles]},
        # vLLM's own Prometheus logger: its gauges are read in this process by `Engine.stats`.
        log_engine_metrics=False,
        callback_config=CallbackConfig(callback_class=LoadInPlace),
    )
    if spec.device_kind == "cpu":
        _run_cpu_ranks(config, ranks=len(spec.bundles))
    return QuietServer, config


def _traced() -> dict[str, Any]:
    """The argument with which vLLM sends its spans to where this process sends its own."""
    endpoint = otlp_endpoint()
    return {} if endpoint is None else {"otlp_traces_endpoint": endpoint}


def _run_cpu_ranks(config: LLMConfig, *, ranks: int) -> None:
    """Choose the executor of a CPU replica; Serve's LLM server would run plain processes.

    One rank runs inside the engine core: in a process of its own, it leaves the core spinning
    while it computes, and a replica keeps two CPU cores busy for the work of one
    (`bench/cpu_engine.py --executor mp`). Several ranks become Ray workers in the placement
    group, one per bundle, as on GPUs: plain processes Ray would neither place nor see.
    """
    from ray.llm._internal.serve.engines.vllm.vllm_models import VLLMEngineConfig
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from serving.engine.cpu_ranks import CpuRayExecutor

    executor = UniProcExecutor if ranks == 1 else CpuRayExecutor

    class CpuEngineConfig(VLLMEngineConfig):  # type: ignore[misc]  # Ray's is untyped
        def get_initialization_kwargs(self) -> dict[str, Any]:
            kwargs: dict[str, Any] = super().get_initialization_kwargs()
            return kwargs | {"distributed_executor_backend": executor}

    config._engine_config = CpuEngineConfig(**config.get_engine_config().model_dump())


def _set_environment(spec: EngineSpec) -> None:
    """Settings vLLM reads from the environment, set before its first import."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if spec.device_kind == "cpu":
        # Cores are shared by replicas and tests: the kernel schedules, nothing is pinned.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def _first_problem(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _translate(reply: Any) -> EngineReply:
    """From Ray's and vLLM's reply types to ours."""
    if isinstance(reply, str):
        return _translate_event(reply)
    error = getattr(reply, "error", None)
    if error is not None:
        status = int(error.code or 500)
        return EngineError(status=status, message=str(error.message), retryable=status >= 500)
    data: dict[str, Any] = reply.model_dump(mode="json", exclude_none=True)
    return data


def _translate_event(event: str) -> EngineReply:
    payload = event.removeprefix("data: ").rstrip("\n")
    if payload.startswith('{"error"'):
        error = json.loads(payload)["error"]
        status = int(error.get("code") or 500)
        return EngineError(status=status, message=str(error["message"]), retryable=status >= 500)
    return payload
