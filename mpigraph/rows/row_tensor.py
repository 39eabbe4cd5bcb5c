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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.flat import narrow_part, widen
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.mpi.messages import Gate
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow, WindowPart
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.narrow import RoundingError, rounded

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


class RowTensor:
    """One tensor of rows.

    Attributes:
        number: the same on every rank, never used twice in a job.
        graph: name of the graph whose nodes or edges the rows are.
        name: the user's name for it.
        policy: the meaning of its rows.
        dtype: logical dtype ("float32", "bfloat16", ...).
        stored: logical dtype of the rows in memory and on their way.
        shape: ``(rows, *row_shape)``.
        copying: the background copy of the rows, if there is one.
        joint: the tensor that has these rows, too, if there is one.
        drawing: what is drawn by these rows, here or at their hosts for this rank, is drawn inside of it.
        version: counts the control calls before which a rank had written rows; the same on every rank after each.
        last_write: the number of the last write that this rank knows of.
    """

    @collective("world.comm")
    def __init__(
        self,
        service: RowService,
        offsets: I64,
        *,
        number: int,
        graph: str,
        name: str,
        policy: Policy,
        row_shape: Sequence[int],
        dtype: str,
        narrow: str = "",
        joint: "JointTensor | None" = None,
    ) -> None:
        """Allocate zeros, or give access to the next rows of ``joint``.

        ``offsets`` (int64[H + 1]) are the hosts' ranges, ``narrow`` the dtype of 16 bits in which rows lie, if they do.
        """
        self.number = number
        self.graph = graph
        self.name = name
        self.policy = policy
        self.dtype = dtype
        self.stored = narrow or dtype
        self.version = 0
        self.copying: Copying | None = None
        self.last_write = self._told = 0
        self._lent: list[weakref.ref[Array]] = []
        self.joint = joint
        self.drawing = Gate(f"tensor {name!r} was closed")
        self.shape = (int(offsets[-1]), *row_shape)
        if joint is None:
            what = f"tensor {name!r}"
            self.window = RowWindow(service, offsets, row_shape, storage_dtype(self.stored), what)
        else:
            self._place = len(joint.members)
            joint.members.append(self)

    @cached_property
    def window(self) -> RowWindow:
        """The rows. Of a member of a joint tensor it is made at first use: thousands may be only read together."""
        assert self.joint is not None
        window: RowWindow = vars(self).setdefault("window", self.joint.part(self._place))  # one, for any two threads
        return window

    def gather(self, ids: I64, out: Array | None = None) -> Array:
        """Read rows in the order of ``ids`` (int64[n]). One-sided.

        Args:
            ids: int64[n].
            out: as for :meth:`staging_buffer`; new memory for rows as they are stored if None.

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
        """Yield memory for rows as they are stored; after the ``with`` block ``out`` has them in its own dtype.

        Args:
            out: [n, *row_shape], C-contiguous. It is the memory itself if it has the stored dtype; its last bytes are
                if it has the logical one.
        """
        if self.stored == self.dtype or out.dtype == self.window.dtype:
            yield out
        else:
            yield narrow_part(out, self.window.dtype)
            widen(out, self.stored == "bfloat16")

    def check(self, ids: I64) -> None:
        """Raise OutOfRangeError, with the name of the tensor, if one of ``ids`` (int64[n]) is not a row."""
        check_ids(ids, self.shape[0], f"tensor {self.name!r}: row")

    def segment(self, host: int) -> Array:
        """Return the rows on local host ``host``, a read-only view."""
        rows: Array = self.window.memory(host).view()
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
            except RoundingError as error:
                raise InvalidArgumentError(f"tensor {self.name!r}: value of row {ids[error.row]}: {error}") from None
        self._wait(owned=False)
        try:
            self.window.scatter(ids, values)
        finally:
            self.note_write()  # afterwards: a control call that another thread makes meanwhile comes too early

    @contextmanager
    def writing(self, host: int) -> Iterator[Array]:
        """Yield the rows on local host ``host``, writable inside the block. For the rows' owner: it takes no lock."""
        self._wait(owned=True)
        rows = self.window.memory(host).view()
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
        memory = self.window.memory(host)[rows]
        # the base of a view is the array at the end of the chain; the memoryview makes that this one
        lent = np.frombuffer(memoryview(memory.reshape(-1)), memory.dtype).reshape(memory.shape)  # type: ignore[arg-type]
        for tensor in (self, self.joint):
            if tensor is not None:
                tensor._lent.append(weakref.ref(lent if lent.base is None else lent.base, tensor._take_back))
                self.window.service.written.add(tensor.number)
        return lent

    def _take_back(self, lent: "weakref.ref[Array]") -> None:
        self.note_write()
        self._lent.remove(lent)

    def note_write(self) -> None:
        """Note that this rank wrote rows, or others did in a call that all trainers make together."""
        self.last_write = next(_writes)
        self.window.service.written.add(self.number)
        if self.joint is not None:
            self.joint.note_write()

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
        if self.joint is None:  # which advances, too
            self.window.sync()
        if told is not None:
            self._told = told

    @collective("world.comm")
    def close(self) -> None:
        """Free the rows, after a background copy; a second call does nothing."""
        self._wait(owned=False)
        self.window.close()
        self.window.service.written.discard(self.number)


class JointTensor(RowTensor):
    """The rows of several tensors of one dtype and row shape in one window, to be read and cached together.

    Hosts have them tensor after tensor. It counts as written when one of these is.

    Attributes:
        members: the tensors. Write rows through them.
        layout: equal for joint tensors whose members have the same rows.
    """

    @collective("world.comm")
    def __init__(self, service: RowService, tables: I64, **about: Any) -> None:
        """Allocate zeros.

        Args:
            service: the job's transports and windows.
            tables: int64[tensors, H + 1], the hosts' ranges of each.
            about: the other arguments of :class:`RowTensor`.
        """
        self.members: list[RowTensor] = []
        self._tables = tables
        sizes = np.diff(tables, axis=1)
        offsets = np.append(0, np.cumsum(sizes.sum(axis=0)))
        self._starts = np.cumsum(sizes, axis=0) - sizes
        self._firsts = np.cumsum(tables[:, -1]) - tables[:, -1]  # of each tensor among the rows of all
        begins = tables[:, :-1] + self._firsts[:, None]
        self._begins = begins.ravel()
        self._shifts = (offsets[:-1] + self._starts - begins).ravel()
        self.layout = tables.tobytes()
        super().__init__(service, offsets, policy=Policy(False, -1), **about)

    def part(self, place: int) -> WindowPart:
        """Return the window of a member's rows."""
        return WindowPart(self.window, self._tables[place], self._starts[place])

    def _wait(self, owned: bool) -> None:
        for member in self.members:  # one that is freed with this tensor may still be copied
            member._wait(owned)

    def numbers(self, places: I64, counts: I64, ids: I64) -> I64:
        """Return the numbers of rows in this tensor.

        Args:
            places: int64[k], places of some members.
            counts: int64[k], the number of rows of each.
            ids: int64[n], the rows, member after member.

        Raises:
            OutOfRangeError: an id is not a row of its member; names the member and the id.
        """
        rows = ids + np.repeat(self._firsts[places], counts)
        ends = np.append(self._firsts, self.shape[0])[places + 1]
        if ((ids < 0) | (rows >= np.repeat(ends, counts))).any():
            for place, of_member in zip(places.tolist(), np.split(ids, np.cumsum(counts)[:-1]), strict=True):
                self.members[place].check(of_member)
        numbers: I64 = rows + self._shifts[np.searchsorted(self._begins, rows, side="right") - 1]
        return numbers
