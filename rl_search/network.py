"""How does the policy see the best strategies, and what does it make of them?

    elites (T, F) -> linear 256 -> one Transformer encoder block -> mean over elites = context
    context -> one head per choice, and a value head                       (article A, 2.2)

Two additions, each an option. Autoregressive heads: the context of a head has the choices before it
added, embedded, so that a degree can depend on the degrees chosen. Copying: a head's logits have a
learned multiple of "what the elites chose here" added, weighted by attention over elites, so that
an untrained policy proposes variations of the best and training decides what to vary. Without
either this is the article's network.

Shapes: n samples, T elites, F features, H heads of sizes s_h, S the largest of them. What a mask
forbids has probability 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FORBIDDEN = -1e9  # a logit whose probability is 0 and whose products with it are no NaN


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The shape. `keep`: how likely an untrained head copies what the elites agree on.

    `shared_head`: one head makes all choices, told which by an embedding; `blind`: the history is
    not seen at all (both to know what each is worth).
    """

    width: int = 256
    attention_heads: int = 4
    head_width: int = 64
    autoregressive: bool = True
    copying: bool = True
    keep: float = 0.9
    shared_head: bool = False
    blind: bool = False


@dataclass(frozen=True)
class Context:
    """What the elites say: `state` (n, width), and the share that chose each value (n, H, S)."""

    state: Tensor
    copied: Tensor


class PolicyNetwork(nn.Module):
    """Elites in, logits of every head and a value out."""

    def __init__(self, sizes: Sequence[int], features: int, options: NetworkOptions) -> None:
        super().__init__()
        self.sizes, self.options = tuple(sizes), options
        heads, width, own = len(self.sizes), options.width, options.head_width
        self.embed = nn.Linear(features, width)
        self.block = nn.TransformerEncoderLayer(
            width, options.attention_heads, 2 * width, dropout=0.0, batch_first=True
        )
        self.attend = nn.Linear(width, 1)
        self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.chosen = nn.Embedding(sum(self.sizes), width)
        self.which = nn.Parameter(torch.randn(heads, width) * 0.1)
        sets = 1 if options.shared_head else heads
        self.inner = nn.Parameter(torch.randn(sets, width, own) / math.sqrt(width))
        # An untrained policy has no preference of its own.
        self.outer = nn.Parameter(torch.randn(sets, own, max(self.sizes)) * 0.01)
        self.bias = nn.Parameter(torch.zeros(sets, max(self.sizes)))
        gain = [_gain(size, options.keep) if options.copying else 0.0 for size in self.sizes]
        self.copy = nn.Parameter(torch.tensor(gain), requires_grad=options.copying)
        with torch.no_grad():
            self.chosen.weight.mul_(0.1)
        starts = torch.tensor([0, *self.sizes[:-1]]).cumsum(0)
        places = torch.arange(max(self.sizes))[None] + starts[:, None]
        inside = torch.arange(max(self.sizes))[None] < torch.tensor(self.sizes)[:, None]
        self.starts: Tensor
        self.places: Tensor
        self.inside: Tensor
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("places", places.clamp(max=sum(self.sizes) - 1), persistent=False)
        self.register_buffer("inside", inside, persistent=False)

    def context(self, seen: Tensor) -> Context:
        """From elites (n, T, F). Elites not there yet count for nothing."""
        views, rows = torch.unique(seen, dim=0, return_inverse=True)
        context = self._context(views)  # samples that see the same share the work
        return Context(context.state[rows], context.copied[rows])

    def _context(self, seen: Tensor) -> Context:
        if self.options.blind:
            seen = torch.zeros_like(seen)
        present = seen[..., -1] > 0.0
        looked = present | ~present.any(dim=1, keepdim=True)
        hidden = self.block(self.embed(seen), src_key_padding_mask=~looked)
        weights = present.float()
        mean = (hidden * weights[..., None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1.0)
        scores = self.attend(hidden)[..., 0].masked_fill(~looked, FORBIDDEN)
        shares = torch.softmax(scores, dim=1) * weights
        choices = (shares[..., None] * seen[..., : sum(self.sizes)]).sum(1)
        return Context(mean, choices[:, self.places] * self.inside)

    def head(self, index: int, context: Context, state: Tensor) -> Tensor:
        """Logits of one head before its mask, (n, s_h). `state`: the context it sees."""
        own = 0 if self.options.shared_head else index
        inner = torch.tanh((state + self.which[index]) @ self.inner[own])
        logits = inner @ self.outer[own] + self.bias[own]
        return (logits + self.copy[index] * context.copied[:, index])[:, : self.sizes[index]]

    def onward(self, index: int, state: Tensor, choice: Tensor) -> Tensor:
        """The context of the heads after head `index`."""
        if not self.options.autoregressive:
            return state
        return state + self.chosen(choice + self.starts[index])

    def propose(
        self,
        seen: Tensor,
        mask: Callable[[int], Tensor],
        choose: Callable[[int, Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Head by head: masked logits of all, (n, sum of s_h), and the choices, (n, H).

        `mask(head)`: what is allowed, (n, s_h), asked for before `choose(head, logits)` -> (n,).
        """
        context = self.context(seen)
        state, logits, choices = context.state, [], []
        for index in range(len(self.sizes)):
            own = self.head(index, context, state).masked_fill(~mask(index), FORBIDDEN)
            choice = choose(index, own)
            state = self.onward(index, state, choice)
            logits.append(own)
            choices.append(choice)
        return torch.cat(logits, dim=1), torch.stack(choices, dim=1)

    def judge(self, seen: Tensor, choices: Tensor, allowed: Tensor) -> Tensor:
        """The logits that `propose` had on its way to `choices` (n, H), all heads at once.

        `allowed` (n, sum of s_h): the masks on that way.
        """
        context = self.context(seen)
        states = context.state[:, None].expand(-1, len(self.sizes), -1)
        if self.options.autoregressive:
            told = self.chosen(choices + self.starts).cumsum(dim=1)
            states = states + torch.cat([torch.zeros_like(told[:, :1]), told[:, :-1]], dim=1)
        states = states + self.which
        sets = len(self.sizes) if self.options.shared_head else -1
        inner = torch.tanh(torch.einsum("nhw,hwo->nho", states, self.inner.expand(sets, -1, -1)))
        logits = torch.einsum("nho,hos->nhs", inner, self.outer.expand(sets, -1, -1))
        logits = logits + self.bias + self.copy[:, None] * context.copied
        return logits[:, self.inside].masked_fill(~allowed, FORBIDDEN)

    def values(self, seen: Tensor) -> Tensor:
        """The value head, (n,)."""
        views, rows = torch.unique(seen, dim=0, return_inverse=True)
        value: Tensor = self.value(self._context(views).state)[rows, 0]
        return value


def _gain(size: int, keep: float) -> float:
    """The logit that gives one of `size` values the probability `keep`."""
    return math.log(keep / (1.0 - keep) * max(size - 1, 1))
