"""Why starts fail, over Serve's states as a test tells them."""

import asyncio

from serving.control.scaler import DeploymentState, ServeReplica
from serving.control.start_failures import StartFailures
from serving.diagnosis import start_failure

SERVES_WORDS = """A replica failed to start with exception. Retrying. Error:
Traceback (most recent call last):
  File "engine.py", line 1, in start
RuntimeError: Engine core initialization failed. See root cause above.
"""
OUTPUT = "(EngineCore pid=1) ERROR 11-29 17:04:26 [core.py:1] ValueError: no room for 7 blocks\n"


def main(*names: str, message: str = SERVES_WORDS, status: str = "UNHEALTHY") -> DeploymentState:
    replicas = tuple(ServeReplica(replica_id=name, state="STARTING") for name in names)
    return DeploymentState(
        name="main",
        status=status,
        target=1,
        running=0 if names else 1,
        starting=len(names),
        message=message,
        replicas=replicas,
    )


class Scene:
    def __init__(self, output: str = OUTPUT) -> None:
        self.asked: list[str] = []
        self._output = output
        self.failures = StartFailures(self.fetch)

    async def fetch(self, replica: ServeReplica) -> str:
        self.asked.append(replica.replica_id)
        return self._output

    async def sees(self, state: DeploymentState) -> dict[str, str]:
        self.failures.observe({"main": state})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.failures.words


async def test_a_failed_start_is_explained_by_its_own_output_once() -> None:
    scene = Scene()
    assert await scene.sees(main("a")) == {}
    for _ in range(2):
        assert await scene.sees(main("b")) == {"main": "ValueError: no room for 7 blocks"}
    assert scene.asked == ["a"]


async def test_a_start_that_nobody_calls_failed_is_not_explained() -> None:
    scene = Scene()
    await scene.sees(main("a", message=""))
    assert await scene.sees(main("b", message="")) == {}


async def test_when_all_answer_nothing_is_left_to_say() -> None:
    scene = Scene()
    await scene.sees(main("a"))
    await scene.sees(main("b"))
    assert await scene.sees(main(message="", status="HEALTHY")) == {}


def test_without_output_serves_own_words_have_to_do() -> None:
    said = "RuntimeError: Engine core initialization failed. See root cause above."
    assert start_failure(SERVES_WORDS, output="") == said
    assert start_failure("it died", output="nothing of use") == "it died"
    assert start_failure("", output="") == ""
