"""The policy as RLlib takes it: an RLModule of the new API stack around `network`.

Masks are worked out from the choices themselves, here when acting and again when learning, so that
no mask travels. With autoregressive heads a mask knows the choices before it; without, a head is
masked by what is in any strategy at all, and what does not go together is left to the penalties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from rl_search.elites import features
from rl_search.network import NetworkOptions, PolicyNetwork
from rl_search.space import ActionSpace

Batch = dict[str, Any]


class StrategyModule(TorchRLModule, ValueFunctionAPI):
    """Elites in, a strategy out. `model_config`: {"space": ActionSpace, "network": NetworkOptions}.

    The distribution's inputs are the masked logits of all heads on the way to the choices made.
    """

    def setup(self) -> None:
        """Build the network."""
        self.space: ActionSpace = self.model_config["space"]
        options: NetworkOptions = self.model_config["network"]
        self.network = PolicyNetwork(self.space.sizes, features(self.space), options)

    def get_train_action_dist_cls(self) -> Any:
        """One categorical per head."""
        return TorchMultiCategorical.get_partial_dist_cls(input_lens=list(self.space.sizes))

    get_exploration_action_dist_cls = get_train_action_dist_cls
    get_inference_action_dist_cls = get_train_action_dist_cls

    def compute_values(self, batch: Batch, embeddings: Any = None) -> Tensor:  # noqa: ARG002
        """The value head."""
        return self.network.values(batch[Columns.OBS])

    def _forward_exploration(self, batch: Batch, **_: Any) -> Batch:
        return self._propose(batch, _sampled)

    def _forward_inference(self, batch: Batch, **_: Any) -> Batch:
        return self._propose(batch, _likeliest)

    def _forward_train(self, batch: Batch, **_: Any) -> Batch:
        seen, choices = batch[Columns.OBS], batch[Columns.ACTIONS].long()
        masks = self._masks(choices.cpu().numpy()).to(choices.device)
        logits = self.network.judge(seen, choices, masks)
        return {Columns.ACTION_DIST_INPUTS: logits}

    def _propose(self, batch: Batch, choose: Callable[[Tensor], Tensor]) -> Batch:
        seen = batch[Columns.OBS]
        walk = _Walk(self.space, n=len(seen), knowing=self._autoregressive)

        def chosen(head: int, logits: Tensor) -> Tensor:
            choice = choose(logits)
            walk.follow(head, choice)
            return choice

        logits, choices = self.network.propose(seen, walk.mask, chosen)
        likely = self.get_train_action_dist_cls().from_logits(logits).logp(choices)
        return {
            Columns.ACTIONS: choices,
            Columns.ACTION_LOGP: likely,
            Columns.ACTION_DIST_INPUTS: logits,
        }

    @property
    def _autoregressive(self) -> bool:
        return self.network.options.autoregressive

    def _masks(self, choices: Any) -> Tensor:
        if self._autoregressive:
            return torch.from_numpy(np.concatenate(self.space.masks(choices), axis=1))
        anywhere = np.concatenate(self.space.anywhere)
        return torch.from_numpy(np.broadcast_to(anywhere, (len(choices), len(anywhere))).copy())


class _Walk:
    """The masks of n samples, head after head."""

    def __init__(self, space: ActionSpace, *, n: int, knowing: bool) -> None:
        # A state that no mask knows anything of lets every value pass.
        self._space, self._knowing = space, knowing
        self._state = np.zeros(n, dtype=np.int64)

    def mask(self, head: int) -> Tensor:
        if not self._knowing:
            anywhere = self._space.anywhere[head]
            return torch.from_numpy(np.repeat(anywhere[None], len(self._state), axis=0))
        return torch.from_numpy(self._space.mask(head, self._state))

    def follow(self, head: int, choice: Tensor) -> None:
        if self._knowing:
            self._state = self._space.follow(head, self._state, choice.cpu().numpy())


def _sampled(logits: Tensor) -> Tensor:
    return torch.multinomial(torch.softmax(logits, dim=1), 1)[:, 0]


def _likeliest(logits: Tensor) -> Tensor:
    return logits.argmax(dim=1)
