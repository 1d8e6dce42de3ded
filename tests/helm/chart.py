"""The chart under the real Helm: rendered, or refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.tooling.helm import helm

CHART = Path(__file__).resolve().parents[2] / "helm" / "shardwise"
Values = Mapping[str, Any]

# What has no default, because nobody could choose it for the operator.
NEEDED: Values = {
    "image": {"repository": "registry.example/shardwise", "tag": "0.1.0-gpu"},
    "access": {"anyone": True},
    "gcs": {"redis": {"inChart": {"enabled": True}}},
}


@dataclass(frozen=True)
class Rendered:
    """Manifests of a release."""

    manifests: tuple[dict[str, Any], ...] = field(repr=False)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (manifest,) = self.of(kind)
        return manifest

    @property
    def cluster(self) -> dict[str, Any]:
        """The Ray cluster's specification."""
        spec: dict[str, Any] = self.one("RayService")["spec"]["rayClusterConfig"]
        return spec

    def group(self, name: str) -> dict[str, Any]:
        """A group of worker pods."""
        return next(g for g in self.cluster["workerGroupSpecs"] if g["groupName"] == name)

    @property
    def serve_config(self) -> dict[str, Any]:
        """What KubeRay puts to Serve's REST interface."""
        text = self.one("RayService")["spec"]["serveConfigV2"]
        made: dict[str, Any] = yaml.safe_load(text)
        return made

    def pod_specs(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Pods and templates of pods, wherever they stand: where, metadata, spec."""
        for manifest in self.manifests:
            yield from _pods(manifest, manifest["kind"])


class HelmRefusedError(Exception):
    """What Helm said."""


def render(folder: Path, values: Values, *, plan: str | None = None) -> Rendered:
    """The release `chat` under `NEEDED` and `values`. Raises HelmRefusedError."""
    text = run(folder, "template", "chat", values=merged(NEEDED, values), plan=plan)
    return Rendered(tuple(filter(None, yaml.safe_load_all(text))))


def run(folder: Path, *words: str, values: Values, plan: str | None = None) -> str:
    """What a command of Helm prints of the chart. Raises HelmRefusedError."""
    given = folder / "given.json"  # which is YAML too
    given.write_text(json.dumps(values))
    command = [str(helm()), *words, str(CHART), "--values", str(given)]
    if plan is not None:
        (folder / "plan.json").write_text(plan)
        command += ["--set-file", f"plan={folder / 'plan.json'}"]
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}  # nobody's own settings
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    if done.returncode:
        raise HelmRefusedError(done.stderr)
    return done.stdout


def merged(values: Values, over: Values) -> dict[str, Any]:
    """As Helm merges values: mappings key by key."""
    made = dict(values)
    for name, value in over.items():
        old = made.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        made[name] = merged(old, value) if both else value  # type: ignore[arg-type]
    return made


def _pods(part: Any, where: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    if isinstance(part, Mapping):
        spec = part.get("spec")
        if isinstance(spec, Mapping) and "containers" in spec:
            yield where, part.get("metadata", {}), dict(spec)
        for name, inner in part.items():
            yield from _pods(inner, f"{where}.{name}")
    elif isinstance(part, list):
        for index, inner in enumerate(part):
            yield from _pods(inner, f"{where}[{index}]")
