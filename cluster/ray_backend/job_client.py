"""What does a cluster's job interface know of jobs: submit, states, logs, files they left?

    client = JobClient("http://head:8265")
    client.submit("sh run.sh", folder=folder, job_id="a-name", metadata={})
    for text in client.follow("a-name"):
        ...
    data = client.read(client.job("a-name"), "outputs/0/plan.json")

Everything goes through the dashboard's port and carries Ray's token, so a client needs no other way
to the cluster. A job leaves files for its client in a directory beside its log, named like it
(`LEFT`), from where Ray's log interface reads them as long as the session's logs are there.
Invariant: only errors of `cluster.errors` leave, and each says what to do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ray
import requests
from aiohttp import ClientError
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from cluster.errors import InputError, UnavailableError, UnknownNameError
from cluster.ray_backend.auth import WHERE, ray_token

LEFT = "job-driver-{job}"  # in the session's directory of logs; the log itself ends in `.log`
# They tell on stderr what is uploaded, which is not what a user asked about.
for _name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
    logging.getLogger(_name).setLevel(logging.WARNING)
_ENDED = ("SUCCEEDED", "STOPPED", "FAILED")
_ANSWER_S, _READ_S = 10.0, 600.0
_RECONNECTS = 30  # in a row, a second apart, without a word of the job


@dataclass(frozen=True, kw_only=True)
class Job:
    """A submitted job. Times are Unix seconds; `exit_code` None where its command did not end."""

    job_id: str
    state: str
    message: str
    command: str
    exit_code: int | None
    started_s: float | None
    ended_s: float | None
    node: str | None
    metadata: Mapping[str, str]

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in _ENDED

    @property
    def succeeded(self) -> bool:
        """Whether its command has ended with 0."""
        return self.state == "SUCCEEDED"

    @property
    def stopped(self) -> bool:
        """Whether it was cancelled."""
        return self.state == "STOPPED"


class JobClient:
    """The job interface at `address`, an http(s) URL.

    Raises UnavailableError where none answers, InputError for a wrong token or a Ray that this
    code is not made for.
    """

    def __init__(self, address: str) -> None:
        self.address = address.strip().rstrip("/")
        token = ray_token()
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._check_version()
        with self._errors(), _no_other_address():
            self._client = JobSubmissionClient(
                self.address,
                headers=dict(self._headers),
                verify=os.environ.get("SSL_CERT_FILE") or True,
            )

    def submit(
        self, command: str, *, folder: Path, job_id: str, metadata: Mapping[str, str]
    ) -> None:
        """Run the shell `command` in a copy of `folder` on the cluster's head node."""
        with self._errors():
            self._client.submit_job(
                entrypoint=command,
                submission_id=job_id,
                runtime_env={"working_dir": str(folder)},
                metadata=dict(metadata),
            )

    def jobs(self) -> tuple[Job, ...]:
        """All jobs that were submitted, the newest first."""
        with self._errors():
            found = self._client.list_jobs()
        submitted = [_job(each) for each in found if each.submission_id is not None]
        return tuple(sorted(submitted, key=lambda job: job.started_s or 0.0, reverse=True))

    def job(self, job_id: str) -> Job:
        """Raises UnknownNameError, with those there are."""
        found = {job.job_id: job for job in self.jobs()}
        if job_id not in found:
            known = found or ["none"]
            raise UnknownNameError(kind=f"job at {self.address}", name=job_id, known=known)
        return found[job_id]

    def stop(self, job_id: str) -> None:
        """Ask for its end: SIGTERM, and SIGKILL three seconds later."""
        with self._errors():
            self._client.stop_job(job_id)

    def follow(self, job_id: str) -> Iterator[str]:
        """What the job prints, from the first line until it has ended, over lost connections."""
        told, failures = 0, 0
        while True:
            skip, before = told, told
            try:
                for text in self._tail(job_id):
                    fresh = text[skip:]
                    skip = max(0, skip - len(text))
                    told += len(fresh)
                    if fresh:
                        yield fresh
                if self.job(job_id).ended:
                    return
            except (ClientError, RuntimeError, UnavailableError) as error:
                failures = failures + 1 if told == before else 1
                if failures > _RECONNECTS:
                    raise UnavailableError(
                        f"{self.address} no longer says what job {job_id} prints ({error}). The "
                        "job may go on. Fix: follow it again when the dashboard answers."
                    ) from error
            time.sleep(1.0)

    def left(self, job: Job) -> tuple[str, ...]:
        """Names of the files that it has left, in its own directory."""
        if job.node is None:  # it never ran
            return ()
        folder = LEFT.format(job=job.job_id)
        answer = self._get("/api/v0/logs", node_id=job.node, glob=f"{folder}/**/*").json()
        if not answer["result"]:
            raise UnavailableError(
                f"{self.address} does not list what job {job.job_id} has left: "
                f"{_last_line(str(answer['msg']))}"
            )
        listed: Mapping[str, list[str]] = answer["data"]["result"]
        names = [name for group in listed.values() for name in group if not name.endswith("/")]
        return tuple(sorted(name.removeprefix(f"{folder}/") for name in names))

    def read(self, job: Job, name: str) -> bytes:
        """A file that the job has left."""
        path = f"{LEFT.format(job=job.job_id)}/{name}"
        return self._get(
            "/api/v0/logs/file",
            node_id=job.node or "",
            filename=path,
            lines="-1",
            timeout=f"{_READ_S:.0f}",
        ).content

    def _tail(self, job_id: str) -> Iterator[str]:
        lines = self._client.tail_job_logs(job_id)

        async def further() -> str | None:
            return await anext(lines, None)

        with asyncio.Runner() as runner:
            while (text := runner.run(further())) is not None:
                yield text

    def _check_version(self) -> None:
        """Before anything is sent: a Ray dashboard answers there, to this token, of our Ray."""
        try:
            there = str(self._get("/api/version").json()["ray_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._no_dashboard("its answer is not one of Ray's") from error
        if there.split(".")[:2] != ray.__version__.split(".")[:2]:
            raise InputError(
                f"{self.address} runs Ray {there}, and this Shardwise is made for Ray "
                f"{ray.__version__}, which is installed here. Fix: install the same release on "
                "both sides."
            )

    def _get(self, path: str, **asked: str) -> httpx.Response:
        limits = httpx.Timeout(_READ_S, connect=_ANSWER_S)
        try:
            answer = httpx.get(
                f"{self.address}{path}", params=asked, headers=self._headers, timeout=limits
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        if answer.status_code in (401, 403):
            raise self._refused(answer.status_code)
        if answer.status_code == 404:
            raise self._no_dashboard(f"{path} is not there")
        if answer.status_code != 200:
            raise UnavailableError(
                f"{self.address}{path} answers {answer.status_code}: {_last_line(answer.text)}"
            )
        return answer

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What Ray's client raises, in our words. Its errors carry tracebacks of the cluster."""
        try:
            yield
        except AuthenticationError as error:
            raise self._refused(401) from error
        except (ConnectionError, requests.exceptions.ConnectionError) as error:
            raise self._unreachable(error) from error
        except (requests.exceptions.RequestException, RuntimeError, ValueError) as error:
            raise UnavailableError(
                f"the job interface at {self.address} refused: {_last_line(str(error))}"
            ) from error

    def _refused(self, status: int) -> InputError:
        sent = "the token sent is not the cluster's" if self._headers else "no token was found here"
        return InputError(
            f"{self.address} asks for Ray's token, and {sent} (HTTP {status}). Fix: put the "
            f"cluster's token into {WHERE}; `ray get-auth-token` prints it on the head node."
        )

    def _unreachable(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"no dashboard answers at {self.address} ({_last_line(str(error))}). Fix: pass the URL "
            "of the head node's dashboard, e.g. http://HEAD:8265, and see that it is reachable "
            "from here."
        )

    def _no_dashboard(self, why: str) -> UnavailableError:
        return UnavailableError(
            f"what answers at {self.address} is no dashboard of Ray ({why}). Fix: pass the head "
            "node's dashboard, e.g. http://HEAD:8265, not the endpoint of a service."
        )


@contextmanager
def _no_other_address() -> Iterator[None]:
    """Ray's client prefers these variables to the address it is given; ours was typed."""
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _job(found: Any) -> Job:
    """Of Ray's details, whose times are milliseconds."""
    return Job(
        job_id=found.submission_id,
        state=str(found.status),
        message=found.message or "",
        command=found.entrypoint,
        exit_code=found.driver_exit_code,
        started_s=None if not found.start_time else found.start_time / 1e3,
        ended_s=None if not found.end_time else found.end_time / 1e3,
        node=found.driver_node_id,
        metadata=found.metadata or {},
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300].rstrip(".") if lines else "without a word"
