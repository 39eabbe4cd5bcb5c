"""A torch process group whose bytes travel by MPI: ``torch.distributed.init_process_group("mpi4py")``.

Registered when ``mpigraph.distributed`` is imported; it works between ``initialize()`` and ``exit_client()``, on the
trainers, for CPU tensors. Two ways to start it::

    init_process_group("mpi4py", init_method="mpi4py://")   opens no port: the ranks know one another from MPI
    init_process_group("mpi4py")                            the same group, but torch first opens its TCP store
                                                            (``env://``), on one port of the first trainer

With ``mpi4py://`` each rank has a key-value store of its own: collectives go by MPI and ask for no keys. Code that
passes keys through torch's store needs ``env://``.

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
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor
from torch.distributed import HashStore, register_rendezvous_handler  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import default_pg_timeout

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.log import get_logger
from mpigraph.mpi.coroutine import Coroutine, Task, finish
from mpigraph.mpi.progress_thread import Progress
from mpigraph.mpi.wait import BLOCKED, PEERS_COMPUTE, Backoff
from mpigraph.mpi.watchdog import Meeting
from mpigraph.process_group.calls import Call, Calls
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
from mpigraph.session.context import current
from mpigraph.tracebacks import line_calling

__all__ = ["MPIProcessGroup", "Outstanding"]

_NAME = "mpi4py"
_FOR_ALL = {"barrier", "all_reduce"}
_RECEIVE, _SEND = "recv from", "send to"
_REST = "what is outstanding in a process group"
_ARRIVING = 5.0  # seconds that a message may be on its way when a group is shut down
_MANY = 4096  # callbacks at once
_SMALL = 1 << 20  # bytes: when one rank has the result, the others will have it at once, too


class Operation(NamedTuple):
    """An operation that was begun and is not complete.

    Attributes:
        what: the call, such as "all_reduce" or "recv from 1".
        since: its begin, on the clock of ``time.monotonic``.
        line: the line of the user's script that made the call, such as "train.py:12"; "" if unknown.
    """

    what: str
    since: float
    line: str


class Outstanding:
    """Tasks that the caller may not wait for: kept, with the memory that MPI writes to, until they are done.

    The progress thread advances them, if there is one. Otherwise the arrival of new ones does.

    Attributes:
        operations: the operation of each task, for messages, in the order of their begin.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._swept = 0
        self.operations: dict[Task[Any], Operation] = {}

    def keep(self, task: Task[Any]) -> None:
        """Keep a task until it is done; a second call does nothing."""
        if task.done or task in self.operations:
            return
        if self._progress is None and len(self.operations) > 2 * self._swept:  # so n calls look at O(n) tasks
            for kept in list(self.operations):
                kept.advance()
            self._swept = len(self.operations)
        self.operations[task] = Operation(task.name, time.monotonic(), line_calling(sys._getframe(1)))
        task.then(partial(self.operations.pop, task, None))
        if self._progress is not None:
            self._progress.add(task)


Class = TypeVar("Class", bound=type)


def _untraced(cls: Class) -> Class:
    """Keep dynamo from compiling the methods of a class and their callees.

    Where compiled code, or DDP around it, calls a process group from C++, dynamo compiles the group's code, too, and
    fails on MPI's objects. ``torch.compiler.disable`` would import all of dynamo, which takes seconds.
    """
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return cls
    if hasattr(eval_frame, "set_code_exec_strategy"):  # not in older torch
        skip = eval_frame._FrameAction.SKIP
        for member in vars(cls).values():
            function = getattr(member, "fget", member)
            if hasattr(function, "__code__"):
                eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return cls


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


def _send(comm: MPI.Comm, tensor: Tensor, to: int, tag: int) -> Coroutine[None]:
    check("send", tensor)
    yield comm.Isend(words(flat(tensor)), to, tag)


def _receive(name: str, comm: MPI.Comm, tensor: Tensor, source: int, tag: int) -> Coroutine[int]:
    """Receive the values of a tensor and return the sender."""
    check("recv", tensor)
    vector = flat(tensor)
    array = words(vector)
    status = yield _Receive(name, array.nbytes, comm.Irecv(array, source, tag))  # type: ignore[misc]
    sender, nbytes = status.Get_source(), status.Get_count(MPI.BYTE)
    if nbytes != array.nbytes:
        raise InvalidArgumentError(f"{name}: rank {sender} sent {nbytes} bytes, the tensor has {array.nbytes}")
    refill(tensor, vector)
    return sender


def _drop(message: MPI.Message, nbytes: int) -> Coroutine[None]:
    yield message.Irecv([np.empty(nbytes, np.uint8), MPI.BYTE])


