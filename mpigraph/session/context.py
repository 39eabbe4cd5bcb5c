"""The running job as the public API sees it: ``initialize`` makes a :class:`Session`, ``exit_client`` ends it.

DGL's API has no handle that says which job a tensor or loader belongs to, so the current session is kept here, in one
place; everything below this folder gets it as an argument.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakValueDictionary

import numpy as np
from mpi4py import MPI

from mpigraph import config as settings
from mpigraph.collective import collective
from mpigraph.config import Config
from mpigraph.errors import ClosedError, InvalidArgumentError, MPIGraphError, NotInitializedError, check_integer
from mpigraph.kernels import compile_missing, load_compiler
from mpigraph.kernels.rng import combine
from mpigraph.log import get_logger
from mpigraph.memory import keep_freed_memory
from mpigraph.mpi.abort import abort, exit_status, guard, leaving, unguard
from mpigraph.mpi.agree import allgather_bytes, everywhere
from mpigraph.mpi.compat import library_version, may_lose_messages
from mpigraph.mpi.start import WORKER, is_worker
from mpigraph.mpi.wait import IDLE, UNINTERRUPTED, until
from mpigraph.mpi.world import World, job_comm
from mpigraph.rows.segments import RowPool
from mpigraph.sampling.exchanges import open_exchange
from mpigraph.sampling.local import Answers
from mpigraph.sampling.minibatch import RandomContext
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.session.control import Control, Operation, serve
from mpigraph.store.store import Store

if TYPE_CHECKING:
    import torch


def check_seed(seed: object) -> int:
    """Return a seed. Raises InvalidArgumentError if it is no integer of 64 bits, signed or not."""
    return check_integer("seed", seed, -(2**63), 2**64 - 1)


class _Forks:
    """The place of this process among the forks of a trainer."""

    forks = 0  # of this process so far
    path: tuple[int, ...] = ()  # the number of the fork, of each process from the first to this one

    @classmethod
    def before_fork(cls) -> None:
        """Count the fork, in the parent."""
        cls.forks += 1

    @classmethod
    def in_child(cls) -> None:
        """Begin as a fork, in the child."""
        cls.path = (*cls.path, cls.forks)
        cls.forks = 0


os.register_at_fork(before=_Forks.before_fork, after_in_child=_Forks.in_child)


def _fork_key() -> int:
    """Return a number that differs between a process and its forks, so that they do not draw the same.

    In a worker of torch's ``DataLoader`` it is the worker's seed, which is new in each epoch.
    """
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    return int(combine(0, *_Forks.path)) if worker is None else int(worker.seed)


_LEAVING_TIME = 10.0  # seconds that the trainers have to leave, once one of them has with a status that is not 0
_PATIENCE = 12.0  # timeouts that compiling the kernels may take
_NOT_STARTED = (
    "call mpigraph.distributed.initialize() first, at the start of the script: it divides the processes into trainers "
    "and servers, and sets what torch.distributed.init_process_group() needs"
)
_ENDED = "the job was ended by exit_client()"
CREATING = "creating a loader"

_CALLS = 0x5EED  # separates draws made outside loaders from the epochs of loaders with the same seed


class BackgroundLoop(ABC):
    """A loop beside the trainer's own thread that must end before the job does."""

    @abstractmethod
    def abandon(self, because: str) -> None:
        """Ask it to end, without waiting for it; ``because`` is the error text for later consumers."""

    @abstractmethod
    def stop(self, because: str) -> None:
        """Ask it to end and wait until it has ended."""


class OfTrainer:
    """Rows of a state dict that belong to this trainer, such as its generator's state; all else is the same on all.

    A checkpoint holds the rows of all trainers one after the other. Where it is loaded on as many trainers, each gets
    its own rows back; on another number each gets an even share of all of them, the first ones going to the first
    trainer.
    """

    def __init__(self, rows: "torch.Tensor | Callable[[], torch.Tensor]") -> None:
        """Hold rows.

        Args:
            rows: [n, ...] on the CPU, of one dtype and row shape on every trainer; or a function that makes them when
                they are needed, maybe in another thread, and always the same ones.

        Raises:
            InvalidArgumentError: it is something else.
        """
        import torch

        if not callable(rows) and not (isinstance(rows, torch.Tensor) and rows.ndim):
            raise InvalidArgumentError(f"OfTrainer holds a tensor of rows, or a function that makes it (got {rows!r})")
        self._rows = rows

    @property
    def rows(self) -> "torch.Tensor":
        """The rows."""
        return self._rows() if callable(self._rows) else self._rows

    def copy(self) -> "OfTrainer":
        """The rows as they are now, whatever is written to them later."""
        return self if callable(self._rows) else OfTrainer(self._rows.detach().clone())


