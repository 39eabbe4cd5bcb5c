"""Rows of minibatches that are sampled ahead: known before they are read, so fetched once, early and together.

Draws are hashes and blocks are small, so a loader samples several minibatches ahead and keeps them. The rows that they
will read determine

* which *priced* rows the cache keeps and gives up (:class:`~mpigraph.rows.row_cache.RowCache`): other nodes hold them,
  or a source of this node that is not memory, so reading them costs something;
* which rows to fetch: those of one minibatch, or, where few are missing, of several in one message to each host;
* what sources that take time read, here and at other hosts, while the minibatches before are placed and used; with a
  row on disk its neighbours, if they are read next by one of the minibatches after.

A minibatch gets the same rows as without: those that were written are fetched anew.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.row_ops import as_words, gather_rows
from mpigraph.kernels.upcoming import NEVER, add_reads, add_reads_of, advance, split_free, with_neighbours
from mpigraph.rows.cache_sizes import STAGE_BYTES, STAGES
from mpigraph.rows.pool import RowPool
from mpigraph.rows.row_cache import RowCache
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.transport import nothing
from mpigraph.rows.window import Fetch, RowWindow
from mpigraph.trace import count, span

_FETCHED_TOGETHER = 4 << 20  # bytes from which on a fetch of more minibatches makes messages no more efficient
_MOST_TOGETHER = 16  # minibatches in one fetch
_MOST_NEIGHBOURS = 2  # for each missing row


@dataclass(frozen=True)
class Read:
    """The rows that one minibatch reads of a node type or relation.

    Attributes:
        batch: its number.
        ids: int64[n], all rows.
        free: int64[m], positions in ``ids`` of the rows that plain loads read.
        priced: int64[k], positions of the others.
        rows: int64[k], the ids at ``priced``.
        first: position of the first one among all announced priced rows.
    """

    batch: int
    ids: I64
    free: I64
    priced: I64
    rows: I64
    first: int


class UpcomingReads:
    """The reads of sampled minibatches from a node type or relation, in order.

    The minibatch that reads each row next is known after :meth:`link` or :meth:`note_rows`: a cache with memory for all
    rows needs it not.

    Attributes:
        reads: those that were announced and not made, oldest first.
        ring_next: int32[2**k], by position modulo its length: the minibatch that reads a priced row next.
        soon: int32[rows], the minibatch that reads each priced row next, if it is not done; empty without
            :meth:`note_rows`.
    """

    def __init__(self, window: RowWindow) -> None:
        """Begin without reads; ``window`` is any one with the same offsets and free rows."""
        free = np.flatnonzero(window.free)
        begins, ends = window.offsets[free], window.offsets[free + 1]
        apart = np.flatnonzero(begins[1:] != ends[:-1])  # hosts of a node mostly hold one range together
        self._begins = np.concatenate([begins[:1], begins[1:][apart]])
        self._ends = np.concatenate([ends[:-1][apart], ends[-1:]])
        self.reads: deque[Read] = deque()
        self.ring_next: I32 = np.full(1 << 10, NEVER, np.int32)
        self.soon: I32 = np.empty(0, np.int32)
        self._num_rows = len(window)
        self._numbers: LocalIds | None = None  # of rows, once they are linked: small, the same for the same row
        self._last: Array = np.full(1 << 10, -1, np.int64)  # reads, by number or, with ``soon``, by row
        self._end = 0
        self._positions: I64 = np.empty(0, np.int64)

    def announce(self, batch: int, ids: I64) -> tuple[Read, Mask | None]:
        """Note that minibatch ``batch`` will read ``ids``.

        Returns:
            The read; and bool[k], the priced rows that no earlier pending read has, or None if reads are not linked.
        """
        if len(self._begins):
            free = np.empty(len(ids) + 1, np.int64)
            priced = np.empty(len(ids) + 1, np.int64)
            count = split_free(ids, self._begins, self._ends, free, priced)
            priced = priced[: len(ids) - count]
            read = Read(batch, ids, free[:count], priced, ids[priced], self._end)
        else:  # in memory that all reads share
            if len(ids) > len(self._positions):
                self._positions = np.arange(2 * len(ids))
            read = Read(batch, ids, self._positions[:0], self._positions[: len(ids)], ids, self._end)
        fresh = None
        if len(self.soon):
            fresh = np.empty(len(read.rows), np.bool_)
            self._make_space(read)
            pending = self.reads[0].batch if self.reads else batch
            add_reads_of(read.rows, batch, read.first, pending, self.soon, self._last, self.ring_next, fresh)
        elif self._numbers is not None:
            fresh = self._link(read, self._numbers)
        self._end += len(read.rows)
        self.reads.append(read)
        return read, fresh

    def link(self) -> None:
        """From now on know the minibatch that reads each row next, also for the announced reads."""
        if self._numbers is None and not len(self.soon):
            self._numbers = LocalIds(self._num_rows)
            for read in self.reads:
                self._link(read, self._numbers)

    def note_rows(self) -> None:
        """From now on keep :attr:`soon`, and link reads; none is announced yet."""
        if not len(self.soon):
            self.soon = np.full(self._num_rows, -1, np.int32)
            self._last = np.zeros(self._num_rows, np.int32)

    def done(self) -> None:
        """Note that the oldest announced read was made."""
        read = self.reads.popleft()
        if len(self.soon):
            advance(read.rows, read.first, self.ring_next, self.soon)

    def _link(self, read: Read, numbers: LocalIds) -> Mask:
        self._make_space(read)
        if numbers.count > max(2 * (read.first + len(read.rows) - self._pending(read)), 1 << 16):
            self._forget_numbers(read, numbers)
        indices = numbers.insert(read.rows)
        if numbers.count > len(self._last):
            grown = np.full(2 * numbers.count, -1, np.int64)
            grown[: len(self._last)] = self._last
            self._last = grown
        fresh = np.empty(len(indices), np.bool_)
        add_reads(indices, read.batch, read.first, self._pending(read), self._last, self.ring_next, fresh)
        return fresh

    def _pending(self, read: Read) -> int:
        """Return the position of the first pending row when ``read`` is the newest read."""
        return self.reads[0].first if self.reads else read.first

    def _make_space(self, read: Read) -> None:
        """Make the ring large enough for one more read."""
        pending = self._pending(read)
        needed = read.first + len(read.rows) - pending
        if needed > len(self.ring_next):
            grown = np.full(1 << (2 * needed).bit_length(), NEVER, np.int32)
            positions = np.arange(pending, read.first)
            grown[positions & (len(grown) - 1)] = self.ring_next[positions & (len(self.ring_next) - 1)]
            self.ring_next = grown
            if len(self.soon):
                for before in self.reads:
                    self._last[before.rows] = (before.first + np.arange(len(before.rows))) & (len(grown) - 1)

    def _forget_numbers(self, read: Read, numbers: LocalIds) -> None:
        """Forget the numbers of most rows that were read in the past."""
        numbers.reset(np.empty(0, np.int64))
        self._last[:] = -1
        for before in self.reads:
            if before.first < read.first:
                self._last[numbers.insert(before.rows)] = before.first + np.arange(len(before.rows))

    def clear(self) -> None:
        """Forget the announced minibatches, which will not come."""
        self.reads.clear()


@dataclass(frozen=True)
class _Stage:
    """Rows that are fetched for several minibatches together.

    Attributes:
        version: of the tensor.
        places: by minibatch the place of each of its rows, or -1.
        rows: int64[n], the rows by place: those of ``fetch``, then those that the stage before has, too.
        beside: int64[m], the places of neighbours that only later stages read.
        carried: int64[k], the places of the latter in the stage before.
        middle: the minibatch at which to begin the next stage.
        last: the last minibatch.
        fetch: the other rows.
    """

    version: int
    places: dict[int, I32]
    rows: I64
    beside: I64
    carried: I64
    middle: int
    last: int
    fetch: Fetch


class CachedRows:
    """Reads rows of one tensor for announced minibatches, through a cache.

    One-sided: :meth:`read`.

    Attributes:
        rows: the tensor.
        cache: the cache.
        upcoming: the announced reads.
        fetched_rows: number of rows that were fetched.
    """

    def __init__(self, rows: RowTensor, cache: RowCache, upcoming: UpcomingReads, pool: RowPool) -> None:
        """Begin with an empty cache; ``pool`` has the memory for fetched rows."""
        self.rows = rows
        self.cache = cache
        self.upcoming = upcoming
        self.fetched_rows = 0
        self._pool = pool
        self._stages = RowPool(STAGES, one_size=True)
        self._stage: _Stage | None = None
        self._words: Array = np.empty((0, 0))  # its rows by place
        self._begun: _Stage | None = None  # the next one
        self._listed = LocalIds(len(rows.window))
        self._chooses = False
        window = rows.window
        self._reach = window.world.config.disk_gap // max(window.row_bytes, 1) if window.from_sources else 0
        if self._reach:
            upcoming.note_rows()

    def announce(self, read: Read, fresh: Mask | None) -> None:
        """Note the read of a sampled minibatch, with ``fresh`` from :meth:`UpcomingReads.announce`."""
        if self._chooses and fresh is not None:
            self.cache.announce(read.rows, fresh, read.batch)

    def clear(self) -> None:
        """Forget the announced minibatches, which will not come."""
        self._drop()
        if self._chooses:
            self.cache.forget_uses()

    def read(self, read: Read, out: Array) -> None:
        """Fill ``out`` ([n, *row_shape], as stored or wider) with the rows of the oldest announced read.

        Raises ClosedError if the tensor was closed.
        """
        with self.rows.staging_buffer(out) as stored:
            self._read(read, stored)

    def _read(self, read: Read, out: Array) -> None:
        window = self.rows.window
        if out.size == 0:
            return
        words = as_words(out)
        if not self.cache.refresh():
            self._drop()
            with span("fetch", read.batch):
                window.gather(read.ids, out)
            self._count(len(read.rows), 0, len(read.rows))
            return
        version = self.rows.version
        slots, seen = self.cache.find(read.rows)
        stage = before = self._stage
        if stage is None or stage.version != version or read.batch not in stage.places:
            with span("fetch", read.batch):
                stage = self._finish(read, slots, version, words)
        else:
            window.load(read.ids, read.free, words)
        lost = self.cache.load(read.rows, slots, seen, read.priced, words)
        slots[lost] = -1
        if stage is not before and len(stage.beside):
            self._keep_beside(stage)
        if window.from_sources and self._begun is None and read.batch >= stage.middle:
            reads = [other for other in self.upcoming.reads if other.batch > stage.last]
            if reads:
                self._begun = self._begin(reads, version, stage.rows)
        places = stage.places.pop(read.batch)
        absent = np.flatnonzero(slots < 0)
        where = places[absent]
        gather_rows(self._words, where, read.priced[absent], words.view(self._words.dtype))
        late = absent[where < 0]
        if len(late):
            self._fetch_late(read, late, words)
        self._count(len(read.rows), len(read.rows) - len(absent), len(late))
        if self.cache.per_trainer:
            if not self.cache.slots.alone:  # other trainers may have kept some meanwhile
                slots[absent] = self.cache.find(read.rows[absent])[0]
            self._keep(read, slots, int(np.count_nonzero(slots[absent] < 0)), words)

    def _drop(self) -> None:
        """Forget the fetched rows, and those that are on their way."""
        self._stage = self._begun = None
        self._words = np.empty((0, 0))

    def _keep(self, read: Read, slots: I32, absent: int, words: Array) -> None:
        """Keep rows that had no slot: all while slots are free, then those that are worth it."""
        cache = self.cache
        if not self._chooses:
            if cache.extend(absent):
                if absent:
                    cache.keep_all(read.rows, slots, read.priced, words)
                return
            self._chooses = True
            self.upcoming.link()
            cache.begin_choosing()
            for other in self.upcoming.reads:
                cache.announce(other.rows, np.ones(len(other.rows), np.bool_), other.batch)
        cache.keep(read.rows, slots, read.priced, words, read.batch, read.first, self.upcoming.ring_next)

    def _keep_beside(self, stage: _Stage) -> None:
        """Keep the neighbours of rows that a stage has fetched, as far as they are worth it."""
        cache, rows = self.cache, stage.rows[stage.beside]
        slots = np.full(len(rows), -1, np.int32)
        if self._chooses:
            uses = np.full(1 << len(rows).bit_length(), NEVER, np.int32)
            uses[: len(rows)] = self.upcoming.soon[rows]
            cache.admit(rows, slots, stage.beside, self._words, 0, uses)
        elif cache.extend(len(rows)):
            cache.keep_all(rows, slots, stage.beside, self._words)

    def _with_neighbours(self, missing: I64, last: int) -> tuple[I64, I64, I64]:
        """Add uncached neighbours of missing rows that are read next after minibatch ``last``.

        Returns:
            All rows, int64[n], the places of the missing ones there, and those of the neighbours.
        """
        if not self._reach or not self.cache.per_trainer:
            return missing, np.arange(len(missing)), missing[:0]
        order = np.argsort(missing)
        fit = max(STAGE_BYTES // self.rows.window.row_bytes - len(missing), 0)
        beside = np.empty(min(_MOST_NEIGHBOURS * len(missing), fit), np.int64)
        rows = np.empty(len(missing) + len(beside), np.int64)
        places, at = np.empty((2, len(missing)), np.int64)
        before = self.cache.latest_use if self._chooses else NEVER
        table, soon = self.cache.slots, self.upcoming.soon
        count, added = with_neighbours(
            missing[order], self._reach, last, before, soon, table.hint, table.row_of, rows, at, beside
        )
        places[order] = at
        return rows[:count], places, beside[:added]

    def _begin(self, reads: Iterable[Read], version: int, have: I64, slots: I32 | None = None) -> _Stage:
        """Begin to fetch the missing rows of some minibatches: the first one, and the next ones while they are few.

        Args:
            reads: the minibatches.
            version: of the tensor.
            have: int64[n], the rows of the stage before, by place.
            slots: of the first one's rows.
        """
        listed, places, numbers = self._listed, dict[int, I32](), dict[int, tuple[I64, I32]]()
        listed.reset(have)
        for read in reads:
            fetched = (listed.count - len(have)) * self.rows.window.row_bytes
            if places and (fetched > _FETCHED_TOGETHER or len(places) == _MOST_TOGETHER):
                break
            cached = self.cache.find(read.rows)[0] if slots is None else slots
            slots = None
            missing = np.flatnonzero(cached < 0)
            places[read.batch] = np.full(len(cached), -1, np.int32)
            numbers[read.batch] = missing, listed.insert(read.rows[missing])
        is_carried = np.zeros(len(have), np.bool_)
        for _, at in numbers.values():
            is_carried[at[at < len(have)]] = True
        carried = np.flatnonzero(is_carried)
        batches = list(places)
        wanted, at_missing, beside = self._with_neighbours(listed.ids[len(have) :], batches[-1])
        fetch = self.rows.window.begin(wanted, self._stages, len(carried))
        place_of = np.empty(listed.count, np.int32)
        place_of[carried] = len(fetch.rows) + np.arange(len(carried))
        place_of[len(have) :] = fetch.places[at_missing]
        for batch, (missing, at) in numbers.items():
            places[batch][missing] = place_of[at]
        rows, middle = np.concatenate([fetch.rows, have[carried]]), batches[(len(batches) - 1) // 2]
        return _Stage(version, places, rows, fetch.places[beside], carried, middle, batches[-1], fetch)

    def _finish(self, read: Read, slots: I32, version: int, words: Array) -> _Stage:
        """Wait for the stage of the next minibatch, ``read``, whose free rows are loaded meanwhile."""
        window = self.rows.window
        stage, before = self._begun, self._words
        self._drop()
        if stage is None or stage.version != version or read.batch not in stage.places:
            stage = self._begin(self.upcoming.reads, version, np.empty(0, np.int64), slots)
        fetched = window.finish(stage.fetch, lambda: window.load(read.ids, read.free, words))
        if len(stage.carried):
            gather_rows(before, stage.carried, len(stage.fetch.rows) + np.arange(len(stage.carried)), fetched)
        self._stage, self._words = stage, fetched
        self._count(0, 0, len(stage.fetch.rows))
        return stage

    def _fetch_late(self, read: Read, which: I64, words: Array) -> None:
        """Fetch rows that have lost their slots meanwhile."""
        window = self.rows.window
        order, fetched = window.fetch(read.rows[which], self._pool, nothing)
        gather_rows(fetched, order, read.priced[which], words.view(fetched.dtype))

    def _count(self, asked: int, cached: int, fetched: int) -> None:
        count("remote_rows", asked)
        count("cached_rows", cached)
        count("fetched_rows", fetched)
        self.fetched_rows += fetched
        count("fetched_bytes", fetched * self.rows.window.row_bytes)
