"""The time of simulated steps: trainers, hosts, cores and networks as queues, event by event.

A trainer's thread makes minibatches, a few ahead of the model, as ``dataloading/work_ahead.py`` does: in each hop it
sends its requests, draws its own part, and waits for the answers; then it fetches rows, and loads its own ones
meanwhile. A host answers one request at a time. Messages that leave a node take turns, and so do threads where there
are fewer cores. The trainers' steps end together, so a step is as long as that of the slowest: each trainer draws its
minibatches from those that were simulated, and their durations from what was measured.
"""

import heapq
import itertools
import json
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import F64
from mpigraph.cli.forecast.traffic import Asked, Cluster, Minibatch
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.wait import IDLE_SERVER_REMOTE, IN_ROUND, TRANSFER

_TURN = 1e-3  # seconds that a thread keeps a core for which others wait
_NEVER = float("inf")
_MOST_NODES = 8  # that are simulated, of a job on more
_LEAST = {
    "bandwidth": 1,
    "segment": 1,
    "cores": 1,
    "rows": 1,
    "speed": 1e-6,
}  # numbers of a machine that divide; of others 0
_MOST = 1e18
_Then = Callable[[], None]
_Steps = Generator[Callable[[_Then], None], None, None]


@dataclass(frozen=True)
class Machine:
    """A node and its network, in seconds, bytes and bytes a second.

    Attributes:
        latency: of a message from node to node.
        bandwidth: that a node sends.
        receive: that a node receives; 0 for no limit but the senders'.
        handshake: bytes of a message from which on its receiver must agree first: two latencies more.
        segment: bytes that a message sends while others of the node wait; infinite where a node sends in order.
        message: processor time of a message, on each side.
        request: processor time of a request, on each side, besides its messages.
        byte: the same for each byte.
        cores: of a node.
        polling: share of a core that a rank takes to look for messages, which slows the others where cores are few.
        shared_cores: all nodes share them, as simulated nodes on one machine do.
        rows: bytes a second of rows that are loaded, packed or placed by one thread.
        speed: of sampling, relative to the machine where the forecast is made.
        minibatch: processor time of a minibatch besides.
    """

    latency: float = 2e-5
    bandwidth: float = 1.25e9
    receive: float = 1.25e9
    handshake: float = 16 << 10
    segment: float = 64 << 10
    message: float = 2e-5
    request: float = 0.0
    byte: float = 3e-10
    cores: int = 64
    polling: float = 0.05
    shared_cores: bool = False
    rows: float = 2e9
    speed: float = 1.0
    minibatch: float = 0.0

    @classmethod
    def read(cls, path: str, speed_here: float) -> "Machine":
        """Read what ``bench --out`` wrote, or an object with these fields; see :func:`of_bench` for the former.

        Raises:
            InvalidArgumentError: it is neither; names the field.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            if document.get("schema") == "mpigraph-bench":
                machine = _of_bench(document, speed_here)
            else:
                known = asdict(cls())
                machine = cls(**{name: type(known[name])(_number(value)) for name, value in document.items()})
        except (ArithmeticError, AttributeError, ValueError, KeyError, TypeError) as error:
            names = ", ".join(field.name for field in fields(cls))
            raise InvalidArgumentError(
                f"--machine {path} must be a file of `bench --out` or an object of numbers {names} "
                f"({type(error).__name__}: {error})"
            ) from None
        for name, value in asdict(machine).items():
            least = _LEAST.get(name, 0)
            if not least <= value <= _MOST:  # nor NaN
                raise InvalidArgumentError(f"--machine {path}: {name} must be {least:g} to {_MOST:g} (got {value!r})")
        return machine


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r:.60} is not a number")
    return value


def _of_bench(document: dict[str, Any], speed_here: float) -> Machine:
    """Return the machine on which ``bench`` ran."""
    layout = document["layout"]
    default = Machine()
    value = {name: figure["value"] for name, figure in document["figures"].items()}
    per_node = layout["trainers"] / layout["nodes"]
    known: dict[str, Any] = {"rows": 1e9 * value["local_all"] / per_node}
    sampling = value["step_sample"]
    edges = 1e3 * value["edges_per_s"] / layout["trainers"] * (sampling + (value["step_exchange"] or 0.0))
    known["speed"] = edges / (sampling / 1e3) / speed_here
    if value["service_latency"] is not None:
        waits = (IDLE_SERVER_REMOTE.longest + IN_ROUND.longest) / 2 + 4 * default.message
        known["latency"] = max((value["service_latency"] / 1e3 - waits) / 2, 1e-6)
    if value["remote_packed"] is not None:
        known["bandwidth"] = known["receive"] = 1e9 * value["remote_packed"] * per_node
    simulated = layout["ranks_per_node"] > 0
    cores = document["machine"]["cores"]
    known |= {
        "shared_cores": simulated,
        "cores": cores if simulated else max(cores, layout["ranks"] // layout["nodes"]),
    }
    return replace(default, **known)


@dataclass(frozen=True)
class Model:
    """A trainer's step with a minibatch.

    Attributes:
        seconds: of its step; some that were measured, to draw from.
        on_cores: the step takes a core of the node.
        gradients: bytes that the trainers then sum.
        ahead: minibatches that wait for the model at most.
        asks: the receiver of a piece of the sum asks for it, as gloo's does.
    """

    seconds: Sequence[float]
    on_cores: bool
    gradients: float
    ahead: int = 2
    asks: bool = False


class _Clock:
    """The events to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, _Then]] = []
        self._numbers = itertools.count()

    def at(self, when: float, then: _Then) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), then))

    def after(self, seconds: float, then: _Then) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def run(self) -> None:
        events, pop = self._events, heapq.heappop
        while events:
            self.now, _, then = pop(events)
            then()


