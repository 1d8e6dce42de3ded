"""Which length predictors are there? `limits.length_predictor` names one.

    formula  the limit, or the plan's usual output: the article's (prompt + max_output / 2) * 1.2
    learned  what answers to similar requests have had

To add one, write a factory that takes the usual output in tokens and add its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from cluster.lengths.features import LengthPredictor
from cluster.lengths.formula import Formula
from cluster.lengths.learned import Learned

PREDICTORS: Mapping[str, Callable[[float], LengthPredictor]] = MappingProxyType(
    {"formula": Formula, "learned": Learned}
)
