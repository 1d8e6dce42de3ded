"""Where does a pool's model come from? A directory, a bundled name, or a Hugging Face id."""

from __future__ import annotations

from pathlib import Path

from cluster.errors import InputError
from cluster.model.catalogue import hub_id
from cluster.model.plan import Plan
from serving.bundled import BUNDLED, bundled_path


def resolve_sources(plan: Plan) -> dict[str, str]:
    """What vLLM loads, per pool. Raises InputError naming the pool and the fix."""
    return {pool.name: _resolve(pool.model.source, pool=pool.name) for pool in plan.pools}


def with_sources(plan: Plan, sources: dict[str, str]) -> Plan:
    """The plan with what is really loaded: who loads it runs in another directory."""
    pools = tuple(
        pool.model_copy(
            update={"model": pool.model.model_copy(update={"source": sources[pool.name]})}
        )
        for pool in plan.pools
    )
    return plan.model_copy(update={"pools": pools})


def _resolve(source: str, *, pool: str) -> str:
    if source in BUNDLED:
        return str(bundled_path(source).resolve())  # as it is read again
    if (hub := hub_id(source)) is not None:
        return hub
    path = Path(source)
    if path.is_dir():
        if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
            raise InputError(
                f"pool '{pool}': {path} holds no weights (*.safetensors). A configuration alone "
                "can be planned, not served. Fix: name a directory with the whole model."
            )
        return str(path.resolve())
    if path.suffix == ".json" or path.is_file():
        raise InputError(
            f"pool '{pool}': {source} is a configuration file, which can be planned, not served. "
            "Fix: plan with --model-source DIRECTORY or a Hugging Face id."
        )
    if source.count("/") == 1 and not source.startswith((".", "/")):
        return source  # a hub id: vLLM fetches it, and says so if it cannot
    raise InputError(
        f"pool '{pool}': model source '{source}' is neither a directory, a bundled model "
        f"({', '.join(BUNDLED)}) nor a Hugging Face id (ORG/NAME). Fix: plan again with "
        "--model-source."
    )
