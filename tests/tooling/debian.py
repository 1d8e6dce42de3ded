"""Where is a program that a test needs? On the PATH, or unpacked from a Debian package, no root.

    tool("promtool")  ->  Path("/usr/bin/promtool")

Packages are downloaded by `apt-get` and unpacked by `dpkg-deb` into the user's cache, once. Lists
of packages are the system's if it has any (a clean container has none), else lists of its own
beside the cache. What a program depends on is not resolved: name its libraries' packages beside it,
but for those that every Debian has, and start it with `libraries(name)` in its environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# The program, and the packages that have it and its libraries; their folder has the first's name.
PACKAGES = {
    "prometheus": ("prometheus",),
    "promtool": ("prometheus",),
    "redis-server": ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"),
}
_LIMIT_S = 300.0


class ToolMissingError(RuntimeError):
    """A program is not here and cannot be fetched; the message says what to do."""


def tool(name: str) -> Path:
    """The program's path; fetches its packages where the machine does not have it.

    Raises ToolMissingError, KeyError for a program that is in no line of `PACKAGES`.
    """
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    packages = PACKAGES[name]
    folder = _folder(name)
    if not folder.exists():
        _fetch(packages, folder)
    for part in ("usr/bin", "usr/sbin", "bin", "sbin"):
        program = folder / part / name
        if program.exists():
            return program
    raise ToolMissingError(
        f"Debian's package '{packages[0]}' in {folder} has no program '{name}'. Fix: remove that "
        f"folder and try again, or install '{name}' so that it is on the PATH."
    )


def libraries(name: str) -> dict[str, str]:
    """What its environment must say for it to find its libraries; nothing for the machine's own."""
    found = sorted({str(library.parent) for library in _folder(name).rglob("*.so*")})
    return {} if shutil.which(name) or not found else {"LD_LIBRARY_PATH": os.pathsep.join(found)}


def cache() -> Path:
    """Where packages are unpacked."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "shardwise" / "tools"


def _folder(name: str) -> Path:
    return cache() / PACKAGES[name][0]


def _fetch(packages: Sequence[str], folder: Path) -> None:
    """Download and unpack; what is there in the end is whole."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise ToolMissingError(
                f"tests need Debian's package '{packages[0]}', and this machine has no {program} "
                f"to get it with. Fix: install '{packages[0]}' so that its programs are on the "
                "PATH."
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as directory:
        at = Path(directory)
        unpacked = at / "unpacked"
        for package in packages:
            archive = _download(package, at)
            _run(["dpkg-deb", "-x", str(archive), str(unpacked)], at=at, package=package)
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.exists():  # another has been faster
                raise


def _download(package: str, at: Path) -> Path:
    lists = at / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    own = [f"-oDir::State::lists={lists}", f"-oDir::Cache={at}"]
    asked = ["apt-get", "-qq", "download", package]
    if subprocess.run(asked, cwd=at, capture_output=True, check=False, timeout=_LIMIT_S).returncode:
        _run(["apt-get", "-qq", *own, "update"], at=at, package=package)
        _run(["apt-get", "-qq", *own, "download", package], at=at, package=package)
    return next(at.glob(f"{package}_*.deb"))


def _run(command: list[str], *, at: Path, package: str) -> None:
    done = subprocess.run(
        command, cwd=at, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    if done.returncode:
        raise ToolMissingError(
            f"tests need Debian's package '{package}', and `{' '.join(command)}` failed: "
            f"{done.stderr.strip()}. Fix: install '{package}' so that its programs are on the PATH."
        )
