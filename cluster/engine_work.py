"""How long does a request keep an engine busy? Its work, in engine-seconds.

An engine-second is one second of one replica of a plan that works as planned, so work per second is
the number of replicas that a load keeps busy. A prompt token and an output token cost very
different time, and an output token the less the more sequences share its step:

    work = prompt_token_s P + (output_token_s + context_token_s (P + O / 2)) O

of P prompt and O output tokens (all of a prompt's, cached or not: the plan's share of hits is in
the price). The three prices depend on how many requests are in flight; a request's work is what it
takes at the plan's own operating point. Where they come from: `cluster.planned_work`.

Invariants: work is >= 0, monotone in both lengths, and additive over requests.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from cluster.routing import predicted_tokens

TURNOVER_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPrices:
    """Engine-seconds of tokens while a replica has `batch` requests in flight.

    `prompt_token_s`, `output_token_s`: of a token; `context_token_s`: more per output token and
    token of its context.
    """

    batch: float
    prompt_token_s: float
    output_token_s: float
    context_token_s: float

    def seconds(self, *, prompt_tokens: float, output_tokens: float, context: float) -> float:
        """Of so many tokens, those of the output at a mean `context`."""
        return (
            self.prompt_token_s * prompt_tokens
            + (self.output_token_s + self.context_token_s * context) * output_tokens
        )

    def times(self, factor: float) -> TokenPrices:
        """All of them `factor` times as high."""
        return TokenPrices(
            batch=self.batch,
            prompt_token_s=factor * self.prompt_token_s,
            output_token_s=factor * self.output_token_s,
            context_token_s=factor * self.context_token_s,
        )


@dataclass(frozen=True, kw_only=True)
class EngineWork:
    """What tokens cost on one replica. `prices`: by rising batch, the plan's batch last.

    `context`: tokens a sequence of the plan's workload holds on average.
    """

    prices: tuple[TokenPrices, ...]
    context: float

    @property
    def planned(self) -> TokenPrices:
        """At the plan's operating point."""
        return self.prices[-1]

    def of(self, *, prompt_tokens: float, output_tokens: float) -> float:
        """Engine-seconds of a request."""
        return self.prices[-1].seconds(
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            context=prompt_tokens + output_tokens / 2.0,
        )

    def spent_s(self, *, prompt_tokens: float, output_tokens: float, batch: float) -> float:
        """Seconds that a replica with `batch` requests in flight should take for these tokens.

        Below the smallest batch whose prices are known, and above the plan's, a step is taken to
        last as long as there: its sequences share it.
        """
        return self.at(batch).seconds(
            prompt_tokens=prompt_tokens, output_tokens=output_tokens, context=self.context
        )

    def times(self, factor: float) -> EngineWork:
        """The same with all prices `factor` times as high."""
        return replace(self, prices=tuple(price.times(factor) for price in self.prices))

    def at(self, batch: float) -> TokenPrices:
        """The prices with `batch` requests in flight, between those that are known."""
        prices = self.prices
        above = bisect_left(prices, batch, key=lambda price: price.batch)
        if above == len(prices) or prices[above].batch == batch or above == 0:
            nearest = prices[min(above, len(prices) - 1)]
            shared = nearest.output_token_s * nearest.batch / max(batch, 1.0)
            return replace(nearest, batch=batch, output_token_s=shared)
        low, high = prices[above - 1], prices[above]
        # A step's time, the price times the batch, is nearly straight in the batch; prices are not.
        share = (batch - low.batch) / (high.batch - low.batch)

        def between(small: float, large: float) -> float:
            return small + share * (large - small)

        step_s = between(low.output_token_s * low.batch, high.output_token_s * high.batch)
        return TokenPrices(
            batch=batch,
            prompt_token_s=between(low.prompt_token_s, high.prompt_token_s),
            output_token_s=step_s / batch,
            context_token_s=between(low.context_token_s, high.context_token_s),
        )


def shared_evenly(
    *,
    rate: float,
    batch: float,
    prompt_share: float,
    context_share: float,
    prompt_tokens: float,
    output_tokens: float,
) -> TokenPrices:
    """Prices of a replica that is busy with `rate` requests/s of one kind.

    `prompt_share` of its time goes to their prompts, and of the rest `context_share` to reading
    what is cached. By these prices such requests keep it busy exactly: rate * work = 1.
    """
    busy_s = 1.0 / rate
    output_s = busy_s * (1.0 - prompt_share) / output_tokens
    context = prompt_tokens + output_tokens / 2.0
    return TokenPrices(
        batch=batch,
        prompt_token_s=busy_s * prompt_share / prompt_tokens,
        output_token_s=output_s * (1.0 - context_share),
        context_token_s=output_s * context_share / context,
    )


def by_tokens(tokens_per_s: float) -> EngineWork:
    """Where prompts and outputs cannot be told apart: so many predicted tokens a second are 1."""
    token_s = 1.0 / tokens_per_s
    price = TokenPrices(
        batch=1.0,
        prompt_token_s=predicted_tokens(prompt_tokens=1, output_tokens=0.0) * token_s,
        output_token_s=predicted_tokens(prompt_tokens=0, output_tokens=1.0) * token_s,
        context_token_s=0.0,
    )
    return EngineWork(prices=(price,), context=0.0)


def turned_over(max_tokens: float) -> EngineWork:
    """Where nothing is known: a replica full of predicted tokens is turned over in `TURNOVER_S`."""
    return by_tokens(max_tokens / TURNOVER_S)
