"""How does a node get a model from the hub? Through huggingface_hub, as vLLM would."""

from __future__ import annotations

from pathlib import Path

from cluster.errors import UnavailableError
from serving.weights.manifest import is_whole

# What vLLM reads: it prefers safetensors, and so do we where a repository has both.
_WEIGHTS = (["*.safetensors"], ["*.bin"], ["*.pt"])
_REST = ["*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken", "*/config.json"]


def snapshot_here(repository: str, *, revision: str | None) -> Path | None:
    """The whole snapshot in this node's hub cache, None if it is not there."""
    from huggingface_hub import snapshot_download

    try:
        found = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        return None
    return found if is_whole(found) else None


def download(repository: str, *, revision: str | None) -> Path:
    """Download it; blocks for as long as that takes. Raises UnavailableError."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        names = HfApi().list_repo_files(repository, revision=revision)
        weights = next((kind for kind in _WEIGHTS if _any(names, kind[0])), [])
        patterns = [*weights, *_REST]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"model {repository} cannot be downloaded ({type(error).__name__}: {error}). Fix: see "
            "that this node reaches the hub and may read the model (HF_TOKEN), or plan with "
            "--model-source DIRECTORY."
        ) from error


def _any(names: list[str], pattern: str) -> bool:
    return any("/" not in name and name.endswith(pattern[1:]) for name in names)
