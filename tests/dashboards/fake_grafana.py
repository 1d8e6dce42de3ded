"""A double of Grafana's HTTP API: the endpoints that are used, as documented, over real HTTP.

Not Grafana: no server of it can be had as a package here. Documented behaviour that it has:

- GET  /api/health              open; {"database", "version", "commit"}
- GET  /api/frontend/settings   401 without a token it knows; {"buildInfo": {"version"}}
- GET  /api/datasources         needs datasources:read; [{"name", "uid", "type", "isDefault"}]
- GET  /api/folders             needs folders:read; [{"uid", "title"}] of the top level
- POST /api/folders             needs folders:create; makes a uid
- GET  /api/dashboards/uid/UID  needs dashboards:read; 404, or {"dashboard", "meta"}
- POST /api/dashboards/db       needs dashboards:create; with `overwrite` saves by uid, gives id
                                and version, one more each time; without, 412 where the uid is
                                taken; 400 for an unknown folder, and for a provisioned dashboard

401 and 403 carry {"message"}; 403 names the permission as Grafana does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TOKEN = "glsa_right"
ALL = frozenset(
    {
        "datasources:read",
        "folders:read",
        "folders:create",
        "dashboards:read",
        "dashboards:create",
        "dashboards:write",
    }
)
PROMETHEUS = {"name": "Prometheus", "uid": "prom-1", "type": "prometheus", "isDefault": True}
LOKI = {"name": "Loki", "uid": "loki-1", "type": "loki", "isDefault": False}


@dataclass
class FakeGrafana:
    """Its state, which tests set and look at. `writes`: POST requests it has carried out."""

    url: str = ""
    prefix: str = ""
    version: str = "12.4.0"
    permissions: frozenset[str] = ALL
    datasources: list[dict[str, Any]] = field(default_factory=lambda: [PROMETHEUS, LOKI])
    folders: dict[str, str] = field(default_factory=dict)
    dashboards: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # folder by dashboard
    provisioned: set[str] = field(default_factory=set)
    writes: list[str] = field(default_factory=list)
    broken: bool = False

    def answer(self, method: str, path: str, body: Any, token: str) -> tuple[int, Any]:
        """Status and JSON."""
        if self.broken:
            return 500, {"message": "database is locked"}
        if path == "/health":
            return 200, {"database": "ok", "version": self.version, "commit": "abc"}
        if token != TOKEN:
            return 401, {"message": "Invalid API key"}
        route = (method, path.rsplit("/", 1)[0] if path.startswith("/dashboards/uid") else path)
        needs, act = self._routes.get(route, ("", None))
        if act is None:
            return 404, {"message": "Not found"}
        if needs and needs not in self.permissions:
            said = "You'll need additional permissions to perform this action. Permissions needed: "
            return 403, {"accessErrorId": "ACE1", "message": said + needs, "title": "Access denied"}
        if method == "POST":
            self.writes.append(path)
        return act(self, path, body)

    def _settings(self, _path: str, _body: Any) -> tuple[int, Any]:
        return 200, {"appSubUrl": "", "buildInfo": {"version": self.version, "commit": "abc"}}

    def _datasources(self, _path: str, _body: Any) -> tuple[int, Any]:
        return 200, self.datasources

    def _folders(self, _path: str, _body: Any) -> tuple[int, Any]:
        return 200, [{"uid": uid, "title": title} for uid, title in self.folders.items()]

    def _create_folder(self, _path: str, body: Any) -> tuple[int, Any]:
        uid = f"folder{len(self.folders)}"
        self.folders[uid] = body["title"]
        return 200, {"uid": uid, "title": body["title"]}

    def _dashboard(self, path: str, _body: Any) -> tuple[int, Any]:
        uid = path.rsplit("/", 1)[1]
        if uid not in self.dashboards:
            return 404, {"message": "Dashboard not found"}
        meta = {"folderUid": self.places[uid], "provisioned": uid in self.provisioned}
        return 200, {"dashboard": self.dashboards[uid], "meta": meta}

    def _save(self, _path: str, body: Any) -> tuple[int, Any]:
        wanted, folder = body["dashboard"], body["folderUid"]
        uid = wanted["uid"]
        if folder and folder not in self.folders:
            return 400, {"message": "folder not found"}
        if uid in self.provisioned:
            return 400, {"message": "Cannot save provisioned dashboard"}
        if uid in self.dashboards and not body["overwrite"]:
            said = "The dashboard has been changed by someone else"
            return 412, {"status": "version-mismatch", "message": said}
        before = self.dashboards.get(uid, {"id": len(self.dashboards) + 1, "version": 0})
        kept = {"id": before["id"], "version": before["version"] + 1}
        self.dashboards[uid] = {"annotations": {"list": []}, **wanted, **kept}
        self.places[uid] = folder
        return 200, {"uid": uid, "status": "success", "version": kept["version"]}

    _routes = {  # noqa: RUF012  # the same for all
        ("GET", "/frontend/settings"): ("", _settings),
        ("GET", "/datasources"): ("datasources:read", _datasources),
        ("GET", "/folders"): ("folders:read", _folders),
        ("POST", "/folders"): ("folders:create", _create_folder),
        ("GET", "/dashboards/uid"): ("dashboards:read", _dashboard),
        ("POST", "/dashboards/db"): ("dashboards:create", _save),
    }


@contextmanager
def fake_grafana() -> Iterator[FakeGrafana]:
    """Listens for as long as the context lasts."""
    grafana = FakeGrafana()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def _serve(self, method: str) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            base, path = f"{grafana.prefix}/api", urlsplit(self.path).path
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if path.startswith(base + "/"):
                status, data = grafana.answer(method, path.removeprefix(base), body, token)
            else:
                status, data = 404, {"message": "Not found"}
            payload = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as url:
        grafana.url = url
        yield grafana


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL at which a handler answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
