"""`shardwise dashboards`: write the Grafana dashboards to files, or push them to a Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import console
from cli.files import write_text
from cluster.errors import InputError
from dashboards.grafana import Grafana
from dashboards.push import Change, Pushed, push
from dashboards.render import text
from dashboards.table import DASHBOARDS

app = typer.Typer(help="Write or push the Grafana dashboards.", no_args_is_help=True)

_SHOWN = 3  # places of a change


@app.command("render", help="Write the dashboards as JSON files, as Grafana imports them.")
def render(
    out: Annotated[Path, typer.Option("--out", help="Directory for one file per dashboard.")],
) -> None:
    """Write a file per dashboard."""
    for dashboard in DASHBOARDS:
        path = out / f"{dashboard.uid}.json"
        write_text(text(dashboard), path, option="--out")
        console.out().print(f"wrote {path}", markup=False)


@app.command("push", help="Create or update the dashboards in a Grafana, through its HTTP API.")
def push_command(
    *,
    url: Annotated[
        str, typer.Option("--url", envvar="GRAFANA_URL", help="http://HOST:3000, or with a path.")
    ],
    token: Annotated[
        str,
        typer.Option(
            "--token", envvar="GRAFANA_TOKEN", help="Of a service account.", show_envvar=True
        ),
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file that holds the token.")
    ] = None,
    folder: Annotated[
        str, typer.Option("--folder", help="Title or uid; made if it is not there.")
    ] = "Shardwise",
    datasource: Annotated[
        str,
        typer.Option(
            "--datasource", help="Name or uid of a Prometheus; default Grafana's own default."
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")
    ] = False,
) -> None:
    """Push all dashboards; those that are there as they should be stay untouched."""
    grafana = Grafana.connect(url, token=_token(token, token_file))
    pushed = push(grafana, DASHBOARDS, folder=folder, datasource=datasource, dry_run=dry_run)
    for line in _told(pushed, folder=folder, dry_run=dry_run):
        console.out().print(line, markup=False)


def _token(token: str, path: Path | None) -> str:
    if path is not None:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--token-file {path} cannot be read ({error}).") from error
    if not token:
        raise InputError(
            "no token for Grafana. Fix: make one for a service account (Administration, Users and "
            "access) and give it in GRAFANA_TOKEN or --token-file."
        )
    return token


def _told(pushed: Pushed, *, folder: str, dry_run: bool) -> list[str]:
    would = "would be " if dry_run else ""
    lines = [f"datasource: {pushed.datasource}"]
    if pushed.folder_created:
        lines.append(f"folder '{folder}': {would}created")
    lines += [_line(change, would=would) for change in pushed.changes]
    return lines


def _line(change: Change, *, would: str) -> str:
    if change.what == "unchanged":
        return f"{change.uid}: unchanged"
    verb = {"create": "created", "update": "updated", "move": "moved to the folder"}[change.what]
    places = ", ".join(change.differs[:_SHOWN])
    more = len(change.differs) - _SHOWN
    where = f" ({places}{f' and {more} more' if more > 0 else ''})" if places else ""
    return f"{change.uid}: {would}{verb}{where}"