class _Turns:
    """Cores that threads take turns on; or a link, for messages."""

    def __init__(self, clock: _Clock, count: int, turn: float, *, new_first: bool, pace: float = 1.0) -> None:
        self._clock = clock
        self._free = count
        self._turn = turn
        self._new_first = new_first
        self._pace = pace
        self._ready: deque[tuple[float, _Then, Callable[[float], None] | None]] = deque()

    def run(self, seconds: float, then: _Then, after_turn: Callable[[float], None] | None = None) -> None:
        """Call ``then`` once a thread had a core for so long; one that comes may be ahead of those that had a turn.

        ``after_turn`` is called with the seconds of each turn.
        """
        add = self._ready.appendleft if self._new_first else self._ready.append
        add((seconds * self._pace, then, after_turn))
        if self._free:
            self._start()

    def _start(self) -> None:
        while self._free and self._ready:
            self._free -= 1
            seconds, then, after_turn = self._ready.popleft()
            turn = min(seconds, self._turn)
            self._clock.after(turn, partial(self._end, turn, seconds - turn, then, after_turn))

    def _end(self, turn: float, left: float, then: _Then, after_turn: Callable[[float], None] | None) -> None:
        self._free += 1
        if after_turn is not None:
            after_turn(turn)
        if left > 0:
            self._ready.append((left, then, after_turn))
        else:
            then()
        if self._ready:
            self._start()


class _Host:
    """A rank that answers, one request after the other."""

    def __init__(self, clock: _Clock, cores: _Turns, notice: float) -> None:
        self._clock = clock
        self._cores = cores
        self._notice = notice
        self._waiting: deque[tuple[float, _Then]] = deque()

    def serve(self, seconds: float, then: _Then) -> None:
        self._waiting.append((seconds, then))
        if len(self._waiting) == 1:
            self._clock.after(self._notice, self._next)

    def _next(self) -> None:
        seconds, then = self._waiting[0]
        self._cores.run(seconds, partial(self._done, then))

    def _done(self, then: _Then) -> None:
        then()
        self._waiting.popleft()
        if self._waiting:
            self._next()