class Session:
    """One job, on a trainer.

    Attributes:
        loops: epochs in progress by number of their loader, to be stopped before the job ends.
        handles: named tensors that are alive, by graph, policy and name.
        pool: memory for gathered rows and for gradients.
        num_threads: threads with which this rank samples, unless a sampler says otherwise.
        unnamed: number of embeddings made without a name.
        arguments: those of ``initialize()``.
        left: the script has called ``exit_client()`` while it handled an exception.
        num_draws: number of draws made outside loaders. The next one depends on it and on the job's seed, so a job
            that is resumed sets it.
        loaders: those that are alive, by the order in which they were made.
        loaders_begun: see :attr:`.Passes.begun`.
        saver: saves checkpoints, once there was one.
        trainers: the script's communicator of the trainers.
    """

    running: ClassVar["Session | None"] = None
    servers_ended: ClassVar[bool] = False
    """True once a job of all ranks with servers is over, whose processes ended with it."""

    def __init__(self, store: Store, control: Control, num_threads: int = 1) -> None:
        self.store = store
        self.pool = RowPool()
        self.num_threads = num_threads
        self.world = store.world
        self.control = control
        self.loops: WeakValueDictionary[int, BackgroundLoop] = WeakValueDictionary()
        self.handles: dict[tuple[Any, ...], Any] = {}
        self.closing = ExitStack()
        self._main = NeighborService(store)
        self._thread = threading.local()
        self._drawing = threading.Lock()
        self.unnamed = 0
        self.arguments: dict[str, object] = {}
        self.left = False
        self.num_draws = 0
        self.loaders: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.num_loaders = 0
        self.loaders_begun = set[int]()
        self.saver: Any = None
        self.trainers = cast(MPI.Intracomm, MPI.COMM_NULL)

    @property
    def rank(self) -> int:
        """This trainer's rank, the same as ``torch.distributed``'s."""
        return int(np.searchsorted(self.world.trainer_ranks, self.world.rank))

    @property
    def num_trainers(self) -> int:
        """Number of trainers."""
        return len(self.world.trainer_ranks)

    @contextmanager
    def sampling_with(self, service: NeighborService, context: RandomContext) -> Iterator[None]:
        """Let this thread sample with a service of its own, and its draws depend on ``context``."""
        self._thread.service = service
        self._thread.context = context
        self._thread.num_draws = 0
        try:
            yield
        finally:
            self._thread.service = self._thread.context = None

    def check_open(self) -> None:
        """Raise ClosedError if the job was ended."""
        if self.world.closed:
            raise ClosedError(_ENDED)

    def check_thread(self, remote: bool = True) -> None:
        """Check that this thread may communicate, if it is going to (``remote``).

        Raises:
            ClosedError: this process is a fork of the trainer.
            InvalidArgumentError: MPI lets the main thread alone communicate, and this is another.
        """
        if not remote:
            return
        self.world.check_process()
        if not self.world.threads_may_communicate and threading.current_thread() is not threading.main_thread():
            raise InvalidArgumentError(
                "MPI was started without MPI_THREAD_MULTIPLE: only the main thread may sample, read rows of other "
                f"nodes, and write (this is thread {threading.current_thread().name!r})"
            )

    @property
    def service(self) -> NeighborService:
        """The service that this thread samples with: a loader's in its thread, else that of all threads."""
        return getattr(self._thread, "service", None) or self._main

    @contextmanager
    def sampling(self, num_threads: int | None = None) -> Iterator[NeighborService]:
        """Give the service that this thread samples with, alone inside the ``with`` block, with some threads.

        Raises:
            ClosedError: the job was ended.
            InvalidArgumentError: MPI lets the main thread alone communicate, and this is another.
        """
        self.check_open()
        self.check_thread(remote=not self.world.all_local)
        service = self.service
        with UNINTERRUPTED, service.lock:
            service.use_threads(num_threads or self.num_threads)
            yield service

    def next_context(self, seed: int | None = None) -> RandomContext:
        """Return the seed and number that this thread's next draw depends on.

        That is ``seed`` alone, if there is one. Inside a loader: its seed and epoch, and the number of draws made so
        far for this batch. Outside: the job's seed and the number of draws made so far, and in a fork of this trainer
        the fork. So two calls differ, and the same program repeats the same draws.
        """
        context: RandomContext | None = getattr(self._thread, "context", None)
        if seed is not None:
            return RandomContext(check_seed(seed), _CALLS)
        if context is not None:
            self._thread.num_draws += 1
            return context.of_draw(self._thread.num_draws - 1)
        with self._drawing:
            self.num_draws += 1
            number = self.num_draws
        seed = self.store.seed ^ _CALLS
        return RandomContext(int(combine(seed, _fork_key())) if self.world.forked else seed, number, step=number)

    @collective("world.trainers")
    def close(self) -> None:
        """Stop the loaders, end the servers, free everything."""
        loops = [loop for _, loop in sorted(self.loops.items())]  # in the same order on every trainer
        with leaving():
            for loop in loops:  # all, before the first wait: the others may wait for any of them
                loop.abandon(_ENDED)
            with self.world.watchdog.own("the end of every trainer's loaders"):
                for loop in loops:
                    loop.stop(_ENDED)
            with UNINTERRUPTED:  # once the servers are gone, nothing can be made again
                self.world.watchdog.stopping.leave()
                self.control.call(Operation.SHUTDOWN, status=exit_status())
                self.store.close()
                self.closing.close()


