"""The same engine, step by step and sequence by sequence: what skipping ahead must equal."""

from __future__ import annotations

from cluster.sim.times import Piece
from tests.sim.build import PlainTimes


class Sequence:
    def __init__(self, number, request):
        self.number = number
        self.arrival_s = request.arrival_s
        self.prompt, self.output = request.prompt_tokens, request.output_tokens
        self.generated = self.position = 0
        self.target = self.prompt
        self.blocks = 0
        self.first_s = self.last_s = None


def ceil(a, b):
    return -(-a // b)


def run(requests, *, times: PlainTimes, max_num_seqs, chunk, kv_blocks, block=16):
    """First and last token times of every request, on one rank without prefix caching."""
    waiting, prefilling, decoding = [], [], []
    coming = [Sequence(number, r) for number, r in enumerate(requests)]
    everyone = list(coming)
    now, used, preemptions = 0.0, 0, 0

    def growth():
        return sum(s.prompt + s.generated + 1 > s.blocks * block for s in decoding)

    while coming or waiting or prefilling or decoding:
        while coming and coming[0].arrival_s <= now + 1e-9:
            waiting.append(coming.pop(0))
        if not (waiting or prefilling or decoding):
            now = coming[0].arrival_s
            continue
        preempted = False
        while growth() > kv_blocks - used:
            victim = prefilling.pop() if prefilling else decoding.pop()
            used -= victim.blocks
            victim.blocks = victim.position = 0
            victim.target = victim.prompt + victim.generated
            waiting.append(victim)
            preempted, preemptions = True, preemptions + 1
        waiting.sort(key=lambda s: s.number)
        budget, pieces = chunk - len(decoding), []
        for s in prefilling:
            take = min(s.target - s.position, budget)
            if take <= 0:
                break
            pieces.append((s, take))
            budget -= take
        while (
            waiting
            and not preempted
            and budget > 0
            and len(prefilling) + len(decoding) < max_num_seqs
        ):
            s = waiting[0]
            need = ceil(s.target + 1, block)
            if need > kv_blocks - used - growth():
                break
            waiting.pop(0)
            s.blocks, used = need, used + need
            prefilling.append(s)
            take = min(s.target, budget)
            pieces.append((s, take))
            budget -= take
        context = float(sum(s.prompt + s.generated for s in decoding))
        if pieces:
            chunks = [Piece(take, s.position, s.target) for s, take in pieces]
            now += times.mixed_s(len(decoding), context if decoding else 0.0, chunks, 0)
        else:
            now += times.decode_s(len(decoding), context, 0)
        for s in decoding:
            if s.prompt + s.generated + 1 > s.blocks * block:
                s.blocks += 1
                used += 1
            s.generated += 1
        for s, take in pieces:
            s.position += take
            if s.position >= s.target:
                prefilling.remove(s)
                decoding.append(s)
                s.generated += 1
                s.first_s = now if s.first_s is None else s.first_s
        for s in [s for s in decoding if s.generated >= s.output]:
            decoding.remove(s)
            used -= s.blocks
            s.last_s = now
    return everyone, preemptions
