"""Who is asking, and may they? The gateway's door: keys, classes, models, rates.

Without a key file everyone may ask anything, as on a machine of one's own. With one, a request
needs `Authorization: Bearer KEY` and gets that key's class, unless it asks for a lower one.

Invariant: what an answer was reserved is put right once, when it ends: what it used is kept, the
rest given back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.priority import RANK, Priority
from serving.errors import (
    bad_request,
    forbidden,
    prompt_over_rate,
    rate_exceeded,
    shown,
    unauthorized,
)
from serving.keys import Key, KeyRing
from serving.rates import Bucket

PRIORITY_HEADER = "X-Shardwise-Priority"
KEY_HEADER = "Authorization"


@dataclass
class Allowance:
    """What is left to one key. `charged`: by this gateway since its start."""

    requests: Bucket | None = None
    tokens: Bucket | None = None
    charged_requests: float = 0.0
    charged_tokens: float = 0.0

    def charge(self, *, requests: float, tokens: float, now_s: float) -> None:
        """Take from the budgets, or give back what is below 0."""
        self.charged_requests += requests
        self.charged_tokens += tokens
        self.take(requests=requests, tokens=tokens, now_s=now_s)

    def take(self, *, requests: float, tokens: float, now_s: float) -> None:
        """The same for what another gateway has charged."""
        if self.requests is not None:
            self.requests.take(requests, now_s)
        if self.tokens is not None:
            self.tokens.take(tokens, now_s)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks. `key` None: anyone. `priority`: of this request."""

    priority: Priority
    key: Key | None = None
    allowance: Allowance | None = None

    def may_use(self, model: str) -> bool:
        """Whether a model is among what this caller may use."""
        return self.key is None or self.key.may_use(model)

    def check_model(self, model: str) -> None:
        """Raises ApiError (403) for a model of others."""
        if self.key is not None and not self.key.may_use(model):
            names = ", ".join(f"'{name}'" for name in self.key.models or ())
            raise forbidden(
                f"The API key '{self.key.name}' may not use the model '{model}'; it may use "
                f"{names or 'none'}.",
                param="model",
                code="model_not_allowed",
            )

    def reserve(self, *, prompt: int, output: int, now_s: float) -> Reserve:
        """Take a request and its predicted tokens from the budgets.

        Raises ApiError: 429 with the time after which there is enough, 400 if there never is.
        """
        if self.key is None or self.allowance is None:
            return Reserve(key="", allowance=None, tokens=0.0)
        requests, tokens = self.allowance.requests, self.allowance.tokens
        wanted = 0.0
        if tokens is not None:
            if prompt > tokens.per_minute:
                raise prompt_over_rate(prompt=prompt, limit=tokens.per_minute, key=self.key.name)
            wanted = min(float(prompt + output), tokens.per_minute)
        for bucket, amount, what in ((requests, 1.0, "requests"), (tokens, wanted, "tokens")):
            wait_s = 0.0 if bucket is None else bucket.wait_s(amount, now_s)
            if bucket is not None and wait_s > 0.0:
                raise rate_exceeded(
                    key=self.key.name,
                    what=what,
                    limit=bucket.per_minute,
                    left=bucket.left(now_s),
                    wanted=amount,
                    retry_after_s=wait_s,
                )
        self.allowance.charge(requests=1.0, tokens=wanted, now_s=now_s)
        return Reserve(key=self.key.name, allowance=self.allowance, tokens=wanted)


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """What was taken for one answer. `key`: its name, empty without one."""

    key: str
    allowance: Allowance | None
    tokens: float

    def settle(self, *, used: float, now_s: float) -> None:
        """The answer has ended after so many tokens of prompt and output. Call once."""
        if self.allowance is not None:
            self.allowance.charge(requests=0.0, tokens=used - self.tokens, now_s=now_s)

    def void(self, now_s: float) -> None:
        """The request was refused after all: it costs nothing."""
        if self.allowance is not None:
            self.allowance.charge(requests=-1.0, tokens=-self.tokens, now_s=now_s)

    def headers(self, now_s: float) -> dict[str, str]:
        """What is left, in OpenAI's headers."""
        made: dict[str, str] = {}
        if self.allowance is None:
            return made
        for what, bucket in (
            ("requests", self.allowance.requests),
            ("tokens", self.allowance.tokens),
        ):
            if bucket is not None:
                made[f"x-ratelimit-limit-{what}"] = f"{bucket.per_minute:.0f}"
                made[f"x-ratelimit-remaining-{what}"] = f"{max(0.0, bucket.left(now_s)):.0f}"
        return made


