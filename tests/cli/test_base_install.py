"""The base install plans: the command line loads nothing of what serving needs."""

import subprocess
import sys
from pathlib import Path

HEAVY = ("ray", "torch", "vllm", "transformers", "fastapi", "prometheus_client")


def test_the_command_line_imports_no_serving_dependency() -> None:
    check = f"import sys, cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", check],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"
