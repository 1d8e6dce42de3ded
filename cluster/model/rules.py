"""Which layouts are valid for a model on a group of nodes, and if not, by how much and what helps.

A rule is a pair of functions in `GROUP_RULES` or `MODEL_RULES`: `margin(shape, table)` for many
layouts at once and `explain(shape, layout)` for the text of one. A margin is relative and at least
0 exactly where the rule holds: for a limit (limit - need) / limit, for a divisibility
-(remainder / divisor), for a mismatch the relative difference.
Memory and latency are rules of the cost model; they report with the same `Violation`.

A dense model has no experts to spread: its layouts carry moe_tp = tp and moe_ep = dp.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from cluster.model.group_rules import GROUP_RULES, tp_groups
from cluster.model.hardware import ClusterSpec, NodeGroup
from cluster.model.layout import Ints, Layout, LayoutTable
from cluster.model.model_rules import MODEL_RULES
from cluster.model.model_spec import ModelSpec
from cluster.model.rule_kinds import Floats, Rule, Shape

__all__ = ["RULES", "RuleReport", "Severity", "Violation", "check_layouts", "explain", "tp_groups"]

Bools = NDArray[np.bool_]


class Severity(StrEnum):
    """Whether a violation forbids a layout or only costs."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One rule that a layout breaks. `margin` is relative and negative: how far off it is."""

    rule: str
    message: str
    fix: str
    margin: float
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """One line for the user."""
        return f"[{self.rule}] {self.message} Fix: {self.fix}"


@dataclass(frozen=True, kw_only=True)
class RuleReport:
    """The verdict on n layouts: `margins` of shape (rules, n), a rule holds where it is >= 0."""

    rules: tuple[str, ...]
    margins: Floats

    @property
    def ok(self) -> Bools:
        """Layouts that break no rule, shape (n,)."""
        return np.asarray((self.margins >= 0).all(axis=0))

    @property
    def first_failure(self) -> Ints:
        """Index into `rules` of the first rule a layout breaks, -1 where none, shape (n,)."""
        broken = self.margins < 0
        return np.where(broken.any(axis=0), broken.argmax(axis=0), -1)

    @property
    def shortfall(self) -> Floats:
        """How far off a layout is: the sum of its negative margins, 0 where valid, shape (n,)."""
        return np.asarray(-np.minimum(self.margins, 0.0).sum(axis=0))

    def counts(self) -> dict[str, int]:
        """How many layouts each rule rejects first."""
        found = np.bincount(self.first_failure + 1, minlength=len(self.rules) + 1)[1:]
        return {rule: int(count) for rule, count in zip(self.rules, found, strict=True) if count}


RULES: tuple[Rule, ...] = GROUP_RULES + MODEL_RULES


def check_layouts(
    model: ModelSpec, group: NodeGroup, table: LayoutTable, *, cross_domain_tp: bool = False
) -> RuleReport:
    """All rules on n layouts of a model on one group of nodes."""
    shape = Shape.of(model, group, cross_domain_tp=cross_domain_tp)
    margins = np.stack([rule.margin(shape, table) for rule in RULES])
    return RuleReport(rules=tuple(rule.name for rule in RULES), margins=margins)


def explain(
    model: ModelSpec, cluster: ClusterSpec, layout: Layout, *, cross_domain_tp: bool = False
) -> tuple[Violation, ...]:
    """Every rule a layout breaks on a cluster, empty if none.

    A replica lies within one group; replicas spread over all groups where one is valid. Where no
    group takes a replica, the violations are those of the group that is least far off.
    """
    single = LayoutTable.from_layouts([_one_replica(layout)])
    reports = [
        check_layouts(model, group, single, cross_domain_tp=cross_domain_tp)
        for group in cluster.groups
    ]
    valid = [group for group, report in zip(cluster.groups, reports, strict=True) if report.ok[0]]
    if not valid:
        best = min(range(len(reports)), key=lambda index: float(reports[index].shortfall[0]))
        shape = Shape.of(model, cluster.groups[best], cross_domain_tp=cross_domain_tp)
        return _violations(shape, reports[best], layout=_one_replica(layout))
    if len(cluster.groups) == 1:
        report = check_layouts(
            model,
            cluster.groups[0],
            LayoutTable.from_layouts([layout]),
            cross_domain_tp=cross_domain_tp,
        )
        shape = Shape.of(model, cluster.groups[0], cross_domain_tp=cross_domain_tp)
        return _violations(shape, report, layout=layout)
    tp, stages = np.asarray([layout.tp]), layout.dp * layout.pp
    room = sum(int(tp_groups(group, tp)[0]) // stages for group in valid)
    if layout.replicas <= room:
        return ()
    return (
        Violation(
            rule="devices",
            message=f"{layout.replicas} replicas of {layout.devices_per_replica} devices are asked "
            f"for, the {len(valid)} group(s) that can hold one hold {room}.",
            fix=f"use at most {room} replicas.",
            margin=(room - layout.replicas) / room,
        ),
    )


def _one_replica(layout: Layout) -> Layout:
    return Layout(
        tp=layout.tp,
        dp=layout.dp,
        pp=layout.pp,
        moe_tp=layout.moe_tp,
        moe_ep=layout.moe_ep,
        replicas=min(layout.replicas, 1),
        max_num_seqs=layout.max_num_seqs,
        max_num_batched_tokens=layout.max_num_batched_tokens,
    )


def _violations(shape: Shape, report: RuleReport, *, layout: Layout) -> tuple[Violation, ...]:
    found = []
    for rule, margin in zip(RULES, report.margins[:, 0], strict=True):
        if margin < 0:
            message, fix = rule.explain(shape, layout)
            found.append(Violation(rule=rule.name, message=message, fix=fix, margin=float(margin)))
            if rule.name == "degrees":  # the others would divide by what is not there
                break
    return tuple(found)
