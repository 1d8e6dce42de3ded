"""What has to change in Grafana for it to show our dashboards? And do it, or only say so.

A dashboard is unchanged where it is in the folder and everything we say of it is said there: what
Grafana has added by itself (ids, versions, defaults of its own) does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cluster.errors import InputError
from dashboards.grafana import Grafana, Stored
from dashboards.panels import Dashboard
from dashboards.render import rendered, with_datasource

Json = dict[str, Any]
What = Literal["create", "update", "move", "unchanged"]
_MESSAGE = "pushed by shardwise"


@dataclass(frozen=True, kw_only=True)
class Change:
    """`what` becomes of one dashboard. `differs`: places in which it is another by now."""

    uid: str
    title: str
    what: What
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """`folder_created`: it was not there (or, in a dry run, is not)."""

    datasource: str
    folder_created: bool
    changes: tuple[Change, ...]


def push(
    grafana: Grafana,
    dashboards: Sequence[Dashboard],
    *,
    folder: str,
    datasource: str,
    dry_run: bool,
) -> Pushed:
    """Bring the dashboards there. `folder`: title or uid. `datasource`: name or uid.

    Everything is looked at before anything is changed.
    """
    source = grafana.datasource(datasource)
    made = [
        with_datasource(rendered(each), name=source.name, uid=source.uid) for each in dashboards
    ]
    folder_uid = grafana.folder(folder)
    changes = [change(each, grafana.dashboard(each["uid"]), folder_uid=folder_uid) for each in made]
    if not dry_run:
        at = grafana.create_folder(folder) if folder_uid is None else folder_uid
        for wanted, planned in zip(made, changes, strict=True):
            if planned.what != "unchanged":
                grafana.save(wanted, folder_uid=at, message=_MESSAGE)
    return Pushed(datasource=source.name, folder_created=folder_uid is None, changes=tuple(changes))


def change(wanted: Json, stored: Stored | None, *, folder_uid: str | None) -> Change:
    """What becomes of one. Raises InputError where Grafana has it from a file."""
    uid, title = wanted["uid"], wanted["title"]
    if stored is None:
        return Change(uid=uid, title=title, what="create")
    differs = tuple(differences(wanted, stored.dashboard))
    away = stored.folder_uid != folder_uid
    if (differs or away) and stored.provisioned:
        raise InputError(
            f"dashboard '{uid}' is provisioned from a file, and Grafana lets nothing else change "
            "it. Fix: change it there (`shardwise dashboards render`), or remove that file."
        )
    if differs:
        return Change(uid=uid, title=title, what="update", differs=differs)
    return Change(uid=uid, title=title, what="move" if away else "unchanged")


def differences(wanted: Any, there: Any, *, at: str = "") -> Iterator[str]:
    """Places in which `there` does not say what is `wanted`; what it says beside is its own."""
    if isinstance(wanted, dict) and isinstance(there, dict):
        for key, value in wanted.items():
            if key not in there:
                # Grafana leaves out some of what is empty.
                if value not in (None, "", [], {}, False):
                    yield f"{at}{key}"
            else:
                yield from differences(value, there[key], at=f"{at}{key}.")
    elif isinstance(wanted, list) and isinstance(there, list) and len(wanted) == len(there):
        for place, (ours, theirs) in enumerate(zip(wanted, there, strict=True)):
            yield from differences(ours, theirs, at=f"{at}{place}.")
    elif wanted != there:
        yield at.rstrip(".")
