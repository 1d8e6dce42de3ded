"""How is Grafana spoken to? Its HTTP API through `grafana-client`; errors say what is missing.

The endpoints are those of `/api`, which Grafana 10 to 13 serve alike. Everything here is an edge:
what comes back is checked before it is used.

Raises InputError for what the user has to change (token, permission, datasource, version) and
UnavailableError where nobody answers, or who answers is no Grafana.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cluster.errors import InputError, UnavailableError, UnknownNameError

Json = dict[str, Any]

OLDEST = (10, 0)  # the dashboard model, and folders by uid
LIMIT_S = 20.0
_UNAUTHORISED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
_MOST_FOLDERS = 1000  # of one page; Grafana's own default


@dataclass(frozen=True, kw_only=True)
class Datasource:
    """One that speaks PromQL."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A dashboard as Grafana has it. `provisioned`: from a file, which alone may change it."""

    dashboard: Json
    folder_uid: str
    provisioned: bool


class Grafana:
    """A Grafana that answers and knows the token. Use `Grafana.connect`."""

    def __init__(self, api: Any, *, url: str, version: str) -> None:
        self._api, self._url = api, url
        self.version = version

    @classmethod
    def connect(cls, url: str, *, token: str) -> Grafana:
        """Ask who is there, whether the token is accepted, and how old it is."""
        try:
            from grafana_client import GrafanaApi
        except ImportError as error:
            raise InputError(
                "pushing dashboards needs the package grafana-client. Fix: install "
                "'shardwise[grafana]', in an environment of its own (docs/operations.md)."
            ) from error
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"'{url}' is no address of a Grafana. Fix: give it as http://HOST:PORT, or "
                "https://HOST/PREFIX."
            )
        api = GrafanaApi.from_url(url.rstrip("/") + "/", credential=token, timeout=LIMIT_S)
        with _about(url, "read its health", needs=""):
            health = api.client.GET("/health")
        if not isinstance(health, dict) or "database" not in health:
            raise _no_grafana(url, "its /api/health is not Grafana's")
        with _about(url, "read its settings", needs=""):
            build = api.health.check()
        version = str((build or {}).get("version", ""))
        if _release(version) < OLDEST:
            raise InputError(
                f"{url} is Grafana {version or 'of an unknown version'}; these dashboards need "
                f"{OLDEST[0]}.{OLDEST[1]} or later. Fix: upgrade Grafana."
            )
        return cls(api, url=url, version=version)

    def datasource(self, wanted: str) -> Datasource:
        """The Prometheus of this name or uid; an empty one: the default, or the only one."""
        with _about(self._url, "list datasources", needs="datasources:read"):
            listed = self._api.datasource.list_datasources()
        suited = [item for item in listed if "prometheus" in str(item.get("type", ""))]
        found = [
            item
            for item in listed
            if wanted in (item["name"], item["uid"])
            or (not wanted and item in suited and (item.get("isDefault") or len(suited) == 1))
        ]
        if not found:
            known = [f"{item['name']} (uid {item['uid']})" for item in suited]
            if not wanted:
                raise InputError(
                    f"{self._url} has {len(suited)} Prometheus datasources and none is its "
                    f"default: {', '.join(known) or 'add one'}. Fix: choose with --datasource."
                )
            raise UnknownNameError(
                kind="datasource",
                name=wanted,
                known=known,
                hint=f"({self._url} has these of type prometheus; give a name or a uid.)",
            )
        if found[0] not in suited:
            raise InputError(
                f"datasource '{wanted}' is of type {found[0].get('type')}; the dashboards ask "
                "in PromQL. Fix: choose one of type prometheus with --datasource."
            )
        return Datasource(name=found[0]["name"], uid=found[0]["uid"])

    def folder(self, title: str) -> str | None:
        """The uid of the top-level folder of this title or uid; None if there is none."""
        with _about(self._url, "list folders", needs="folders:read"):
            listed = self._api.client.GET(f"/folders?limit={_MOST_FOLDERS}")
        return next(
            (str(item["uid"]) for item in listed if title in (item["title"], item["uid"])), None
        )

    def create_folder(self, title: str) -> str:
        """Returns its uid."""
        with _about(self._url, f"create folder '{title}'", needs="folders:create"):
            return str(self._api.folder.create_folder(title)["uid"])

    def dashboard(self, uid: str) -> Stored | None:
        """The dashboard as it is there; None if it is not."""
        with _about(self._url, f"read dashboard '{uid}'", needs="dashboards:read"):
            told = _or_none(lambda: self._api.dashboard.get_dashboard(uid))
        if told is None:
            return None
        meta = told.get("meta", {})
        return Stored(
            dashboard=told["dashboard"],
            folder_uid=str(meta.get("folderUid") or ""),
            provisioned=bool(meta.get("provisioned")),
        )

    def save(self, dashboard: Json, *, folder_uid: str, message: str) -> None:
        """Create it, or put it in the place of what has its uid."""
        body = {
            "dashboard": dashboard,
            "folderUid": folder_uid,
            "message": message,
            "overwrite": True,
        }
        needs = "dashboards:create and dashboards:write"
        with _about(self._url, f"save dashboard '{dashboard['uid']}'", needs=needs):
            self._api.dashboard.update_dashboard(body)


