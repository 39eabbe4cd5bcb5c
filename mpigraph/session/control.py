"""Control calls: operations of all ranks, called by trainers and joined by servers, in the loop of :func:`serve`.

A call is a message of JSON from every trainer (which operation, its arguments, or why it cannot be), a check that all
trainers call the same, and then the same handler on every rank. A trainer whose script went astray gets one error that
names both operations and the ranks, instead of a hang.

Nothing communicates when the garbage collector drops a tensor or a loader: its number is noted, travels with the
next call, and is freed once every trainer has dropped it. A trainer that has lent views of a tensor's rows, or that has
threads which draw by them, has not.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.errors import ClosedError, CollectiveError, MPIGraphError
from mpigraph.log import line_calling
from mpigraph.mpi.agree import everywhere, gathering, joint_error, to_wire
from mpigraph.mpi.coroutine import Task, advance, run
from mpigraph.mpi.deadlines import ON_ALL
from mpigraph.mpi.wait import IDLE, TRAVELLING, UNINTERRUPTED, Backoff, no_way_back, until
from mpigraph.rows.row_tensor import Policy
from mpigraph.session.reporting import Reporting
from mpigraph.store.derived import EdgeTimes, EdgeWeights
from mpigraph.store.store import Store


class Operation(Enum):
    """The operation of a control call, as errors call it: servers join the trainers' call."""

    OPEN_GRAPH = "DistGraph()"
    CREATE_TENSOR = "DistTensor()"
    CREATE_LOADER = "making a loader"
    OPEN_CACHES = "making a loader's caches"
    PREPARE_WEIGHTS = "preparing weights"
    PREPARE_TIMES = "preparing times"
    FREE = "freeing tensors"
    SAVE_TENSOR = "saving a tensor"
    BARRIER = "barrier"
    BEGIN_REPORT = "report()"
    END_REPORT = "the end of report()"
    SHUTDOWN = "exit_client()"


Arguments = dict[str, Any]


class _Message(NamedTuple):
    """A trainer's message in a control call, as JSON on the wire; a server has none.

    Attributes:
        name: of the operation.
        args: of the operation.
        have, status: see :meth:`Control.call`.
        line: of the script, as "train.py:12"; "" at its end.
        error: why this trainer cannot take part, as :func:`.to_wire` writes it; "" if it can.
        dropped: numbers that this trainer no longer uses.
        written: numbers of tensors that this trainer has written.
    """

    name: str
    args: Arguments
    have: int | None
    status: int
    line: str
    error: str
    dropped: list[int]
    written: list[int]


_PATIENCE = 12.0  # timeouts that an operation may take as a whole: a slow disk may make ranks wait for one that loads


def _create_tensor(store: Store, args: Arguments) -> Any:
    if args["have"] is not None:
        return store.tensors[args["have"]]
    policy = Policy(args["is_node"], args["type_id"])
    topology = store.graphs[args["graph"]].topology
    return store.create_tensors(topology, args["name"], [policy], args["row_shape"], args["dtype"])[0]


def _free(store: Store, args: Arguments) -> Any:
    """Free tensors now, except those that trainers have lent views of or draw by: others would take their memory."""
    numbers = np.array(args["numbers"], np.int64)
    _retire(store, args["numbers"])
    tensors = [store.tensors.get(number) for number in args["numbers"]]
    drawn = [tensor is not None and tensor.drawing.shut() for tensor in tensors]
    in_use = np.array([drawn, [tensor is not None and tensor.lent for tensor in tensors]], np.uint8)
    store.world.comm.Allreduce(MPI.IN_PLACE, in_use, op=MPI.MAX)
    store.free(numbers[~in_use.any(axis=0)].tolist())
    store.free_derived(numbers[(in_use[0] == 0) & (in_use[1] > 0)].tolist())


def _shut_down(store: Store, args: Arguments) -> Any:
    store.exchange.retire()
    for graph in store.graph_of_number.values():
        graph.topology.retire()
    _retire(store, store.tensors)


def _retire(store: Store, numbers: Iterable[int]) -> None:
    """Wait for the threads of all trainers that read or write rows, while hosts answer them, and refuse others."""
    for window in store.windows_of(numbers):
        window.retire()
    until(store.world.comm.Ibarrier().Test)


