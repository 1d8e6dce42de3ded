"""Which search methods are there? A function each, that searches through an archive.

A method is one function and one line in METHODS. It judges strategies through the archive until
that has no calls left, or until it has its answer; what it has found is what the archive holds.

Invariants: the same seed makes the same calls; the budget is kept, but by `exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from cluster.errors import UnavailableError, UnknownNameError
from rl_search.archive import Archive, BudgetSpent
from rl_search.baselines.anneal import anneal
from rl_search.baselines.exact_answer import exact_answer
from rl_search.baselines.genetic import genetic
from rl_search.baselines.heuristic import heuristic
from rl_search.baselines.random_search import random_search
from rl_search.baselines.tpe import tpe

Method = Callable[[Archive, int], None]  # the archive, and a seed

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "random": random_search,
        "anneal": anneal,
        "genetic": genetic,
        "tpe": tpe,
        "heuristic": heuristic,
        "exact": exact_answer,
    }
)


def run_method(name: str, archive: Archive, seed: int) -> None:
    """Search until the budget is spent or the method has its answer; nothing where nothing is.

    Raises UnavailableError where what a method is made of is not installed.
    """
    if name not in METHODS:
        raise UnknownNameError(kind="search method", name=name, known=METHODS)
    if not archive.space.size:
        return
    try:
        METHODS[name](archive, seed)
    except BudgetSpent:
        return
    except ImportError as error:
        raise UnavailableError(
            f"the method `{name}` needs a library that is not here ({error}). Fix: install "
            "shardwise[rl], or use another method."
        ) from error