def current() -> Session:
    """Return the running session. Raises NotInitializedError if ``initialize()`` was not called."""
    session = Session.running
    if session is None:
        raise NotInitializedError(WORKER if is_worker() else _NOT_STARTED)
    return session


def trainers() -> MPI.Intracomm:
    """Return the communicator of the trainers, for the script's own MPI calls; its ranks are those of ``g.rank()``.

    ``MPI.COMM_WORLD`` has the servers, too, which never take part in a call of the script: a collective call there
    waits for them until the job is ended. The library sends nothing here, and frees it with the job.

    Example:
        >>> total = mpigraph.distributed.trainers().allreduce(len(nodes))

    Raises:
        NotInitializedError: ``initialize()`` was not called.
    """
    return current().trainers


def is_initialized() -> bool:
    """Return whether a session is running."""
    return Session.running is not None


@collective("comm")
def initialize(
    ip_config: str | None = None,
    num_servers: int | None = None,
    num_workers: int = 0,
    *,
    comm: MPI.Intracomm | None = None,
    seed: int = 0,
    ranks_per_node: int | None = None,
    timeout: float | None = None,
    max_queue_size: int | None = None,
    net_type: str | None = None,
    num_worker_threads: int | None = None,
    use_graphbolt: bool = False,
    report: str | os.PathLike[str] | None = None,
) -> None:
    """Split the ranks into servers and trainers; on a server, serve until the trainers are done.

    The three starts of a script need nothing else: ``python`` (one rank does everything), ``mpiexec -n 4``, ``srun``.
    It starts MPI, which importing this library does not: a script that uses mpi4py before calls ``MPI.Init()``.
    On a server this call does not return: it raises ``SystemExit(0)`` when the job is over. So a server imports what
    the script imports above this call, and no torch if that stands below. On a trainer it sets
    ``RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT`` where they are not set, so that
    ``torch.distributed.init_process_group`` works next, with gloo, NCCL, or over MPI and without a port
    (``"mpi4py", init_method="mpi4py://"``). Without ``OMP_NUM_THREADS`` torch's threads are limited to the
    rank's share of the node's cores, since ranks that compete for cores are slow.

    Args:
        ip_config: accepted for DGL's scripts; MPI knows the hosts.
        num_servers: servers on each node; 0 means that every trainer hosts a share of the graph. With one rank in
            all, it hosts and trains (default: ``MPIGRAPH_NUM_SERVERS``, else 1).
        num_workers: accepted for DGL's scripts; every loader samples ahead in a thread (``num_prefetch``).
        comm: the ranks that take part; all by default. The library works on a duplicate.
        seed: default seed of every draw and shuffle.
        ranks_per_node: simulate nodes of this many ranks, for tests (default: ``MPIGRAPH_RANKS_PER_NODE``).
        timeout: seconds that a wait inside a protocol step may last, and that a process may be stopped while others
            wait for it (default: ``MPIGRAPH_TIMEOUT``, else 300).
        max_queue_size: accepted for DGL's scripts.
        net_type: accepted for DGL's scripts.
        num_worker_threads: threads with which a rank samples, unless a sampler says otherwise (default:
            ``MPIGRAPH_NUM_WORKER_THREADS``, else 1).
        use_graphbolt: accepted for DGL's scripts.
        report: folder for a report of the whole job, see :data:`mpigraph.report` (default: ``MPIGRAPH_REPORT``, else
            none). It has the sums of everything, the last 4,096 spans of each thread and the last 1,000 steps.

    Raises:
        InvalidArgumentError: called again with other arguments, or after a job whose servers have ended; ranks have
            different software, arguments or variables, except ``num_worker_threads``, the log level, kept memory and
            ``report``, where trainer 0's counts; an argument or its variable out of range, ``RANK`` or ``WORLD_SIZE``
            set to something else than the job's, a node would have no trainer, or the report's folder cannot be written
            to; on every rank. Or a launcher started several processes that MPI does not connect; on the first of them.
        SystemExit: on a server, when the job is over; on processes that MPI does not connect, except the first.

    While the job runs, a call with the same arguments does nothing, as when a cell of a notebook is run again. After an
    error that every rank catches, it may be called again.

    Example:
        >>> mpigraph.distributed.initialize()
        >>> torch.distributed.init_process_group("gloo")
    """
    config_arguments: dict[str, float | str | None] = {
        "ranks_per_node": ranks_per_node,
        "timeout": timeout,
        "num_servers": num_servers,
        "num_worker_threads": num_worker_threads,
        "report": None if report is None else os.fspath(report),
    }
    arguments: dict[str, object] = {"comm": comm, "seed": seed, **config_arguments}
    if is_initialized():
        session = current()
        if not session.left:
            _check_same(session.arguments, arguments)
            return
        _leave(session)
    if comm is not None and not isinstance(comm, MPI.Intracomm):
        raise InvalidArgumentError(f"comm must be an mpi4py.MPI.Intracomm (got {comm!r})")
    if comm is None and Session.servers_ended:
        raise InvalidArgumentError(
            "this job's servers have ended, as they do at exit_client(): start another job, or both with num_servers=0"
        )
    given = {name: value for name, value in config_arguments.items() if value is not None}
    everyone = job_comm(comm, {"seed": seed} | Config.of_job(**given))
    try:
        seed = check_seed(seed)
        config = Config.from_env(**given)
        world = World(everyone, config.num_servers, config)
    except MPIGraphError as error:
        everywhere(error)  # all ranks decide by the same numbers
        raise
    _prepare_process(world, comm is None)
    with world.watch("compiling kernels", _PATIENCE):
        world.once_per_node(compile_missing)
        load_compiler()
        until(world.comm.Ibarrier().Test, IDLE)  # the next step has a shorter deadline
    cores = world.cores_per_rank()
    store = Store(world, seed, lambda store: open_exchange(store.rows.hosts, Answers(store).answer))
    control = Control(store)
    control.reporting.arguments = arguments
    _begin_report(control, store)
    if not world.is_trainer:
        serve(store, control)
        Session.servers_ended |= comm is None  # where the script goes on all the same
        UNINTERRUPTED.end()
        unguard()
        atexit.register(_outlive_sigterm)
        sys.exit(0)
    if config.keep_memory:
        keep_freed_memory()
    _prepare_torch(world, cores, comm is None)
    session = Session(store, control, config.num_worker_threads)
    session.arguments = arguments
    _start_session(session)


