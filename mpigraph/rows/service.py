"""The common state of all windows of rows of a job: the way to allocate them, their locks, their transports.

There are three ways to allocate, with the same behaviour above ``rows/window.py``:

* *allocate*: ``Win.Allocate`` over all ranks; ``Shared_query`` finds the memory of neighbours on the node, which MPI
  allows on such windows since 4.1 (MPICH does). A ``Get`` between processes of one machine needs no help of the target.
* *create*: ``Win.Allocate_shared`` on the node, and, in a job of several nodes, ``Win.Create`` over that memory (any
  MPI-3).
* *node*: ``Win.Allocate_shared`` on the node alone. Only transports without windows can read and write remote rows.

On several nodes ``rows/self_test.py`` tries them in this order, and takes the first that works. Where trying may end in
a crash (``distrusts_windows``), windows between nodes are used only if ``MPIGRAPH_TRANSPORT`` asks for them.
"""

from collections.abc import Iterable
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.errors import CollectiveError, InvalidArgumentError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import everywhere
from mpigraph.mpi.compat import distrusts_windows, library_version
from mpigraph.mpi.wait import TRANSFER, Backoff
from mpigraph.mpi.world import World
from mpigraph.rows.mutex import HostMutex
from mpigraph.rows.packed import PackedTransport
from mpigraph.rows.rma import RmaTransport
from mpigraph.rows.segments import Segments
from mpigraph.rows.transport import Traffic, Transport, WindowHandle

TRANSPORTS: tuple[type[Transport], ...] = (RmaTransport, PackedTransport)
"""All transports: each is a possible value of ``MPIGRAPH_TRANSPORT``, is measured at start, and by ``doctor``. The
first one that works in a job writes remote rows."""


class RowService:
    """The transports of a job and the state of its windows.

    A job on one node has no transport: every row is loaded. On several nodes a host that also trains makes progress in
    the progress thread, a server in its loop. These polls also let MPI serve one-sided reads of this rank's rows. The
    service is closed with the world.

    Attributes:
        world: the job.
        kinds: the ways to allocate that are left, best first.
        transports: those that work with ``kind``, in the order of :data:`TRANSPORTS`; none on one node.
        transport: reads remote rows unless a caller names another; None on one node.
        automatic: ``rows/selection.py`` chooses ``transport`` by measuring; it is the first one until then.
        mutex: the write locks of the hosts.
        segments: the memory of all windows and caches.
        written: numbers of tensors that this rank may have written since the last control call.
    """

    @collective("world.comm")
    def __init__(self, world: World) -> None:
        """Open the transports.

        Raises InvalidArgumentError if this MPI does not support ``MPIGRAPH_WINDOW``; on every rank.
        """
        self.world = world
        self.segments = Segments(world)
        self.written: set[int] = set()
        self.transports: tuple[Transport, ...] = ()
        self.transport: Transport | None = None
        setting = world.config.transport
        self.automatic = setting == "auto"
        self.kinds = _window_kinds(world, setting)
        self._setting = setting
        self._windows = 0
        self._opened = () if world.all_local else tuple(transport(world) for transport in TRANSPORTS)
        for transport in self._opened:
            world.at_close(transport.close)
            if isinstance(transport, PackedTransport):
                for other in self._opened:
                    other.wake = transport.rouse
        self._begin()
        world.at_close(lambda: self.mutex.close())
        if self._opened and world.is_host and world.progress is not None:
            world.at_close(world.progress.listen(self))

    @property
    def kind(self) -> str:
        """The way to allocate windows: "allocate", "create" or "node"."""
        return self.kinds[0]

    @collective("world.comm")
    def _begin(self) -> None:
        """Make the locks, and take the transports that work."""
        remote = bool(self._opened) and self.kind != "node"
        try:
            self.mutex = HostMutex(self.world, remote)
        except MPI.Exception as error:  # a library without such windows says so on every rank
            self.drop(str(error))
            return
        self.transports = tuple(each for each in self._opened if remote or not each.one_sided)
        self.transport = next((each for each in self.transports if self.automatic or each.name == self._setting), None)

    @collective("world.comm")
    def drop(self, fault: str) -> None:
        """Allocate windows in the next way, because of a fault of this one; no window is open.

        Raises:
            InvalidArgumentError: no way is left, and the user has chosen the transport; on every rank.
            CollectiveError: no way is left; on every rank.
        """
        library = library_version()
        kind = self.kinds.pop(0)
        if not self.kinds and not self.automatic:
            raise everywhere(
                InvalidArgumentError(
                    f"transport {self._setting!r} does not work with {library} here ({fault}): use auto or packed"
                )
            )
        if not self.kinds:
            raise everywhere(CollectiveError(f"{library} does not work on these nodes: {fault}"))
        if self.world.rank == 0:
            instead = "remote rows go by messages" if self.kind == "node" else f"those of kind {self.kind!r} are tried"
            get_logger().warning("%s: windows of kind %r do not work here (%s); %s", library, kind, fault, instead)
        self._begin()

    @property
    def traffic(self) -> Traffic:
        """The traffic of ``transport`` so far."""
        return self.transport.traffic if self.transport else Traffic()

    def number_window(self) -> int:
        """A number for a new window, the same on every rank."""
        self._windows += 1
        return self._windows

    def register(self, window: WindowHandle) -> None:
        """Tell the transports of a new window."""
        for transport in self.transports:
            transport.register(window)

    def forget(self, window: WindowHandle) -> None:
        """Tell the transports that a window is being closed."""
        for transport in self.transports:
            transport.forget(window)

    def complete(self, request: MPI.Request) -> None:
        """Complete a request of a collective call, and as a server answer the ranks that are not there yet."""
        backoff = Backoff()
        while not request.Test():
            if not self.world.is_trainer and self.progress():
                backoff.reset()
            else:
                backoff.pause(TRANSFER)

    def progress(self) -> bool:
        """Advance the requests of other ranks, without waiting; return whether anything moved."""
        return any([transport.progress() for transport in self.transports])

    @property
    def outstanding(self) -> bool:
        """True while a request of another rank is not complete."""
        return any(transport.outstanding for transport in self.transports)


