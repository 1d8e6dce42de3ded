"""Where does a peer live? In a virtual environment of its own, made when it is first asked for.

    ~/.cache/shardwise/bench/NAME       or $SHARDWISE_HOME/bench/NAME

What is installed is `bench/peers/NAME.txt`, every package at a fixed version. A peer runs with an
environment of its own too: it finds neither the caller's settings nor what is secret in them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.gateway_parts.process import NotMeasuredError
from serving.bundled import model_cache

_INSTALL_S = 900.0


def installed(name: str) -> Path:
    """The directory with the peer's programs. NotMeasuredError if it cannot be installed."""
    wanted = Path(__file__).with_name(f"{name}.txt")
    home = model_cache().parent / "bench" / name
    stamp = home / "installed.txt"
    if not (stamp.is_file() and stamp.read_text() == wanted.read_text()):
        print(f"installing {name} into {home}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        _install(home, wanted)
        stamp.write_text(wanted.read_text())
    return home / "bin"


def _install(home: Path, wanted: Path) -> None:
    command = [
        *(str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"),
        *("--disable-pip-version-check", "--no-deps", "--ignore-requires-python"),
        *("-r", str(wanted)),
    ]
    try:
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError(f"installing it took longer than {_INSTALL_S:.0f} s") from error
    if made.returncode:
        errors = [line for line in made.stderr.splitlines() if "ERROR" in line or "error" in line]
        raise NotMeasuredError(
            f"cannot be installed: {' | '.join(errors)[-400:] or made.stderr[-400:]}"
        )


def surroundings(directory: Path, **more: str) -> dict[str, str]:
    """The environment variables a peer runs with."""
    return {"PATH": os.defpath, "HOME": str(directory), "LANG": "C.UTF-8", **more}