_HANDLERS: dict[Operation, Callable[[Store, Arguments], Any]] = {
    Operation.OPEN_GRAPH: lambda store, args: store.open_graph(
        args["name"], args["part_config"], args["feat_dtype"], args["topology"]
    ),
    Operation.CREATE_TENSOR: _create_tensor,
    Operation.CREATE_LOADER: lambda store, args: store.new_number(),
    Operation.OPEN_CACHES: lambda store, args: store.open_caches(args["groups"], args["ahead"]),
    Operation.PREPARE_WEIGHTS: lambda store, args: store.prepare(EdgeWeights, ([number] for number in args["numbers"])),
    Operation.PREPARE_TIMES: lambda store, args: store.prepare(EdgeTimes, args["pairs"]),
    Operation.FREE: _free,
    Operation.SAVE_TENSOR: lambda store, args: store.rows.segments.sync(),
    Operation.BARRIER: lambda store, args: store.rows.segments.sync(),
    Operation.SHUTDOWN: _shut_down,
}


class Control:
    """The control calls of one rank, and its part in reports. Runs on ``world.comm``, on the main thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._world = store.world
        self.reporting = Reporting(store)
        self._dropped: set[int] = set()
        self._pending: Task[list[bytes]] | None = None

    def drop(self, number: int) -> None:
        """Note that this trainer no longer uses a tensor or cache."""
        self._dropped.add(number)

    @collective("trainers", "in the same order")
    def call(
        self,
        operation: Operation,
        have: int | None = None,
        status: int = 0,
        doing: str = "",
        error: Exception | None = None,
        **args: Any,
    ) -> Any:
        """Run an operation on every rank and return this rank's result.

        Args:
            operation: the operation.
            have: number of the object asked for, if this trainer holds it already. It counts only if every trainer
                holds the same one, since the garbage collector of each decides how long.
            status: the exit status with which this trainer leaves; the job's, if other trainers are in other calls.
            doing: names the caller's work in the error below.
            error: the reason why this trainer cannot take part; every trainer raises then, and nothing is done.
            args: JSON values, the same on every trainer.

        Raises:
            ClosedError: the job was ended, or this process is a fork of a trainer.
            CollectiveError: the trainers are in different calls; on every rank. Or this is not the main thread.
            MPIGraphError: the operation failed, on every rank.
        """
        name, world, tensors = operation.value, self._world, self._store.tensors
        if world.closed:
            raise ClosedError(f"{name}: the job was ended")
        world.check_process()
        world.check_main_thread(doing or name)
        self._store.rows.segments.sync()
        with UNINTERRUPTED, no_way_back():
            written = self._take_written()
            dropped = [number for number in sorted(self._dropped) if number not in tensors or tensors[number].give_up()]
            why = to_wire(error).decode() if error is not None else ""
            line = line_calling(sys._getframe())
            message = _Message(name, args, have, status, line, why, dropped, list(written))
            with world.meeting(f"{name} (waiting for the other trainers)"):
                replies = run(gathering(world.comm, json.dumps(message).encode()))
            world.watchdog.stopping.meet()
            return self._take_part(self._hear(replies, written, doing or name, error))

    @collective("world.comm", "in step with the trainers' calls")
    def poll(self) -> Operation | None:
        """On a server: join a call if the trainers began one, and return its operation."""
        if self._pending is None:
            self._pending = Task(gathering(self._world.comm, b""))
        if not self._pending.advance():
            return None
        with no_way_back():
            with self._world.watch("a control call"):
                advance([self._pending], TRAVELLING)
            replies, self._pending = self._pending.result(), None
            try:
                messages = self._hear(replies, {})
                self._take_part(messages)
            except MPIGraphError:
                return None  # raised on every trainer too, where the user sees it; if they continue, so do we
        return Operation(messages[0].name)

    def _take_written(self) -> dict[int, int]:
        """Return the numbers of tensors that were written here since the last call, each with its last write."""
        tensors, marked = self._store.tensors, self._store.rows.written
        written: dict[int, int] = {}
        for number in sorted(marked & tensors.keys()):
            marked.discard(number)  # before looking: another thread may write now
            if tensors[number].written:
                marked.add(number)
                written[number] = tensors[number].last_write
        return written

    def _hear(
        self, replies: list[bytes], written: Mapping[int, int], doing: str = "", error: Exception | None = None
    ) -> dict[int, _Message]:
        """Return the trainers' messages, each by the first that sent it. Count up the versions of written tensors.

        Raises the errors of trainers, or CollectiveError if they are in different calls; on every rank.
        """
        sent = [replies[rank] for rank in self._world.trainer_ranks.tolist()]
        messages = {data: _Message(*json.loads(data)) for data in dict.fromkeys(sent)}  # most send the same
        self._store.advance(set().union(*(message.written for message in messages.values())), written)
        of_trainers = [messages[data] for data in sent]
        if len({message.name for message in of_trainers}) > 1:
            raise everywhere(_astray(of_trainers))
        if any(message.error for message in of_trainers):
            raise joint_error(doing, [message.error.encode() for message in of_trainers], "trainer") from error
        return {sent.index(data): message for data, message in messages.items()}

    def _take_part(self, messages: Mapping[int, _Message]) -> Any:
        """Free what all trainers have dropped, and do the operation; return its result."""
        args, name = _common_arguments(messages), messages[0].name
        operation = Operation(name)
        with self._world.watch(name):
            dropped = set.intersection(*(set(message.dropped) for message in messages.values()))
            self._store.free(dropped)
            self._dropped -= dropped
            if operation is not Operation.SHUTDOWN:
                self._store.refresh()
        held = {message.have for message in messages.values()}
        with self._world.watch(name, _PATIENCE):
            if operation is Operation.BEGIN_REPORT:
                return self.reporting.begin(**args)
            if operation is Operation.END_REPORT:
                return self.reporting.end()
            if operation is Operation.SHUTDOWN:
                self.reporting.finish()
            return _HANDLERS[operation](self._store, args | {"have": held.pop() if len(held) == 1 else None})


def _common_arguments(messages: Mapping[int, _Message]) -> Arguments:
    for trainer, message in messages.items():
        if message.args != messages[0].args:
            raise everywhere(
                CollectiveError(
                    f"trainers call {message.name} with different arguments: "
                    f"trainer 0 with {messages[0].args}, trainer {trainer} with {message.args}"
                )
            )
    return messages[0].args


def _astray(messages: Sequence[_Message]) -> CollectiveError:
    """Return the error for trainers in different calls; some may leave the job, with a status."""
    groups: dict[str, list[int]] = {}
    for trainer, message in enumerate(messages):
        leaves = message.name == Operation.SHUTDOWN.value
        doing = f"leave with status {message.status}" if leaves else f"in {message.name}"
        groups.setdefault(doing + (f" at {message.line}" if message.line else ""), []).append(trainer)
    parts = [f"trainer(s) {', '.join(map(str, who))} {doing}" for doing, who in groups.items()]
    error = CollectiveError(f"trainers are in different collective calls: {'; '.join(parts)}. {ON_ALL}")
    error.status = max(message.status for message in messages) or error.status
    return error


@collective("store.world.comm", "in step with the trainers' calls")
def serve(store: Store, control: Control) -> None:
    """Serve until the trainers call shutdown, then free everything.

    An idle server sleeps between polls, so that it leaves its core to a trainer; it may be idle for hours. Its host
    thread answers other ranks; where MPI allows no calls from threads, this loop does, and no trainer samples beside a
    control call.
    """
    world, hosts, exchange = store.world, store.rows.hosts, store.exchange
    backoff = Backoff()
    while True:
        operation = control.poll()
        moved = operation is not None
        if world.progress is None:
            moved |= any([hosts.progress(), exchange.progress()])
        world.watchdog.exchange()
        if operation is Operation.SHUTDOWN:
            if world.watchdog.stopping.agreed:  # the batch system sends SIGTERM once more; the job ends itself
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            store.close()
            return
        if moved:
            backoff.reset()
        else:
            busy = world.progress is None and (hosts.outstanding or exchange.outstanding)
            backoff.pause(TRAVELLING if busy else IDLE)
