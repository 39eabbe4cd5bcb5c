"""How many reads would find their row in a cache of any size, while a report is being made.

Each trainer keeps some of its remote reads: those of the rows whose hash is below a threshold, which falls while these
rows are too many (SHARDS: Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC construction with SHARDS", FAST 2015).
At the end the reads of a node's trainers, who share their caches, are joined by time. A read is a hit in all caches
with more rows than were read since the row's read before, as if a cache gave up the row that was read longest ago. The
library's caches know more and do with less memory.
"""

import json
import os
import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import F64, I64, U64
from mpigraph.kernels.id_hashes import hash_each
from mpigraph.kernels.reuse import reuse_distances
from mpigraph.rows.row_cache import remote_rows
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.trace import clock

_MOST_READS = 1 << 16  # in a sample
_MOST_BLOCKS = 1 << 13
_MOST_ROWS = 1 << 12  # more make a sample thinner, not shorter
_POWER = 4  # at the begin a sample has one of at most 2**_POWER rows
_KEY = np.uint64(0x5245555345)
_SIZES = 56  # points of a curve, four for each power of two
_FLAT = 0.002  # of all reads: a larger cache with fewer hits more is left out


class _Block(NamedTuple):
    """The part of a minibatch's reads that is in the sample."""

    seconds: float
    reads: int  # of the minibatch
    rows: I64


class _Sample:
    """Of one trainer's reads of a tensor, those of a part of its rows, newest last."""

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self.size = num_rows, row_bytes
        self.power = min((num_rows // _MOST_ROWS).bit_length(), _POWER)
        self.whole = True  # no read of these rows was forgotten
        self.blocks: list[_Block] = []
        self._count = 0

    def add(self, block: _Block) -> None:
        """Add reads, and leave some out if they are too many."""
        self.blocks.append(block._replace(rows=chosen(block.rows, self.power)))
        self._count += len(self.blocks[-1].rows)
        if self._count > _MOST_READS or len(self.blocks) > _MOST_BLOCKS:
            few = [chosen(block.rows, self.power + 4) for block in self.blocks]
            if 16 * len(np.unique(np.concatenate(few))) > _MOST_ROWS:
                self.thin(self.power + 1)
            else:
                counts = accumulate(len(block.rows) for block in self.blocks)
                del self.blocks[: max(len(self.blocks) // 4, sum(1 for _ in takewhile(self._first_half, counts)))]
                self.whole = False
            self._count = sum(len(block.rows) for block in self.blocks)

    def _first_half(self, count: int) -> bool:
        return 2 * count < self._count

    def thin(self, power: int) -> None:
        """Leave rows out until one of 2**power is left."""
        self.power = power
        self.blocks = [block._replace(rows=chosen(block.rows, power)) for block in self.blocks]


def chosen(rows: I64, power: int) -> I64:
    """Return those of ``rows`` (int64[n]) that are in a sample of one of 2**power rows."""
    hashes: U64 = np.empty(len(rows), np.uint64)
    hash_each(_KEY, rows, hashes)
    sample: I64 = rows[hashes <= np.uint64((1 << 64 - power) - 1)]
    return sample


_samples: list[dict[int, _Sample]] = []  # by number of the tensor; one while a report is being made, else none
_lock = threading.Lock()  # loaders may read in several threads
os.register_at_fork(after_in_child=_samples.clear)  # a thread may hold the lock then


def begin() -> None:
    """Begin to keep reads."""
    _samples[:] = [{}]


def note(tensor: RowTensor, rows: I64) -> None:
    """Note that a minibatch reads ``rows`` (int64[n], remote) of a tensor."""
    if _samples:
        with _lock:
            for samples in _samples:
                if tensor.number not in samples:
                    samples[tensor.number] = _Sample(remote_rows(tensor), tensor.window.row_bytes)
                samples[tensor.number].add(_Block(clock(), len(rows), rows))


def end() -> bytes:
    """Stop, and return the samples for :func:`hits_by_size`."""
    with _lock:
        samples = _samples.pop() if _samples else {}
    heads = []
    for tensor, sample in samples.items():
        blocks = [[block.seconds, block.reads, len(block.rows)] for block in sample.blocks]
        heads.append([tensor, sample.size, sample.power, sample.whole, blocks])
    rows = [block.rows.tobytes() for sample in samples.values() for block in sample.blocks]
    return json.dumps(heads).encode() + b"\n" + b"".join(rows)


def hits_by_size(told: Iterable[bytes], first: float, last: float) -> list[tuple[int, float]]:
    """Return the share of hits by the size of a node's caches.

    Args:
        told: what :func:`end` returned on the node's ranks.
        first: reads from this time on count, on the clock of spans.
        last: and those until then.

    Returns:
        Rising sizes in bytes, divided among tensors as those of caches are, and shares; empty without reads.
    """
    samples: dict[int, list[_Sample]] = {}
    for data in told:
        _read(data, samples)
    fractions = 2.0 ** (np.arange(1 - _SIZES, 1) / 4)
    hits = np.zeros(_SIZES)
    nbytes = np.zeros(_SIZES)
    reads = 0
    for each in samples.values():
        num_rows, row_bytes = each[0].size
        shares, number = _shares(each, first, last, fractions * num_rows)
        hits += shares * number
        reads += number
        nbytes += fractions * (num_rows * row_bytes)
    points: list[tuple[int, float]] = []
    for size, share in zip(nbytes.astype(np.int64).tolist(), (hits / max(reads, 1)).round(4).tolist(), strict=True):
        if not points or share >= points[-1][1] + _FLAT:
            points.append((size, share))
    return points if reads else []


def _read(data: bytes, samples: dict[int, list[_Sample]]) -> None:
    head, _, rest = data.partition(b"\n")
    rows = np.frombuffer(rest, np.int64)
    at = 0
    for tensor, size, power, whole, blocks in json.loads(head):
        sample = _Sample(*size)
        sample.power = power
        sample.whole = whole
        for seconds, reads, count in blocks:
            sample.blocks.append(_Block(seconds, reads, rows[at : at + count]))
            at += count
        samples.setdefault(tensor, []).append(sample)


def _shares(samples: Sequence[_Sample], first: float, last: float, slots: F64) -> tuple[F64, int]:
    """Return the share of hits in caches of some numbers of rows, and the number of reads that it was found from."""
    power = max(sample.power for sample in samples)
    for sample in samples:
        sample.thin(power)
        if not sample.whole:  # the first reads only tell which rows were read before
            first = max(first, sample.blocks[len(sample.blocks) // 4].seconds)
    blocks = sorted((block for sample in samples for block in sample.blocks), key=lambda block: block.seconds)
    rows = np.concatenate([block.rows for block in blocks])
    counted = np.array([first <= block.seconds <= last for block in blocks])
    reads = sum(block.reads for block in blocks if first <= block.seconds <= last)
    numbers = np.unique(rows, return_inverse=True)[1].astype(np.int64)
    distances = np.empty(len(rows), np.int64)
    reuse_distances(numbers, np.full(len(rows), -1), np.zeros(len(rows) + 1, np.int32), distances)
    distances = distances[counted.repeat([len(block.rows) for block in blocks])]
    again = np.sort(distances[distances >= 0])
    expected = reads / (1 << power)  # the rows read most often make the difference, and these are hits in any cache
    hits = np.searchsorted(again, slots / (1 << power)) + expected - len(distances)
    return np.clip(hits / max(expected, 1e-9), 0, 1), reads
