"""One line per request, whatever ends it; its fields; and none of its words unless asked for."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path
from typing import Any

import pytest

from autoscaler.snapshot import Tier
from serving import request_log
from serving.messages import EngineError, EngineRequest
from serving.request_log import NAMES, RequestLine, RequestLog, open_request_log
from serving.request_texts import Texts
from serving.settings.config import LimitsSection, LogsSection
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Gate,
    Stage,
    answering,
    chat,
    failing,
    lost_after,
    whole,
)
from tests.serving.spans import TRACE, TRACEPARENT, Spans, span_id
from tests.serving.test_access import ring
from tests.serving.test_resumption import Model
from tests.serving.test_second_scheduling import SOON_S, until

CHAT = "/v1/chat/completions"
MARKED = [{"role": "user", "content": "MARKER"}]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


class Lines(list[dict[str, Any]]):
    """A log in memory; what is written is read back from its JSON."""

    def write(self, line: RequestLine) -> None:
        self.append(json.loads(str(line)))

    @property
    def only(self) -> dict[str, Any]:
        (line,) = self
        return line


def stage(lines: Lines, *replicas: str, **parts: Any) -> Stage:
    made = Stage(log=lines.write, **parts)
    made.ready(*(replicas or ("a",)))
    return made


async def ask(on: Stage, *, headers: Any = None, **fields: Any) -> None:
    async with on.client() as client:
        await client.post(CHAT, json=chat(**fields), headers=headers)


async def test_a_line_says_what_became_of_a_request() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}

    async def script(request: EngineRequest, replica_id: str) -> Any:
        on.clock.now_s += 2
        yield [{**whole("x"), "usage": usage}]
        on.clock.now_s += 1

    lines = Lines()
    on = stage(lines, link=FakeLink(script))
    await ask(on, headers={"X-Request-Id": "mine", "X-Shardwise-Priority": "vip"})
    assert lines.only == {
        "time": "1970-01-01T00:16:43.000+00:00",
        "request_id": "mine",
        "trace_id": None,
        "span_id": None,
        "operation": "chat",
        "key": None,
        "priority": "vip",
        "model": "big",
        "pool": "main",
        "tier": 0,
        "changes": [],
        "stream": False,
        "status": 200,
        "finish": "completed",
        "error": None,
        "prompt_tokens": 3,
        "output_tokens": 5,
        "queue_s": 0.0,
        "ttft_s": 2.0,
        "duration_s": 3.0,
        "attempts": 1,
        "retries": 0,
        "moves": 0,
        "resumes": 0,
        "replicas": ["a"],
    }


async def test_waiting_in_line_is_told() -> None:
    lines = Lines()
    on = Stage(log=lines.write)
    caller = Caller(on.app(), chat())
    await until(lambda: on.dispatcher.load().queued_requests == 1)
    on.clock.now_s += 4
    on.ready("a")
    await caller.task
    assert lines.only["queue_s"] == 4.0


async def test_trace_and_line_are_found_by_each_other() -> None:
    lines, spans = Lines(), Spans()
    await ask(stage(lines, tracer=spans.tracer), headers={"traceparent": TRACEPARENT})
    assert lines.only["trace_id"] == TRACE
    assert lines.only["span_id"] == f"{span_id(spans.request):016x}"


async def test_a_callers_trace_is_told_though_nothing_is_traced_here() -> None:
    lines = Lines()
    await ask(stage(lines), headers={"traceparent": TRACEPARENT})
    assert lines.only["trace_id"] == TRACE


async def test_a_key_is_told_by_its_name(tmp_path: Path) -> None:
    lines = Lines()
    on = stage(lines, ring=ring(tmp_path))
    await ask(on, headers={"Authorization": "Bearer sw-k"})
    assert lines.only["key"] == "team"
    assert "sw-k" not in json.dumps(lines)


@pytest.mark.parametrize("shown", [True, False])
async def test_a_stream_with_a_key_tells_the_engines_usage(tmp_path: Path, shown: bool) -> None:
    lines = Lines()
    on = stage(lines, ring=ring(tmp_path), link=FakeLink(Model().script))
    options = {"stream_options": {"include_usage": True}} if shown else {}
    await ask(on, stream=True, max_tokens=8, headers={"Authorization": "Bearer sw-k"}, **options)
    assert lines.only["output_tokens"] == 8


async def test_tokens_nobody_has_told_are_not_guessed() -> None:
    lines = Lines()
    await ask(stage(lines, link=FakeLink(answering("a", "b"))), stream=True)
    assert lines.only["output_tokens"] is None
    assert lines.only["prompt_tokens"] == 3


async def test_retries_and_resumptions_are_counted_with_their_replicas() -> None:
    lines = Lines()
    on = stage(lines, "a", "b", "c", link=FakeLink(Model(0, 3).script))
    await ask(on, stream=True, max_tokens=8, n=1)
    line = lines.only
    assert line["attempts"] == line["retries"] + line["resumes"] + 1 == len(line["replicas"]) == 3
    assert (line["finish"], line["output_tokens"]) == ("completed", 8)


async def test_a_move_is_counted() -> None:
    lines, gate = Lines(), Gate()
    link = FakeLink(answering("quick"), by_replica={"a": gate.script})
    on = stage(lines, "a", link=link, limits=LimitsSection(reschedule_s=SOON_S))
    caller = Caller(on.app(), chat(stream=True))
    await until(lambda: on.link.running == 1)
    on.ready("a", "b", queueing="a")
    await caller.task
    assert (lines.only["moves"], lines.only["replicas"]) == (1, ["a", "b"])


async def test_a_degraded_request_says_so() -> None:
    lines = Lines()
    on = Stage(log=lines.write)
    on.ready("a", tier=Tier.SHORT_OUTPUT)
    await ask(on, max_tokens=50)
    assert (lines.only["tier"], lines.only["changes"]) == (2, ["max-tokens=16"])


FAILED = EngineError(status=500, message="MARKER", retryable=True)
REFUSED = EngineError(status=400, message="MARKER", retryable=False)
ENDS: list[tuple[dict[str, Any], Any, int, str, str | None]] = [
    ({}, answering("MARKER"), 200, "completed", None),
    ({"stream": True}, answering("MARKER"), 200, "completed", None),
    ({"stream": True}, lost_after("MARKER"), 200, "error", "engine_error"),
    ({}, failing(FAILED), 503, "error", "no_replica"),
    ({}, failing(REFUSED), 400, "error", "engine_error"),
    ({"model": "MARKER"}, answering("x"), 404, "error", "model_not_found"),
    ({"MARKER": 1}, answering("x"), 400, "error", "unknown_parameter"),
    ({"max_tokens": "MARKER"}, answering("x"), 400, "error", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "script", "status", "finish", "error"), ENDS)
async def test_every_end_is_one_line_without_a_word_of_it(
    fields: dict[str, Any], script: Any, status: int, finish: str, error: str | None
) -> None:
    lines = Lines()
    on = stage(lines, link=FakeLink(script), limits=LimitsSection(queue_wait_s=0.05))
    await ask(on, **{"messages": MARKED, **fields})
    line = lines.only
    assert (line["status"], line["finish"], line["error"]) == (status, finish, error)
    assert "MARKER" not in json.dumps(line)
    assert list(line) == list(NAMES)


async def test_a_bug_is_one_line_too() -> None:
    async def script(request: EngineRequest, replica_id: str) -> Any:
        yield [{}]
        raise ZeroDivisionError("MARKER")

    lines = Lines()
    await ask(stage(lines, link=FakeLink(script)))
    assert (lines.only["status"], lines.only["error"]) == (500, "internal_error")


@pytest.mark.parametrize("when", ["in line", "on a replica", "before its body"])
async def test_a_caller_that_leaves_is_one_line(when: str) -> None:
    lines, gate = Lines(), Gate()
    on = Stage(log=lines.write, link=FakeLink(gate.script))
    if when == "on a replica":
        on.ready("a")
    if when == "before its body":
        left = [{"type": "http.disconnect"}]

        async def receive() -> Any:
            return left[0]

        async def send(message: Any) -> None:
            raise AssertionError(message)

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        await on.app()({**scope, "query_string": b"", "root_path": ""}, receive, send)
    else:
        caller = Caller(on.app(), chat(stream=True))
        await until(lambda: gate.reached.is_set() or on.dispatcher.load().queued_requests == 1)
        caller.leave()
        await caller.task
    assert (lines.only["status"], lines.only["finish"]) == (499, "cancelled")


async def test_who_may_not_ask_is_one_line(tmp_path: Path) -> None:
    lines = Lines()
    await ask(stage(lines, ring=ring(tmp_path)), headers={"Authorization": "Bearer sw-guessed"})
    assert (lines.only["status"], lines.only["error"]) == (401, "invalid_api_key")
    assert "guessed" not in json.dumps(lines)


async def test_words_are_told_where_they_are_asked_for() -> None:
    for stream in (True, False):
        lines = Lines()
        on = stage(lines, link=FakeLink(answering("one", "two")), texts=Texts)
        await ask(on, messages=MARKED, stream=stream)
        assert lines.only["prompt"] == MARKED
        assert lines.only["answer"] == ["onetwo" if stream else "one two"]


async def test_a_refused_request_has_no_words_to_tell() -> None:
    lines = Lines()
    await ask(stage(lines, texts=Texts), top_q="MARKER")
    assert (lines.only["prompt"], lines.only["answer"]) == (None, [])


def test_text_that_is_no_unicode_is_still_a_line() -> None:
    texts = Texts()
    texts.answered(['{"choices":[{"index":0,"text":"half \\ud800"}]}', "no JSON", "[DONE]"])
    assert json.loads(str(line(texts=texts)))["answer"] == ["half ?"]


# The log itself


def line(**fields: Any) -> RequestLine:
    return RequestLine(**{**dict.fromkeys(NAMES), **fields})


@pytest.fixture
def opened() -> Iterator[Callable[..., RequestLog]]:
    made: list[RequestLog] = []

    def open_(section: LogsSection) -> RequestLog:
        log = open_request_log(section)
        assert log is not None
        made.append(log)
        return log

    yield open_
    for log in made:
        log.close()


def test_lines_go_to_a_file_whose_directory_is_made(tmp_path: Path, opened: Any) -> None:
    path = tmp_path / "logs" / "access.jsonl"
    log = opened(LogsSection(access=path))
    for name in ("one", "100 %", "two\nlines"):
        log.write(line(request_id=name))
    log.close()
    found = [json.loads(text)["request_id"] for text in path.read_text().splitlines()]
    assert found == ["one", "100 %", "two\nlines"]


def test_lines_are_written_while_the_log_is_open(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    log = RequestLog(logging.FileHandler(path), every_s=0.01)
    log.write(line(request_id="one"))
    for _ in range(1000):
        if path.read_text():
            break
        time.sleep(0.01)
    assert json.loads(path.read_text())["request_id"] == "one"
    log.close()


def test_lines_stand_beside_serves_own_log_and_rotate_as_it_does(
    tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = RotatingFileHandler(tmp_path / "replica_g.log", maxBytes=500, backupCount=2)
    buffering = MemoryHandler(1, target=serve)
    monkeypatch.setattr(request_log.logger, "handlers", [buffering])
    for name in ("one", "two"):
        log = opened(LogsSection(access="ray"))
        log.write(line(request_id=name))
        log.close()
    serve.close()
    newest, older = tmp_path / "replica_g.access.jsonl", tmp_path / "replica_g.access.jsonl.1"
    assert json.loads(newest.read_text())["request_id"] == "two"
    assert json.loads(older.read_text())["request_id"] == "one"


def test_no_log_where_none_is_wanted() -> None:
    assert open_request_log(LogsSection(access=None)) is None


def test_a_log_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        open_request_log(LogsSection(access=tmp_path / "file" / "access.jsonl"))


def test_what_nobody_writes_is_dropped_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log.logger, "propagate", True)
    path = tmp_path / "access.jsonl"
    log = RequestLog(logging.FileHandler(path), every_s=60.0, most_waiting=2)
    for name in ("one", "two", "three"):
        log.write(line(request_id=name))
    log.close()
    assert len(path.read_text().splitlines()) == 2
    assert "1 lines of the request log were dropped" in caplog.text


def test_a_line_that_cannot_be_written_ends_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "access.jsonl"
    log = RequestLog(logging.FileHandler(path))
    # Past the logger, to which pytest has handlers of its own.
    log._handler.handle(logging.makeLogRecord({"msg": line(request_id=object())}))
    log.write(line(request_id="good"))
    log.close()
    assert json.loads(path.read_text())["request_id"] == "good"
    assert "Logging error" in capsys.readouterr().err


def test_the_documentation_has_every_field_and_no_other() -> None:
    section = DOCS.read_text().split("### Request log")[1].split("\n#")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    told = [name.strip().strip("`") for row in rows for name in row.split(",")]
    assert told == [*NAMES, "prompt", "answer"]
