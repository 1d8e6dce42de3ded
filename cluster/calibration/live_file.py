"""What was measured of a live engine, and what was fitted to it? A YAML file the simulator reads.

    format: 1
    provenance: {model, engine, device, engine_args, threads, date, measured_s, ...}
    points: [{kind: decode, sequences: 4, context: 120, seconds: 0.042, spread: 0.02, samples: 60}]
    front: {into_s, into_token_s, out_s, client_over_engine, ...}
    fitted: {decode, prompt, sequence_s, context_token_s, pair_s, residuals}

Seconds and tokens everywhere. `spread` is the interquartile range of a point's samples over their
median. Points are steps by the engine's own clock, except `prompt`: all steps of a lone prompt.
Invariants: tables have strictly rising sizes from 1 on; the file carries all that was fitted, and
the points, so that it can be fitted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.errors import ConfigError

FIX = "write the file anew with `shardwise calibrate --live`."
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRICT = ConfigDict(extra="forbid", frozen=True)

Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1)]


class Chunk(NamedTuple):
    """`tokens` of a prompt in one step, after `start` that are known."""

    tokens: int
    start: int


class Step(NamedTuple):
    """A step: `sequences` decode, holding `context` tokens together, beside `chunks`."""

    sequences: int
    context: float
    chunks: tuple[Chunk, ...]


class Measured(BaseModel):
    """How long, how sure (interquartile range over median), and from how many samples."""

    model_config = _STRICT

    seconds: Positive
    spread: Seconds
    samples: Tokens


class DecodePoint(Measured):
    """A step in which `sequences` decode and hold `context` tokens together."""

    kind: Literal["decode"] = "decode"
    sequences: Tokens
    context: Seconds

    @property
    def name(self) -> str:
        """For people."""
        return f"decode {self.sequences} at {self.context / self.sequences:.0f} tokens"

    def steps(self, chunk: int) -> tuple[Step, ...]:  # noqa: ARG002  # one step, whatever the chunk
        """The step."""
        return (Step(self.sequences, self.context, ()),)


class PromptPoint(Measured):
    """All steps of one prompt of `tokens` alone in the engine, to its first token."""

    kind: Literal["prompt"] = "prompt"
    tokens: Tokens

    @property
    def name(self) -> str:
        """For people."""
        return f"prompt of {self.tokens} alone"

    def steps(self, chunk: int) -> tuple[Step, ...]:
        """Its steps in chunks of at most `chunk` tokens."""
        return tuple(Step(0, 0.0, (each,)) for each in chunks_of(self.tokens, chunk))


class MixedPoint(Measured):
    """A step of `sequences` decoding beside `tokens` of a prompt that knows `start` already."""

    kind: Literal["mixed"] = "mixed"
    sequences: Tokens
    context: Seconds
    tokens: Tokens
    start: Annotated[int, Field(ge=0)]

    @property
    def name(self) -> str:
        """For people."""
        return (
            f"decode {self.sequences} at {self.context / self.sequences:.0f} "
            f"+ {self.tokens} after {self.start}"
        )

    def steps(self, chunk: int) -> tuple[Step, ...]:  # noqa: ARG002  # one step, whatever the chunk
        """The step."""
        return (Step(self.sequences, self.context, (Chunk(self.tokens, self.start),)),)


Point = Annotated[DecodePoint | PromptPoint | MixedPoint, Field(discriminator="kind")]


class Front(BaseModel):
    """What the front end adds outside of steps, per request and on every token's way out.

    A request enters the engine `into_s + into_token_s * prompt tokens` after it was sent, when the
    engine is idle; a token is in the caller's hands `out_s` after its step. `client_over_engine` is
    the median gap between tokens that callers see over that of the engine's clock.
    """

    model_config = _STRICT

    into_s: Seconds
    into_token_s: Seconds
    out_s: Seconds
    out_spread_s: Seconds
    client_over_engine: Positive
    samples: Tokens


class Knots(BaseModel):
    """Seconds of a step over its size, piecewise linear, at no context."""

    model_config = _STRICT

    at: list[Tokens] = Field(min_length=1)
    seconds: list[Positive]

    @model_validator(mode="after")
    def _pairs(self) -> Knots:
        if len(self.at) != len(self.seconds):
            raise ValueError(f"{len(self.at)} sizes but {len(self.seconds)} seconds")
        if any(low >= high for low, high in pairwise(self.at)):
            raise ValueError("sizes must rise")
        if self.at[0] != 1:
            raise ValueError("sizes must begin with 1")
        return self


class Residuals(BaseModel):
    """|fitted / measured - 1| over the points."""

    model_config = _STRICT

    median: Seconds
    worst: Seconds
    worst_point: str


class Fitted(BaseModel):
    """The numbers of the step model; see `live_fit` for its formula."""

    model_config = _STRICT

    decode: Knots
    prompt: Knots
    sequence_s: Seconds
    context_token_s: Seconds
    pair_s: Seconds
    residuals: Residuals


class Provenance(BaseModel):
    """Of what, by what, where and when."""

    model_config = _STRICT

    model: str = Field(min_length=1)
    engine: str = Field(min_length=1)
    device: str = Field(min_length=1)
    threads: Tokens
    date: str = Field(min_length=1)
    measured_s: Seconds
    async_scheduling: bool
    kv_tokens: Tokens
    max_num_seqs: Tokens
    max_model_len: Tokens
    chunk: Tokens
    engine_args: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class LiveFile(BaseModel):
    """The file as written."""

    model_config = _STRICT

    format: Literal[1] = 1
    provenance: Provenance
    points: list[Point] = Field(min_length=1)
    front: Front
    fitted: Fitted

    def dumps(self) -> str:
        """YAML text."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, width=100)


def chunks_of(tokens: int, chunk: int) -> tuple[Chunk, ...]:
    """A prompt in chunks of at most `chunk` tokens."""
    return tuple(Chunk(min(chunk, tokens - at), at) for at in range(0, tokens, chunk))


def read_live(path: Path) -> LiveFile:
    """Parse one file. Raises ConfigError with the field, the problem and what to do."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            source=str(path), field="", problem=f"cannot be read ({error}).", fix=FIX
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(
            source=str(path), field="", problem=f"is not YAML ({error}).", fix=FIX
        ) from error
    try:
        return LiveFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            source=str(path), field=_where(first["loc"]), problem=f"{first['msg']}.", fix=FIX
        ) from error


def _where(location: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in location)
