"""Random programs of trainers that read through caches and write, compared with a dict.

The trainers of a node share the slots. At each fence of one, others may read, write and evict: whatever they do, the
answer for a row is a value that it had since the last control call, and the last one for the trainer that wrote it.
Reads fail in between, and two readers share a cache, as they never should: that must not harm the lists of slots.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpigraph.arrays import I64, Array
from mpigraph.kernels.row_slots import NEVER, new_slots
from mpigraph.rows.lookahead import CachedRows, Read, UpcomingReads
from mpigraph.rows.row_cache import RowCache, SlotTable
from mpigraph.rows.segments import RowPool

LOCAL, ROWS, WIDTH = 3, 16, 2  # rows of this node, rows in all, words of each


class FailedError(Exception):
    """A read that fails, as when a host closes the window."""


class Rows:
    """The tensor as one trainer sees it."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.untold: set[int] = set()
        self.window: Any = self
        self.row_bytes, self.dtype, self.row_shape = 8 * WIDTH, np.dtype(np.int64), (WIDTH,)
        self.offsets = np.array([0, LOCAL, ROWS])
        self.world = SimpleNamespace(is_local=np.array([True, False]))

    def __len__(self) -> int:
        return ROWS

    @property
    def version(self) -> int:
        return self._node.version

    def staging_buffer(self, out: Array) -> Any:
        return nullcontext(out)

    def gather(self, ids: I64, out: Array | None = None) -> Array:
        self._node.fail_at_times()
        words = self._node.words(ids)
        if out is not None:
            out[:] = words.view(out.dtype)
        return words

    def load(self, ids: I64, positions: I64, out: Array) -> None:
        self._node.fail_at_times()
        out[positions] = self._node.words(ids[positions])

    def fetch(self, rows: I64, pool: RowPool, meanwhile: Callable[[], None]) -> tuple[I64, Array]:
        assert len(np.unique(rows)) == len(rows) and (rows >= LOCAL).all()
        self._node.fail_at_times()
        fetched = self._node.words(rows)
        self._node.step_of_others()
        meanwhile()
        return np.arange(len(rows)), fetched


class Trainer:
    """One trainer: its slots, and the minibatches that it has announced."""

    def __init__(self, node: "Node", me: int, per_trainer: int, ahead: int) -> None:
        self.node, self.rows = node, Rows(node)
        tensor: Any = self.rows
        cache = RowCache.__new__(RowCache)
        cache.window, cache.per_trainer, cache.slots = tensor, per_trainer, node.table
        cache._me, cache._own = me, new_slots(me * per_trainer, per_trainer, ahead)
        self.own = cache._own
        self.readers = [CachedRows(tensor, cache, UpcomingReads(tensor)) for _ in range(node.draws.choice([1, 1, 2]))]
        self.batch = 0
        self.busy = False

    def announce(self, reader: CachedRows, ids: I64) -> None:
        self.batch += 1
        reader.announce(*reader.upcoming.announce(self.batch, ids))

    def read(self, reader: CachedRows) -> None:
        """Read the oldest announced minibatch, and compare it with the dict."""
        read = reader.upcoming.reads[0]
        self.busy = True
        out = np.full((len(read.ids), WIDTH), -1, np.int64)
        try:
            reader.read(read, out)
            self.check(read, out)
        except FailedError:
            if self.node.draws.random() < 0.5:
                return  # and try again later
        finally:
            self.busy = False
        reader.upcoming.done()

    def check_lists(self) -> None:
        """Each slot whose row is read by a known minibatch is on one list, and idle ones are in the ring once."""
        own, listed = self.own, list[int]()
        for at, head in enumerate(own.lists.tolist()):
            while head >= 0:
                assert len(listed) <= len(own.next_use) and own.next_use[head] & (len(own.lists) - 1) == at
                listed.append(head)
                head = int(own.following[head])
        used, begin, idle, _ = own.state.tolist()
        assert sorted(listed) == np.flatnonzero(own.next_use[:used] != NEVER).tolist()
        ring = own.idle[(begin + np.arange(idle)) % max(1, len(own.idle))]
        assert sorted(ring.tolist()) == np.flatnonzero(own.is_idle[:used]).tolist()

    def check(self, read: Read, out: Array) -> None:
        for v, words in zip(read.ids.tolist(), out.tolist(), strict=True):
            assert len(set(words)) == 1, f"parts of two values of row {v}: {words}"
            right = {self.node.last[v]} if self.node.writer.get(v) is self else self.node.since[v]
            assert words[0] in right, f"row {v} reads as {words[0]}: {right}"


