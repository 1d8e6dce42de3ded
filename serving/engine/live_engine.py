"""What does a real vLLM engine answer, and when? One engine in this process, asked token by token.

`LiveEngine.start` brings up vLLM's asynchronous front end with its engine-core process, as a
replica does; `ask` sends one prompt of token ids and keeps two clocks of every token: when the
engine's step ended and when the caller had it. Both are the machine's monotonic clock, so that
their difference is the front end's share. Leaving the context ends the engine's processes.

On CPU: float32, eager, one rank inside the engine core (`bench/cpu_engine.py` says why). Elsewhere
vLLM's own defaults.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.errors import InputError, UnavailableError

_GIB = 1024**3
# vLLM's CPU build turns `uni` into `mp`, but not the class by its name.
_IN_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

# Unless somebody asks for more.
_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """What to start: a model's directory, limits of a step and of a sequence, cores.

    `kv_bytes`: KV cache on CPU. `engine_args` go to vLLM as they are, over all others.
    """

    model: Path
    max_num_seqs: int = 16
    max_model_len: int = 2048
    chunk: int = 512
    threads: int = 1
    kv_bytes: int = _GIB
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, *, cpu: bool) -> dict[str, Any]:
        """Engine arguments of vLLM."""
        on_cpu: dict[str, Any] = {
            "dtype": "float32",
            "enforce_eager": True,
            "kv_cache_memory_bytes": self.kv_bytes,
            "distributed_executor_backend": _IN_CORE,
        }
        return {
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.chunk,
            "enable_prefix_caching": False,
            **(on_cpu if cpu else {}),
            **self.engine_args,
        }


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One request as its caller and as the engine saw it, on the monotonic clock.

    `stepped_s`: ends of the engine's steps that made a token; `heard_s`: when the caller had it.
    They differ in length if the caller fell behind and several tokens came as one: `tokens` counts.
    """

    prompt_tokens: int
    sent_s: float
    queued_s: float
    scheduled_s: float
    stepped_s: tuple[float, ...]
    heard_s: tuple[float, ...]
    tokens: int


class LiveEngine:
    """A started engine. Use `async with LiveEngine.start(settings)`."""

    def __init__(self, engine: Any, settings: LiveSettings, *, arguments: dict[str, Any]) -> None:
        self._engine = engine
        self._numbers = itertools.count()
        self.settings = settings
        self.arguments = arguments

    @classmethod
    @asynccontextmanager
    async def start(cls, settings: LiveSettings) -> AsyncIterator[LiveEngine]:
        """Bring the engine up, and down again whatever happens.

        Raises UnavailableError where vLLM is not installed or does not start.
        """
        with _environment(settings):
            made, arguments = _make(settings)
        engine = cls(made, settings, arguments=arguments)
        try:
            yield engine
        finally:
            await engine._close()

    async def _close(self) -> None:
        """Wait for the engine core to be gone: nothing of ours outlives this."""
        handler = self._engine.output_handler
        self._engine.shutdown()
        if handler is not None:
            await asyncio.gather(handler, return_exceptions=True)

    @property
    def kv_tokens(self) -> int:
        """Tokens the KV cache holds."""
        cache = self._engine.vllm_config.cache_config
        return int(cache.num_gpu_blocks) * int(cache.block_size)

    @property
    def async_scheduling(self) -> bool:
        """Whether a step is scheduled while the one before runs: newcomers wait a step longer."""
        return bool(self._engine.vllm_config.scheduler_config.async_scheduling)

    @property
    def vocabulary(self) -> int:
        """Token ids there are."""
        return int(self._engine.model_config.get_vocab_size())

    @property
    def version(self) -> str:
        """The engine's name and version."""
        import vllm

        return f"vllm {vllm.__version__}"

    @property
    def device(self) -> str:
        """The accelerator's name, or the processor's."""
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return str(current_platform.get_device_name())
        with suppress(OSError):
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        return platform.machine()

    async def ask(
        self, prompt: Sequence[int], *, output: int, first: asyncio.Event | None = None
    ) -> Heard:
        """Generate exactly `output` tokens after `prompt`; `first` is set with the first of them.

        Cancelling aborts the request.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        stepped: list[float] = []
        heard: list[float] = []
        tokens, metrics = 0, None
        body = {"type": "token", "prompt_token_ids": list(prompt)}
        number = f"live-{next(self._numbers)}"
        sent = time.monotonic()
        async for reply in self._engine.generate(body, sampling, number):
            heard.append(time.monotonic())
            if first is not None:
                first.set()
            metrics = reply.metrics
            stepped.append(metrics.last_token_ts)
            tokens += len(reply.outputs[0].token_ids)
        if metrics is None:
            raise UnavailableError(f"the engine ended request {number} without a token.")
        return Heard(
            prompt_tokens=len(prompt),
            sent_s=sent,
            queued_s=metrics.queued_ts,
            scheduled_s=metrics.scheduled_ts,
            stepped_s=tuple(stepped),
            heard_s=tuple(heard),
            tokens=tokens,
        )


def _make(settings: LiveSettings) -> tuple[Any, dict[str, Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries' own making
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise UnavailableError(
            f"vLLM cannot be imported ({error}), and a live engine is what is measured. "
            "Fix: install the cpu or the gpu extra (`make up` does)."
        ) from error
    arguments = settings.arguments(cpu=bool(current_platform.is_cpu()))
    quiet = {"use_tqdm_on_load": False, "disable_log_stats": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = _without_destructor(AsyncLLM).from_engine_args(
                AsyncEngineArgs(model=str(settings.model), **quiet, **arguments),
                # Without a logger vLLM stamps no request.
                stat_loggers=[_silent_logger()],
            )
    except (TypeError, ValueError) as error:  # pydantic's are ValueErrors
        raise InputError(
            f"vLLM refuses these engine arguments ({_first_line(error)}). "
            "Fix: change --max-num-seqs, --max-model-len or --chunk."
        ) from error
    except RuntimeError as error:
        raise UnavailableError(
            f"the vLLM engine of {settings.model.name} does not start ({_first_line(error)}). "
            "Fix: see its messages above; often memory is short for the model or its KV cache."
        ) from error
    return made, arguments


def _without_destructor(engine_class: Any) -> Any:
    """Its destructor shuts down, as `_close` has: at exit, when the parts it needs are gone."""

    class Closed(engine_class):  # type: ignore[misc]  # vLLM's is untyped here
        def __del__(self) -> None:
            pass

    return Closed


def _silent_logger() -> type:
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Silent(StatLoggerBase):  # type: ignore[misc]  # vLLM's is untyped here
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, *_: Any, **__: Any) -> None:
            pass

        def log_engine_initialized(self) -> None:
            pass

    return Silent


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__


@contextmanager
def _environment(settings: LiveSettings) -> Iterator[None]:
    """What vLLM and its engine core read when they start; afterwards as it was."""
    wanted = {
        "OMP_NUM_THREADS": str(settings.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would keep this process's threads
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **{name: os.environ.get(name, value) for name, value in _QUIET.items()},
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