def _release(version: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) of what is no version."""
    parts = version.split("-", maxsplit=1)[0].split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        return (0, 0)
    return int(parts[0]), int(parts[1])


def _or_none(ask: Callable[[], Json]) -> Json | None:
    from grafana_client.client import GrafanaClientError

    try:
        return ask()
    except GrafanaClientError as error:
        if error.status_code != _NOT_FOUND:
            raise
        return None


@contextmanager
def _about(url: str, doing: str, *, needs: str) -> Iterator[None]:
    """Errors while `doing`, for which a token needs the permissions `needs`, in words."""
    from grafana_client.client import GrafanaClientError, GrafanaException
    from niquests.exceptions import RequestException

    try:
        yield
    except GrafanaClientError as error:
        raise _refused(url, doing, error, needs=needs) from error
    except GrafanaException as error:  # 5xx, or too late
        raise UnavailableError(
            f"Grafana at {url} could not {doing}: {error.message or 'no answer in time'}. "
            "Fix: look at its log, try again."
        ) from error
    except ValueError as error:  # no JSON; niquests' own is one of both
        raise _no_grafana(url, "it does not answer in JSON") from error
    except (RequestException, OSError) as error:
        raise UnavailableError(
            f"cannot reach Grafana at {url} ({error}). Fix: check --url, and that it can be "
            "reached from here."
        ) from error


def _refused(url: str, doing: str, error: Any, *, needs: str) -> InputError | UnavailableError:
    said = error.response.get("message") if isinstance(error.response, dict) else None
    if error.status_code == _UNAUTHORISED:
        return InputError(
            f"Grafana at {url} does not accept the token (it may not {doing}). Fix: give a "
            "token of a service account of this Grafana, that has not expired, with "
            "--token-file or GRAFANA_TOKEN."
        )
    if error.status_code == _FORBIDDEN:
        return InputError(
            f"the token may not {doing} at {url}: it needs the permission "
            f"{needs or 'to sign in'}{f' (Grafana says: {said})' if said else ''}. Fix: give its "
            "service account that permission, or the role Admin."
        )
    if error.status_code == _NOT_FOUND and not needs:
        return _no_grafana(url, f"there is nothing to {doing}")
    return InputError(
        f"Grafana at {url} refused to {doing}: {said or error.message} "
        f"(status {error.status_code}). Fix: see its log."
    )


def _no_grafana(url: str, why: str) -> UnavailableError:
    return UnavailableError(
        f"what answers at {url} is no Grafana: {why}. Fix: check --url, with the path under "
        "which Grafana is served if it has one."
    )
