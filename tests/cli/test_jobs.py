"""A job's life as its client sees it, against a double of Ray's interface."""

from __future__ import annotations

import io
import json
import socket
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from cli.job_record import recorded
from cli.main import app
from cluster.errors import InputError, UnavailableError, UnknownNameError

pytest.importorskip("ray", reason="needs the serve extra")

from cluster.ray_backend.job_client import JobClient
from tests.cli.job_interface import JobInterface, served

SEARCH = (
    *("search", "--model", "qwen3-30b-a3b", "--cluster", "1x8xH100", "--isl", "2000"),
    *("--osl", "300", "--tpot", "50ms", "--budget", "64"),
)
PLAN, STATE, ASKED = "outputs/0/plan.json", "checkpoint/state.npz", "checkpoint/question.json"

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's client, on import


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str):
    """Exit code and what was printed, errors with their words as the entry point prints them."""
    return CliRunner().invoke(app, list(words))


def submit(double: JobInterface, *more: str):
    return run(*SEARCH, *more, "--address", double.url)


def test_a_command_is_packed_submitted_followed_and_its_results_are_brought_back(place):
    plan = json.dumps({"made_of": PLAN}).encode()
    with served(JobInterface(leaves={PLAN: plan})) as double:
        done = submit(double, "--out", "made/plan.json")
    assert done.exit_code == 0, done.output
    assert "one\ntwo\n" in done.output
    assert json.loads((place / "made/plan.json").read_text()) == {"made_of": "made/plan.json"}
    (job,) = double.submitted
    assert job["entrypoint"].startswith("sh shardwise.sh search --model qwen3-30b-a3b")
    assert job["submission_id"].startswith("shardwise-search-")
    (package,) = double.packages.values()
    names = zipfile.ZipFile(io.BytesIO(package)).namelist()
    assert {"shardwise.sh", "cli/main.py", "cluster/model/data/models.yaml"} <= {*names}
    assert not [name for name in names if name.startswith((".git", ".venv", "tests"))]


def test_a_lost_connection_is_taken_up_where_it_broke(place):
    with served(JobInterface(breaks=2, leaves={PLAN: b"{}"})) as double:
        done = submit(double)
    assert done.exit_code == 0, done.output
    assert done.output.count("one\n") == done.output.count("two\n") == 1


def test_a_command_that_fails_there_ends_with_its_exit_code(place):
    with served(JobInterface(ends={"status": "FAILED", "exit": 3})) as double:
        done = submit(double)
    assert done.exit_code == 3
    assert "ended with exit code 3" in done.output
    assert not (place / "plan.json").exists()


def test_a_job_that_never_ran_says_why_in_its_last_lines(place):
    why = "Traceback\n" + "  at a line\n" * 30 + "no space left on device"
    ends = {"status": "FAILED", "exit": None, "message": why, "nowhere": True}
    with served(JobInterface(says=(), ends=ends)) as double:
        done = submit(double)
    assert isinstance(done.exception, UnavailableError)
    assert str(done.exception).endswith("no space left on device")
    assert str(done.exception).count("\n") < 12


def test_results_that_are_gone_are_named(place):
    with served(JobInterface()) as double:
        done = submit(double)
    assert isinstance(done.exception, UnavailableError)
    assert f"{PLAN} is no longer on its node" in str(done.exception)


def test_a_cancelled_search_brings_its_checkpoint_and_the_same_command_sends_it_again(place):
    ends = {"status": "STOPPED", "exit": None}
    with served(JobInterface(ends=ends, leaves={STATE: b"saved", ASKED: b"{}"})) as double:
        stopped = submit(double)
        assert stopped.exit_code == 130
        assert "The same command goes on from here." in stopped.output
        double.ends, double.leaves = {"status": "SUCCEEDED", "exit": 0}, {PLAN: b"{}"}
        double.running = True
        again = submit(double)
        assert again.exit_code == 0, again.output
        assert "going on from where it was stopped" in again.output
        sent = zipfile.ZipFile(io.BytesIO(list(double.packages.values())[-1]))
        assert sent.read("inputs/checkpoint/state.npz") == b"saved"
        double.running = True
        assert "going on" not in submit(double).output  # done: nothing is left to go on from


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(JobClient, "follow", interrupted)
    with served(JobInterface()) as double:
        left = submit(double)
    assert left.exit_code == 130
    assert "goes on without us" in left.output
    assert f"shardwise jobs cancel {double.submitted[0]['submission_id']}" in left.output
    assert double.stopped == []


