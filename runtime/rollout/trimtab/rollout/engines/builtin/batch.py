"""Continuous batching: a request joins the running batch at any step and leaves it at the token that ends it.

A step computes some tokens of prompts that are on their way in, then one token of every sequence that is being decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from trimtab.rollout.engines.builtin.generation import Generation
from trimtab.rollout.engines.builtin.kv_rows import KvRows, KvShape, Row
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.prefix_cache import PrefixCache
from trimtab.rollout.engines.builtin.sampling import sample, uniform
from trimtab.rollout.engines.builtin.transformer import Piece

_WORTH_WAITING = 32
"""Tokens that another prompt on its way in must have in common with a request, for that to wait and copy them."""


class Cohort:
    """Prompts on their way into the cache, computed together and, where they are long, in several steps: sequences of
    one length, of which equally many tokens were found in the prefix cache.
    """

    def __init__(self, shape: KvShape, members: Sequence[Generation], prefixes: Sequence[torch.Tensor]) -> None:
        self.members = members
        self._tokens = torch.tensor([member.tokens for member in members])
        self._cache = shape.zeros(len(members), self._tokens.shape[1])
        self._done = prefixes[0].shape[-2]
        for number, prefix in enumerate(prefixes):
            self._cache[:, :, number, :, : self._done] = prefix

    @property
    def finished(self) -> bool:
        return self._done == self._tokens.shape[1]

    def advance(self, budget: int) -> Piece:
        """The next tokens of all members, so many together at most, but one of each at least."""
        start = self._done
        self._done = min(self._tokens.shape[1], start + max(1, budget // len(self.members)))
        return Piece(tokens=self._tokens[:, start : self._done], cache=self._cache, start=start)

    def contents(self) -> Iterator[tuple[Generation, torch.Tensor]]:
        """The members' keys and values (layers, keys and values, heads, length, head size)."""
        for number, member in enumerate(self.members):
            yield member, self._cache[:, :, number]


def shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return min(len(one), len(other))


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """What the engine holds at once."""

    max_running: int = 128
    max_total_tokens: int = 65536
    """Capacity of the rows that are decoded."""
    max_cached_tokens: int = 32768
    """Tokens kept for reuse, beside those."""
    prefill_tokens: int = 512
    """Of prompts in one step; a pause waits for one step."""


