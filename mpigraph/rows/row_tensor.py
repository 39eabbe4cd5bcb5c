"""Named tensors of rows, one row per node of a type or per edge of a relation, spread over the hosts.

numpy only: rows have a storage dtype here (bfloat16 as uint16, bool as uint8) and carry the name of their logical
dtype for the layer that makes torch tensors of them. Floats may be stored in 16 bits: such rows lie in windows and
caches and travel as they are stored, and become wider in the memory in which they arrive.

Rows are written in three ways, all of which a :class:`RowTensor` knows of: :meth:`~RowTensor.scatter` by id,
:meth:`~RowTensor.writing` straight into a near host's memory, and :meth:`~RowTensor.lend` for a view that outlives the
call. What a rank wrote travels with its next control call (``session/control.py``), in which every rank counts
:attr:`~RowTensor.version` up. So what is derived from rows, such as tables of edge weights, compares versions to know
whether it is still right, and every rank comes to the same answer.

Any thread may write while the main thread makes a control call. So writes are numbered, and a call tells of those up to
the number that it began with; later ones are for the next call.
"""

import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.float16 import narrow_part, widen
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow, SourceOf
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.narrow import RoundingError, narrow_rows

__all__ = ["Copying", "Policy", "RowTensor"]


@dataclass(frozen=True)
class Policy:
    """What the rows of a tensor are: the nodes of a type, or the edges of a relation.

    Attributes:
        is_node: nodes, else edges.
        type_id: id of the node type or of the relation.
    """

    is_node: bool
    type_id: int

    def offsets(self, book: RangeBook) -> I64:
        """int64[owners + 1]: which owner holds which rows."""
        table = book.node_offsets if self.is_node else book.edge_offsets
        return table[self.type_id]


class Copying:
    """Copies of rows that threads of the trainers are taking, each of the rows that it owns; writers wait for them.

    Attributes:
        mine: set once this rank's copies are there. Then it may write the rows that it owns.
        everywhere: set once those of all trainers are. Then it may write others, too.
    """

    def __init__(self) -> None:
        self.mine = threading.Event()
        self.everywhere = threading.Event()

    def end(self) -> None:
        """There is nothing to wait for any more."""
        self.mine.set()
        self.everywhere.set()