class _Network:
    """Messages between nodes; those of a node take turns."""

    def __init__(self, clock: _Clock, machine: Machine, cores: Sequence[_Turns]) -> None:
        self._clock = clock
        self._machine = machine
        self._cores = cores
        turn = machine.segment / machine.bandwidth
        self._links = [_Turns(clock, 1, turn, new_first=False) for _ in cores]
        self._receives = [0.0] * len(cores)

    def send(self, source: int, to: int, nbytes: int, then: _Then) -> None:
        """Call ``then`` when the bytes have arrived, and both sides have spent their processor time."""
        machine = self._machine
        seconds = machine.message + nbytes * machine.byte
        leave = partial(self._leave, source, to, nbytes, partial(self._cores[to].run, seconds, then))
        agreed = partial(self._clock.after, 2 * machine.latency, leave)
        self._cores[source].run(seconds, agreed if nbytes > machine.handshake else leave)

    def _leave(self, source: int, to: int, nbytes: int, then: _Then) -> None:
        seconds = nbytes / self._machine.bandwidth
        self._links[source].run(seconds, partial(self._arrive, to, then), partial(self._receive, to, nbytes, seconds))

    def _receive(self, to: int, nbytes: int, seconds: float, turn: float) -> None:
        """Receive what a message of so many bytes and seconds sent in a turn, while the rest waits or is sent."""
        machine = self._machine
        arrival = self._clock.now + machine.latency
        if machine.receive:
            of_turn = nbytes * turn / seconds if seconds else nbytes
            arrival = max(self._receives[to] + of_turn / machine.receive, arrival)
        self._receives[to] = arrival

    def _arrive(self, to: int, then: _Then) -> None:
        self._clock.at(self._receives[to], then)