@collective("comm")
def _finish_messages(
    comm: MPI.Comm, sends: Sequence[Task[Any]], receives: Sequence[Task[Any]], seconds: float, trainers: Sequence[int]
) -> None:
    """Complete this rank's ``sends`` and ``receives`` when no rank begins more messages.

    A receive without a message is cancelled after ``seconds``. A message that was never received is received here and
    dropped, with a warning that names its trainer: else its sender would wait for ever.
    """
    status = MPI.Status()
    tasks, lost = [*sends, *receives], list[str]()
    end, backoff = time.monotonic() + seconds, Backoff()
    everyone: MPI.Request | None = None
    while everyone is None or not everyone.Test():
        moved = any([task.advance() for task in tasks])
        if (message := comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            nbytes = status.Get_count(MPI.BYTE)
            tasks.append(Task(_drop(message, nbytes), "a message that is dropped"))
            lost.append(f"{nbytes} bytes from trainer {trainers[status.Get_source()]} (tag {status.Get_tag()})")
            moved = True
        tasks = [task for task in tasks if not task.done]
        if not tasks and everyone is None:
            everyone = comm.Ibarrier()
        elif time.monotonic() > end:
            end = float("inf")
            for task in receives:
                task.cancel()
        if moved:
            backoff.reset()
        else:
            backoff.pause(PEERS_COMPUTE)
    if lost:
        shown = ", ".join(lost[:5]) + (", ..." if len(lost) > 5 else "")
        get_logger().warning("%d message(s) were never received and are dropped: %s", len(lost), shown)


@_untraced
class MPIWork(dist.Work):
    """One outstanding operation, as torch waits for it."""

    def __init__(self, group: "MPIProcessGroup", task: Task[Any], outputs: list[Tensor], place: str) -> None:
        super().__init__()
        self._group, self._task, self._outputs, self._place = group, task, outputs, place
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def is_completed(self) -> bool:
        """Advance the operation, and return whether it is complete."""
        self._task.advance()
        return self._task.done

    def is_success(self) -> bool:
        """Return whether the operation is complete, without errors."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error, once complete."""
        return self._task.error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the operation is complete, up to ``timeout``, or the group's limit. Blocking.

        Raises:
            TimeoutError: the time is over; the operation remains outstanding.
            InvalidArgumentError: a message differs in size from the tensor.
        """
        self._group.wait_for(self._task, timeout.total_seconds(), self._place)
        self._task.result()
        return True

    synchronize = wait

    def result(self) -> list[Tensor]:
        """Return the tensors with the results, once complete."""
        return self._outputs

    def source_rank(self) -> int:
        """Return the sender of a received message."""
        return int(self._task.result())

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        """Return a future of :meth:`result`, which completes without a call of :meth:`wait`.

        An error becomes a RuntimeError with its text: only an error of a callback reaches waits in C++, such as those
        of DDP, which takes the argument of ``set_exception`` for tensors and crashes.
        """
        if self._future is None:
            done: torch.futures.Future[None] = torch.futures.Future()
            self._future = done.then(self._finished)
            self._task.then(partial(self._group.call_back, partial(done.set_result, None)))
            self._group.complete_unattended(self._task)
        return self._future

    def _finished(self, _: "torch.futures.Future[None]") -> list[Tensor]:
        self._task.result()
        return self._outputs


@_untraced
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
        self._progress = progress
        self._seconds = seconds
        self._place = place
        self._outstanding = Outstanding(progress)
        self._trainers = trainers or range(comm.size)
        self._calls = Calls(comm, self._trainers, name, progress is None)
        self._callbacks = ThreadPoolExecutor(_MANY, "mpigraph-callbacks")
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
        return (yield from self._calls.together(call, lambda: begin(comm)))

    def _begin(self, what: str, steps: Coroutine[Any], outputs: list[Tensor], opts: Any) -> MPIWork:
        task = Task(steps, what)
        if getattr(opts, "asyncOp", True):
            self._outstanding.keep(task)
        soon = what in _FOR_ALL and sum(tensor.nbytes for tensor in outputs) <= _SMALL
        return MPIWork(self, task, outputs, self._place if soon else "")

    def wait_for(self, task: Task[Any], seconds: float = 0.0, place: str = "") -> None:
        """Wait until a task is done, up to ``seconds``, or the group's limit where these are 0. Blocking.

        All trainers must come to ``place``, if it is not "".

        Raises:
            TimeoutError: it is not done by then.
        """
        limit = seconds if seconds > 0 else self._seconds
        with self._meeting(task.name, place, limit < math.inf):
            if not finish([task], BLOCKED, limit):
                self._outstanding.keep(task)  # with the memory that MPI will write to
                raise TimeoutError(f"{task.name} is not complete after {limit} s")

    def complete_unattended(self, task: Task[Any]) -> None:
        """Complete a task without a wait by the user: by the progress thread, or by waiting here."""
        self._outstanding.keep(task)
        if self._progress is None:
            self.wait_for(task)

    def call_back(self, call: Callable[[], None]) -> None:
        """Make a call that follows an operation, outside of the polling thread: it may wait for other operations.

        Each call begins at once: it may wait for an operation that another call completes.
        """
        if self._progress is not None:
            with suppress(RuntimeError):  # the group or the interpreter was shut down
                self._callbacks.submit(call)
                return
        call()

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
        return self._begin(f"{_SEND} {to}", _send(self.comm, tensors[0], to, tag), [], None)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> MPIWork:
        """``torch.distributed.recv``; the sender must send exactly as many bytes as the tensor has."""
        name = f"{_RECEIVE} {'anyone' if source == MPI.ANY_SOURCE else source}"
        return self._begin(name, _receive(name, self.comm, tensors[0], source, tag), tensors, None)

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
                _finish_messages(self.comm, sends, receives, _ARRIVING, self._trainers)
            self._callbacks.shutdown(wait=False)
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


def _rendezvous(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[tuple[HashStore, int, int]]:
    """Yield rank and size by MPI, and a store of this process's own."""
    session = current()
    yield HashStore(), session.rank, session.num_trainers


dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])
register_rendezvous_handler(_NAME, _rendezvous)  # type: ignore[no-untyped-call]
