"""The checksums of rows that stay on disk, compared once, in the background.

Rows are read one by one, and a checksum is that of some MiB. So each dataset is read once from end to end while the job
runs, past the page cache. Damage ends the job, at the latest when it would end by itself. What was found undamaged is
noted, and not read again by the next job.
"""

import math
import mmap
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from mpigraph.errors import ShardFormatError, StorageError
from mpigraph.log import get_logger
from mpigraph.memory import in_units
from mpigraph.mpi.wait import PEERS_COMPUTE, Backoff
from mpigraph.rows.sources.disk import DiskFile
from mpigraph.storage import verified
from mpigraph.storage.files import direct
from mpigraph.storage.shard import Extent

_BLOCK = 4 << 20  # bytes of a read
_PAGE = 4096  # what direct reads begin at
_PATIENCE = 5.0  # seconds after which a line says why the job does not end


class Verification:
    """Compares the checksums of datasets, one after the other, in a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added: set[tuple[Path, os.stat_result, str, str]] = set()
        self._waiting: deque[tuple[DiskFile, str, str, Extent]] = deque()
        self._thread: threading.Thread | None = None
        self._left = 0  # bytes
        self._error: BaseException | None = None

    def add(self, file: DiskFile, seal: str, name: str, extent: Extent) -> None:
        """Have dataset ``name`` of a file with this seal compared, unless it is noted that it was."""
        which = file.path, file.status, seal, name
        if which in self._added:  # for other rows of the dataset
            return
        self._added.add(which)
        if verified.is_verified(file.path, file.status, seal, name):
            return
        with self._lock:
            self._left += extent.row_bytes * extent.rows
            self._waiting.append((file, seal, name, extent))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mpigraph-verification", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Compare datasets; an error ends the job, as in any thread."""
        try:
            while True:
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return
                    file, seal, name, extent = self._waiting.popleft()
                self._verify(file, name, extent)
                file.check()
                verified.note_verified(file.path, file.status, seal, [name])
        except BaseException as error:
            with self._lock:
                self._error = error
                self._thread = None
                self._waiting.clear()
            raise

    def _verify(self, file: DiskFile, name: str, extent: Extent) -> None:
        size = extent.row_bytes * extent.segment_rows
        begin = extent.begin
        end = begin + extent.row_bytes * extent.rows
        crc = 0
        with direct(file.number) if file.status.st_size > verified.SMALL else nullcontext() as past_cache:
            for at, block in self._blocks(file, past_cache, name, begin, end):
                done = 0
                while done < len(block):  # the rest of a segment at a time
                    index, inside = divmod(at + done - begin, size)
                    part = block[done : done + size - inside]
                    crc = zlib.crc32(part, crc)
                    done += len(part)
                    self._left -= len(part)
                    if inside + len(part) < size and at + done < end:
                        continue
                    if crc != int(extent.crcs[index]):
                        first = index * extent.segment_rows
                        last = min(first + extent.segment_rows, extent.rows)
                        raise ShardFormatError(
                            f"{file.path}: dataset {name!r} is damaged: the checksum of rows {first} to {last} does "
                            "not match, and this job may have read such rows"
                        )
                    crc = 0

    @staticmethod
    def _blocks(
        file: DiskFile, past_cache: int | None, name: str, begin: int, end: int
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield the bytes ``[begin, end)`` of a file in blocks, each with its begin and valid until the next."""
        number = file.number if past_cache is None else past_cache
        buffer = memoryview(mmap.mmap(-1, _BLOCK))
        for first in range(begin // _PAGE * _PAGE, end, _BLOCK):
            low = max(first, begin)
            high = min(first + _BLOCK, end)
            try:
                done = 0
                while done < high - first and (count := os.preadv(number, [buffer[done:]], first + done)):
                    done += count
                if past_cache is None and file.status.st_size > verified.SMALL:
                    os.posix_fadvise(number, first, _BLOCK, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise StorageError(f"{file.path}: dataset {name!r}: cannot read: {error.strerror}") from error
            if done < high - first:
                raise ShardFormatError(f"{file.path}: dataset {name!r}: the file ends before its end: it was cut off")
            yield low, buffer[low - first : high - first]

    def finish(self) -> None:
        """Wait until all datasets are compared: a job that has read damaged rows must not end as if it had not.

        Raises:
            ShardFormatError: a dataset is damaged.
            StorageError: it cannot be read.
        """
        patience = time.monotonic() + _PATIENCE
        backoff = Backoff()
        while self._thread is not None:
            backoff.pause(PEERS_COMPUTE)
            if time.monotonic() > patience:
                patience = math.inf
                get_logger().warning(
                    "checks features on disk before the job ends: %s are left; the next jobs need not, and python -m "
                    "mpigraph verify does it beforehand",
                    in_units(self._left),
                )
        error, self._error = self._error, None
        if error is not None:
            raise error
