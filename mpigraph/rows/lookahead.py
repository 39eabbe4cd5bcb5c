"""Rows of minibatches that are sampled ahead: known before they are read, so fetched once, early and together.

Draws are hashes and blocks are small, so a loader samples several minibatches ahead and keeps them. The rows that they
will read determine

* which remote rows the cache keeps and gives up (:class:`~mpigraph.rows.row_cache.RowCache`);
* which rows to fetch: those of one minibatch, or, where few are missing, of several in one message to each host.

A minibatch gets the same rows as without: those that were written are fetched anew.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.row_ops import as_words, move_rows
from mpigraph.kernels.row_slots import NEVER, add_reads, split_local
from mpigraph.rows.row_cache import RowCache
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.segments import RowPool
from mpigraph.rows.window import RowWindow
from mpigraph.trace import count, span

_FETCHED_TOGETHER = 4 << 20  # bytes from which on a fetch of more minibatches makes messages no more efficient
_MOST_TOGETHER = 16  # minibatches in one fetch


@dataclass(frozen=True)
class Read:
    """The rows that one minibatch reads of a node type, of a relation or of several.

    Attributes:
        batch: its number.
        ids: int64[n], the numbers of all rows in the window.
        local: int64[m], positions in ``ids`` of the rows of this node.
        remote: int64[k], positions of the others.
        rows: int64[k], the ids at ``remote``.
        first: position of the first one among all announced remote rows.
    """

    batch: int
    ids: I64
    local: I64
    remote: I64
    rows: I64
    first: int


class UpcomingReads:
    """The reads of sampled minibatches from windows whose rows have the same numbers, in order.

    The minibatch that reads each row next is known after :meth:`link`: a cache with memory for all rows needs it not.

    Attributes:
        reads: those that were announced and not made, oldest first.
        ring_next: int32[2**k], by position modulo its length: the minibatch that reads a remote row next.
    """

    def __init__(self, window: RowWindow) -> None:
        """Begin without reads; ``window`` is any one with the same offsets."""
        local = np.flatnonzero(window.world.is_local)
        begins, ends = window.offsets[local], window.offsets[local + 1]
        apart = np.flatnonzero(begins[1:] != ends[:-1])  # hosts of a node mostly hold one range together
        self._begins = np.concatenate([begins[:1], begins[1:][apart]])
        self._ends = np.concatenate([ends[:-1][apart], ends[-1:]])
        self.reads: deque[Read] = deque()
        self.ring_next: I32 = np.full(1 << 10, NEVER, np.int32)
        self._num_rows = len(window)
        self._numbers: LocalIds | None = None  # of rows, once they are linked: small, the same for the same row
        self._last: Array = np.full(1 << 10, -1, np.int64)  # reads, by number
        self._end = 0

    def announce(self, batch: int, ids: I64) -> tuple[Read, Mask | None]:
        """Note that minibatch ``batch`` will read the rows with the numbers ``ids`` (int64[n]).

        Returns:
            The read; and bool[k], the remote rows that no earlier pending read has, or None if reads are not linked.
        """
        local = np.empty(len(ids) + 1, np.int64)
        remote = np.empty(len(ids) + 1, np.int64)
        count = split_local(ids, self._begins, self._ends, local, remote)
        remote = remote[: len(ids) - count]
        read = Read(batch, ids, local[:count], remote, ids[remote], self._end)
        fresh = None if self._numbers is None else self._link(read, self._numbers)
        self._end += len(read.rows)
        self.reads.append(read)
        return read, fresh

    def link(self) -> None:
        """From now on know the minibatch that reads each row next, also for the announced reads."""
        if self._numbers is None:
            self._numbers = LocalIds(self._num_rows)
            for read in self.reads:
                self._link(read, self._numbers)

    def done(self) -> None:
        """Note that the oldest announced read was made."""
        self.reads.popleft()

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
class _Fetched:
    """Rows that were fetched for several minibatches together.

    Attributes:
        version: of the window.
        places: by minibatch the place of each of its rows, or -1.
        words: [n, words], the rows by place.
    """

    version: int
    places: dict[int, I32]
    words: Array


class CachedRows:
    """Reads rows of one window for announced minibatches, through a cache.

    One-sided: :meth:`read`.

    Attributes:
        rows: a tensor of the window.
        cache: the cache, which has no other reader.
        upcoming: the announced reads.
    """

    def __init__(self, rows: RowTensor, cache: RowCache, upcoming: UpcomingReads) -> None:
        """Begin with an empty cache."""
        self.rows = rows
        self.cache = cache
        self.upcoming = upcoming
        self._fetches = RowPool(1, one_size=True)
        self._fetched: _Fetched | None = None
        self._listed = LocalIds(len(rows.window))
        self._chooses = False

    def announce(self, read: Read, fresh: Mask | None) -> None:
        """Note the read of a sampled minibatch, with ``fresh`` from :meth:`UpcomingReads.announce`."""
        if self._chooses and fresh is not None:
            self.cache.announce(read.rows, fresh, read.batch)

    def clear(self) -> None:
        """Forget the announced minibatches, which will not come."""
        self._fetched = None
        if self._chooses:
            self.cache.forget_uses()

    def read(self, read: Read, out: Array) -> None:
        """Fill ``out`` ([n, *row_shape], as stored or wider) with the rows of the oldest announced read.

        Raises ClosedError if the window was closed.
        """
        with self.rows.staging_buffer(out) as stored:
            self._read(read, stored)

    def _read(self, read: Read, out: Array) -> None:
        window = self.rows.window
        if out.size == 0:
            return
        words = as_words(out)
        if not self.cache.refresh():
            self._fetched = None
            with span("fetch", read.batch):
                window.gather(read.ids, out)
            self._count(len(read.rows), 0, len(read.rows))
            return
        version = window.version
        slots, seen = self.cache.find(read.rows)
        fetched = self._fetched
        if fetched is None or fetched.version != version or read.batch not in fetched.places:
            self._fetched = fetched = None  # so that the pool may use its memory
            with span("fetch", read.batch):
                fetched = self._fetch(read, slots, version, words)
        else:
            window.load(read.ids, read.local, words)
        self.cache.load(slots, seen, read.remote, words)
        places = fetched.places.pop(read.batch)
        absent = np.flatnonzero(slots < 0)
        where = places[absent]
        move_rows(fetched.words, where, 0, words.view(fetched.words.dtype), read.remote[absent])
        late = absent[where < 0]
        if len(late):  # rows that have lost their slots meanwhile
            rows = as_words(window.gather(read.rows[late]))
            move_rows(rows, None, 0, words.view(rows.dtype), read.remote[late])
        self._count(len(read.rows), len(read.rows) - len(absent), len(late))
        if self.cache.per_trainer:
            if not self.cache.slots.alone:  # other trainers may have kept some meanwhile
                slots[absent] = self.cache.find(read.rows[absent])[0]
            self._keep(read, slots, int(np.count_nonzero(slots[absent] < 0)), words)

    def _keep(self, read: Read, slots: I32, absent: int, words: Array) -> None:
        """Keep rows that had no slot: all while slots are free, then those that are worth it."""
        cache, upcoming = self.cache, self.upcoming
        if not self._chooses and cache.used + absent > cache.per_trainer:
            self._chooses = True
            upcoming.link()
            for other in upcoming.reads:
                cache.announce(other.rows, np.ones(len(other.rows), np.bool_), other.batch)
        ring_next = upcoming.ring_next if self._chooses else None
        cache.keep(read.rows, slots, read.remote, words, read.batch, read.first, ring_next)

    def _fetch(self, read: Read, slots: I32, version: int, words: Array) -> _Fetched:
        """Fetch the missing rows of the next minibatch, ``read``, and of those after it while they are few.

        Args:
            read: the oldest announced read, whose local rows are loaded meanwhile.
            slots: of its rows.
            version: of the window.
            words: of its rows.
        """
        window, listed = self.rows.window, self._listed
        places, numbers = dict[int, I32](), dict[int, tuple[I64, I32]]()
        listed.reset(np.empty(0, np.int64))
        for other in self.upcoming.reads:
            if places and (listed.count * window.row_bytes > _FETCHED_TOGETHER or len(places) == _MOST_TOGETHER):
                break
            cached = slots if other is read else self.cache.find(other.rows)[0]
            missing = np.flatnonzero(cached < 0)
            places[other.batch] = np.full(len(cached), -1, np.int32)
            numbers[other.batch] = missing, listed.insert(other.rows[missing])
        place_of, rows = window.fetch(listed.ids, self._fetches, lambda: window.load(read.ids, read.local, words))
        for batch, (missing, at) in numbers.items():
            places[batch][missing] = place_of[at]
        self._fetched = _Fetched(version, places, rows)
        self._count(0, 0, len(rows))
        return self._fetched

    def _count(self, asked: int, cached: int, fetched: int) -> None:
        count("remote_rows", asked)
        count("cached_rows", cached)
        count("fetched_rows", fetched)
        count("fetched_bytes", fetched * self.rows.window.row_bytes)
