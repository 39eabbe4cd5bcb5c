"""Control calls: operations of all ranks, called by trainers and joined by servers, in the loop of :func:`serve`.

A call is a header (which operation), the arguments as JSON from every trainer, a check that all trainers call the
same, and then the same handler on every rank. A trainer whose script went astray gets one error that names both
operations and the ranks, instead of a hang.

Nothing communicates when the garbage collector drops a tensor or a loader: its number is noted, travels with the
next call, and is freed once every trainer has dropped it. A trainer that has lent views of a tensor's rows, or that has
threads which draw by them, has not.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

import numpy as np
from mpi4py import MPI

from mpigraph.collective import Strict, collective
from mpigraph.errors import ClosedError, CollectiveError, MPIGraphError
from mpigraph.log import line_calling
from mpigraph.mpi.agree import Sameness, allgather_bytes, everywhere, no_way_back, raise_jointly
from mpigraph.mpi.coroutine import run
from mpigraph.mpi.messages import FAILED, OK, Header
from mpigraph.mpi.wait import (
    IDLE_SERVER_LOCAL,
    IDLE_SERVER_REMOTE,
    IN_ROUND,
    TRANSFER,
    UNINTERRUPTED,
    Backoff,
    wait,
)
from mpigraph.rows.row_tensor import Policy
from mpigraph.session.reporting import Reporting
from mpigraph.store.derived import EdgeTimes, EdgeWeights
from mpigraph.store.store import Store


class Operation(IntEnum):
    """The operation of a control call: servers join the trainers' call."""

    SERVE = 0
    OPEN_GRAPH = 10
    CREATE_TENSOR = 11
    CREATE_LOADER = 12
    PREPARE_WEIGHTS = 13
    FREE = 14
    BARRIER = 15
    SHUTDOWN = 16
    OPEN_CACHES = 17
    PREPARE_TIMES = 18
    BEGIN_REPORT = 20
    END_REPORT = 21


Arguments = dict[str, Any]


class _Message(NamedTuple):
    """One rank's message in a control call, as JSON on the wire."""

    args: Arguments  # of the operation; a server has none
    have: int | None  # see :meth:`Control.call`
    dropped: list[int]  # numbers that this rank no longer uses
    written: list[int]  # numbers of tensors that this rank has written


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
    wait(store.world.comm.Ibarrier(), IN_ROUND)


_HANDLERS: dict[Operation, Callable[[Store, Arguments], Any]] = {
    Operation.OPEN_GRAPH: lambda store, args: store.open_graph(args["name"], args["part_config"], args["feat_dtype"]),
    Operation.CREATE_TENSOR: _create_tensor,
    Operation.CREATE_LOADER: lambda store, args: store.new_number(),
    Operation.OPEN_CACHES: lambda store, args: store.open_caches(
        args["groups"], args["ahead"], args.get("local_too", False)
    ),
    Operation.PREPARE_WEIGHTS: lambda store, args: store.prepare(EdgeWeights, ([number] for number in args["numbers"])),
    Operation.PREPARE_TIMES: lambda store, args: store.prepare(EdgeTimes, args["pairs"]),
    Operation.FREE: _free,
    Operation.BARRIER: lambda store, args: store.rows.segments.sync(),
    Operation.SHUTDOWN: _shut_down,
}


