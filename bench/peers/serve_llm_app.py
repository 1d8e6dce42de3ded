"""Ray Serve LLM's own ingress, until SIGTERM.

    python -m bench.peers.serve_llm_app --port P --model NAME --source DIRECTORY

`build_openai_app` as Ray documents it, in a local cluster of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--source", required=True)
    arguments = parser.parse_args()
    stop = threading.Event()
    try:
        # CPUs are what Ray may schedule, not what there is: two ingress replicas and the server.
        ray.init(address="local", num_cpus=8, log_to_driver=False, include_dashboard=False)
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        serve.start(http_options={"host": "127.0.0.1", "port": arguments.port})
        config = LLMConfig(
            model_loading_config={"model_id": arguments.model, "model_source": arguments.source},
            deployment_config={"num_replicas": 1},
            placement_group_config={"bundles": [{"CPU": 1}]},
            log_engine_metrics=False,
        )
        serve.run(build_openai_app({"llm_configs": [config]}), name="llm", route_prefix="/")
        stop.wait()
    finally:
        with contextlib.suppress(Exception):
            serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
