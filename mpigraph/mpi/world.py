"""The ranks of a job: their nodes, roles and communicators.

A *host* holds rows of the graph; a *trainer* runs the user's script. A *server* is a host that is not a trainer. With
``num_servers=0`` every rank is both. The communicators and their threads::

    caller's comm --dup--> world.comm       control: set-up, creation of tensors, barrier     main thread
                             |- world.node        the ranks that share memory with this one      set-up
                             |- world.trainers    the trainers alone (COMM_NULL on servers)      main thread
                             |- world.training    steps of training: layers                      main thread
                             |- world.gradients   the same: sparse gradients                     main thread
                             |- hosts             requests to single hosts, and the replies      every thread
                             |- rounds            or sampling requests in rounds of all ranks    one thread at a time
                             |- leaders           one host of each node: board.Rounds            watchdog
                             '- world.group()     one for each torch process group               torch's caller

The library sends nothing on the caller's communicator. All communicators are made here and
freed in :meth:`World.close`, in reverse order of their creation.
"""

import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.config import Config
from mpigraph.errors import ClosedError, CollectiveError, InvalidArgumentError, MPIGraphError
from mpigraph.log import get_logger, set_identity
from mpigraph.mpi.abort import guard, unguard
from mpigraph.mpi.agree import allgather_bytes, everywhere, gathering, same, together
from mpigraph.mpi.compat import library_version, unlink_segments
from mpigraph.mpi.coroutine import Progress, run
from mpigraph.mpi.deadlines import WAITS
from mpigraph.mpi.start import check_connected, machine, software, start_mpi
from mpigraph.mpi.wait import IDLE, until
from mpigraph.mpi.watchdog import Watchdog
from mpigraph.mpi.witness import Witness
from mpigraph.trace import join, leave

_DOMAINS = Path("/sys/devices/system/node")

_DIFFER = (
    "ranks of one job differ in their settings: start all from one environment, or from equal ones, with the same "
    "arguments and MPIGRAPH_ variables"
)


class Trainers(MPI.Intracomm):
    """The communicator of the trainers.

    Attributes:
        ranks: of the trainers in the job.
    """

    ranks: list[int]

    @collective("self")
    def Dup(self, info: MPI.Info | None = None) -> "Trainers":
        """Return a duplicate, whose ranks are the same."""
        copy = super().Dup(info)
        copy.ranks = self.ranks
        return copy