class _Job:
    """A job of so many steps, some of whose nodes are simulated: those of ``cluster``, of ``nodes``."""

    def __init__(
        self,
        machine: Machine,
        cluster: Cluster,
        nodes: int,
        model: Model,
        minibatches: Sequence[Sequence[Minibatch]],
        row_bytes: float,
    ) -> None:
        self._nodes = nodes
        self._machine = machine
        self._cluster = cluster
        self._model = model
        self._row_bytes = row_bytes
        self._minibatches = minibatches
        self._clock = clock = _Clock()
        together = cluster.nodes if machine.shared_cores else 1
        crowded = (2 * cluster.trainers + cluster.servers) * together > machine.cores
        polling = machine.polling * (cluster.trainers + cluster.servers) * together / machine.cores * crowded
        pools = [
            _Turns(clock, machine.cores, _TURN if crowded else _NEVER, new_first=True, pace=1 + polling)
            for _ in range(cluster.nodes // together)
        ]
        self._cores = [pools[0 if machine.shared_cores else node] for node in range(cluster.nodes)]
        self._network = _Network(clock, machine, self._cores)
        notice = IDLE_SERVER_REMOTE.longest / 2  # of a server, or of a trainer's progress thread
        self._hosts_of_node = cluster.hosts // cluster.nodes
        self._hosts = [_Host(clock, cores, notice) for cores in self._cores for _ in range(self._hosts_of_node)]
        trainers = len(minibatches)
        self._ready = [0] * trainers  # minibatches that wait for the model
        self._blocked: list[_Then | None] = [None] * trainers
        self._starving: list[_Then | None] = [None] * trainers
        self._drained: list[_Then | None] = [None] * trainers
        self._here: list[_Then] = []
        self.ends: list[float] = []
        self._summing = 0  # nodes
        self._pieces: dict[tuple[int, int], _Then | None] = {}  # by sender and hop, while one of its ends waits

    def run(self, draw: np.random.Generator) -> F64:
        """Return the times at which the steps end."""
        stands_for = round(self._nodes / self._cluster.nodes)  # trainers, whose slowest model the step waits for
        for number, own in enumerate(self._minibatches):
            seconds = draw.choice(np.asarray(self._model.seconds), (stands_for, len(own))).max(axis=0)
            _go(self._produce(number, own))
            _go(self._consume(number, seconds.tolist()))
        self._clock.run()
        return np.array(self.ends)

    def _produce(self, number: int, minibatches: Sequence[Minibatch]) -> _Steps:
        machine = self._machine
        node = number // self._cluster.trainers
        cores = self._cores[node]
        sampled = 0
        for at, minibatch in enumerate(minibatches):
            if minibatch.epoch != minibatches[at - 1].epoch and not self._starving[number]:
                yield partial(self._wait_for, self._drained, number)  # the loop over the loader begins it
            while sampled < min(at + minibatch.ahead + 1, len(minibatches)):
                yield from self._sample(node, minibatches[sampled])
                sampled += 1
            local = (minibatch.inputs - minibatch.remote) * self._row_bytes / machine.rows
            yield partial(self._ask, node, minibatch.asked[-1], local, TRANSFER.longest / 2)
            yield partial(cores.run, minibatch.remote * self._row_bytes / machine.rows)
            if self._ready[number] >= self._model.ahead:
                yield partial(self._wait_for, self._blocked, number)
            self._ready[number] += 1
            _wake(self._starving, number)

    def _sample(self, node: int, minibatch: Minibatch) -> _Steps:
        machine, cores = self._machine, self._cores[node]
        *hops, _ = minibatch.asked
        rest = (minibatch.sample / machine.speed + machine.minibatch) / (len(hops) + 1)
        yield partial(cores.run, rest)
        for asked, drawn in zip(hops, minibatch.draw, strict=True):
            yield partial(cores.run, rest / 2)
            yield partial(self._ask, node, asked, drawn / machine.speed, IN_ROUND.longest / 2)
            yield partial(cores.run, rest / 2)
        yield partial(cores.run, minibatch.plan / machine.speed)

    def _ask(self, node: int, asked: Sequence[Asked], meanwhile: float, notice: float, then: _Then) -> None:
        """Ask hosts, do the own part meanwhile, and go on when all is here."""
        cores = self._cores[node]
        own = len(asked) * self._machine.request / 2  # before and after
        left = len(asked) + 1

        def arrived() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._clock.after(notice if asked else 0, partial(cores.run, own, then))

        def begin() -> None:
            for one in asked:
                to = one.host // self._hosts_of_node
                self._network.send(node, to, one.request, partial(self._serve, node, to, one, arrived))
            cores.run(meanwhile, arrived)

        cores.run(own, begin)

    def _serve(self, node: int, to: int, one: Asked, arrived: _Then) -> None:
        machine = self._machine
        work = machine.request + (one.seconds / machine.speed if one.seconds else sum(one.replies) / machine.rows)
        left = len(one.replies)

        def here() -> None:
            nonlocal left
            left -= 1
            if not left:
                arrived()

        def reply() -> None:
            for nbytes in one.replies:
                self._network.send(to, node, nbytes, here)

        self._hosts[one.host].serve(work, reply)

    def _consume(self, number: int, seconds: Sequence[float]) -> _Steps:
        cores = self._cores[number // self._cluster.trainers]
        for own in seconds:
            if not self._ready[number]:
                _wake(self._drained, number)
            if not self._ready[number]:
                yield partial(self._wait_for, self._starving, number)
            self._ready[number] -= 1
            _wake(self._blocked, number)
            yield partial(cores.run, own) if self._model.on_cores else partial(self._clock.after, own)
            yield self._meet

    def _wait_for(self, waiting: list[_Then | None], number: int, then: _Then) -> None:
        waiting[number] = then

    def _meet(self, then: _Then) -> None:
        """Go on when all trainers are here, and have summed their gradients."""
        self._here.append(then)
        if len(self._here) == len(self._minibatches):
            everyone, self._here = self._here, []
            self._summing = self._cluster.nodes
            for node in range(self._cluster.nodes):
                _go(self._sum(node, everyone))

    def _sum(self, node: int, everyone: Sequence[_Then]) -> _Steps:
        """Pass pieces along a ring of the nodes, inside which that takes no time; the last node ends the step."""
        for hop in range(2 * (self._nodes - 1)):
            self._piece(node, hop, None)
            yield partial(self._take, node, hop)
        self._summing -= 1
        if not self._summing:
            self.ends.append(self._clock.now)
            for go_on in everyone:
                self._clock.after(0.0, go_on)

    def _take(self, node: int, hop: int, then: _Then) -> None:
        """Receive a piece of the node before, and add it."""
        before = (node - 1) % self._cluster.nodes
        take = partial(self._piece, before, hop, then)
        if self._model.asks:
            self._network.send(node, before, 0, take)
        else:
            take()

    def _piece(self, source: int, hop: int, then: _Then | None) -> None:
        """Send a piece to the node after once both are there: ``source`` without ``then``, and its receiver."""
        if (source, hop) not in self._pieces:
            self._pieces[source, hop] = then
            return
        then = self._pieces.pop((source, hop)) or then
        assert then is not None
        self._network.send(source, (source + 1) % self._cluster.nodes, int(self._model.gradients / self._nodes), then)


def _wake(waiting: list[_Then | None], number: int) -> None:
    then, waiting[number] = waiting[number], None
    if then is not None:
        then()


def _go(steps: _Steps) -> None:
    """Take the steps of a thread, each when the one before is over."""
    step = next(steps, None)
    if step is not None:
        step(partial(_go, steps))


def simulated_of(machine: Machine, cluster: Cluster) -> Cluster:
    """Return the nodes of a job that are simulated: all of few, or of those that share cores."""
    return cluster if machine.shared_cores else cluster._replace(nodes=min(cluster.nodes, _MOST_NODES))


def steps(
    machine: Machine,
    cluster: Cluster,
    model: Model,
    simulated: Sequence[Minibatch],
    row_bytes: float,
    count: int,
    seed: int = 0,
) -> F64:
    """Return float64[count], the seconds of steps.

    Of many nodes some are simulated: what each sends to the others goes round them, so a node sends and receives as
    many messages and bytes as in the whole job. Steps of 16 nodes were 0.4 to 6 % shorter than with all of them.

    Args:
        machine: the nodes.
        cluster: how many, and their ranks.
        model: what trainers do with minibatches.
        simulated: minibatches of some trainers; the others' are drawn from them.
        row_bytes: bytes of all features of a node.
        count: of steps.
        seed: of the draws.
    """
    draw = np.random.default_rng(seed)
    by_trainer: dict[int, list[Minibatch]] = {}
    for minibatch in simulated:
        by_trainer.setdefault(minibatch.trainer, []).append(minibatch)
    known = list(by_trainer)
    warm = model.ahead + 1
    of_trainers = []
    offset = int(draw.integers(len(simulated)))
    timed = simulated_of(machine, cluster)
    for number in range(timed.nodes * cluster.trainers):
        like = number if number in by_trainer else known[int(draw.integers(len(known)))]
        own = by_trainer[like]
        begins = [at for at in range(len(own)) if own[at].epoch != own[at - 1].epoch] or range(len(own))
        first = offset + begins[int(draw.integers(len(begins)))]  # epochs of all trainers begin together
        turns = [own[(first + i) % len(own)] for i in range(count + warm)]
        of_trainers.append([_elsewhere(m, like, number, cluster, timed) for m in turns])
    ends = _Job(machine, timed, cluster.nodes, model, of_trainers, row_bytes).run(draw)
    return np.diff(ends)[warm - 1 :]


def _elsewhere(minibatch: Minibatch, like: int, number: int, cluster: Cluster, timed: Cluster) -> Minibatch:
    """Return a minibatch of one trainer as another's would be: the hosts are as far from it, counted by number."""
    hosts = cluster.hosts // cluster.nodes
    begin, here = (trainer // cluster.trainers * hosts for trainer in (like, number))
    asked = [
        [one._replace(host=(here + (one.host - begin) % cluster.hosts) % timed.hosts) for one in hop]
        for hop in minibatch.asked
    ]
    return replace(minibatch, trainer=number, asked=asked)
