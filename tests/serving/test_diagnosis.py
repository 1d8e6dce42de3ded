"""A failed start is explained by its cause, not by the error that wraps it."""

from pathlib import Path

from serving.control.scaler import DeploymentState
from serving.diagnosis import failure, root_cause, waiting_for

OUTPUT = """\
(EngineCore pid=1) ERROR 11-29 17:04:26 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=1) ERROR 11-29 17:04:26 [core.py:1510]   File "core.py", line 1, in run
(EngineCore pid=1) ERROR 11-29 17:04:26 [core.py:1510] ValueError: No common block size for 7.
RuntimeError: Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above.
"""


def state(name: str, *, status: str = "UPDATING", running: int = 0) -> DeploymentState:
    return DeploymentState(
        name=name, status=status, target=1, running=running, starting=1 - running, message="a\nb\n"
    )


def test_the_cause_is_found_behind_the_wrappers() -> None:
    assert root_cause(["nothing here", OUTPUT]) == "ValueError: No common block size for 7."
    assert root_cause(["RuntimeError: Engine core initialization failed."]) == ""


def test_a_failure_names_the_deployment_and_the_cause(tmp_path: Path) -> None:
    (tmp_path / "worker-1.out").write_text(OUTPUT)
    states = {"main": state("main", status="DEPLOY_FAILED")}
    assert failure(states, logs=tmp_path) == "main: ValueError: No common block size for 7."
    assert failure(states, logs=None) == "main: b"
    assert failure({"main": state("main")}, logs=tmp_path) == ""


def test_what_is_not_ready_is_waited_for() -> None:
    states = {"main": state("main"), "gateway": state("gateway", running=1)}
    assert waiting_for(states) == "main 0/1 ready, loading the model"
    assert waiting_for({}) == "deploying the application"
