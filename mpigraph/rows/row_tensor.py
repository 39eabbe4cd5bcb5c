"""Named tensors of rows, one row per node of a type or per edge of a relation, spread over the hosts.

numpy only: rows have a storage dtype here (bfloat16 as uint16, bool as uint8) and carry the name of their logical
dtype for the layer that makes torch tensors of them. Floats may be stored in a narrower form: such rows lie in windows
and caches and travel as they are stored, and become wider in the memory in which they arrive.

There are three ways to write rows: :meth:`~RowTensor.scatter` by id, :meth:`~RowTensor.writing` straight into a local
host's memory, and :meth:`~RowTensor.lend` for a view that outlives the call. A rank's next control call
(``session/control.py``) tells the others that it wrote, and every rank increments :attr:`~RowTensor.version`. Data
derived from rows, such as tables of edge weights, compares versions, so all ranks agree whether it is still valid.

Any thread may write while the main thread makes a control call. So writes are numbered, and a call reports those up to
the number at its begin; later ones are for the next call.
"""

import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.kernels.flat import narrow_part
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.mpi.messages import Gate
from mpigraph.rows.window import RowWindow
from mpigraph.storage.narrow import RowError, rounded, widen_in_place

_writes = itertools.count(1)  # of all tensors of this process


@dataclass(frozen=True, slots=True)
class Policy:
    """The meaning of a tensor's rows: the nodes of a type, or the edges of a relation.

    Attributes:
        is_node: nodes, else edges.
        type_id: id of the node type or of the relation.
    """

    is_node: bool
    type_id: int

    def offsets(self, book: RangeBook) -> I64:
        """Return int64[owners + 1], the offsets of the owners' rows."""
        table = book.node_offsets if self.is_node else book.edge_offsets
        return table[self.type_id]


class Copying:
    """A background copy of rows: a thread of each trainer copies the rows that it owns, and writers wait for it.

    Attributes:
        own: set once this rank's copies are complete. Then it may write the rows that it owns.
        everywhere: set once those of all trainers are. Then it may write others, too.
    """

    def __init__(self) -> None:
        self.own = threading.Event()
        self.everywhere = threading.Event()

    def end(self) -> None:
        """Let all writers go on."""
        self.own.set()
        self.everywhere.set()