@collective("world.comm")
def _prepare_process(world: World, all_ranks: bool) -> None:
    """Let errors and signals end the whole job, and check MPI and the environment.

    Raises:
        InvalidArgumentError: see :func:`initialize`; the world is closed.
    """
    world.introduce()
    UNINTERRUPTED.begin(world.identity if world.size > 1 else "", serves=not world.is_trainer)
    if world.size > 1:
        guard(world.identity, world.rank if world.is_trainer else world.size + world.rank)
        if all_ranks:
            world.start_witness()
    if world.rank == 0 and (unknown := settings.unknown_variables()):
        get_logger().warning("variables without a meaning: %s", ", ".join(unknown))
    if world.rank == 0 and world.node.size > 1 and may_lose_messages():
        get_logger().warning(
            "%s may lose messages between ranks of a node, and the job then hangs: import mpigraph before mpi4py.MPI, "
            "or export OMPI_MCA_btl_sm_fbox_max=0",
            library_version(),
        )
    try:
        world.check_threads()
        with world.watch("comparing variables"), world.on_all_ranks("comparing the environment with the job"):
            if world.is_trainer and all_ranks:  # on ranks of the user's choice they may belong to another job
                settings.check_rendezvous(world.trainers.rank, world.trainers.size)
    except InvalidArgumentError:
        world.close()
        raise


@collective("store.world.comm")
def _begin_report(control: Control, store: Store) -> None:
    """Begin the report of the whole job, if trainer 0 has a folder for it.

    Raises:
        InvalidArgumentError: it cannot be written to; on every rank. The world is closed.
    """
    world = store.world
    with world.watch("beginning the report"):
        folder = allgather_bytes(world.comm, os.fsencode(world.config.report))[int(world.trainer_ranks[0])]
        if not folder:
            return
        try:
            control.reporting.begin(os.fsdecode(folder))
        except InvalidArgumentError:
            store.close()
            raise