class ContinuousBatch:
    """Every request from the queue to its end. Owned by the model's thread."""

    def __init__(self, model: EngineModel, limits: BatchLimits) -> None:
        self._model = model
        self._limits = limits
        self._rows: KvRows[Generation] = KvRows(model.kv_shape)
        self._prefixes = PrefixCache(model.kv_shape, max_tokens=limits.max_cached_tokens)
        self._waiting: deque[Generation] = deque()
        self._prefilling: list[Cohort] = []
        self.running = 0
        """Requests that are being prefilled or decoded."""
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or self.running > 0

    @property
    def used_tokens(self) -> int:
        return self._rows.used_tokens

    @property
    def kept_tokens(self) -> int:
        return self._prefixes.kept_tokens

    def fits(self, length: int) -> bool:
        """Whether a sequence of that length can be decoded when nothing else is."""
        return self._rows.capacity_for(length) <= self._limits.max_total_tokens

    def queue(self, generation: Generation) -> None:
        self._waiting.append(generation)

    def held(self) -> list[Generation]:
        """All requests; those that run come first."""
        prefilling = [member for cohort in self._prefilling for member in cohort.members if member.finish is None]
        return [*(row.owner for row in self._rows.rows), *prefilling, *self._waiting]

    @torch.inference_mode()
    def step(self, *, weight_version: str) -> list[Generation]:
        """Compute, sample, and return the requests that have ended."""
        self._admit()
        return [*self._prefill(weight_version), *self._decode(weight_version)]

    @torch.inference_mode()
    def end(self, chosen: Callable[[Generation], bool]) -> list[Generation]:
        """Take requests out, wherever they are. They are marked as aborted."""
        ended = [generation for generation in self.held() if chosen(generation)]
        for generation in ended:
            generation.finish = "abort"
        self._waiting = deque(generation for generation in self._waiting if generation.finish is None)
        for row in self._rows.rows:
            if row.owner.finish is not None:
                self._close(row)
        # A cohort is computed as a whole; it goes when no request is left to compute it for.
        self._prefilling = [c for c in self._prefilling if any(member.finish is None for member in c.members)]
        self._count_running()
        return ended

    @torch.inference_mode()
    def retract(self) -> None:
        """Put everything that runs back in front of the queue, to be computed again from its tokens."""
        held = self.held()
        running = held[: len(held) - len(self._waiting)]
        for row in self._rows.rows:
            self._close(row)
        self._prefilling = []
        for generation in running:
            generation.retractions += 1
        self._waiting.extendleft(reversed(running))
        self._count_running()

    def flush_prefixes(self) -> None:
        """Forget what was kept for reuse: there are other weights. What is decoded now is not kept either: it began
        before. A prompt that is half computed begins again, or its answer would begin from two versions and say that it
        was sampled by the newer one. That ends: a trainer publishes no more while it waits for answers.
        """
        self._prefixes.flush()
        self._waiting.extendleft(
            member for cohort in reversed(self._prefilling) for member in reversed(cohort.members) if not member.finish
        )
        self._prefilling = []
        self._count_running()

    def _admit(self) -> None:
        """Take in waiting requests in their order, as far as there is room.

        One whose beginning is just being computed for another waits for that, so that a group prefills once.
        """
        reserved = self._rows.used_tokens + sum(
            self._rows.capacity_for(member.length + 1) for cohort in self._prefilling for member in cohort.members
        )
        leaders = [member.tokens for cohort in self._prefilling for member in cohort.members]
        followers: list[Generation] = []
        admitted: dict[tuple[int, int], list[tuple[Generation, list[int]]]] = {}
        while self._waiting and self.running + len(followers) < self._limits.max_running:
            tokens = self._waiting[0].tokens
            capacity = self._rows.capacity_for(len(tokens) + 1)
            if reserved + capacity > self._limits.max_total_tokens:
                break
            generation = self._waiting.popleft()
            # The last token is always computed: its logits are what comes next.
            slots = self._prefixes.match(tokens[:-1])
            if self._shared_with(leaders, tokens[:-1]) >= len(slots) + _WORTH_WAITING:
                followers.append(generation)
                continue
            leaders.append(tokens)
            reserved += capacity
            self.running += 1
            admitted.setdefault((len(slots), len(tokens)), []).append((generation, slots))
        self._waiting.extendleft(reversed(followers))
        for group in admitted.values():
            for generation, slots in group:
                self._note_admitted(generation, cached=len(slots))
            prefixes = [self._prefixes.content(slots) for _, slots in group]
            self._prefilling.append(Cohort(self._model.kv_shape, [g for g, _ in group], prefixes))

    def _shared_with(self, leaders: Sequence[Sequence[int]], tokens: Sequence[int]) -> int:
        """How much of these tokens will be kept once the leaders are computed."""
        shared = max((shared_prefix(tokens, leader) for leader in leaders), default=0)
        return min(shared, self._limits.max_cached_tokens)

    def _note_admitted(self, generation: Generation, *, cached: int) -> None:
        generation.prefix_epoch = self._prefixes.epoch
        if not generation.retractions:
            generation.cached_tokens = cached
        self.cached_tokens += cached
        self.prompt_tokens += generation.length

    def _prefill(self, weight_version: str) -> list[Generation]:
        budget = self._limits.prefill_tokens
        pieces = []
        advanced: list[Cohort] = []
        while budget > 0 and len(advanced) < len(self._prefilling):
            cohort = self._prefilling[len(advanced)]
            piece = cohort.advance(budget)
            budget -= piece.tokens.numel()
            pieces.append(piece)
            advanced.append(cohort)
        if not pieces:
            return []
        logits = self._model.extend(pieces)
        self._prefilling = [cohort for cohort in self._prefilling if not cohort.finished]
        ready: list[tuple[int, Generation, torch.Tensor]] = []
        first = 0
        for cohort in advanced:
            if cohort.finished:
                ready += [(first + n, g, kv) for n, (g, kv) in enumerate(cohort.contents()) if g.finish is None]
            first += len(cohort.members)
        for _, generation, content in ready:
            self._prefixes.keep(generation.tokens, content, epoch=generation.prefix_epoch)
        if ready:
            self._sample(logits[[row for row, _, _ in ready]], [g for _, g, _ in ready], weight_version)
        for _, generation, content in ready:
            if generation.finish is None:
                self._rows.open(generation, content)
        self._count_running()
        return [generation for _, generation, _ in ready if generation.finish is not None]

    def _decode(self, weight_version: str) -> list[Generation]:
        self._make_room()
        rows = self._rows.rows
        if not rows:
            return []
        logits = self._model.decode(self._rows.arenas, [row.owner.output_ids[-1] for row in rows])
        for row in rows:
            row.length += 1
        self._sample(logits, [row.owner for row in rows], weight_version)
        ended = [row for row in rows if row.owner.finish is not None]
        for row in ended:
            self._close(row)
        self._count_running()
        return [row.owner for row in ended]

    def _make_room(self) -> None:
        """Move sequences that have filled their rows to larger ones; without room, the last that came goes back."""
        for row in [row for row in self._rows.rows if row.length == row.arena.capacity]:
            if row.owner.finish is not None or row not in row.arena.rows:
                continue
            larger = self._rows.capacity_for(row.length + 1) - row.arena.capacity
            while self._rows.used_tokens + larger > self._limits.max_total_tokens:
                youngest = min(self._rows.rows, key=lambda other: len(other.owner.output_ids))
                self._send_back(youngest)
                if youngest is row:
                    break
            else:
                self._rows.grow(row)
        self._count_running()

    def _send_back(self, row: Row[Generation]) -> None:
        self._close(row)
        row.owner.retractions += 1
        self._waiting.appendleft(row.owner)

    def _close(self, row: Row[Generation]) -> None:
        generation = row.owner
        self._prefixes.keep(generation.tokens[: row.length], row.content, epoch=generation.prefix_epoch)
        self._rows.close(row)

    def _sample(self, logits: torch.Tensor, generations: Sequence[Generation], weight_version: str) -> None:
        tokens, logprobs = sample(
            logits, [g.params for g in generations], [uniform(g.seed, g.length) for g in generations]
        )
        for generation, token, logprob in zip(generations, tokens, logprobs, strict=True):
            generation.append(token, logprob, version=weight_version, eos_ids=self._model.architecture.eos_ids)
        self.generated_tokens += len(tokens)

    def _count_running(self) -> None:
        prefilling = sum(member.finish is None for cohort in self._prefilling for member in cohort.members)
        self.running = len(self._rows.rows) + prefilling