class Control:
    """The control calls of one rank, and its part in reports. Runs on ``world.comm``, on the main thread."""

    @collective("store.world.comm")
    def __init__(self, store: Store) -> None:
        self._store = store
        self._world = store.world
        self.reporting = Reporting(store)
        self._dropped: set[int] = set()
        self._pending: Header | None = None
        self._calls = MPI.COMM_NULL
        if Strict.on and self._world.is_trainer:
            self._calls = self._world.trainers.Dup()
            self._world.at_close(self._calls.Free)

    def drop(self, number: int) -> None:
        """Note that this trainer no longer uses a tensor or cache."""
        self._dropped.add(number)

    @collective("trainers", "in the same order")
    def call(
        self,
        operation: Operation,
        have: int | None = None,
        status: int = OK,
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
        if self._world.closed:
            raise ClosedError(f"{operation.name.lower()}: the job was ended")
        self._world.check_process()
        self._world.check_main_thread(doing or operation.name.lower())
        self._store.rows.segments.sync()
        if error is not None:
            status = FAILED
        if Strict.begins():
            self.compare(operation.name.lower(), status)
        with UNINTERRUPTED:
            with self._world.meeting(f"{operation.name.lower()} (waiting for the other trainers)"):
                header = Header(self._world.comm, operation, status)
                wait(header.request, IN_ROUND)
            self._world.watchdog.stopping.meet()
            with no_way_back(self._world.comm):
                return self._run(header, args, have, doing or operation.name.lower(), error)

    @collective("trainers", "in strict mode")
    def compare(self, name: str, status: int = OK) -> None:
        """Raise CollectiveError on every trainer if they are in different calls."""
        world = self._world
        if world.closed or world.forked or world.trainers.size == 1:
            return
        sameness = Sameness(name)
        with UNINTERRUPTED, world.meeting(f"{name} (waiting for the other trainers)"):
            wait(self._calls.Iallreduce(MPI.IN_PLACE, sameness.words, MPI.MAX), IN_ROUND)
        if sameness.holds:
            return
        line = line_calling(sys._getframe())
        text = f"{status} {name}{f' at {line}' if line else ''}"
        replies = [reply.decode().partition(" ") for reply in allgather_bytes(self._calls, text.encode())]
        raise everywhere(_astray([call for _, _, call in replies], [int(word) for word, _, _ in replies]))

    @collective("world.comm", "in step with the trainers' calls")
    def poll(self) -> Operation | None:
        """On a server: join a call if the trainers began one, and return its operation."""
        if self._pending is None:
            self._pending = Header(self._world.comm, Operation.SERVE)
        header = self._pending
        if not header.request.Test():
            return None
        self._pending = None
        operation = Operation(int(header.operations[self._world.trainer_ranks[0]]))
        try:
            with no_way_back(self._world.comm):
                self._run(header, {})
        except MPIGraphError:
            return None  # raised on every trainer too, where the user sees it; if they continue, so do we
        return operation

    def _run(
        self, header: Header, args: Arguments, have: int | None = None, doing: str = "", error: Exception | None = None
    ) -> Any:
        operation = self._common_operation(header)
        if operation is not Operation.SHUTDOWN and (header.statuses == FAILED).any():
            self._fail(doing, error)
        name = operation.name.lower()
        with self._world.watch(name):
            messages = self._exchange(args, have)
            args = _common_arguments(name, messages)
            dropped = set.intersection(*(set(message.dropped) for message in messages.values()))  # by all trainers
            self._store.free(dropped)
            self._dropped -= dropped
            if operation is not Operation.SHUTDOWN:
                self._store.refresh()
        held = {message.have for message in messages.values()}
        with self._world.watch(name, _PATIENCE):
            if operation is Operation.BEGIN_REPORT:
                return self.reporting.begin(**args)
            if operation is Operation.END_REPORT:
                return self.reporting.end(**args)
            if operation is Operation.SHUTDOWN:
                self.reporting.finish()
            return _HANDLERS[operation](self._store, args | {"have": held.pop() if len(held) == 1 else None})

    def _common_operation(self, header: Header) -> Operation:
        operations = header.operations[self._world.trainer_ranks]
        if (operations != operations[0]).any():
            names = [Operation(number).name.lower() for number in operations.tolist()]
            raise everywhere(_astray(names, header.statuses.tolist()))
        return Operation(int(operations[0]))

    def _fail(self, doing: str, error: Exception | None) -> NoReturn:
        """Raise the errors of some trainers on all of them; a server only leaves the call."""
        if self._world.is_trainer:
            with self._world.watch(doing):
                run(raise_jointly(self._world.trainers, doing, error, "trainer"))
        raise CollectiveError("a trainer has raised an error")

    def _exchange(self, args: Arguments, have: int | None) -> dict[int, _Message]:
        """Count up the versions of written tensors; return the trainers' messages, each by the first that sent it."""
        tensors, marked = self._store.tensors, self._store.rows.written
        written: dict[int, int] = {}
        for number in sorted(marked & tensors.keys()):
            marked.discard(number)  # before looking: another thread may write now
            if tensors[number].written:
                marked.add(number)
                written[number] = tensors[number].last_write
        dropped = [number for number in sorted(self._dropped) if number not in tensors or tensors[number].give_up()]
        own = _Message(args, have, dropped, list(written))
        replies = allgather_bytes(self._world.comm, json.dumps(own._asdict()).encode())
        messages = {reply: _Message(**json.loads(reply)) for reply in set(replies)}  # most ranks send the same
        self._store.advance(set().union(*(message.written for message in messages.values())), written)
        of_trainers = [replies[rank] for rank in self._world.trainer_ranks.tolist()]
        return {of_trainers.index(reply): messages[reply] for reply in dict.fromkeys(of_trainers)}


def _common_arguments(name: str, messages: Mapping[int, _Message]) -> Arguments:
    for trainer, message in messages.items():
        if message.args != messages[0].args:
            raise everywhere(
                CollectiveError(
                    f"trainers call {name} with different arguments: "
                    f"trainer 0 with {messages[0].args}, trainer {trainer} with {message.args}"
                )
            )
    return messages[0].args


def _astray(calls: Sequence[str], statuses: Sequence[int]) -> CollectiveError:
    """Return the error for trainers in different calls, each with the status with which it leaves the job."""
    groups: dict[str, list[int]] = {}
    for trainer, call in enumerate(calls):
        groups.setdefault(call, []).append(trainer)
    parts = [f"trainer(s) {', '.join(map(str, who))} in {call}" for call, who in groups.items()]
    error = CollectiveError("trainers are in different collective calls: " + "; ".join(parts))
    error.status = max(statuses) or error.status
    return error


@collective("store.world.comm", "in step with the trainers' calls")
def serve(store: Store, control: Control) -> None:
    """Serve until the trainers call shutdown, then free everything.

    An idle server sleeps between polls, so that it leaves its core to a trainer; it may be idle for hours. Its host
    thread answers other ranks; where MPI allows no calls from threads, this loop does, and no trainer samples beside a
    control call. Where every trainer reads its memory directly, it has only control calls to wait for, and sleeps
    longer.
    """
    world, hosts, exchange = store.world, store.rows.hosts, store.exchange
    idle = IDLE_SERVER_LOCAL if world.all_local else IDLE_SERVER_REMOTE
    backoff = Backoff()
    while True:
        operation = control.poll()
        moved = operation is not None
        if world.progress is None:
            moved |= any([hosts.progress(), exchange.progress()])
        control.reporting.follow()
        if world.watchdog.needs_exchange:
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
            backoff.pause(TRANSFER if busy else idle)