@dataclass(eq=False)
class RowTensor:
    """One tensor of rows: a table of a window.

    Attributes:
        window: has the rows, and those of other tensors of the same name, dtype and row shape.
        table: its table there.
        number: the same on every rank, never used twice in a job.
        graph: name of the graph whose nodes or edges the rows are.
        name: the user's name for it.
        policy: the meaning of its rows.
        dtype: logical dtype ("float32", "bfloat16", ...).
        stored: logical dtype of the rows in memory and on their way.
        shape: ``(rows, *row_shape)``.
        copying: the background copy of the rows, if there is one.
        drawing: what is drawn by these rows, here or at their hosts for this rank, is drawn inside of it.
        version: counts the control calls before which a rank had written rows; the same on every rank after each.
        last_write: the number of the last write that this rank knows of.
    """

    window: RowWindow
    table: int
    number: int
    graph: str
    name: str
    policy: Policy
    dtype: str
    stored: str

    def __post_init__(self) -> None:
        self.version = 0
        self.copying: Copying | None = None
        self.last_write = self._told = 0
        self._lent: list[weakref.ref[Array]] = []
        self.drawing = Gate(f"tensor {self.name!r} was closed")
        self.shape = (int(self.offsets[-1]), *self.window.row_shape)
        self.window.tensors.add(self.number)
        self._closed = False

    @property
    def offsets(self) -> I64:
        """int64[H + 1]; host h holds the rows ``[offsets[h], offsets[h + 1])``."""
        offsets: I64 = self.window.tables[self.table]
        return offsets

    def numbers(self, ids: I64) -> I64:
        """Return int64[n], the numbers of rows (int64[n], all valid) in the window. Raises ClosedError."""
        self._check_open()
        return self.window.numbers(self.table, ids)

    def memory(self, host: int) -> Array:
        """Return the rows of local host ``host``, writable. To write them use :meth:`writing` or :meth:`lend`.

        Raises ClosedError if the tensor was closed.
        """
        self._check_open()
        return self.window.segment(self.table, host)

    def _check_open(self) -> None:
        """Raise ClosedError if the tensor was closed; others may keep its window."""
        if self._closed:
            raise ClosedError(f"tensor {self.name!r} was closed")

    def gather(self, ids: I64, out: Array | None = None) -> Array:
        """Read rows in the order of ``ids`` (int64[n]). One-sided.

        Args:
            ids: int64[n].
            out: as for :meth:`staging_buffer`; new memory for rows as they are stored if None.

        Raises:
            OutOfRangeError: an id is not a row; names the tensor and the id.
        """
        self.check(ids)
        return self.read(self.numbers(ids), out)

    def read(self, numbers: I64, out: Array | None = None) -> Array:
        """Read rows of the window's tensors by number (int64[n], all valid); otherwise as :meth:`gather`."""
        if out is None or out.dtype == self.window.dtype:
            return self.window.gather(numbers, out)
        with self.staging_buffer(out) as stored:
            self.window.gather(numbers, stored)
        return out

    @contextmanager
    def staging_buffer(self, out: Array) -> Iterator[Array]:
        """Yield memory for rows as they are stored; after the ``with`` block ``out`` has them in its own dtype.

        Args:
            out: [n, *row_shape], C-contiguous. It is the memory itself if it has the stored dtype; its last bytes are
                if it has the logical one.
        """
        if self.stored == self.dtype or out.dtype == self.window.dtype:
            yield out
        else:
            yield narrow_part(out, self.window.dtype)
            widen_in_place(out, self.stored)

    def check(self, ids: I64) -> None:
        """Raise OutOfRangeError, with the name of the tensor, if one of ``ids`` (int64[n]) is not a row."""
        check_ids(ids, self.shape[0], f"tensor {self.name!r}: row")

    def segment(self, host: int) -> Array:
        """Return the rows on local host ``host``, a read-only view."""
        rows: Array = self.memory(host).view()
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
        if self.stored != self.dtype and values.dtype != self.window.dtype:
            try:
                values = rounded(values, self.stored)
            except RowError as error:
                raise InvalidArgumentError(f"tensor {self.name!r}: value of row {ids[error.row]}: {error}") from None
        self._wait(owned=False)
        numbers = self.numbers(ids)
        try:
            self.window.scatter(numbers, values)
        finally:
            self.note_write()  # afterwards: a control call that another thread makes meanwhile comes too early

    @contextmanager
    def writing(self, host: int) -> Iterator[Array]:
        """Yield the rows on local host ``host``, writable inside the block. For the rows' owner: it takes no lock."""
        self._wait(owned=True)
        rows = self.memory(host).view()
        try:
            yield rows
        finally:
            rows.flags.writeable = False
            self.window.sync()
            self.note_write()

    def lend(self, host: int, rows: slice) -> Array:
        """Return rows on local host ``host``, writable as long as the array, or any view of it, is alive.

        Until then they count as written before every control call.
        """
        self._wait(owned=False)
        memory = self.memory(host)[rows]
        # the base of a view is the array at the end of the chain; the memoryview makes that this one
        lent = np.frombuffer(memoryview(memory.reshape(-1)), memory.dtype).reshape(memory.shape)  # type: ignore[arg-type]
        self._lent.append(weakref.ref(lent if lent.base is None else lent.base, self._take_back))
        self._mark_written()
        return lent

    def _take_back(self, lent: "weakref.ref[Array]") -> None:
        self.note_write()
        self._lent.remove(lent)

    def note_write(self) -> None:
        """Note that this rank wrote rows, or others did in a call that all trainers make together."""
        self.last_write = next(_writes)
        self._mark_written()

    def _mark_written(self) -> None:
        self.window.untold.add(self.number)
        self.window.service.written.add(self.number)

    def _wait(self, owned: bool) -> None:
        """Wait for the background copy of the rows that this rank owns, or of all."""
        copying = self.copying
        if copying is None:
            return
        event = copying.own if owned else copying.everywhere
        if not event.is_set():
            with self.window.world.watchdog.own("the copies of rows for a checkpoint"):
                event.wait()
        if copying.everywhere.is_set():
            self.copying = None

    @property
    def lent(self) -> bool:
        """True if this rank holds views through which it may write at any time."""
        return any(lent() is not None for lent in self._lent)

    def give_up(self) -> bool:
        """Refuse draws from now on; return True if no thread draws by the rows and no view of them is alive."""
        return not self.drawing.shut() and not self.lent

    @property
    def written(self) -> bool:
        """True if this rank knows of writes since the last control call, or has lent rows, which may be written."""
        return self.last_write != self._told or bool(self._lent)

    def advance(self, told: int | None) -> None:
        """Increment the version, as every rank does now.

        Args:
            told: :attr:`last_write` at the moment when this rank told the others that rows are :attr:`written`; None if
                it told nothing.
        """
        self.version += 1
        self.window.version += 1
        self.window.sync()
        if told is not None:
            self._told = told
        self.window.untold.discard(self.number)  # before looking: another thread may write now
        if self.written:
            self.window.untold.add(self.number)

    @collective("world.comm")
    def close(self) -> None:
        """Free the rows, after a background copy; the window goes with its last tensor. A second call does nothing."""
        self._wait(owned=False)
        self._closed = True
        self.window.service.written.discard(self.number)
        self.window.untold.discard(self.number)
        self.window.tensors.discard(self.number)
        if not self.window.tensors:
            self.window.close()