def test_a_search_that_begins_anew_sends_no_checkpoint(place):
    ends = {"status": "STOPPED", "exit": None}
    with served(JobInterface(ends=ends, leaves={STATE: b"saved", ASKED: b"{}"})) as double:
        submit(double)
        double.running = True
        submit(double, "--fresh")
        assert double.submitted[-1]["entrypoint"].count("--fresh") == 1
        last = zipfile.ZipFile(io.BytesIO(list(double.packages.values())[-1]))
        assert "inputs/checkpoint/state.npz" not in last.namelist()


def test_jobs_are_listed_and_those_of_others_are_not(place):
    with served(JobInterface()) as double:
        command = "search --model m" + " --start exact" * 20
        double.job("shardwise-search-1", metadata={"shardwise": command})
        double.job("theirs")
        listed = run("jobs", "list", "--address", double.url)
    (row,) = [line.split() for line in listed.output.splitlines() if "search-1" in line]
    assert row[:2] == ["shardwise-search-1", "running"]
    assert "search --model m" in " ".join(row)
    assert "theirs" not in listed.output


def test_a_job_is_cancelled_and_what_it_saved_is_kept(place):
    ends = {"status": "FAILED", "exit": 1}
    with served(JobInterface(ends=ends, leaves={STATE: b"saved", ASKED: b"{}"})) as double:
        submit(double)
        name = double.submitted[0]["submission_id"]
        double.running = True
        done = run("jobs", "cancel", name)  # where it was submitted to is remembered
        assert double.stopped == [name]
        assert "The same command goes on from here." in done.output
        assert (recorded(name).checkpoint / "state.npz").read_bytes() == b"saved"
        assert "has ended already (stopped)" in run("jobs", "cancel", name).output


def test_results_are_fetched_again_to_where_they_belong_or_into_a_directory(place):
    with served(JobInterface(leaves={PLAN: b'{"a": 1}'})) as double:
        submit(double)
        name = double.submitted[0]["submission_id"]
        (place / "plan.json").unlink()
        assert run("jobs", "fetch", name).exit_code == 0
        assert (place / "plan.json").read_text() == '{"a": 1}'
        run("jobs", "fetch", name, "--to", "all")
        assert (place / "all" / PLAN).read_text() == '{"a": 1}'


def test_a_job_of_another_machine_is_fetched_into_a_directory_and_never_out_of_it(place):
    left = {PLAN: b"{}", "../../escaped": b"no"}
    with served(JobInterface(leaves=left, running=False)) as double:
        double.job("theirs", metadata={"shardwise": "search"})
        done = run("jobs", "fetch", "theirs", "--address", double.url)
    assert done.exit_code == 0, done.output
    assert (place / "theirs" / PLAN).exists()
    assert not [*place.rglob("escaped")]


def test_a_running_job_is_not_fetched(place):
    with served(JobInterface()) as double:
        double.job("busy")
        done = run("jobs", "fetch", "busy", "--address", double.url)
    assert isinstance(done.exception, InputError)
    assert "its results are not whole" in str(done.exception)


def test_an_unknown_job_is_answered_with_those_there_are(place):
    with served(JobInterface()) as double:
        double.job("shardwise-search-1")
        done = run("jobs", "logs", "shardwise-search-2", "--address", double.url)
    assert isinstance(done.exception, UnknownNameError)
    assert "Did you mean shardwise-search-1?" in str(done.exception)


def test_without_an_address_it_is_asked_which_cluster(place):
    done = run("jobs", "list")
    assert "pass --address http://HEAD:8265" in str(done.exception)


@pytest.mark.parametrize(
    ("sent", "said"),
    [(None, "no token was found here"), ("wrong", "the token sent is not the cluster's")],
)
def test_a_missing_and_a_wrong_token_are_told_apart(monkeypatch, sent, said):
    if sent is not None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", sent)
    with served(JobInterface(token="right")) as double, pytest.raises(InputError, match=said):
        JobClient(double.url)


@pytest.mark.parametrize("where", ["variable", "file"])
def test_the_token_is_sent_with_everything(place, monkeypatch, where):
    if where == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    else:
        (place / "token").write_text("right\n")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(place / "token"))
    with served(JobInterface(token="right", leaves={PLAN: b"{}"})) as double:
        assert submit(double).exit_code == 0


def test_another_release_of_ray_is_refused_with_both_numbers():
    with (
        served(JobInterface(version="2.9.3")) as double,
        pytest.raises(InputError, match=r"runs Ray 2\.9\.3, and this Shardwise is made for Ray"),
    ):
        JobClient(double.url)


def test_variables_of_rays_do_not_redirect_what_was_typed(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    with served(JobInterface()) as double:
        assert JobClient(double.url).jobs() == ()


def test_nobody_listening_is_said_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError, match="no dashboard answers at"):
        JobClient(f"http://127.0.0.1:{port}")


def test_what_is_no_dashboard_is_not_taken_for_one():
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(UnavailableError, match="is no dashboard of Ray"):
            JobClient(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
