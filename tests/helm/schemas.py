"""Is a manifest what Kubernetes and KubeRay take? By their own schemas, unknown fields refused.

Kubernetes' schemas come with the package kubernetes-validate. KubeRay's CRDs are looked for beside
the repository; without them its objects are held to the fields named here, and their pods to
Kubernetes' schema all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.helm.chart import Rendered
from tests.shared_data import shared_data

KUBERNETES = "1.36"
_CRDS = {"RayService": "ray.io_rayservices.yaml", "RayJob": "ray.io_rayjobs.yaml"}
# Of others: which fields their specifications must have, and may.
_OTHERS = {
    "PodMonitor": ({"selector", "podMetricsEndpoints"}, set()),
    "ServiceMonitor": ({"selector", "endpoints"}, set()),
    "PrometheusRule": ({"groups"}, set()),
    "HTTPRoute": ({"parentRefs", "rules"}, {"hostnames"}),
    "RayService": (
        {"serveConfigV2", "rayClusterConfig", "upgradeStrategy", "excludeHeadPodFromServeSvc"},
        {"serveService", "rayClusterDeletionDelaySeconds"},
    ),
    "RayJob": (
        {"entrypoint", "rayClusterSpec", "shutdownAfterJobFinishes"},
        {
            "ttlSecondsAfterFinished",
            "activeDeadlineSeconds",
            "submissionMode",
            "submitterPodTemplate",
        },
    ),
}
_GROUP = {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"}
_GROUP_MAY = {"replicas", "resources"}


def problems(rendered: Rendered) -> list[str]:
    """What is wrong with the manifests."""
    found = [problem for manifest in rendered.manifests for problem in _problems(manifest)]
    for where, metadata, spec in rendered.pod_specs():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"} | metadata}
        found += [f"{where}: {said}" for said in _kubernetes({**pod, "spec": spec})]
    return found


def crds() -> Path | None:
    """KubeRay's CRDs, where they are at hand."""
    data = shared_data()
    folder = None if data is None else data / "kuberay"
    return folder if folder is not None and folder.is_dir() else None


def _problems(manifest: dict[str, Any]) -> Iterator[str]:
    kind = manifest["kind"]
    if kind not in _OTHERS:
        yield from _kubernetes(manifest)
        return
    must, may = _OTHERS[kind]
    fields = set(manifest["spec"])
    yield from (f"{kind}: spec.{name} is missing" for name in sorted(must - fields))
    yield from (f"{kind}: spec.{name} is not known" for name in sorted(fields - must - may))
    if kind in _CRDS:
        for group in _cluster(manifest)["workerGroupSpecs"]:
            fields = set(group)
            yield from (f"{kind}: group without {name}" for name in sorted(_GROUP - fields))
            wrong = sorted(fields - _GROUP - _GROUP_MAY)
            yield from (f"{kind}: {name} of a group is not known" for name in wrong)
        if crds() is not None:
            yield from _crd(kind).iter_problems(manifest)


def _cluster(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    cluster: dict[str, Any] = spec.get("rayClusterConfig") or spec["rayClusterSpec"]
    return cluster


def _kubernetes(manifest: dict[str, Any]) -> Iterator[str]:
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        at = ".".join(str(part) for part in error.path)
        yield f"{manifest['kind']} {manifest['metadata'].get('name')}: {at}: {error.message}"


class _Crd:
    """The schema of a CRD, in which a field that is not named is wrong."""

    def __init__(self, path: Path) -> None:
        crd = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        version = next(v for v in crd["spec"]["versions"] if v["name"] == "v1")
        self._validator = jsonschema.Draft202012Validator(
            _closed(version["schema"]["openAPIV3Schema"])
        )

    def iter_problems(self, manifest: dict[str, Any]) -> Iterator[str]:
        for error in self._validator.iter_errors(manifest):
            yield f"{manifest['kind']}: {error.json_path}: {error.message[:300]}"


@cache
def _crd(kind: str) -> _Crd:
    folder = crds()
    assert folder is not None
    return _Crd(folder / _CRDS[kind])


def _closed(schema: Any) -> Any:
    """With every object that names its fields closed to others, `metadata` apart."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _closed(part) for name, part in schema.items()}
    open_anyway = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not open_anyway:
        made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("pattern", None)  # of the text; a number has none
    return made
