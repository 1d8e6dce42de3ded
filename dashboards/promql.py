"""How is something asked of Prometheus? The few forms of query that the dashboards are made of.

What a gateway counts is summed over gateways; what it repeats of the controller's account is the
same at each, so the maximum is taken. Queries are of one service, `$job`, and of `$pool`.
"""

from __future__ import annotations

_SERVICE = 'job="$job"'
_POOL = f'{_SERVICE}, pool=~"$pool"'
_PERIOD = "[$__rate_interval]"


def series(name: str, where: str = "", *, pooled: bool = True) -> str:
    """The series of a metric. `where`: more matchers."""
    chosen = _POOL if pooled else _SERVICE
    return f"{name}{{{chosen}{', ' if where else ''}{where}}}"


def own(name: str, by: str = "pool", *, pooled: bool = True) -> str:
    """A gauge of gateways, summed."""
    return f"sum by ({by}) ({series(name, pooled=pooled)})"


def told(name: str, by: str = "pool", *, pooled: bool = True, offset: str = "") -> str:
    """A gauge of the controller's account. `offset`: so long ago."""
    past = f" offset {offset}" if offset else ""
    return f"max by ({by}) ({series(name, pooled=pooled)}{past})"


def rate(name: str, by: str = "pool", where: str = "", *, pooled: bool = True) -> str:
    """Per second, of what gateways count."""
    return f"sum by ({by}) (rate({series(name, where, pooled=pooled)}{_PERIOD}))"


def told_rate(
    name: str, *, all_of: str, by: str = "pool", where: str = "", pooled: bool = True
) -> str:
    """Per second, of what the controller counts. `all_of`: the labels of its series."""
    each = f"max by ({all_of}) (rate({series(name, where, pooled=pooled)}{_PERIOD}))"
    return f"sum by ({by}) ({each})"


def told_increase(
    name: str, *, all_of: str, by: str = "pool", where: str = "", pooled: bool = True
) -> str:
    """How many in the time that is shown, of what the controller counts."""
    each = f"max by ({all_of}) (increase({series(name, where, pooled=pooled)}[$__range]))"
    return f"sum by ({by}) ({each})"


def quantile(share: float, name: str, by: str = "pool") -> str:
    """Of a histogram of gateways."""
    return f"histogram_quantile({share:g}, {rate(f'{name}_bucket', f'le, {by}')})"


def share(part: str, whole: str) -> str:
    """A part of a whole; 0 where there is nothing."""
    return f"({part}) / ({whole} > 0) or 0 * ({whole})"
