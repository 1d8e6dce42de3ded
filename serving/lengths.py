"""How long will an answer be, and how long was it? What the gateway predicts and learns from.

The predictors are those of `cluster.lengths`, one per pool and gateway process. They learn from
answers that came to their end, by the engine's own count where it tells one: of a cancelled or
broken one nobody knows how long it would have been.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.engine_work import EngineWork
from cluster.lengths.features import LengthFeatures, LengthPredictor, openings_of_blocks
from cluster.prefix_index import BLOCK_TOKENS
from cluster.routing import predicted_tokens
from serving.access import Caller
from serving.admission import Fit
from serving.metering import Meter
from serving.metrics import GatewayMetrics
from serving.requests import Body, ChatBody, EmbeddingBody, Generating
from serving.transcript import Transcript


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a request is expected to take. Tokens; `prompt` and `output` of all its `answers`.

    `work`: predicted engine-seconds.
    """

    asked: LengthFeatures
    answers: int
    prompt: int
    output: float
    work: float

    @property
    def load(self) -> float:
        """Predicted tokens, as routing and steering count them."""
        return predicted_tokens(prompt_tokens=self.prompt, output_tokens=self.output)


class Lengths:
    """One pool's answers."""

    def __init__(
        self,
        *,
        pool: str,
        predictor: LengthPredictor,
        work: EngineWork,
        metrics: GatewayMetrics,
    ) -> None:
        self._predictor = predictor
        self._work = work
        self._predicted = metrics.predicted_output.labels(pool)
        self._actual = metrics.output_tokens.labels(pool)
        self._ratio = metrics.output_ratio.labels(pool)

    def expected(self, body: Body, fit: Fit, *, limit: int | None, caller: Caller) -> Expected:
        """What a request will take if each of its answers may have `limit` tokens."""
        if isinstance(body, EmbeddingBody):
            return self._of(LengthFeatures(fit.prompt_tokens, 0, 0), fit, answers=1, output=0.0)
        asked = features(body, fit, limit=limit, caller=caller)
        output = self._predictor.predict(asked)
        return self._of(asked, fit, answers=fit.sequences, output=output)

    def _of(self, asked: LengthFeatures, fit: Fit, *, answers: int, output: float) -> Expected:
        """`output`: tokens of each answer."""
        prompt = fit.prompt_tokens / answers
        return Expected(
            asked=asked,
            answers=answers,
            prompt=fit.prompt_tokens,
            output=answers * output,
            work=answers * self._work.of(prompt_tokens=prompt, output_tokens=output),
        )

    def reckon_by(self, work: EngineWork) -> None:
        """The pool has another layout, on which tokens cost as `work` says."""
        self._work = work

    def ended(self, expected: Expected, *, output_tokens: int) -> None:
        """All answers of a request have come to their end, after so many tokens together."""
        if not expected.asked.most:
            return  # nothing is generated
        self._predictor.learn(expected.asked, output_tokens / expected.answers)
        self._predicted.inc(expected.output)
        self._actual.inc(output_tokens)
        if expected.output > 0.0:
            self._ratio.observe(output_tokens / expected.output)


def features(body: Generating, fit: Fit, *, limit: int | None, caller: Caller) -> LengthFeatures:
    """What a request tells of the length of each of its answers."""
    most = fit.room if limit is None else min(limit, fit.room)
    return LengthFeatures(
        prompt_tokens=fit.prompt_tokens * (body.n or 1) // fit.sequences,
        limit=limit,
        room=fit.room,
        least=most if body.ignore_eos else min(body.min_tokens or 0, most),
        source=source(body, caller),
        openings=openings_of_blocks(fit.chain, BLOCK_TOKENS),
    )


def source(body: Generating, caller: Caller) -> str:
    """Who asks, and for which kind of answer: few values, each with lengths of its own."""
    chat = isinstance(body, ChatBody)
    tools = isinstance(body, ChatBody) and bool(body.tools)
    wanted = body.response_format
    formed = body.structured_outputs is not None or (wanted is not None and wanted.type != "text")
    parts = ["chat" if chat else "completions", "tools" if tools else "", "form" if formed else ""]
    return "/".join(["" if caller.key is None else caller.key.name, *parts])


def counted(meter: Meter | None, said: Transcript | None, *, stream: bool) -> int | None:
    """Output tokens of an answer that has ended; None if nobody has counted them.

    The engine's usage, else the token ids noted, else a stream's events.
    """
    if meter is not None and meter.usage is not None:
        return meter.output
    if said is not None and said.tokens:
        return len(said.tokens)
    return meter.output if meter is not None and stream else None
