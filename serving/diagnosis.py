"""What is the service waiting for, and why did it not start? In one line each.

vLLM says the cause of a failed start in the output of the engine process, and to everyone else only
that it failed; so that output is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from serving.control.scaler import DeploymentState

# The last line of a traceback, bare or behind vLLM's log prefix.
_RAISED = re.compile(r"^(?:\(.*?\) ERROR .*?\] )?((?:\w+\.)*\w*(?:Error|Exception): .+)$")
# These wrap the cause and do not name it.
_WRAPPERS = ("Engine core initialization failed", "Traceback (most recent call last)")


def waiting_for(states: Mapping[str, DeploymentState]) -> str:
    """What Serve is doing, in words."""
    parts = [
        f"{name} {state.running}/{state.target} ready, "
        + ("loading the tokenizer" if name == "gateway" else "loading the model")
        for name, state in states.items()
        if state.running < state.target
    ]
    return "; ".join(parts) or "deploying the application"


def failure(states: Mapping[str, DeploymentState], *, logs: Path | None) -> str:
    """Why the application failed; empty if nothing says. `logs`: Ray's log directory, if here."""
    for name, state in states.items():
        if "FAILED" in state.status or "UNHEALTHY" in state.status:
            lines = [line.strip() for line in state.message.splitlines() if line.strip()]
            cause = root_cause(_outputs(logs)) or (lines[-1] if lines else state.status)
            return f"{name}: {cause}"
    return ""


def start_failure(message: str, *, output: str) -> str:
    """Why a replica did not start: by the output of its worker, or else by Serve's message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    raised = [match[1] for line in lines if (match := _RAISED.match(line))]
    return root_cause([output]) or (raised[-1:] or lines[-1:] or [""])[0]


def root_cause(outputs: Iterable[str]) -> str:
    """The first error in processes' outputs that is not a wrapper of another; empty if none."""
    for text in outputs:
        for line in text.splitlines():
            match = _RAISED.match(line.strip())
            if match and not any(wrapper in match[1] for wrapper in _WRAPPERS):
                return match[1]
    return ""


def _outputs(logs: Path | None) -> Iterable[str]:
    """Outputs of Ray's workers, those of the engine processes among them, oldest first."""
    files = sorted(logs.glob("worker-*"), key=lambda f: f.stat().st_mtime) if logs else []
    for file in files:
        yield file.read_text(encoding="utf-8", errors="replace")