class Node:
    """Trainers of one node, and the dict: row -> the value that was written last."""

    def __init__(self, seed: int) -> None:
        self.draws = np.random.default_rng(seed)
        self.version = 0
        self.last = {v: 1000 * v for v in range(ROWS)}
        self.since: dict[int, set[int]] = {}
        self.writer: dict[int, Trainer] = {}
        count, per_trainer = int(self.draws.integers(1, 4)), int(self.draws.integers(0, 9))
        slots = count * per_trainer
        self.table = SlotTable(
            np.zeros(ROWS, np.int32),
            np.zeros(slots, np.int64),
            np.full(count, -1, np.int64),
            np.full((slots, WIDTH), 7, np.uint64),
            alone=count == 1,
            fence=self.step_of_others,
        )
        self.depth = 0
        self.fewest = int(self.draws.integers(0, 6))  # minibatches ahead
        self.trainers = [Trainer(self, me, per_trainer, self.fewest + 1) for me in range(count)]
        self.control()

    def words(self, rows: I64) -> Array:
        return np.array([[self.last[v]] * WIDTH for v in rows.tolist()], np.int64).reshape(-1, WIDTH).view(np.uint64)

    def control(self) -> None:
        """All trainers make a control call."""
        if self.writer:
            self.version += 1
        self.writer.clear()
        self.since = {v: {value} for v, value in self.last.items()}
        for trainer in self.trainers:
            trainer.rows.untold.clear()

    def write(self, trainer: Trainer) -> None:
        for v in self.draws.integers(0, ROWS, 6).tolist():
            self.last[v] += 1
            self.since[v].add(self.last[v])
            self.writer[v] = trainer
        trainer.rows.untold.add(0)

    def step(self, trainer: Trainer) -> None:
        kind = self.draws.random()
        reader = trainer.readers[self.draws.integers(len(trainer.readers))]
        if kind < 0.08:
            self.write(trainer)
        elif kind < 0.11:
            reader.upcoming.clear()
            reader.clear()
        elif len(reader.upcoming.reads) <= self.fewest and kind < 0.7:
            ids = np.floor(ROWS * self.draws.random(self.draws.integers(0, 9)) ** 2).astype(np.int64)
            trainer.announce(reader, ids if self.draws.random() < 0.3 else np.unique(ids))
        elif reader.upcoming.reads:
            trainer.read(reader)
        trainer.check_lists()

    def fail_at_times(self) -> None:
        if self.draws.random() < 0.03:
            raise FailedError

    def step_of_others(self) -> None:
        """Let trainers that are not inside a read do something."""
        self.depth += 1
        for trainer in self.trainers:
            while self.depth < 4 and not trainer.busy and self.draws.random() < 0.6:
                self.step(trainer)
        self.depth -= 1


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 2000), marks=pytest.mark.study)])
def test_any_program_of_trainers_reads_what_was_written(seeds: range) -> None:
    hits = 0
    for seed in seeds:
        node = Node(seed)
        for _ in range(150):
            node.step(node.trainers[node.draws.integers(len(node.trainers))])
            if node.draws.random() < 0.05:
                node.control()
        hits += int((node.table.tags & ((1 << 40) - 1) > 0).sum())
    assert hits > len(seeds)  # slots are in use
