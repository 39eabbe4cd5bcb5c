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
begins (``calls.py``): kind, counts, dtypes, reduction and root. Where they differ every rank raises a
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

A message that is longer than its tensor, or shorter, is an error of the receiver. One that is never received is dropped
when the group is closed, with a warning.

A wait for an operation lasts until the other ranks come, which may do something else first (``mpi/watchdog.py``). The
user may limit it: by ``Work.wait(timeout)``, or the group's ``timeout`` if it is not torch's default. Then the wait
raises ``TimeoutError``, and the operation remains outstanding.

float16 and bfloat16 are reduced in float32 and rounded once; sums of bool are "any", products are "all". MPI chooses
the order of sums by size and layout: the same job gives the same bits again, another layout may differ in the last.
"""

# mypy: disable-error-code="override,assignment"
# (torch overloads each method; it calls these forms)

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import HashStore, register_rendezvous_handler  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import default_pg_timeout

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.mpi.coroutine import Coroutine, Task, finish
from mpigraph.mpi.progress_thread import Progress
from mpigraph.mpi.wait import BLOCKED
from mpigraph.mpi.watchdog import Meeting
from mpigraph.process_group.calls import Call, Calls
from mpigraph.process_group.point_to_point import finish_messages, receive, send
from mpigraph.process_group.tensors import (
    apart,
    check,
    dtypes,
    even_counts,
    fits,
    flat,
    join,
    one_each,
    op_name,
    reduction,
    refill,
    row_counts,
    sizes,
    split,
    words,
)
from mpigraph.process_group.work import MPIWork, Operation, Outstanding, untraced
from mpigraph.session.context import current
from mpigraph.trace import count

_NAME = "mpi4py"
_FOR_ALL = {"barrier", "all_reduce"}
_RECEIVE, _SEND = "recv from", "send to"
_REST = "what is outstanding in a process group"
_SMALL = 1 << 20  # bytes: when one rank has the result, the others will have it at once, too


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
        meeting: Meeting,
        progress: Progress | None,
        seconds: float = math.inf,
        place: str = "",
        name: str = "the process group",
        trainers: Sequence[int] = (),
    ) -> None:
        """Begin.

        Args:
            comm: the communicator to own.
            meeting: watches the waits, as :meth:`.World.meeting` does.
            progress: the progress thread, if MPI allows one.
            seconds: limit of a wait for an operation.
            place: names the group if all trainers are in it.
            name: names the group.
            trainers: the numbers of its ranks; if empty, their ranks.
        """
        super().__init__(comm.rank, comm.size)  # type: ignore[call-arg]
        self._comm: MPI.Comm = comm
        self._meeting = meeting
        self._place = place
        self._outstanding = Outstanding(progress, meeting, seconds)
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

    def _together(self, call: Call, begin: Callable[[MPI.Comm], list[MPI.Request]]) -> Coroutine[list[MPI.Request]]:
        """Begin an operation once every rank has made the same call."""
        comm = self.comm
        requests = yield from self._calls.together(call, lambda: begin(comm))
        self._count(call)
        return requests

    def _count(self, call: Call) -> None:
        """Count the bytes of a call; where MPI chooses their way, as if each rank passed them on to the next one.

        Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
        """
        rank, size = self.rank(), self.size()
        sends = call.sends
        takes = call.takes
        if not sends and not takes:
            values = sum(call.counts)
            first = -1  # in the line of ranks that pass a value on, if they are no ring
            if call.root is None:
                values = (2 if call.kind == "all_reduce" else 1) * values * (size - 1) // size
            else:
                first = call.root if call.kind == "broadcast" else (call.root + 1) % size
            after = (rank + 1) % size
            sends = [(after, values * (after != first))]
            takes = [((rank - 1) % size, values * (rank != first))]
        width = call.dtypes[0].itemsize if call.dtypes else 0
        for name, pairs in (("group_sent_bytes", sends), ("group_received_bytes", takes)):
            for other, values in pairs:
                if other != rank and values:
                    count(name, values * width, self._trainers[other])

    def _begin(self, what: str, steps: Coroutine[Any], outputs: list[Tensor], opts: Any) -> MPIWork:
        task = Task(steps, what)
        if getattr(opts, "asyncOp", True):
            self._outstanding.keep(task)
        soon = what in _FOR_ALL and sum(tensor.nbytes for tensor in outputs) <= _SMALL
        return MPIWork(self._outstanding, task, outputs, self._place if soon else "")

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

    def _reduced(self, what: str, tensor: Tensor, name: str) -> tuple[MPI.Op, Tensor, int]:
        """Return the operation, the values to reduce, and the divisor of the result."""
        check(what, tensor)
        op, dtype = reduction(what, tensor.dtype, name)
        return op, flat(tensor, dtype), self.size() if name == "AVG" else 1

    @collective("group")
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """``torch.distributed.all_reduce``."""

        def steps() -> Coroutine[None]:
            name = op_name(opts)
            todo = [self._reduced("all_reduce", tensor, name) for tensor in tensors]
            requests = yield from self._together(
                Call("all_reduce", dtypes(tensors), sizes(tensors), name),
                lambda comm: [comm.Iallreduce(MPI.IN_PLACE, vector.numpy(), op=op) for op, vector, _ in todo],
            )
            for request, tensor, (_, vector, divisor) in zip(requests, tensors, todo, strict=True):
                yield request
                refill(tensor, vector, divisor)

        return self._begin("all_reduce", steps(), tensors, opts)

    allreduce_coalesced = allreduce

    @collective("group")
    def reduce(self, tensors: list[Tensor], opts: Any) -> MPIWork:
        """``torch.distributed.reduce``."""

        def steps() -> Coroutine[None]:
            name, root = op_name(opts), opts.rootRank
            op, vector, divisor = self._reduced("reduce", tensors[0], name)
            at_root = self.rank() == root
            send: Any = MPI.IN_PLACE if at_root else vector.numpy()
            requests = yield from self._together(
                Call("reduce", dtypes(tensors), sizes(tensors), name, root),
                lambda comm: [comm.Ireduce(send, vector.numpy() if at_root else None, op=op, root=root)],
            )
            yield requests[0]
            if at_root:
                refill(tensors[0], vector, divisor)

        return self._begin("reduce", steps(), tensors, opts)

    @collective("group")
    def broadcast(self, tensors: list[Tensor], opts: Any) -> MPIWork:
        """``torch.distributed.broadcast``."""

        def steps() -> Coroutine[None]:
            for tensor in tensors:
                check("broadcast", tensor)
            vectors = [flat(tensor) for tensor in tensors]
            requests = yield from self._together(
                Call("broadcast", dtypes(tensors), sizes(tensors), root=opts.rootRank),
                lambda comm: [comm.Ibcast(words(vector), root=opts.rootRank) for vector in vectors],
            )
            for request, tensor, vector in zip(requests, tensors, vectors, strict=True):
                yield request
                refill(tensor, vector)

        return self._begin("broadcast", steps(), tensors, opts)

    @collective("group")
    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """``torch.distributed.all_gather``; ranks may have different numbers of values."""

        def steps() -> Coroutine[None]:
            one_each("all_gather", outputs[0], self.size())
            check("all_gather", tensors[0], *outputs[0])
            counts = sizes(outputs[0])
            fits("all_gather", tensors[0], counts[self.rank()])
            vector = outputs[0][0].new_empty(sum(counts))
            array = words(flat(tensors[0]))
            requests = yield from self._together(
                Call("all_gather", dtypes(tensors), counts),
                lambda comm: [comm.Iallgatherv(array, [words(vector), counts])],
            )
            yield requests[0]
            split(outputs[0], vector)

        return self._begin("all_gather", steps(), outputs[0], opts)

    @collective("group")
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MPIWork:
        """``torch.distributed.all_gather_single``, once ``all_gather_into_tensor``."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    @collective("group")
    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """Several :meth:`all_gather_single` at once."""

        def steps() -> Coroutine[None]:
            todo = []
            for output, tensor in zip(outputs, tensors, strict=True):
                check("all_gather", tensor, output)
                todo.append((output, flat(output), tensor, even_counts("all_gather", output, tensor, self.size())))
            requests = yield from self._together(
                Call("all_gather", dtypes(tensors), [count for *_, counts in todo for count in counts]),
                lambda comm: [
                    comm.Iallgatherv(words(apart(flat(tensor), vector)), [words(vector), counts])
                    for _, vector, tensor, counts in todo
                ],
            )
            for request, (output, vector, _, _) in zip(requests, todo, strict=True):
                yield request
                refill(output, vector)

        return self._begin("all_gather", steps(), outputs, opts)

    @collective("group")
    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> MPIWork:
        """``torch.distributed.gather``."""
        at_root = self.rank() == opts.rootRank

        def steps() -> Coroutine[None]:
            root = opts.rootRank
            counts: list[int] = []
            if at_root:
                one_each("gather", outputs[0], self.size())
                counts = sizes(outputs[0])
            check("gather", tensors[0], *(outputs[0] if at_root else []))
            vector = tensors[0].new_empty(sum(counts))
            array, taken = words(flat(tensors[0])), [words(vector), counts] if at_root else None
            sends, takes = [(root, tensors[0].numel())], list(enumerate(counts))
            requests = yield from self._together(
                Call("gather", dtypes(tensors), root=root, sends=sends, takes=takes),
                lambda comm: [comm.Igatherv(array, taken, root=root)],
            )
            yield requests[0]
            if at_root:
                split(outputs[0], vector)

        return self._begin("gather", steps(), outputs[0] if at_root else [], opts)

    @collective("group")
    def scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> MPIWork:
        """``torch.distributed.scatter``."""

        def steps() -> Coroutine[None]:
            root = opts.rootRank
            check("scatter", outputs[0])
            parts: tuple[Array, list[int]] | None = None
            if self.rank() == root:
                one_each("scatter", tensors[0], self.size())
                check("scatter", outputs[0], *tensors[0])
                parts = words(join(tensors[0])), sizes(tensors[0])
            vector = flat(outputs[0])
            sends, takes = list(enumerate(parts[1] if parts else [])), [(root, vector.numel())]
            requests = yield from self._together(
                Call("scatter", dtypes(outputs), root=root, sends=sends, takes=takes),
                lambda comm: [comm.Iscatterv(parts, words(vector), root=root)],
            )
            yield requests[0]
            refill(outputs[0], vector)

        return self._begin("scatter", steps(), outputs, opts)

    @collective("group")
    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None) -> MPIWork:
        """``torch.distributed.reduce_scatter``; ranks may get different numbers of values."""
        one_each("reduce_scatter", tensors[0], self.size())
        check("reduce_scatter", outputs[0], *tensors[0])
        counts = sizes(tensors[0])
        fits("reduce_scatter", outputs[0], counts[self.rank()])
        return self._reduce_scatter(outputs, [join(tensors[0])], lambda output, tensor: counts, opts)

    @collective("group")
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MPIWork:
        """``torch.distributed.reduce_scatter_single``, once ``reduce_scatter_tensor``."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    @collective("group")
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None
    ) -> MPIWork:
        """Several :meth:`reduce_scatter_single` at once."""

        def counts(output: Tensor, tensor: Tensor) -> list[int]:
            return even_counts("reduce_scatter", tensor, output, self.size())

        return self._reduce_scatter(outputs, tensors, counts, opts)

    def _reduce_scatter(
        self, outputs: list[Tensor], tensors: list[Tensor], counts: Callable[[Tensor, Tensor], list[int]], opts: Any
    ) -> MPIWork:
        """Reduce each tensor and scatter it by ``counts(output, tensor)``."""

        def steps() -> Coroutine[None]:
            todo = []
            name = op_name(opts)
            for output, tensor in zip(outputs, tensors, strict=True):
                check("reduce_scatter", tensor, output)
                op, vector, divisor = self._reduced("reduce_scatter", tensor, name)
                part = flat(output, vector.dtype)
                todo.append((op, apart(vector, part), part, divisor, counts(output, tensor)))
            requests = yield from self._together(
                Call("reduce_scatter", dtypes(tensors), [count for *_, each in todo for count in each], name),
                lambda comm: [
                    comm.Ireduce_scatter(vector.numpy(), part.numpy(), recvcounts=each, op=op)
                    for op, vector, part, _, each in todo
                ],
            )
            for request, output, (_, _, part, divisor, _) in zip(requests, outputs, todo, strict=True):
                yield request
                refill(output, part, divisor)

        return self._begin("reduce_scatter", steps(), outputs, opts)

    @collective("group")
    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_rows: list[int], rows: list[int], opts: Any = None
    ) -> MPIWork:
        """``torch.distributed.all_to_all_single``; empty lists of rows mean equal counts."""

        def steps() -> Coroutine[None]:
            check("all_to_all", tensor, output)
            counts = row_counts(tensor, rows, self.size())
            output_counts = row_counts(output, output_rows, self.size())
            vector = flat(output)
            yield from self._exchange(apart(flat(tensor), vector), counts, vector, output_counts)
            refill(output, vector)

        return self._begin("all_to_all", steps(), [output], opts)

    def _exchange(self, sent: Tensor, counts: list[int], taken: Tensor, taken_counts: list[int]) -> Coroutine[None]:
        """Send each rank its values of one vector, and receive those for this rank in another."""
        sends, takes = list(enumerate(counts)), list(enumerate(taken_counts))
        requests = yield from self._together(
            Call("all_to_all", dtypes([sent]), sends=sends, takes=takes),
            lambda comm: [comm.Ialltoallv([words(sent), counts], [words(taken), taken_counts])],
        )
        yield requests[0]

    @collective("group")
    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """``torch.distributed.all_to_all``."""

        def steps() -> Coroutine[None]:
            one_each("all_to_all", outputs, self.size())
            one_each("all_to_all", tensors, self.size())
            check("all_to_all", *tensors, *outputs)
            vector = outputs[0].new_empty(sum(sizes(outputs)))
            yield from self._exchange(join(tensors), sizes(tensors), vector, sizes(outputs))
            split(outputs, vector)

        return self._begin("all_to_all", steps(), outputs, opts)

    @collective("group")
    def barrier(self, opts: Any = None) -> MPIWork:
        """``torch.distributed.barrier``."""

        def steps() -> Coroutine[None]:
            requests = yield from self._together(Call("barrier"), lambda comm: [comm.Ibarrier()])
            yield requests[0]

        return self._begin("barrier", steps(), [], opts)

    def send(self, tensors: list[Tensor], to: int, tag: int) -> MPIWork:
        """``torch.distributed.send``; the receiver must receive."""
        count("group_sent_bytes", tensors[0].nbytes, self._trainers[to])
        return self._begin(f"{_SEND} {to}", send(self.comm, tensors[0], to, tag), [], None)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> MPIWork:
        """``torch.distributed.recv``; the sender must send exactly as many bytes as the tensor has."""
        name = f"{_RECEIVE} {'anyone' if source == MPI.ANY_SOURCE else source}"

        def steps() -> Coroutine[int]:
            sender = yield from receive(name, self.comm, tensors[0], source, tag)
            count("group_received_bytes", tensors[0].nbytes, self._trainers[sender])
            return sender

        return self._begin(name, steps(), tensors, None)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> MPIWork:
        """:meth:`recv` from any rank."""
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    _allgather_base = all_gather_single  # the names of older torch
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    @collective("group")
    def shutdown(self) -> None:
        """Complete all operations and free the communicator; a second call does nothing.

        Receives without a message are cancelled. Messages that were not received are dropped, with a warning.
        """
        if self._comm:
            tasks = list(self._outstanding.operations)
            receives = [task for task in tasks if task.name.startswith(_RECEIVE)]
            sends = [task for task in tasks if task.name.startswith(_SEND)]
            with self._meeting(_REST):
                finish([task for task in tasks if not task.name.startswith((_RECEIVE, _SEND))], BLOCKED)
                finish_messages(self.comm, sends, receives, self._trainers)
            self._outstanding.close()
            comm, self._comm = self._comm, MPI.COMM_NULL
            self._calls.close()
            if not self._calls.broken:
                comm.Free()

    abort = shutdown  # an MPI collective cannot be cancelled


@collective("those trainers")
def _create(options: Any, _: Any = None) -> MPIProcessGroup:
    session = current()
    world = session.world
    members = list(options.global_ranks_in_group) or list(range(session.num_trainers))
    expected = members.index(session.rank), len(members)
    if (options.group_rank, options.group_size) != expected:
        raise InvalidArgumentError(
            f"torch's rank and world size are {options.group_rank} and {options.group_size}, "
            f"the trainer's are {expected[0]} and {expected[1]}: unset RANK and WORLD_SIZE"
        )
    timeout = getattr(options, "timeout", None) or default_pg_timeout
    seconds = math.inf if timeout == default_pg_timeout else timeout.total_seconds()
    name = f"process group {options.group_id}"
    place = name if len(members) == session.num_trainers else ""
    group = MPIProcessGroup(world.group(members), world.meeting, world.progress, seconds, place, name, members)

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

    set = get = add = check = wait = compare_set = delete_key = num_keys = multi_get = multi_set = clone = _refuse


_NO_STORE = _NoStore()  # for good: torch's C++ code does not keep an object of Python alive


def _rendezvous(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Yield rank and size by MPI, and a store: of this process alone, or none."""
    session = current()
    yield _NO_STORE if session.num_trainers > 1 else HashStore(), session.rank, session.num_trainers


dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])
register_rendezvous_handler(_NAME, _rendezvous)  # type: ignore[no-untyped-call]