class World:
    """The ranks of one job and their roles.

    Attributes:
        comm: all ranks; ``rank``/``size`` are this rank's place in it.
        node: the ranks on this rank's node.
        trainers: the trainers, or ``COMM_NULL`` on a server.
        training: the trainers again, for steps of layers: those of other calls do not match theirs; ``gradients`` for
            steps of sparse optimizers.
        hosts: int64[H], ranks in ``comm`` that hold parts of the graph, ascending.
        host_index: this rank's place in ``hosts``, or -1.
        is_local: bool[H], the hosts whose memory this rank can load from.
        trainer_ranks: int64[T], ranks in ``comm`` that train, ascending.
        nodes_of_hosts: int64[H], the node of each host; ``nodes_of_trainers`` int64[T] that of each trainer.
        pids: int64[size], process ids; they mean something among the ranks of a node.
        num_nodes: how many nodes the job runs on.
        node_index: this rank's node.
        local_rank: this trainer's place on its machine, which is one node unless ``divided``; -1 on servers.
        divided: says that MPI takes ranks of one machine for several nodes; "" if it does not.
        watchdog: gives every wait its deadline.
        progress: the thread that answers other ranks (the host thread), and on trainers advances operations which no
            thread waits for; None if MPI allows no calls from threads, and on servers that no other node may ask.
        witness: on the first rank of a node, the process that says which of its ranks died, if there is one.
    """

    @collective("comm")
    def __init__(self, comm: MPI.Intracomm, num_servers: int, config: Config) -> None:
        """Split ``comm`` into servers and trainers, ``num_servers`` servers on each node.

        Raises:
            InvalidArgumentError: ``num_servers`` leaves a node without a trainer (on every rank).
        """
        self._made = ExitStack()
        self._main_thread = threading.get_ident()
        self.closed = False
        self.config = config
        self.comm = self._own(comm.Dup())
        self.rank, self.size = self.comm.rank, self.comm.size
        self.node = self._own(self._split_node(config.ranks_per_node))
        self._number_nodes()
        if self.node.rank == 0:
            unlink_segments()
        try:
            self.assign_roles(0 if self.size == 1 else num_servers)
        except MPIGraphError:  # on every rank
            self._made.close()
            raise
        self.trainers = Trainers(self.comm.Split(0 if self.is_trainer else MPI.UNDEFINED, self.rank))
        self.trainers.ranks = self.trainer_ranks.tolist()
        if self.is_trainer:
            self._own(self.trainers)
            self.training, self.gradients = (self._own(self.trainers.Dup()) for _ in range(2))
        self.watchdog = self._watch_all()
        self._made.callback(self.watchdog.close)
        self.witness: Witness | None = None
        self.progress: Progress | None = None
        answers = self.is_host and not self.all_local
        if self.threads_may_communicate and (self.is_trainer or answers):
            self.progress = Progress("mpigraph-host" if answers else "mpigraph-progress")
            self._made.callback(self.progress.close)

    def _watch_all(self) -> Watchdog:
        """Start the watchdog. Its leader on each node is the first host, which has the most time."""
        firsts = self.hosts[self.first_hosts()].tolist()
        leaders: MPI.Intracomm | None = None
        if self.num_nodes > 1:
            leads = self.rank in firsts
            comm = cast(MPI.Intracomm, self.comm.Split(0 if leads else MPI.UNDEFINED, self.rank))
            leaders = self._own(comm) if leads else None
        return Watchdog(
            self.node,
            self.identity,
            self.config.timeout,
            trains=self.is_trainer,
            leader=int(MPI.Group.Translate_ranks(self.comm.group, [firsts[self.node_index]], self.node.group)[0]),
            leaders=leaders,
            threads=self.threads_may_communicate,
        )

    @property
    def forked(self) -> bool:
        """True if this process is a fork of a rank; it has no part in the job, since MPI works in one of the two."""
        return os.getpid() != int(self.pids[self.rank])

    def check_process(self) -> None:
        """Raise ClosedError if this process is a fork of a rank."""
        if self.forked:
            raise ClosedError(
                f"this process was forked from {self.identity}, which alone may communicate: here only rows and "
                "neighbours of its own node can be read (torch's DataLoader: num_workers=0)"
            )

    def check_main_thread(self, doing: str) -> None:
        """Raise CollectiveError on another thread than the main one, whose calls its own would be mixed up with."""
        if threading.get_ident() != self._main_thread:
            raise CollectiveError(
                f"{doing}: the main thread alone makes calls that all trainers make together (this is thread "
                f"{threading.current_thread().name!r})"
            )

    @collective("comm")
    def check_threads(self) -> None:
        """Check that a trainer which hosts rows for other nodes can answer for them while it computes.

        Raises InvalidArgumentError if MPI allows no calls from threads; on every rank.
        """
        able = np.array([self.threads_may_communicate], np.int8)
        self.comm.Allreduce(MPI.IN_PLACE, able, op=MPI.MIN)
        if self.num_nodes > 1 and self.num_servers == 0 and not able[0]:
            text = (
                "num_servers=0 on several nodes needs MPI_THREAD_MULTIPLE, which MPI was not started with: use servers"
            )
            raise everywhere(InvalidArgumentError(text))

    def _own(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        self._made.callback(comm.Free)
        return comm

    def _split_node(self, ranks_per_node: int) -> MPI.Intracomm:
        if ranks_per_node > 0:
            return cast(MPI.Intracomm, self.comm.Split(self.rank // ranks_per_node, self.rank))
        return cast(MPI.Intracomm, self.comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank))

    def _number_nodes(self) -> None:
        """Number the nodes by their lowest rank; share every rank's node, machine, process id and processor."""
        leader = np.array([self.rank, machine()], np.int64)
        self.node.Bcast(leader)  # a node of MPI's is on one machine, also where each rank has a container of its own
        known = np.empty((self.size, 4), np.int64)
        self.comm.Allgather(np.array([*leader, os.getpid(), memory_domain()], np.int64), known)
        self.node_of = np.unique(known[:, 0], return_inverse=True)[1]
        self.pids, self.domains = known[:, 2], known[:, 3]
        self.num_nodes = int(self.node_of.max()) + 1
        self.node_index = int(self.node_of[self.rank])
        simulated = self.config.ranks_per_node > 0
        self.machine_of = self.node_of if simulated else np.unique(known[:, 1], return_inverse=True)[1]
        machines = int(self.machine_of.max()) + 1
        self.divided = ""
        if machines < self.num_nodes:  # MPI allocates no shared memory for such ranks, however they are grouped
            self.divided = (
                f"{library_version()} takes ranks that share a machine and its /dev/shm for several nodes "
                f"({self.num_nodes} nodes on {machines} machine(s)): they share no memory and send messages instead. "
                "Open MPI 5 does so under srun --mpi=pmix: start the job by its own mpiexec inside of the allocation "
                '(slurm/README.md, "MPI")'
            )

    def assign_roles(self, num_servers: int) -> None:
        """Let ``num_servers`` ranks of each node serve, and the others train."""
        per_node = np.bincount(self.node_of)
        starved = np.flatnonzero(per_node <= num_servers)
        if len(starved):
            remedy = self.divided or "start more ranks per node or ask for fewer servers"
            raise InvalidArgumentError(
                f"num_servers={num_servers} leaves no trainer on node {starved[0]}, which has "
                f"{per_node[starved[0]]} rank(s): {remedy}"
            )
        serves = np.zeros(self.size, bool)
        serves[np.concatenate(self.serving(num_servers))] = True
        self.num_servers = num_servers
        self.is_trainer = not serves[self.rank]
        self.trainer_ranks = np.flatnonzero(~serves)
        self.hosts = np.flatnonzero(serves) if num_servers else np.arange(self.size)
        self.nodes_of_hosts = self.node_of[self.hosts]
        self.nodes_of_trainers = self.node_of[self.trainer_ranks]
        self.is_local = self.nodes_of_hosts == self.node_index
        index = int(np.searchsorted(self.hosts, self.rank))
        self.host_index = index if serves[self.rank] or not num_servers else -1
        self.local_trainer = self._place(self.node_of, ~serves)
        self.local_rank = self._place(self.machine_of, ~serves)
        self.num_local_trainers = int(per_node[self.node_index]) - num_servers

    def _place(self, groups: I64, trains: Any) -> int:
        """Return this trainer's place among the trainers of its group, -1 on a server; by rank: groups, bool."""
        before = (groups == groups[self.rank])[: self.rank] & trains[: self.rank]
        return int(before.sum()) if self.is_trainer else -1

    def serving(self, num_servers: int) -> list[I64]:
        """Return for each node the ranks that serve if there are ``num_servers``."""
        by_node = np.argsort(self.node_of, kind="stable")
        members = np.split(by_node, np.cumsum(np.bincount(self.node_of))[:-1])
        return [ranks[choose_servers(self.domains[ranks].tolist(), num_servers)] for ranks in members]

    @property
    def is_host(self) -> bool:
        """True if this rank holds parts of the graph."""
        return self.host_index >= 0

    @property
    def all_local(self) -> bool:
        """True if every rank of the job can load every host's memory, so that rows need no messages."""
        return self.num_nodes == 1

    @property
    def identity(self) -> str:
        """Role, rank in role and rank, for messages."""
        if self.is_trainer:
            index = int(np.searchsorted(self.trainer_ranks, self.rank))
            return f"trainer {index}/{len(self.trainer_ranks)} (rank {self.rank})"
        return f"server (rank {self.rank})"

    def introduce(self) -> None:
        """Have this rank's lines in the log begin with its identity; tell what is odd about the nodes."""
        set_identity(self.identity, self.config.log_level)
        if self.divided and self.rank == 0:
            get_logger().warning(self.divided)

    @collective("node")
    def once_per_node(self, work: Callable[[], None]) -> None:
        """Do work on one rank of each node while the others wait."""
        if self.node.rank == 0:
            work()
        until(self.node.Ibarrier().Test, IDLE)

    def neighbourhood(self, trainer: int) -> tuple[list[int], int, int]:
        """Return the hosts on a trainer's node, its place among the trainers there, and the number of those."""
        node = int(self.nodes_of_trainers[trainer])
        peers = np.flatnonzero(self.nodes_of_trainers == node)
        return self.hosts_of_node(node), int(np.searchsorted(peers, trainer)), len(peers)

    def hosts_of_node(self, node: int) -> list[int]:
        """Return the hosts on a node."""
        hosts: list[int] = np.flatnonzero(self.nodes_of_hosts == node).tolist()
        return hosts

    def first_hosts(self) -> I64:
        """Return int64[num_nodes], the first host on each node."""
        return np.unique(self.nodes_of_hosts, return_index=True)[1]

    watch = staticmethod(WAITS.watch)
    meeting = staticmethod(WAITS.meeting)
    forbid_meetings = staticmethod(WAITS.forbid_meetings)
    in_main_thread = staticmethod(WAITS.in_main_thread)

    @collective("self.trainers")
    def together(self, doing: str) -> AbstractContextManager[None]:
        """Run local code; if it raised on any trainer, raise on every trainer, naming the culprits.

        A trainer waits for the slowest without a deadline. ``doing`` is the same on all: else they are in different
        calls, which is an error that names those.
        """
        return together(self.trainers, doing, "trainer", meets=True, call=doing)

    @collective("world.comm")
    def on_all_ranks(self, doing: str) -> AbstractContextManager[None]:
        """Run local code; if it raised on any rank, raise on every rank, naming the culprits."""
        return together(self.comm, doing)

    @collective("world.comm")
    def barrier(self, doing: str) -> None:
        """Wait for all ranks."""
        with self.watch(doing):
            self.comm.Barrier()

    @collective("node")
    def cores_per_rank(self) -> int:
        """Return the number of cores of each rank of this node if the ranks share their cores evenly."""
        own = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        cores = set(",".join(data.decode() for data in allgather_bytes(self.node, own.encode())).split(","))
        return max(1, len(cores) // self.node.size)

    @property
    def threads_may_communicate(self) -> bool:
        """True if MPI allows calls from several threads at once."""
        return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)

    @collective("self.trainers")
    def allreduce_minmax(self, value: int, largest: bool) -> int:
        """Return the largest or smallest of all trainers' values."""
        return max(self._numbers(value)) if largest else min(self._numbers(value))

    @collective("self.trainers")
    def allreduce_sum(self, value: int) -> int:
        """Return the sum of all trainers' values."""
        return sum(self._numbers(value))

    @collective("self.trainers")
    def _numbers(self, value: int) -> list[int]:
        with self.meeting(doing := "agreeing on a number"):
            told = run(gathering(self.trainers, str(value).encode(), call=doing), policy=IDLE)
        return [*map(int, told)]

    @collective("comm")
    def dup(self) -> MPI.Intracomm:
        """Return a private duplicate of ``comm``, freed by :meth:`close` at the latest."""
        if self.closed:
            raise ClosedError("the world was closed")
        return self._own(self.comm.Dup())

    @collective("those trainers")
    def group(self, members: Sequence[int]) -> MPI.Intracomm:
        """Return a communicator of the trainers ``members``, in this order; the caller frees it."""
        everyone = self.trainers.Get_group()
        group = everyone.Incl(list(members))
        with self.meeting("making a group of trainers"):
            comm = self.trainers.Create_group(group)
        group.Free()
        everyone.Free()
        return comm

    @collective("node")
    def start_witness(self) -> None:
        """Start the process on each node that reports which rank died."""
        join()
        self.node.Barrier()
        board = self.watchdog.board
        if self.node.rank == 0 and all(trace.readable for trace in board.traces):  # not in containers of their own
            self.witness = Witness(board.addresses.tolist(), board.names)
            self._made.callback(self.witness.close)
        self._made.callback(leave)

    def at_close(self, call: Callable[[], None]) -> None:
        """Make a call when the world is closed, before anything made earlier is closed."""
        self._made.callback(call)

    @collective("self.trainers")
    def rendezvous(self) -> tuple[str, int]:
        """Return the address of the first trainer and a free port there."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        offer = f"{MPI.Get_processor_name()}\n{_address()}\n{port}"
        offers = [data.decode().split("\n") for data in allgather_bytes(self.trainers, offer.encode())]
        several = len({machine for machine, _, _ in offers}) > 1
        return offers[0][1] if several else "127.0.0.1", int(offers[0][2])

    @collective("comm")
    def close(self) -> None:
        """Free everything that the world made. A second call does nothing."""
        if self.closed:
            return
        with self.watch("closing the world"):
            self.comm.Barrier()
        self.closed = True
        WAITS.forget_calls()
        self._made.close()


def _address() -> str:
    """Return this machine's name if it resolves, else loopback."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


def memory_domain(domains: Path = _DOMAINS) -> int:
    """Return the number of the processor (NUMA node) that this process is bound to, -1 if it is to none."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return -1
    cores = os.sched_getaffinity(0)
    for path in domains.glob("node[0-9]*"):
        try:
            text = (path / "cpulist").read_text(encoding="ascii")
        except OSError:
            continue
        ranges = [(int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?:-(\d+))?", text)]
        if all(any(first <= core <= last for first, last in ranges) for core in cores):
            return int(path.name.removeprefix("node"))
    return -1


def choose_servers(domains: Sequence[int], num_servers: int) -> list[int]:
    """Choose the ranks of a node that serve: the last of every processor, then the last but one, ...

    The rows of a server lie in the memory of the processor that it runs on (NUMA), and loads from another processor
    take longer. So all processors in turn provide servers, where ranks are bound to processors.

    Args:
        domains: the processor of each rank (:func:`memory_domain`).
        num_servers: the number of ranks that serve.

    Returns:
        Positions in ``domains``, ascending; where ranks are not bound to processors, or all to one, the last ones.
    """
    turns = [0] * len(domains)
    of_domain: Counter[int] = Counter()
    for place in reversed(range(len(domains))):
        turns[place] = of_domain[domains[place]]
        of_domain[domains[place]] += 1
    return sorted(sorted(range(len(domains)), key=lambda place: (turns[place], -place))[:num_servers])


if MPI.Is_initialized():  # by the script: from now on a killed process leaves no shared memory
    unlink_segments()


@collective("comm", "or by default all ranks")
def job_comm(comm: MPI.Intracomm | None, settings: Mapping[str, object]) -> MPI.Intracomm:
    """Return the ranks that take part, by default all; start MPI unless it runs.

    From now on, an uncaught exception ends the job, also one of its start. Raises InvalidArgumentError if the ranks
    have different software or ``settings``, by name; on every rank.
    """
    start_mpi()
    unlink_segments()
    everyone = MPI.COMM_WORLD if comm is None else comm
    if comm is None:
        check_connected(everyone.size, library_version())
    if everyone.size > 1:
        guard(f"rank {everyone.rank}", everyone.rank)
        own = everyone.Dup()
        try:
            same(own, _DIFFER, {"software": f"{software()}, {library_version()}"} | dict(settings))
        finally:
            own.Free()
        _begin_reductions(everyone)
    return everyone


@collective("comm")
def _begin_reductions(comm: MPI.Intracomm) -> None:
    """Have mpi4py make the duplicate that it needs to reduce objects of the script's on ``comm``.

    It does so at the first such call, and keeps Python's lock meanwhile: if servers do not come, no thread runs that
    could end the job. The message is an empty one of mpi4py's; it is the only one of the library with a pickled value.
    """
    comm.exscan(None, op=lambda _, __: None)


@collective("comm", "or by default all ranks")
def open_world(comm: MPI.Intracomm | None, num_servers: int | None = 0) -> World:
    """Make a world without a session; ``num_servers`` None takes the number of the environment.

    Until ``unguard`` is called, an uncaught exception ends the job. Raises MPIGraphError if an environment variable is
    wrong, or as :class:`World`; on every rank.
    """
    given = {} if num_servers is None else {"num_servers": num_servers}
    everyone = job_comm(comm, Config.of_job(**given))
    try:
        config = Config.from_env(**given)
        world = World(everyone, config.num_servers, config)
    except MPIGraphError as error:
        everywhere(error)  # all ranks decide by the same numbers
        unguard()  # each ends by itself: the last would end the job before the first has printed
        raise
    world.introduce()
    return world
