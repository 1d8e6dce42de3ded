"""What does a command line become as a job? The same command, its files under names of their own.

    shardwise search --model m/config.json --out /home/me/plan.json --address http://head:8265
    in the job: search --model inputs/0/m/config.json --out outputs/0/plan.json --address auto

Names are relative to the job's own directory (`job_package.py`). They depend on the command line
alone, so that the same command asks the same question again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import typer

from cli.job_files import Files, several
from cluster.errors import InputError

KEPT = "checkpoint"  # a checkpoint's directory in the job


@dataclass(frozen=True, kw_only=True)
class JobCommand:
    """A command as a job.

    `typed` as the user gave it, `arguments` as the job does; `inputs`: files here and `outputs`:
    where results go here, both by their name in the job. `words`: what the user called what the job
    calls otherwise. `kept`: the directory a checkpoint was asked to be in.
    """

    name: str
    typed: tuple[str, ...]
    arguments: tuple[str, ...]
    inputs: Mapping[str, Path]
    outputs: Mapping[str, Path]
    words: Mapping[str, str]
    keeps: bool
    kept: Path | None
    fresh: bool


def as_job(context: typer.Context, files: Files) -> JobCommand:
    """The job of a parsed command line.

    Raises InputError for a file that is not there, for an option that means this machine, and for
    two results in one file.
    """
    _check_elsewhere(context, files)
    said = tuple(_said(context))
    names = _Names()
    arguments = [names.said(one, files) for one in said if one.parameter not in _apart(files)]
    arguments += [names.said(one, files) for one in _results(context, said, files)]
    if files.kept is not None:
        arguments.append((f"--{files.kept}", KEPT))
    if files.on_ray(context.params):
        arguments.append(("--address", "auto"))
    kept = None if files.kept is None else context.params[files.kept]
    return JobCommand(
        name=str(context.command.name),
        typed=tuple(word for one in said for word in one.words(one.text)),
        arguments=tuple(word for words in arguments for word in words),
        inputs=names.inputs,
        outputs=names.outputs,
        words=names.called,
        keeps=files.kept is not None,
        kept=None if kept is None else Path(str(kept)),
        fresh=bool(context.params.get("fresh")),
    )


@dataclass(frozen=True, kw_only=True)
class _Said:
    """A value on the command line; `option` is empty for an argument, `text` None for a flag."""

    parameter: str
    option: str
    text: str | None

    def words(self, text: str | None) -> tuple[str, ...]:
        return tuple(word for word in (self.option, text) if word)


@dataclass
class _Names:
    """What is called how in the job."""

    inputs: dict[str, Path] = field(default_factory=dict)
    outputs: dict[str, Path] = field(default_factory=dict)
    called: dict[str, str] = field(default_factory=dict)
    sources: int = 0

    def said(self, one: _Said, files: Files) -> tuple[str, ...]:
        """The words of a value in the job."""
        text = one.text
        if text is not None and one.parameter in files.read:
            text = self._read(one, text, files)
        elif text is not None and one.parameter in files.written:
            text = self._written(one, text)
        return one.words(text)

    def _read(self, one: _Said, text: str, files: Files) -> str:
        source = files.read[one.parameter](text, one.option)
        if source is None:
            return text
        root = f"inputs/{self.sources}"
        self.sources += 1
        self.inputs |= {f"{root}/{name}": path for name, path in source.files.items()}
        self.called[f"{root}/{source.name}"] = text
        return f"{root}/{source.name}"

    def _written(self, one: _Said, text: str) -> str:
        path = Path(text).absolute()
        if path in self.outputs.values():
            raise InputError(
                f"{one.option} and another option are both to be {text}. Fix: name two."
            )
        name = f"outputs/{len(self.outputs)}/{path.name}"
        self.outputs[name], self.called[name] = path, text
        return name


def _said(context: typer.Context) -> Iterator[_Said]:
    """What was said on the command line, in the order in which the command declares it."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is None or source.name.startswith("DEFAULT"):
            continue
        for value in several(context.params[name]):
            if isinstance(value, bool):
                words = parameter.opts if value else parameter.secondary_opts
                yield _Said(parameter=name, option=words[0], text=None)
            else:
                option = "" if parameter.param_type_name == "argument" else parameter.opts[0]
                text = value.value if isinstance(value, Enum) else value
                yield _Said(parameter=name, option=option, text=str(text))


def _results(context: typer.Context, said: Sequence[_Said], files: Files) -> Iterator[_Said]:
    """Results that are written where no option says so."""
    named = {one.parameter for one in said}
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in files.written and name not in named:
            value = context.params[name] or files.unnamed.get(name)
            if value is not None:
                yield _Said(parameter=name, option=parameter.opts[0], text=str(value))


def _apart(files: Files) -> tuple[str | None, ...]:
    """Options that the job gets in words of its own."""
    return ("address", files.kept)


def _check_elsewhere(context: typer.Context, files: Files) -> None:
    for name, why in files.here.items():
        if context.params[name]:
            raise InputError(
                f"--{name} does not go with an http:// address: {why}. Fix: leave one of them "
                "out, or run the command on a node of the cluster."
            )