def shared_query_works(win: MPI.Win, ranks: Iterable[int], nbytes: int) -> bool:
    """Return whether ``Shared_query`` finds the memory of ranks on this node, ``nbytes`` of each."""
    try:
        return all(len(win.Shared_query(rank)[0]) == nbytes for rank in ranks)
    except MPI.Exception:  # Open MPI 5 and MPICH 4.0 do not have it
        return False


@collective("world.comm")
def _window_kinds(world: World, setting: str) -> list[str]:
    """Return the ways to allocate that are to be tried."""
    needed = [transport.one_sided for transport in TRANSPORTS if transport.name == setting]
    if not world.all_local and needed == [False]:
        return ["node"]
    if not world.all_local and setting == "auto" and distrusts_windows():
        if world.is_trainer and world.trainers.rank == 0:
            get_logger().warning(
                "%s: windows between nodes are not used, as they may crash; remote rows go by messages. With "
                "OMPI_MCA_osc=ucx,sm, where UCX works, they are",
                library_version(),
            )
        return ["node"]
    kinds = [window_kind(world)]
    if not world.all_local:
        if kinds[0] == "allocate" and world.config.window == "auto":
            kinds.append("create")
        if setting == "auto":
            kinds.append("node")
    return kinds


@collective("world.comm")
def window_kind(world: World) -> str:
    """Return "allocate" if ``Shared_query`` works on allocated windows here, else "create".

    Raises InvalidArgumentError if this MPI does not support ``MPIGRAPH_WINDOW``; on every rank.
    """
    setting = world.config.window
    if setting == "create":
        return setting
    answer = np.zeros(1, np.int64)
    win = MPI.WIN_NULL
    with suppress(MPI.Exception):  # no one-sided communication between nodes, on every rank
        win = MPI.Win.Allocate(8, 1, comm=world.comm)
        answer[0] = shared_query_works(win, world.hosts[world.is_local].tolist(), 8)
    world.comm.Allreduce(MPI.IN_PLACE, answer, op=MPI.MIN)
    if win:
        win.Free()
    if not answer[0] and setting == "allocate":
        raise everywhere(
            InvalidArgumentError(f"window 'allocate' does not work with {library_version()}: use auto or create")
        )
    return "allocate" if answer[0] else "create"
