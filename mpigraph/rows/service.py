"""The common state of all windows of rows of a job: their memory, their locks, the ways to read remote rows.

The memory of a window is shared by the ranks of a node (``Win.Allocate_shared``); where ranks of other nodes read it by
``Get``, ``Win.Create`` opens it to all ranks, too (any MPI-3). Which way reads remote rows is decided once, at start
(``rows/trial.py``). Writes of remote rows go by message: their host stores them.
"""

from mpi4py import MPI

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.log import get_logger
from mpigraph.mpi.compat import distrusts_windows, library_version
from mpigraph.mpi.wait import TRANSFER, Backoff
from mpigraph.mpi.world import World
from mpigraph.rows.packed import PackedTransport
from mpigraph.rows.rma import RmaTransport
from mpigraph.rows.segments import Segments
from mpigraph.rows.transport import HostMutex, RemoteRows, Transport, WindowHandle


class RowService:
    """The ways to read remote rows of a job, and the state of its windows.

    A job on one node has none: every row is loaded. On several nodes a host that also trains makes progress in the
    progress thread, a server in its loop. These polls also let MPI serve one-sided reads of this rank's rows. The
    service is closed with the world.

    Attributes:
        world: the job.
        transports: the ways that are left; none on one node.
        mutex: the write locks of the hosts.
        segments: the memory of all windows and caches.
        written: numbers of tensors that this rank may have written since the last control call.
    """

    @collective("world.comm")
    def __init__(self, world: World) -> None:
        """Take the ways that ``MPIGRAPH_TRANSPORT`` allows."""
        self.world = world
        self.segments = Segments(world)
        self.mutex = HostMutex(world)
        self.written: set[int] = set()
        self.transports: list[Transport] = []
        self._windows = 0
        self._packed: PackedTransport | None = None
        if not world.all_local:
            self._packed = packed = PackedTransport(world)
            rma = RmaTransport(world, packed.rouse)
            setting = world.config.transport
            if setting == "auto" and distrusts_windows():
                if world.is_trainer and world.trainers.rank == 0:
                    get_logger().warning(
                        "%s: windows between nodes are not used, as they may crash; remote rows go by messages. With "
                        "OMPI_MCA_osc=ucx,sm, where UCX works, they are",
                        library_version(),
                    )
                setting = packed.name
            self.transports = [way for way in (rma, packed) if setting in ("auto", way.name)]
            world.at_close(packed.close)
        world.at_close(self.mutex.close)
        if self._packed and world.is_host and world.progress is not None:
            world.at_close(world.progress.listen(self))

    @property
    def transport(self) -> Transport | None:
        """The way that reads remote rows unless a caller names another; None on one node."""
        return self.transports[0] if self.transports else None

    @property
    def one_sided(self) -> bool:
        """True if new windows are opened to ranks of other nodes."""
        return any(isinstance(way, RmaTransport) for way in self.transports)

    def number_window(self) -> int:
        """A number for a new window, the same on every rank."""
        self._windows += 1
        return self._windows

    def register(self, window: WindowHandle) -> None:
        """Answer for a new window: its rows here may be read and written once every rank has registered it."""
        if self._packed:
            self._packed.register(window)

    def forget(self, window: WindowHandle) -> None:
        """Answer no more for a window, whose memory may be gone when this returns."""
        if self._packed:
            self._packed.forget(window)

    def write(self, window: WindowHandle, leaving: list[RemoteRows], values: Array) -> None:
        """Write rows of remote hosts; see :meth:`PackedTransport.write`. One-sided."""
        assert self._packed is not None
        self._packed.write(window, leaving, values)

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
        return self._packed is not None and self._packed.progress()

    @property
    def outstanding(self) -> bool:
        """True while a request of another rank is not complete."""
        return self._packed is not None and self._packed.outstanding