class RowTensor:
    """One tensor of rows.

    Attributes:
        number: the same on every rank, never used twice in a job.
        graph: name of the graph whose nodes or edges the rows are.
        name: the user's name for it.
        policy: what its rows are.
        dtype: logical dtype ("float32", "bfloat16", ...).
        stored: logical dtype of the rows in memory and on their way: the same, or a narrower one of 16 bits.
        shape: ``(rows, *row_shape)``.
        copying: whoever copies the rows in the background.
        version: counts the control calls before which some rank had written rows; the same on every rank after each.
    """

    @collective("world.comm")
    def __init__(
        self,
        service: RowService,
        book: RangeBook,
        *,
        number: int,
        graph: str,
        name: str,
        policy: Policy,
        row_shape: Sequence[int],
        dtype: str,
        stored: str = "",
        sources: SourceOf | None = None,
    ) -> None:
        """Allocate zeros, or read the rows from ``sources``; ``book`` says which host holds what."""
        self.number = number
        self.graph = graph
        self.name = name
        self.policy = policy
        self.dtype = dtype
        self.stored = stored or dtype
        self.version = 0
        self.copying: Copying | None = None
        self._writes = itertools.count(1)
        self._last_write = self._told = 0
        self._lent: list[weakref.ref[Array]] = []
        self.window = RowWindow(
            service, policy.offsets(book), row_shape, storage_dtype(self.stored), f"tensor {name!r}", sources
        )
        self.shape = (len(self.window), *row_shape)

    def gather(self, ids: I64, out: Array | None = None) -> Array:
        """Read rows in the order of ``ids`` (int64[n]). One-sided.

        Args:
            ids: int64[n], which rows.
            out: what :meth:`staging_buffer` takes; new memory for rows as they are stored if None.

        Raises:
            OutOfRangeError: an id is not a row; names the tensor and the id.
        """
        self.check(ids)
        if out is None or out.dtype == self.window.dtype:
            return self.window.gather(ids, out)
        with self.staging_buffer(out) as stored:
            self.window.gather(ids, stored)
        return out

    @contextmanager
    def staging_buffer(self, out: Array) -> Iterator[Array]:
        """Memory for rows as they are stored, which have the dtype of ``out`` after the ``with`` block.

        Args:
            out: [n, *row_shape], C-contiguous; of the stored dtype, it is that memory itself, of the logical one its
                last bytes are.
        """
        if out.dtype == self.window.dtype:
            yield out
        else:
            yield narrow_part(out, self.window.dtype)
            widen(out, self.stored == "bfloat16")

    def check(self, ids: I64) -> None:
        """Raise OutOfRangeError, with the name of the tensor, if one of ``ids`` (int64[n]) is not a row."""
        check_ids(ids, self.shape[0], f"tensor {self.name!r}: row")

    def segment(self, host: int) -> Array:
        """The rows on near host ``host``, a read-only view."""
        rows = self.window.memory(host).view()
        rows.flags.writeable = False
        return rows

    def scatter(self, ids: I64, values: Array) -> None:
        """Write ``values`` to rows ``ids``, holding each host's lock. One-sided.

        Values of the logical dtype are rounded to the stored one, to nearest even. Complete at the target when the call
        returns. Of two writers of one row one wins, never a mix.

        Raises:
            OutOfRangeError: an id is not a row.
            InvalidArgumentError: a value does not fit the stored dtype; nothing is written.
        """
        self.check(ids)
        if values.dtype != self.window.dtype:
            try:
                values = narrow_rows(values, self.stored)
            except RoundingError as error:
                raise InvalidArgumentError(f"tensor {self.name!r}: value of row {ids[error.row]}: {error}") from None
        self._wait(owned=False)
        try:
            self.window.scatter(ids, values)
        finally:
            self.note_write()  # afterwards: a control call that another thread makes meanwhile is too early

    @contextmanager
    def writing(self, host: int) -> Iterator[Array]:
        """The rows on near host ``host``, writable inside the ``with`` block. For the rows' owner: it takes no lock."""
        self._wait(owned=True)
        rows = self.window.memory(host).view()
        try:
            yield rows
        finally:
            rows.flags.writeable = False
            self.window.sync()
            self.note_write()

    def lend(self, host: int, rows: slice) -> Array:
        """Rows on near host ``host``, writable as long as the array, or any view of it, is alive.

        Until then they count as written before every control call, whether they were or not.
        """
        self._wait(owned=False)
        memory = self.window.memory(host)[rows]
        # the base of a view is the array at the end of the chain; the memoryview makes that this one
        lent = np.frombuffer(memoryview(memory.reshape(-1)), memory.dtype).reshape(memory.shape)  # type: ignore[arg-type]
        self._lent.append(weakref.ref(lent if lent.base is None else lent.base, self._take_back))
        return lent

    def _take_back(self, lent: "weakref.ref[Array]") -> None:
        self.note_write()  # until now it may have been written
        self._lent.remove(lent)

    def note_write(self) -> None:
        """Note that rows were written: by this rank, or by others in a call that all trainers make together."""
        self._last_write = next(self._writes)

    def _wait(self, owned: bool) -> None:
        """Wait until rows that are to be written have been copied: those that this rank owns, or any."""
        copying = self.copying
        if copying is None:
            return
        event = copying.mine if owned else copying.everywhere
        if not event.is_set():
            with self.window.world.watchdog.own("the copies of rows for a checkpoint"):
                event.wait()
        if copying.everywhere.is_set():
            self.copying = None

    @property
    def lent(self) -> bool:
        """Whether this rank holds views through which it may write at any time."""
        return any(lent() is not None for lent in self._lent)

    @property
    def written(self) -> bool:
        """Whether this rank knows of writes since the last control call, or lent rows to somebody who may write."""
        return self._last_write != self._told or bool(self._lent)

    @property
    def last_write(self) -> int:
        """The number of the last write that this rank knows of."""
        return self._last_write

    def advance(self, told: int | None) -> None:
        """Count the version up, as every rank does now.

        Args:
            told: what :attr:`last_write` was when this rank told the others that rows are :attr:`written`; None if it
                told nothing.
        """
        self.version += 1
        self.window.sync()
        if told is not None:
            self._told = told

    @collective("world.comm")
    def close(self) -> None:
        """Free the rows, once they have been copied where somebody does; a second call does nothing."""
        self._wait(owned=False)
        self.window.close()
