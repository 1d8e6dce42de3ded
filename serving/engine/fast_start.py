"""How does an engine start in one import of vLLM instead of three?

A replica runs vLLM in a chain of processes (front end, engine core, and as vLLM comes a worker),
and each one that is *spawned* imports vLLM again, one after the other. Here the engine core is
forked from a server process that imports vLLM at the same time as the front end does, and a single
rank runs inside the core. Measured by `bench/cold_start.py`.

Only where no accelerator runtime lives in the forked processes (the CPU build): a CUDA context
does not survive a fork, so GPU replicas keep vLLM's own way.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

import ray

# What the engine core needs; importing it starts no thread and no device.
_PRELOAD = [
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
]


def preload_engine_processes() -> ForkServerContext:
    """Start importing vLLM in a fork server, and return at once with its context."""
    # The engine core is no Ray process; it joins this cluster if its ranks are Ray workers.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    forkserver.ensure_running()
    return context


@contextmanager
def undisturbed_imports() -> Iterator[None]:
    """Import without garbage collection: vLLM's modules are a million objects, none of it garbage.

    What was imported is then kept out of later collections, which would only pause the streams.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def use_for_engine_core(context: ForkServerContext) -> None:
    """Make vLLM's engine-core launcher take its processes from `context`.

    vLLM offers "spawn" and "fork" only, and forces "spawn" inside a Ray actor.
    """
    from vllm.v1.engine import utils as engine_utils

    engine_utils.get_mp_context = lambda: context
