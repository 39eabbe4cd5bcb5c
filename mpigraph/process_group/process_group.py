"""A torch process group whose bytes travel by MPI: ``torch.distributed.init_process_group("mpi4py")``.

Registered when ``mpigraph.distributed`` is imported; it works between ``initialize()`` and ``exit_client()``, on the
trainers, for CPU tensors. Two ways to start it::

    init_process_group("mpi4py", init_method="mpi4py://")   opens no port: the ranks know one another from MPI
    init_process_group("mpi4py")                            the same group, but torch first opens its TCP store
                                                            (``env://``), on one port of the first trainer

With ``mpi4py://`` trainers share no key-value store: collectives go by MPI and ask for no keys. Whatever passes keys
through torch's store raises an error there, such as a group of another backend (``new_group(backend="gloo")``), and
needs ``env://``.

All ranks must make the same collective calls in the same order. The group compares each call before its operation
begins (``operations.py``): kind, counts, dtypes, reduction and root. Where they differ every rank raises a
``CollectiveError`` that names the calls, their lines and trainers; a future raises a ``RuntimeError``. The group
remains usable.

A call begins a non-blocking MPI operation, as a :class:`~mpigraph.mpi.coroutine.Task`. The thread that waits for it
polls it; with ``async_op=True``, and for DDP's gradients, the progress thread does so while the caller computes.
Measured between two hosts over a 1 Gbit/s link: an all_reduce of 4 MB takes 32 ms, beside 52 ms of computing 6 ms more
than the computing alone; of 52 ms for DDP's gradients 20 to 31 ms remain. Within one node the computing cores also move
the bytes, and there is little to hide. Below ``MPI_THREAD_MULTIPLE`` operations advance only inside waits, DDP's are
completed one after the other, and an operation begins beside its comparison: MPI may crash where calls differ.

A callback of a future (``then``) runs in a thread of the group and may wait for other operations. Where several
callbacks begin collectives, their order is that in which operations end, which may differ between ranks.

Of torch's calls the group has all_reduce, broadcast, all_gather, all_gather_into_tensor, reduce_scatter_tensor and
barrier, send and receive, and what is made of them, such as all_gather_object: what training needs. The others raise an
error (:data:`_ABSENT`). A message that is longer than its tensor, or shorter, is an error of the receiver. One that is
never received is dropped when the group is closed, with a warning.

A wait for an operation lasts until the other ranks come, which may do something else first (``mpi/watchdog.py``). The
user may limit it: by ``Work.wait(timeout)``, or the group's ``timeout`` if it is not torch's default. Then the wait
raises ``TimeoutError``, and the operation remains outstanding.

float16 and bfloat16 are reduced in float32 and rounded once; sums of bool are "any", products are "all". MPI chooses
the order of sums by size and layout: the same job gives the same bits again, another layout may differ in the last.
"""

# mypy: disable-error-code="override,assignment"
# (torch overloads each method; it calls these forms)

import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import HashStore, register_rendezvous_handler  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import default_pg_timeout

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, InvalidArgumentError, NotInitializedError
from mpigraph.log import get_logger
from mpigraph.mpi.coroutine import Coroutine, Progress, Task, advance
from mpigraph.mpi.deadlines import WAITS
from mpigraph.mpi.wait import IDLE, NOW, until
from mpigraph.mpi.world import World
from mpigraph.process_group.operations import Call, Calls, MPIWork, Operation, Outstanding, untraced
from mpigraph.trace import count

_NAME = "mpi4py"
_RECEIVE, _SEND = "recv from", "send to"
_REST = "what is outstanding in a process group"
_ARRIVING = 5.0  # seconds that a message may be on its way when a group is shut down
_ABSENT = (
    "a process group of mpi4py has all_reduce, broadcast, all_gather, all_gather_into_tensor, reduce_scatter_tensor, "
    "barrier, and send and recv with a rank: use a group of gloo for other calls"
)

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
_EXACT = (*_INTEGERS, torch.float32, torch.float64, torch.complex64, torch.complex128)
_SUMMED_IN = {dtype: dtype for dtype in _EXACT}
_SUMMED_IN |= {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}
_OF_NUMBERS = {"SUM": MPI.SUM, "PRODUCT": MPI.PROD, "MAX": MPI.MAX, "MIN": MPI.MIN}
_OF_FLOATS = _OF_NUMBERS | {"AVG": MPI.SUM}
_OF_INTEGERS = _OF_NUMBERS | {"BAND": MPI.BAND, "BOR": MPI.BOR, "BXOR": MPI.BXOR}
_OF_COMPLEX = {"SUM": MPI.SUM, "AVG": MPI.SUM}
_OF_BOOL = {"SUM": MPI.MAX, "PRODUCT": MPI.MIN, "MAX": MPI.MAX, "MIN": MPI.MIN}
_OF_BOOL |= {"BOR": MPI.MAX, "BAND": MPI.MIN, "BXOR": MPI.BXOR}


