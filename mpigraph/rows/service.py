"""The common state of all windows of rows of a job: their memory, their locks, the ways to read remote rows.

The memory of a window is shared by the ranks of a node (``Win.Allocate_shared``); where ranks of other nodes read it by
``Get``, ``Win.Create`` opens it to all ranks, too (any MPI-3). Which way reads remote rows is decided once, at start
(``rows/trial.py``). Writes of remote rows go by message: their host stores them.
"""

from mpigraph.collective import collective
from mpigraph.log import get_logger
from mpigraph.mpi.compat import distrusts_windows, library_version
from mpigraph.mpi.hosts import Hosts
from mpigraph.mpi.world import World
from mpigraph.rows.packed import POOLED, PackedTransport
from mpigraph.rows.rma import RmaTransport
from mpigraph.rows.segments import RowPool, Segments
from mpigraph.rows.transport import HostMutex, Transport


class RowService:
    """The ways to read remote rows of a job, and the state of its windows.

    A job on one node has no way: every row is loaded. Closed with the world.

    Attributes:
        world: the job.
        hosts: asks other hosts, and answers for this one; its polls also let MPI serve one-sided reads of rows here.
        pool: has memory for rows that travel.
        packed: has this rank's windows, and writes remote rows.
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
        world.at_close(self.mutex.close)
        self.written: set[int] = set()
        self.hosts = Hosts(world)
        self.pool = RowPool(kept=POOLED)
        self.packed = PackedTransport(self.hosts, self.pool, self.mutex)
        self.transports: list[Transport] = []
        self._windows = 0
        if not world.all_local:
            setting = world.config.transport
            if setting == "auto" and distrusts_windows():
                if world.is_trainer and world.trainers.rank == 0:
                    get_logger().warning(
                        "%s: windows between nodes are not used, as they may crash; remote rows go by messages. With "
                        "OMPI_MCA_osc=ucx,sm, where UCX works, they are",
                        library_version(),
                    )
                setting = self.packed.name
            ways = (RmaTransport(world, self.pool, self.packed.rouse), self.packed)
            self.transports = [way for way in ways if setting in ("auto", way.name)]

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
