"""A double of a cluster's job interface: what Ray's dashboard answers of jobs and their files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from aiohttp import web

NODE = "node0"


@dataclass
class JobInterface:
    """What it answers, and what it was told. A job ends by `ends` as soon as it has been followed.

    `breaks`: how many times the connection that tells its output is lost after the first line.
    """

    token: str | None = None
    version: str = ray.__version__
    says: tuple[str, ...] = ("one\n", "two\n")
    ends: dict[str, Any] = field(default_factory=lambda: {"status": "SUCCEEDED", "exit": 0})
    leaves: dict[str, bytes] = field(default_factory=dict)
    breaks: int = 0
    running: bool = True
    submitted: list[dict[str, Any]] = field(default_factory=list)
    packages: dict[str, bytes] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    url: str = ""

    def job(self, name: str, *, entrypoint: str = "", metadata: dict[str, str] | None = None):
        """As if somebody had submitted one."""
        self.submitted.append(
            {"submission_id": name, "entrypoint": entrypoint, "metadata": metadata or {}}
        )


@contextmanager
def served(double: JobInterface) -> Iterator[JobInterface]:
    """Listening on a port of this machine, at `double.url`."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    async def start() -> web.AppRunner:
        runner = web.AppRunner(_application(double), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ports.append(runner.addresses[0][1])
        ready.set()
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    double.url = f"http://127.0.0.1:{ports[0]}"
    try:
        yield double
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def _application(double: JobInterface) -> web.Application:
    @web.middleware
    async def door(request, handler):
        sent = request.headers.get("Authorization")
        if double.token is None or sent == f"Bearer {double.token}":
            return await handler(request)
        return web.Response(status=401 if sent is None else 403, text="Unauthorized")

    async def version(_):
        return web.json_response({"version": "4", "ray_version": double.version})

    async def package(request):
        name = request.match_info["name"]
        if request.method == "PUT":
            double.packages[name] = await request.read()
        return web.Response(status=200 if name in double.packages else 404)

    async def jobs(request):
        if request.method == "POST":
            double.submitted.append(await request.json())
            return web.json_response(
                {"job_id": "", "submission_id": double.submitted[-1]["submission_id"]}
            )
        return web.json_response([_details(double, job) for job in double.submitted])

    async def stop(request):
        double.stopped.append(request.match_info["job"])
        double.running, double.ends = False, {"status": "STOPPED", "exit": None}
        return web.json_response({"stopped": True})

    async def tail(request):
        told = web.WebSocketResponse()
        await told.prepare(request)
        for line in double.says:
            await told.send_str(line)
            if double.breaks:
                double.breaks -= 1
                request.transport.close()
                return told
        double.running = False
        return told

    async def listed(_):
        names = [f"job-driver-{double.submitted[-1]['submission_id']}/{n}" for n in double.leaves]
        return web.json_response(
            {"result": True, "msg": "", "data": {"result": {"internal": names}}}
        )

    async def file(request):
        name = request.query["filename"].partition("/")[2]
        return web.Response(body=double.leaves[name])

    made = web.Application(middlewares=[door], client_max_size=2**28)
    made.router.add_get("/api/version", version)
    made.router.add_route("*", "/api/packages/{protocol}/{name}", package)
    made.router.add_route("*", "/api/jobs/", jobs)
    made.router.add_post("/api/jobs/{job}/stop", stop)
    made.router.add_get("/api/jobs/{job}/logs/tail", tail)
    made.router.add_get("/api/v0/logs", listed)
    made.router.add_get("/api/v0/logs/file", file)
    return made


def _details(double: JobInterface, job: dict[str, Any]) -> dict[str, Any]:
    ended = {} if double.running else double.ends
    return {
        "type": "SUBMISSION",
        "submission_id": job["submission_id"],
        "entrypoint": job["entrypoint"],
        "metadata": job["metadata"],
        "status": ended.get("status", "RUNNING"),
        "message": ended.get("message"),
        "driver_exit_code": ended.get("exit"),
        "driver_node_id": None if ended.get("nowhere") else NODE,
        "start_time": 1_700_000_000_000,
    }