def _flat(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the values as a contiguous vector (of ``dtype``): the tensor's own memory if possible."""
    dtype = tensor.dtype if dtype is None else dtype
    if tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        vector = tensor.detach() if tensor.requires_grad else tensor
        return vector if vector.dim() == 1 else vector.view(-1)
    return torch.empty(tensor.shape, dtype=dtype).copy_(tensor.detach()).view(-1)


def _refill(tensor: Tensor, vector: Tensor, divisor: int = 1) -> None:
    """Divide a vector that :func:`_flat` made of a tensor, and write it back unless it is the tensor's memory."""
    if divisor > 1:
        (torch.view_as_real(vector) if vector.is_complex() else vector).div_(divisor)
    if vector is not tensor and vector.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(vector.view(tensor.shape))


def _words(vector: Tensor) -> Array:
    """Return the memory of a contiguous vector as an array of a type that MPI can move."""
    return vector.view(_WORDS[vector.element_size()]).numpy()


def _apart(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the tensor, or a copy if it may overlap the other, which MPI forbids."""
    same = tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return tensor.clone() if same else tensor


def _check(what: str, *tensors: Tensor) -> None:
    """Raise an InvalidArgumentError unless all are dense CPU tensors of one dtype."""
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise InvalidArgumentError(
                f"{what} by mpi4py needs dense CPU tensors (got {tensor.layout} on {tensor.device}): "
                "use gloo or nccl for others"
            )
        if tensor.dtype is not tensors[0].dtype:
            raise InvalidArgumentError(f"{what} needs one dtype (got {tensors[0].dtype} and {tensor.dtype})")


def _op_name(opts: Any) -> str:
    """Return the name of the reduction in torch's options, such as "SUM"."""
    return _name(getattr(opts, "reduceOp", dist.ReduceOp.SUM))


@cache
def _name(op: Any) -> str:
    name: str = getattr(op, "op", op).name
    return name


def _reduction(what: str, dtype: torch.dtype, name: str) -> tuple[MPI.Op, torch.dtype]:
    """Return the operation that reduces tensors of a dtype, and the dtype to do it in.

    Raises InvalidArgumentError if there is no such reduction; the message names both.
    """
    if dtype is torch.bool:
        known = _OF_BOOL
    elif dtype.is_complex:
        known = _OF_COMPLEX
    else:
        known = _OF_INTEGERS if dtype in _INTEGERS else _OF_FLOATS
    if dtype not in _SUMMED_IN or name not in known:
        raise InvalidArgumentError(f"{what} by mpi4py cannot do {name} of {dtype}")
    return known[name], _SUMMED_IN[dtype]


def _check_shares(what: str, whole: Tensor, each: Tensor, ranks: int) -> None:
    """Raise an InvalidArgumentError unless ``whole`` has as many values as ``each`` for each rank."""
    if whole.numel() != ranks * each.numel():
        raise InvalidArgumentError(f"{what}: {whole.numel()} values are not {each.numel()} for each of {ranks} rank(s)")


@untraced
class MPIProcessGroup(dist.ProcessGroup):
    """Carries torch's collectives over a communicator of its own. Users reach it through ``torch.distributed``.

    Torch calls the methods, with its own arguments; each returns a handle to wait with. All ranks must call the
    collective ones in the same order.

    Each operation is a coroutine: it checks, begins, and after the ``yield`` puts the result into its place. Its frame
    keeps its memory alive until then.
    """

    @collective("comm")
    def __init__(
        self,
        comm: MPI.Intracomm,
        progress: Progress | None,
        seconds: float = math.inf,
        name: str = "the process group",
        trainers: Sequence[int] = (),
    ) -> None:
        """Begin.

        Args:
            comm: the communicator to own.
            progress: the progress thread, if MPI allows one.
            seconds: limit of a wait for an operation.
            name: names the group.
            trainers: the numbers of its ranks; if empty, their ranks.
        """
        super().__init__(comm.rank, comm.size)  # type: ignore[call-arg]
        self._comm: MPI.Comm = comm
        self._outstanding = Outstanding(progress, seconds)
        self._trainers = trainers or range(comm.size)
        self._calls = Calls(comm, self._trainers, name, progress is None)
        self._names = {"name": "", "description": ""}

    @property
    def comm(self) -> MPI.Comm:
        """The communicator; a ClosedError if it was freed."""
        if not self._comm:
            raise ClosedError("the process group was closed, by destroy_process_group() or exit_client()")
        return self._comm

    @property
    def outstanding(self) -> list[Operation]:
        """The incomplete operations without a wait, in the order of their begin. For any thread."""
        return list(self._outstanding.operations.values())

    def _together(self, call: Call, begin: Callable[[MPI.Comm], MPI.Request]) -> Coroutine[None]:
        """Make an operation once every rank has made the same call."""
        comm = self.comm
        request = yield from self._calls.together(call, lambda: begin(comm))
        self._count(call)
        yield request

    def _count(self, call: Call) -> None:
        """Count the bytes of a call. MPI chooses their way: as if each rank passed them on to the next one.

        Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
        """
        rank, size = self.rank(), self.size()
        after, before = (rank + 1) % size, (rank - 1) % size
        nbytes = call.values * (call.dtype.itemsize if call.dtype else 0)
        if call.kind == "broadcast":
            sent, received = nbytes * (after != call.root), nbytes * (rank != call.root)
        else:
            sent = received = 2 * nbytes * (size - 1) // size if call.kind == "all_reduce" else nbytes * (size - 1)
        if size > 1 and sent:
            count("group_sent_bytes", sent, self._trainers[after])
        if size > 1 and received:
            count("group_received_bytes", received, self._trainers[before])

    def _begin(self, what: str, steps: Coroutine[Any], outputs: list[Tensor], opts: Any) -> MPIWork:
        task = Task(steps, what)
        if getattr(opts, "asyncOp", True):
            self._outstanding.keep(task)
        return MPIWork(self._outstanding, task, outputs)

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return _NAME

    def setGroupName(self, name: str) -> None:
        """Set torch's name for the group."""
        self._names["name"] = name

    def getGroupName(self) -> str:
        """Return torch's name for the group."""
        return self._names["name"]

    def setGroupDesc(self, text: str) -> None:
        """Set torch's description of the group."""
        self._names["description"] = text

    def getGroupDesc(self) -> str:
        """Return torch's description of the group."""
        return self._names["description"]

    @collective("group")
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """``torch.distributed.all_reduce``."""
        tensor = _only(tensors)

        def steps() -> Coroutine[None]:
            _check("all_reduce", tensor)
            name = _op_name(opts)
            op, dtype = _reduction("all_reduce", tensor.dtype, name)
            vector = _flat(tensor, dtype)
            yield from self._together(
                Call("all_reduce", tensor.dtype, tensor.numel(), name),
                lambda comm: comm.Iallreduce(MPI.IN_PLACE, vector.numpy(), op=op),
            )
            _refill(tensor, vector, self.size() if name == "AVG" else 1)

        return self._begin("all_reduce", steps(), tensors, opts)

    @collective("group")
    def broadcast(self, tensors: list[Tensor], opts: Any) -> MPIWork:
        """``torch.distributed.broadcast``."""
        (tensor,) = tensors

        def steps() -> Coroutine[None]:
            _check("broadcast", tensor)
            vector = _flat(tensor)
            yield from self._together(
                Call("broadcast", tensor.dtype, tensor.numel(), root=opts.rootRank),
                lambda comm: comm.Ibcast(_words(vector), root=opts.rootRank),
            )
            _refill(tensor, vector)

        return self._begin("broadcast", steps(), tensors, opts)

    @collective("group")
    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """``torch.distributed.all_gather``; all tensors have as many values."""
        (tensor,), parts = tensors, outputs[0]

        def steps() -> Coroutine[None]:
            _check("all_gather", tensor, *parts)
            if [part.numel() for part in parts] != [tensor.numel()] * self.size():
                raise InvalidArgumentError(
                    f"all_gather needs {self.size()} tensors of {tensor.numel()} value(s), as many as are given (got "
                    f"{', '.join(str(part.numel()) for part in parts)})"
                )
            vector = tensor.new_empty((self.size(), tensor.numel()))
            yield from self._gather(_flat(tensor), vector)
            for part, values in zip(parts, vector, strict=True):
                part.detach().copy_(values.view(part.shape))

        return self._begin("all_gather", steps(), parts, opts)

    def _gather(self, vector: Tensor, whole: Tensor) -> Coroutine[None]:
        yield from self._together(
            Call("all_gather", vector.dtype, vector.numel()),
            lambda comm: comm.Iallgather(_words(vector), _words(whole)),
        )

    @collective("group")
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MPIWork:
        """``torch.distributed.all_gather_single``, once ``all_gather_into_tensor``."""

        def steps() -> Coroutine[None]:
            _check("all_gather", tensor, output)
            _check_shares("all_gather", output, tensor, self.size())
            vector = _flat(output)
            yield from self._gather(_apart(_flat(tensor), vector), vector)
            _refill(output, vector)

        return self._begin("all_gather", steps(), [output], opts)

    @collective("group")
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MPIWork:
        """``torch.distributed.reduce_scatter_single``, once ``reduce_scatter_tensor``."""

        def steps() -> Coroutine[None]:
            _check("reduce_scatter", tensor, output)
            _check_shares("reduce_scatter", tensor, output, self.size())
            name = _op_name(opts)
            op, dtype = _reduction("reduce_scatter", tensor.dtype, name)
            part = _flat(output, dtype)
            vector = _apart(_flat(tensor, dtype), part)
            yield from self._together(
                Call("reduce_scatter", tensor.dtype, output.numel(), name),
                lambda comm: comm.Ireduce_scatter_block(vector.numpy(), part.numpy(), op=op),
            )
            _refill(output, part, self.size() if name == "AVG" else 1)

        return self._begin("reduce_scatter", steps(), [output], opts)

    @collective("group")
    def barrier(self, opts: Any = None) -> MPIWork:
        """``torch.distributed.barrier``."""

        def steps() -> Coroutine[None]:
            yield from self._together(Call("barrier"), lambda comm: comm.Ibarrier())

        return self._begin("barrier", steps(), [], opts)

    def send(self, tensors: list[Tensor], to: int, tag: int) -> MPIWork:
        """``torch.distributed.send``; the receiver must receive."""
        (tensor,) = tensors

        def steps() -> Coroutine[None]:
            _check("send", tensor)
            yield self.comm.Isend(_words(_flat(tensor)), to, tag)

        count("group_sent_bytes", tensor.nbytes, self._trainers[to])
        return self._begin(f"{_SEND} {to}", steps(), [], None)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> MPIWork:
        """``torch.distributed.recv``; the sender must send exactly as many bytes as the tensor has."""
        (tensor,) = tensors
        name = f"{_RECEIVE} {source}"

        def steps() -> Coroutine[int]:
            _check("recv", tensor)
            vector = _flat(tensor)
            request = self.comm.Irecv(_words(vector), source, tag)
            status = yield _Receive(name, tensor.nbytes, request)  # type: ignore[misc]
            nbytes = status.Get_count(MPI.BYTE)
            if nbytes != tensor.nbytes:
                raise InvalidArgumentError(f"{name}: rank {source} sent {nbytes} bytes, the tensor has {tensor.nbytes}")
            _refill(tensor, vector)
            count("group_received_bytes", nbytes, self._trainers[source])
            return source

        return self._begin(name, steps(), tensors, None)

    def _absent(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidArgumentError(_ABSENT)

    reduce = gather = scatter = reduce_scatter = alltoall = alltoall_base = all_to_all_single = _absent
    recv_anysource = _absent

    @collective("group")
    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """:meth:`all_gather_single`, as compiled code calls it."""
        return self.all_gather_single(_only(outputs), _only(tensors), opts)

    @collective("group")
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None
    ) -> MPIWork:
        """:meth:`reduce_scatter_single`, as compiled code calls it."""
        return self.reduce_scatter_single(_only(outputs), _only(tensors), opts)

    allreduce_coalesced = allreduce
    _allgather_base = all_gather_single  # the names of older torch
    _reduce_scatter_base = reduce_scatter_single

    @collective("group")
    def shutdown(self) -> None:
        """Complete all operations and free the communicator; a second call does nothing.

        Receives without a message are cancelled. Messages that were not received are dropped, with a warning.
        """
        if self._comm:
            tasks = list(self._outstanding.operations)
            messages = [task for task in tasks if task.name.startswith((_RECEIVE, _SEND))]
            with WAITS.meeting(_REST):
                advance([task for task in tasks if task not in messages], NOW)
                self._finish_messages(messages)
            self._outstanding.close()
            comm, self._comm = self._comm, MPI.COMM_NULL
            self._calls.close()
            if not self._calls.broken:
                comm.Free()

    @collective("group")
    def _finish_messages(self, tasks: list[Task[Any]]) -> None:
        """Complete this rank's sends and receives when no rank begins more messages.

        A receive without a message is cancelled after some seconds. A message that was never received is received here
        and dropped: else its sender would wait for ever.
        """
        comm, status = self.comm, MPI.Status()
        end, lost = time.monotonic() + _ARRIVING, 0
        everyone: MPI.Request | None = None

        def move() -> bool:
            nonlocal tasks, end, lost, everyone
            moved = any([task.advance() for task in tasks])
            if (message := comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
                tasks.append(Task(_drop(message, status.Get_count(MPI.BYTE))))
                lost += 1
                moved = True
            tasks = [task for task in tasks if not task.done]
            if not tasks and everyone is None:
                everyone = comm.Ibarrier()
            elif time.monotonic() > end:
                end = math.inf
                for task in tasks:
                    if task.name.startswith(_RECEIVE):
                        task.cancel()
            return moved

        until(lambda: everyone is not None and everyone.Test(), IDLE, move)
        if lost:
            get_logger().warning("%d message(s) were never received and are dropped", lost)

    abort = shutdown  # an MPI collective cannot be cancelled


def _only(tensors: list[Tensor]) -> Tensor:
    if len(tensors) != 1:
        raise InvalidArgumentError(f"{_ABSENT}, and for several tensors in one call")
    return tensors[0]


class _Receive:
    """A receive whose message may be longer than its tensor: a request, for coroutines.

    Open MPI 5.0 itself ends the job where such a message is too long to be sent at once (some kilobytes).
    """

    def __init__(self, name: str, nbytes: int, request: MPI.Request) -> None:
        self._name, self._nbytes, self._request = name, nbytes, request

    def Test(self, status: MPI.Status) -> bool:
        """Return whether the message is here; raise an InvalidArgumentError if it is too long."""
        try:
            return self._request.Test(status)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            raise InvalidArgumentError(
                f"{self._name}: a message has more than the {self._nbytes} bytes of the tensor"
            ) from None

    def Cancel(self) -> None:
        self._request.Cancel()


def _drop(message: MPI.Message, nbytes: int) -> Coroutine[None]:
    yield message.Irecv([np.empty(nbytes, np.uint8), MPI.BYTE])


_worlds: list[World] = []  # of the running job


def offer(world: World) -> None:
    """Let torch make groups of the trainers of this job until it ends."""
    _worlds.append(world)
    world.at_close(_worlds.clear)


def _world() -> World:
    if not _worlds:
        raise NotInitializedError("a process group over MPI needs mpigraph.distributed.initialize() first")
    return _worlds[0]


@collective("those trainers")
def _create(options: Any, _: Any = None) -> MPIProcessGroup:
    world = _world()
    members = list(options.global_ranks_in_group) or list(range(world.trainers.size))
    expected = members.index(world.trainers.rank), len(members)
    if (options.group_rank, options.group_size) != expected:
        raise InvalidArgumentError(
            f"torch's rank and world size are {options.group_rank} and {options.group_size}, "
            f"the trainer's are {expected[0]} and {expected[1]}: unset RANK and WORLD_SIZE"
        )
    timeout = getattr(options, "timeout", None) or default_pg_timeout
    seconds = math.inf if timeout == default_pg_timeout else timeout.total_seconds()
    name = f"process group {options.group_id}"
    group = MPIProcessGroup(world.group(members), world.progress, seconds, name, members)

    def end() -> None:
        with world.watch(_REST):  # every trainer is here
            group.shutdown()

    world.at_close(end)
    return group


class _NoStore(Store):
    """Stands for a store that the trainers would share: each would wait in vain for the others' keys."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise InvalidArgumentError(
            "init_method='mpi4py://' has no key-value store, which this call or a group of this backend needs: start "
            "with init_process_group(...) without init_method"
        )

    set = get = add = _check = wait = compare_set = delete_key = num_keys = multi_get = multi_set = clone = _refuse


_NO_STORE = _NoStore()  # for good: torch's C++ code does not keep an object of Python alive


def _rendezvous(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Yield rank and size by MPI, and a store: of this process alone, or none."""
    trainers = _world().trainers
    yield _NO_STORE if trainers.size > 1 else HashStore(), trainers.rank, trainers.size


dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])
register_rendezvous_handler(_NAME, _rendezvous)  # type: ignore[no-untyped-call]