class Door:
    """Tells callers by their headers. `ring` None: no keys are asked for."""

    def __init__(self, ring: KeyRing | None, *, clock: Callable[[], float]) -> None:
        self._ring = ring
        self._clock = clock
        self._allowances: dict[str, Allowance] = {}
        self._heard: dict[str, dict[str, tuple[float, float]]] = {}

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who asks. Raises ApiError (400, 401, 403)."""
        asked = _priority_of(headers)
        if self._ring is None:
            return Caller(priority=asked or Priority.STANDARD)
        key = self._ring.find(_presented(headers))
        if key is None:
            raise unauthorized("The API key is not one of this service.")
        if asked is not None and RANK[asked] < RANK[key.priority]:
            raise forbidden(
                f"Header {PRIORITY_HEADER} is '{asked}', and the API key '{key.name}' is for "
                f"'{key.priority}' at most.",
                param=PRIORITY_HEADER,
                code="priority_not_allowed",
            )
        return Caller(priority=asked or key.priority, key=key, allowance=self._allowance(key))

    def charged(self) -> dict[str, tuple[float, float]]:
        """Requests and tokens this gateway has charged since its start, by key."""
        return {
            name: (held.charged_requests, held.charged_tokens)
            for name, held in self._allowances.items()
        }

    def charged_elsewhere(self, charged: Mapping[str, dict[str, tuple[float, float]]]) -> None:
        """What the other gateways have charged since their start: the budgets are everyone's.

        A gateway heard for the first time: what it charged before is not of this minute.
        """
        for gateway_id, keys in charged.items():
            heard = self._heard.get(gateway_id)
            if heard is None:
                continue
            for name, (requests, tokens) in keys.items():
                before = heard.get(name, (0.0, 0.0))
                self._take(name, requests=requests - before[0], tokens=tokens - before[1])
        self._heard = dict(charged)

    def _take(self, name: str, *, requests: float, tokens: float) -> None:
        key = None if self._ring is None else self._ring.named(name)
        if key is not None and (requests or tokens):
            allowance = self._allowance(key)
            allowance.take(requests=requests, tokens=tokens, now_s=self._clock())

    def _allowance(self, key: Key) -> Allowance:
        held = self._allowances.setdefault(key.name, Allowance())
        held.requests = self._bucket(held.requests, key.requests_per_minute)
        held.tokens = self._bucket(held.tokens, key.tokens_per_minute)
        return held

    def _bucket(self, held: Bucket | None, per_minute: float | None) -> Bucket | None:
        """The bucket of a limit: the one there is, unless the limit has changed."""
        if per_minute is None:
            return None
        if held is None or held.per_minute != per_minute:
            return Bucket(per_minute, now_s=self._clock())
        return held


def _presented(headers: Mapping[str, str]) -> str:
    scheme, _, key = headers.get(KEY_HEADER, "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise unauthorized("No API key was sent.")
    return key.strip()


def _priority_of(headers: Mapping[str, str]) -> Priority | None:
    value = headers.get(PRIORITY_HEADER)
    if value is None:
        return None
    try:
        return Priority(value.strip().lower())
    except ValueError as error:
        raise bad_request(
            f"Header {PRIORITY_HEADER} is '{shown(value)}'; use vip, standard or batch.",
            param=PRIORITY_HEADER,
            code="invalid_value",
        ) from error