def _prepare_torch(world: World, cores: int, all_ranks: bool) -> None:
    """Set the number of torch's threads, offer it groups over MPI, and have the watchdog know its waits."""
    import torch  # here, since a server needs none of it

    from mpigraph.process_group.process_group import offer
    from mpigraph.session.torch_waits import ServerWaits, TorchWaits

    if world.size > 1 and not world.config.threads_chosen:
        torch.set_num_threads(cores)
    offer(world)
    count = len(world.trainer_ranks)
    world.watchdog.recognise(TorchWaits(count), ServerWaits(count, world.size if all_ranks else count))


def _check_same(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raise InvalidArgumentError if a second ``initialize()`` has other arguments than the first."""
    changed = [f"{name}={now[name]!r}, before {before[name]!r}" for name in now if now[name] != before[name]]
    if changed:
        raise InvalidArgumentError(
            f"initialize() was called again with other arguments ({'; '.join(changed)}): call exit_client() between"
        )


def _start_session(session: Session) -> None:
    from mpigraph.session.torch_waits import watch_gradients

    world = session.world
    session.closing.callback(UNINTERRUPTED.end)
    session.closing.callback(unguard)
    session.closing.callback(_forget, session)
    session.trainers = world.trainers.Dup()
    session.closing.callback(session.trainers.Free)
    with world.watch("agreeing on a rendezvous"):
        address, port = world.rendezvous()
    variables = settings.set_rendezvous(session.rank, session.num_trainers, world.local_rank, address, port)
    session.closing.callback(settings.unset, variables)
    session.closing.callback(watch_gradients().remove)
    get_logger().info("%d trainer(s), %d host(s), %d node(s)", session.num_trainers, len(world.hosts), world.num_nodes)
    Session.running = session
    atexit.register(_exit_at_exit)


def _outlive_sigterm() -> None:
    """Let this process leave with its own status: srun sends SIGTERM to all others when one has left with a status.

    A process that hangs ends some seconds after SIGTERM, also where Python runs no handlers any more: the handler is
    C's alarm(), whose argument, seconds, is the number of the signal, 15.
    """
    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(int(signal.SIGTERM), libc.alarm)


def _exit_at_exit() -> None:
    """End the job at exit. atexit only prints the traceback of an exception, and the servers would serve on.

    A trainer that leaves with a status other than 0 has failed. The others may wait for it, so it ends them with that
    status unless they leave, too.
    """
    session, status = current(), exit_status()
    if session.world.forked:  # the job goes on without it; at exit mpi4py would end MPI, which is the rank's, too
        sys.stdout.flush()
        os._exit(status or int(getattr(sys, "last_value", None) is not None))
    left = threading.Event()

    def hurry() -> None:
        if not left.wait(_LEAVING_TIME):
            rank = session.world.identity
            abort(status, f"[mpigraph] {rank} leaves with status {status}, and ends the job with it\n")

    try:
        if status:
            threading.Thread(target=hurry, name="mpigraph-exit", daemon=True).start()
        exit_client()
        if status:
            _outlive_sigterm()
        left.set()
    except BaseException as error:
        if isinstance(error, MPIGraphError):
            error.__traceback__ = None  # the script is over: there is no line of it
        sys.excepthook(type(error), error, error.__traceback__)
        abort(1)  # alone: else the hook has done it


@collective("trainers", "unless an exception is being handled; a second call does nothing")
def exit_client() -> None:
    """End the job: stop loaders, free windows, let the servers go. Called at exit if the script does not.

    While an exception is being handled, as in ``finally: exit_client()``, this call leaves the job to its end at exit:
    the other trainers may be anywhere and not come, and an uncaught exception is to be printed at once.

    Raises:
        StorageError: a checkpoint that was being written in the background cannot be; on every trainer. The job goes
            on, and the next call ends it.
    """
    session = Session.running
    if session is None or session.world.forked:
        return
    if sys.exc_info()[0] is not None:
        session.left = True
        return
    _leave(session)


def _leave(session: Session) -> None:
    if session.saver is not None and not exit_status():
        session.saver.finish()  # the job fails if its last checkpoint does
    session.close()  # if it raises, as the others are in another call, the job goes on


def _forget(session: Session) -> None:
    Session.running = None
    world = session.world
    Session.servers_ended |= session.arguments["comm"] is None and world.size > len(world.trainer_ranks)
    atexit.unregister(_exit_at_exit)
