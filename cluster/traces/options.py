"""What must be chosen to turn windows of rates into requests?

A windows file (ServeGen's aggregates) says how many requests came in ten minutes and how long they
were on average, not which. The rest is drawn:

- prompt lengths are lognormal about the window's mean. ServeGen (arXiv:2505.09999) fits a mixture
  of Pareto and lognormal; in the public traces that list requests, ln(prompt) has a standard
  deviation of 0.99 (Azure 2023 conversation), 1.20 (Mooncake conversation) and 1.36 (Azure 2023
  code), so `prompt_sigma` is 1.2: a squared variation of exp(1.2^2) - 1 = 3.2;
- outputs are geometric, the exponential of whole tokens, as ServeGen found them;
- `rate_weighted_cv` is a mean over clients. One client sending in a single burst lifts it to
  hundreds, while the sum of some fifty clients is smoother; `max_cv` bounds what is believed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.errors import InputError


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """How windows become requests; formats that list requests ignore it.

    `rate_factor` multiplies every window's rate, before any request is drawn. `prompt_tokens`,
    `output_tokens`: mean lengths used in place of the file's. `last_window_s`: how long a file's
    only window lasts (otherwise the last one lasts as long as the one before).
    """

    rate_factor: float = 1.0
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    prompt_sigma: float = 1.2
    max_cv: float = 8.0
    last_window_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        above_zero = {
            "rate_factor": self.rate_factor,
            "max_cv": self.max_cv,
            "last_window_s": self.last_window_s,
        }
        for name, value in above_zero.items():
            if not 0.0 < value < math.inf:
                raise InputError(f"{name} is {value}; it must be a finite number above 0.")
        for name, mean in (
            ("prompt_tokens", self.prompt_tokens),
            ("output_tokens", self.output_tokens),
        ):
            if mean is not None and not 1.0 <= mean <= 1e9:
                raise InputError(f"{name} is {mean}; a mean length is 1 to 10^9 tokens.")
        if not 0.0 <= self.prompt_sigma <= 5.0:
            raise InputError(f"prompt_sigma is {self.prompt_sigma}; it must be within 0 to 5.")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; it must be a whole number of at least 0.")
