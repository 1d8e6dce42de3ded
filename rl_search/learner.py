"""How does the policy learn from a batch? PPO's loss, on advantages that look for the best.

The mean of a batch is not what a search is after: a policy that copies the best strategy has the
best mean and finds nothing. So only the better part of a batch is learnt from (risk-seeking policy
gradients, Petersen et al. 2021, arXiv:1912.04871): an advantage counts from the quantile upwards,
and what lies below is neither rewarded nor punished. `top` 1 is plain PPO.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing

from rl_search.network import PolicyNetwork
from rl_search.space import ActionSpace

POLICY = "default_policy"
State = dict[str, Any]
TOP = "top"  # in the learner's configuration


class TopAdvantages(ConnectorV2):
    """Advantages beyond the quantile of the best `top` of a batch, the others 0."""

    def __init__(self, top: float) -> None:
        super().__init__()
        self._top = top

    def __call__(self, *, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Works after the advantages were computed."""
        own = batch[POLICY]
        own[Postprocessing.ADVANTAGES] = beyond(
            own[Postprocessing.ADVANTAGES], own.get(Columns.LOSS_MASK), top=self._top
        )
        return batch


def beyond(advantages: torch.Tensor, mask: torch.Tensor | None, *, top: float) -> torch.Tensor:
    """`advantages` (n,) above their quantile 1 - top, in standard deviations, else 0."""
    valid = torch.ones_like(advantages, dtype=torch.bool) if mask is None else mask.bool()
    counted = advantages[valid]
    if top >= 1.0:
        scaled = (advantages - counted.mean()) / (counted.std() + _TINY)
    else:
        over = (advantages - torch.quantile(counted, 1.0 - top)).clamp(min=0.0)
        scaled = over / (over[valid].std() + _TINY)
    return torch.where(valid, scaled, torch.zeros_like(scaled))


_TINY = 1e-6


class SearchLearner(PPOTorchLearner):
    """PPO that learns from the better part, begins anew, and goes back."""

    def build(self) -> None:
        """As PPO does, with the advantages last."""
        super().build()
        self._slower = 1.0
        top = float(self.config.learner_config_dict.get(TOP, 1.0))
        self._learner_connector.append(TopAdvantages(top))

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """PPO's schedules, then the factor that a NaN has left."""
        super().after_gradient_based_update(timesteps=timesteps)
        self._set_rate()

    def renew(self, seed: int) -> None:
        """Fresh weights and a fresh optimiser at the full learning rate."""
        old = self._network
        torch.manual_seed(seed)
        old.load_state_dict(
            PolicyNetwork(old.sizes, old.embed.in_features, old.options).state_dict()
        )
        self._slower = 1.0
        self._forget()

    def state(self) -> State:
        """A copy of everything a later update depends on."""
        return copy.deepcopy(
            {
                "weights": self._network.state_dict(),
                "optimizers": {
                    name: optimizer.state_dict()
                    for name, optimizer in self._named_optimizers.items()
                },
                "slower": self._slower,
            }
        )

    def resume(self, state: State) -> None:
        """Go on where `state` was taken."""
        self._network.load_state_dict(state["weights"])
        for name, optimizer in self._named_optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self._slower = state["slower"]
        self._set_rate()

    def back_to(self, state: State, *, slower: float) -> None:
        """The weights of `state`, a fresh optimiser, and `slower` of the learning rate."""
        self._network.load_state_dict(state["weights"])
        self._slower *= slower
        self._forget()

    def finite(self) -> bool:
        """Whether every weight is a number."""
        return all(bool(torch.isfinite(w).all()) for w in self._network.state_dict().values())

    def confidence(self, seen: NDArray[np.float32], space: ActionSpace) -> tuple[float, ...]:
        """Per head the largest probability on the likeliest way, before a history (T, F)."""
        module = self.module[POLICY].unwrapped()
        batch = {Columns.OBS: torch.from_numpy(seen)[None].to(self.device)}
        with torch.no_grad():
            logits = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        parts = logits.split(space.sizes, dim=1)
        return tuple(float(torch.softmax(part, dim=1).max()) for part in parts)

    def play_in(self, space: ActionSpace) -> None:
        """Masks of another space with the same heads."""
        self.module[POLICY].unwrapped().space = space

    @property
    def _network(self) -> PolicyNetwork:
        network: PolicyNetwork = self.module[POLICY].unwrapped().network
        return network

    def _forget(self) -> None:
        for optimizer in self._named_optimizers.values():
            optimizer.state.clear()
        self._set_rate()

    def _set_rate(self) -> None:
        for optimizer in self._named_optimizers.values():
            self._set_optimizer_lr(optimizer, lr=float(self.config.lr) * self._slower)
