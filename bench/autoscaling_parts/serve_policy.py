"""What would Ray Serve's own autoscaler do? Its function, called with the simulated requests.

`replica_queue_length_autoscaling_policy` (Ray 2.60) with the configuration's defaults: ongoing
requests averaged over 30 s, 2 of them a replica, 30 s up and 600 s down delay. Serve wraps it
(`_apply_autoscaling_config`) and bounds its answer; the wrapper reads the wall clock, which is
lent the simulation's for the call. In a cluster replicas report every 10 s; here at every tick.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bench.autoscaling_parts.world import POOL, Sizer
from cluster.sim.driver import PoolFacts


class ServePolicy(Sizer):
    """`target`: ongoing requests a replica, Serve's default if None."""

    def __init__(self, *, most: int, target: float | None = None) -> None:
        import ray.serve.autoscaling_policy as theirs
        from ray.serve._private.common import DeploymentID
        from ray.serve.config import AutoscalingConfig, AutoscalingContext

        chosen = {} if target is None else {"target_ongoing_requests": target}
        self._config = AutoscalingConfig(min_replicas=1, max_replicas=most, **chosen)
        self._deployment = DeploymentID(name=POOL, app_name="bench")
        self._context, self._theirs = AutoscalingContext, theirs
        self._policy = theirs._apply_autoscaling_config(
            theirs.replica_queue_length_autoscaling_policy
        )
        self._state: dict[str, Any] = {}
        self._ongoing: deque[tuple[float, float]] = deque()

    def replicas(self, pool: PoolFacts, now_s: float) -> int:
        """See `Sizer`."""
        inside = sum(report.running + report.waiting for report in pool.reports)
        ongoing = self._ongoing
        ongoing.append((now_s, inside + pool.traffic.queued_requests))
        while ongoing[0][0] <= now_s - self._config.look_back_period_s:
            ongoing.popleft()
        context = self._context(
            deployment_id=self._deployment,
            deployment_name=POOL,
            app_name="bench",
            current_num_replicas=pool.ready,
            target_num_replicas=pool.target,
            running_replicas=[],
            total_num_requests=sum(number for _, number in ongoing) / len(ongoing),
            total_queued_requests=float(pool.traffic.queued_requests),
            aggregated_metrics={},
            raw_metrics={},
            capacity_adjusted_min_replicas=1,
            capacity_adjusted_max_replicas=self._config.max_replicas,
            policy_state=self._state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=now_s,
            config=self._config,
        )
        with mock.patch.object(self._theirs, "time", SimpleNamespace(time=lambda: now_s)):
            replicas, self._state = self._policy(context)
        return int(min(max(replicas, 1), self._config.max_replicas))
