"""`shardwise export`: a plan in the words of another system.

Without --out the text goes to stdout, several files with their paths above them.
Exit code 0: written. 2: the plan cannot be read, no replica of it could start,
or the format is not known or cannot say it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.console import out
from cluster.errors import InputError
from cluster.export import CONFIGURED, FORMATS, ExportFile, export
from cluster.model.plan import load_plan
from cluster.model.startable import must_start
from serving.settings.config import load_serve_config


def command(
    *,
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    format_name: Annotated[
        str, typer.Option("--format", help=f"One of: {', '.join(FORMATS)}.")
    ] = "vllm",
    config: Annotated[
        Path | None,
        typer.Option(help=f"Serving configuration (YAML), for {' and '.join(CONFIGURED)}."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--out", help="Directory to write to, instead of stdout.")
    ] = None,
) -> None:
    """Say a plan as vLLM, NIM, Triton, Ray Serve or Helm configuration, or as placement groups."""
    plan = load_plan(path)
    must_start(plan)
    files = export(plan, format_name, config=_sections(config))
    if target is not None:
        _write(files, target)
        return
    for file in files:
        if len(files) > 1:
            typer.echo(f"# {file.path}")
        typer.echo(file.text, nl=not file.text.endswith("\n"))


def _sections(path: Path | None) -> dict[str, Any] | None:
    """What the file sets, checked; what it leaves out has its default wherever it is read."""
    if path is None:
        return None
    return load_serve_config(path).model_dump(mode="json", exclude_unset=True)


def _write(files: tuple[ExportFile, ...], target: Path) -> None:
    for file in files:
        path = target / file.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--out {path} cannot be written ({error}).") from error
        out().print(f"written: {path}", markup=False)
