"""The states of all ranks: a board in each node's shared memory, and reports of it between nodes.

Each rank's watchdog writes its own slot of the board several times a second. A slot that does not change belongs to a
stopped process, or to one that holds Python's lock for minutes; the latter uses processor time, which its neighbours
read from the kernel. A slot also has the words by which trainers agree to stop (:mod:`.stopping`).

A :class:`Summary` is small however many ranks it describes: ranks that do the same at the same line of the script are
one group, and long lists are cut. The leader of each node reports a summary to the leader of the first node
(:class:`Reports`), whose answer is the latest target of the trainers that agree to stop. A leader without an answer
knows that the first leader does not run.
"""

import json
import socket
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.mpi.compat import as_array
from mpigraph.mpi.stopping import NEVER, Said
from mpigraph.mpi.wait import PEERS_COMPUTE, Backoff
from mpigraph.trace import address
from mpigraph.trace_memory import Trace

_SLOT = 1024  # bytes a rank has on the board
_HEAD = (
    64  # the first bytes of a slot: times it was written, checksum, length, whether the rank speaks, stopping, steps
)
_SPEAKS = 3  # word of the head: the rank speaks for its node
_STOPPING = slice(4, 7)
_STEPS = slice(7, 8)
_TEXT = 300  # characters of a record's text
_PLACES = 8  # of a trainer's threads, in a record
_GROUPS = 16  # in a summary
_OLD = 3.0  # seconds: a rank with an older slot is stopped, or holds Python's lock
_SPANS = 16  # of ranks in a group

_REPORT, _ANSWER, _LAST = 1, 2, 3  # tags
_PERIOD = 0.5  # seconds between two reports
_HURRY = 0.05  # the same while trainers agree to stop
_A_SECOND = 500  # reports that the first leader can read
_HUB = 0

Span = tuple[int, int]


@dataclass
class Record:
    """The state of one rank.

    Attributes:
        who: role, rank in role and rank.
        number: index of a trainer, rank of a server.
        trains: the rank is a trainer.
        text: the current activity, and its line in the user's script.
        seconds: since the activity began.
        blocked: seconds for which a trainer has had no thread that could go on without other trainers, and has done
            nothing; 0 if it has one.
        places: the places at which threads of a trainer wait for all other trainers.
        known: ``places`` is complete; else a thread may come to a meeting at another place.
        in_step: a thread is inside a protocol step, which has a deadline of its own.
    """

    who: str
    number: int
    trains: bool
    text: str = "starting"
    seconds: float = 0.0
    blocked: float = 0.0
    places: list[str] = field(default_factory=list)
    known: bool = True
    in_step: bool = False


@dataclass
class Group:
    """Ranks with one activity, for some seconds: ``spans`` of trainers' or servers' numbers, ``first`` to ``last``."""

    text: str
    trains: bool
    spans: list[Span]
    shortest: float
    longest: float


@dataclass
class Summary:
    """The states of several ranks.

    Attributes:
        trainers: the number of trainers among them.
        blocked: the number of those that wait for other trainers.
        shortest: the fewest seconds that a blocked trainer has waited; 0 if none is.
        longest: the most.
        in_step: a rank is inside a protocol step.
        known: ``at`` has the places of all waits.
        at: the number of trainers with a thread at each place.
        groups: the ranks by activity.
        still: ranks without a sign of life, and for how many seconds.
        last: the last spans of ranks that are still, or have waited for long.
        said: of one node: whether its trainers stop.
    """

    trainers: int = 0
    blocked: int = 0
    shortest: float = 0.0
    longest: float = 0.0
    in_step: bool = False
    known: bool = True
    at: dict[str, int] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    still: list[tuple[str, float]] = field(default_factory=list)
    last: list[tuple[str, str]] = field(default_factory=list)
    said: Said = field(default_factory=Said)

    @classmethod
    def of(cls, records: Iterable[Record], still: list[tuple[str, float]]) -> "Summary":
        """Summarise some ranks; ``still`` of them show no sign of life."""
        summary = cls(still=still[:_GROUPS])
        for record in records:
            group = Group(record.text, record.trains, [(record.number, record.number)], record.seconds, record.seconds)
            one = cls(in_step=record.in_step, groups=[group])
            if record.trains:
                one.trainers, one.blocked = 1, int(record.blocked > 0)
                one.shortest = one.longest = record.blocked
                one.known = record.known
                one.at = dict.fromkeys(record.places, 1)
            summary.add(one)
        return summary

    def add(self, other: "Summary") -> None:
        """Add other ranks."""
        if other.blocked:
            self.shortest = min(self.shortest, other.shortest) if self.blocked else other.shortest
            self.longest = max(self.longest, other.longest)
        self.trainers += other.trainers
        self.blocked += other.blocked
        self.in_step |= other.in_step
        self.known &= other.known
        self.at = dict(Counter(self.at) + Counter(other.at))
        self.still += other.still
        self.last += other.last
        for group in other.groups:
            self._join(group)

    def _join(self, group: Group) -> None:
        for known in self.groups:
            if (known.text, known.trains) == (group.text, group.trains):
                known.spans = spans([*known.spans, *group.spans])
                known.shortest = min(known.shortest, group.shortest)
                known.longest = max(known.longest, group.longest)
                return
        self.groups.append(group)

    def encode(self) -> bytes:
        """Return the summary as bytes, cut to a few kilobytes."""
        content = asdict(self)
        for group in content["groups"]:
            group["spans"] = group["spans"][:_SPANS]
        content["groups"] = content["groups"][:_GROUPS]
        content["last"] = content["last"][:_GROUPS]
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Summary":
        """Reverse :meth:`encode`."""
        content = json.loads(data)
        groups = [Group(**group | {"spans": [(a, b) for a, b in group["spans"]]}) for group in content.pop("groups")]
        still = [(who, seconds) for who, seconds in content.pop("still")]
        return cls(groups=groups, still=still, said=Said(**content.pop("said")), **content)

    def lines(self) -> list[str]:
        """Return at most a few lines for people."""
        lines = [f"{who} has shown no sign of life for {seconds:.0f} s" for who, seconds in self.still[:_GROUPS]]
        for group in sorted(self.groups, key=lambda group: (not group.trains, group.spans))[:_GROUPS]:
            lines.append(f"{_named(group)}: {group.text} {_range(group.shortest, group.longest)}")
        if len(self.groups) > _GROUPS:
            lines.append(f"... and {len(self.groups) - _GROUPS} more groups of ranks")
        return lines + [f"last spans of {who}: {text}" for who, text in self.last[:_GROUPS]]


def spans(ranges: Iterable[Span]) -> list[Span]:
    """Join ranges of numbers, ``first`` to ``last``, that touch each other."""
    joined: list[Span] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _named(group: Group) -> str:
    numbers = [str(first) if first == last else f"{first}-{last}" for first, last in group.spans[:_SPANS]]
    more = ", ..." if len(group.spans) > _SPANS else ""
    return f"{'trainer(s)' if group.trains else 'server(s) at rank'} {', '.join(numbers)}{more}"


def _range(shortest: float, longest: float) -> str:
    return f"for {longest:.0f} s" if longest - shortest < 1 else f"for {shortest:.0f} to {longest:.0f} s"


class Board:
    """The slots of a node's ranks. Each rank writes its own and may read all.

    Attributes:
        stopping: of each rank, its words of :mod:`.stopping`.
        steps: of each rank int64[1], the steps that it has done while a report is made.
    """

    @collective("node")
    def __init__(self, node: MPI.Intracomm) -> None:
        self.size = node.size
        self.rank = node.rank
        self._host = socket.gethostname()
        addresses = np.empty((node.size, 3), np.int64)
        node.Allgather(np.array(address(), np.int64), addresses)
        self._pids = addresses[:, 0]
        self._traces = [Trace((pid, file, mark)) for pid, file, mark in addresses.tolist()]
        self._win = MPI.Win.Allocate_shared(_SLOT, 8, comm=node)
        self._slots: list[U8] = [as_array(self._win.Shared_query(r)[0], np.uint8) for r in range(node.size)]
        self._heads = [slot[:_HEAD].view(np.int64) for slot in self._slots]
        self.stopping: list[I64] = [head[_STOPPING] for head in self._heads]
        self.steps: list[I64] = [head[_STEPS] for head in self._heads]
        self._slots[node.rank][:] = 0
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._last = [Record(f"rank {r} of the node", -1, False) for r in range(node.size)]
        self._seen = [(-1, -1.0)] * node.size  # times written, processor time
        self._alive = [0.0] * node.size  # when that last changed
        self._wrote = [0.0] * node.size  # when it was last written
        node.Barrier()

    def write(self, record: Record) -> None:
        """Publish this rank's state."""
        record.text = record.text[:_TEXT]
        record.known &= len(record.places) <= _PLACES
        record.places = record.places[:_PLACES]
        while len(data := json.dumps(asdict(record)).encode()) > _SLOT - _HEAD:  # characters beyond ASCII take more
            record.text = record.text[: len(record.text) // 2]
            record.places = []
            record.known = False
        slot, head = self._slots[self.rank], self._heads[self.rank]
        slot[_HEAD : _HEAD + len(data)] = np.frombuffer(data, np.uint8)
        head[1] = zlib.crc32(data)
        head[2] = len(data)
        head[0] += 1

    def read(self, rank: int) -> Record:
        """Return the state of a rank of the node; the one before if it is writing just now."""
        length = min(max(int(self._heads[rank][2]), 0), _SLOT - _HEAD)
        checksum = int(self._heads[rank][1])
        data = self._slots[rank][_HEAD : _HEAD + length].tobytes()
        if length and zlib.crc32(data) == checksum:
            self._last[rank] = Record(**json.loads(data))
        return self._last[rank]

    def look(self, now: float) -> None:
        """Note which ranks of the node show a sign of life at the time ``now``."""
        for rank in range(self.size):
            written = int(self._heads[rank][0])
            moved = written != self._seen[rank][0]
            self._wrote[rank] = now if moved else self._wrote[rank]
            used = self._seen[rank][1] if moved else _processor_time(int(self._pids[rank]))
            if moved or used != self._seen[rank][1]:
                self._seen[rank] = written, used
                self._alive[rank] = now

    def still(self, rank: int, now: float) -> float:
        """Return for how many seconds a rank of the node has shown no sign of life."""
        return 0.0 if rank == self.rank else now - self._alive[rank]

    def summary(self, now: float, limit: float, last: bool = False) -> Summary:
        """Return the states of the ranks of the node.

        Args:
            now: the watchdog's time.
            limit: seconds without a sign of life from which on a rank is ``still``, and seconds blocked from which on
                its last spans are included.
            last: include the last spans of every rank.
        """
        records = [self._current(rank, now) for rank in range(self.size)]
        ages = [self.still(rank, now) for rank in range(self.size)]
        still = [
            (f"{record.who} on {self._host}", age) for record, age in zip(records, ages, strict=True) if age > limit
        ]
        summary = Summary.of(records, still)
        for record, age, trace in zip(records, ages, self._traces, strict=True):
            if (last or age > limit or record.blocked > limit) and (text := trace.last()):
                summary.last.append((record.who, text))
        return summary

    def _current(self, rank: int, now: float) -> Record:
        """Read a rank's state; an old one counts as busy, for its wait may be over."""
        record = self.read(rank)
        age = now - self._wrote[rank]
        if rank == self.rank or age <= _OLD:
            return record
        return Record(record.who, record.number, record.trains, f"busy or stopped since it was {record.text}", age)

    def claim(self, seconds: float) -> bool:
        """Return whether this rank speaks for the node, which one rank may; takes ``seconds`` to find out."""
        if any(int(head[_SPEAKS]) for head in self._heads):
            return False
        self._heads[self.rank][_SPEAKS] = 1
        time.sleep(seconds)  # other ranks may claim it at the same time
        return not any(int(head[_SPEAKS]) for head in self._heads[: self.rank])

    def fence(self) -> None:
        """Order this rank's writes before and its reads after."""
        self._win.Sync()

    @collective("node")
    def close(self) -> None:
        """Free the board; a second call does nothing."""
        win, self._win = self._win, MPI.WIN_NULL
        if win:
            self._traces.clear()
            self._slots.clear()
            self._heads.clear()
            self.stopping.clear()
            self.steps.clear()
            win.Unlock_all()
            win.Free()


def _processor_time(pid: int) -> float:
    """Return the processor time that a process has used, in ticks; -1 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return float(fields[11]) + float(fields[12])
    except (OSError, IndexError, ValueError):
        return -1.0


class Reports:
    """Messages between leaders, whose communicator is ``comm``. For one thread at a time; only :meth:`close` waits.

    Reports are seconds apart where there are thousands of leaders, so the first one can read them all.

    Attributes:
        leads: this is the first leader, to which the others report.
        target: on the first leader its answer, on the others the latest answer.
        hurry: report more often.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.leads = comm.rank == _HUB
        self.target = NEVER
        self.hurry = False
        self._reply = np.empty(1, np.int64)
        self._due = 0.0
        self._asked: float | None = None  # the time of the report without an answer
        self._sending: list[tuple[MPI.Request, U8]] = []
        self._answer: MPI.Request | None = None
        self._latest: dict[int, tuple[float, Summary]] = {}
        self._left = 1  # leaders that have sent their last message, this one included

    def exchange(self, summary: Summary, now: float) -> None:
        """Send this node's summary if it is time to, and receive messages."""
        self._sending = [(request, data) for request, data in self._sending if not request.Test()]
        if self.leads:
            self._take_in(now)
            return
        if self._answer is not None and self._answer.Test():
            self._answer, self._asked = None, None
            self.target = int(self._reply[0])
        if self._answer is None and now >= self._due:
            self._answer = self._comm.Irecv([self._reply, MPI.BYTE], _HUB, _ANSWER)
            self._send(summary.encode(), _HUB, _REPORT)
            self._asked = now
            self._due = now + max(_HURRY if self.hurry else _PERIOD, self._comm.size / _A_SECOND)

    def _take_in(self, now: float) -> None:
        status = MPI.Status()
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            message.Recv([data, MPI.BYTE])
            source = status.Get_source()
            if status.Get_tag() == _LAST:
                self._left += 1
            else:
                self._latest[source] = now, Summary.decode(data.tobytes())
                self._send(np.int64(self.target).tobytes(), source, _ANSWER)

    def _send(self, data: bytes, to: int, tag: int) -> None:
        array = np.frombuffer(data, np.uint8)
        self._sending.append((self._comm.Isend([array, MPI.BYTE], to, tag), array))

    def others(self, now: float) -> Iterator[tuple[int, float, Summary]]:
        """On the first leader: yield each other node's number, the age of its latest report, and the report."""
        for source, (when, summary) in sorted(self._latest.items()):
            yield source, now - when, summary

    @property
    def complete(self) -> bool:
        """On the first leader: True once every node has reported."""
        return len(self._latest) == self._comm.size - 1

    def silence(self, now: float) -> float:
        """On the other leaders: return for how many seconds the first one has not answered."""
        return 0.0 if self._asked is None else now - self._asked

    @collective("comm")
    def close(self) -> None:
        """Complete all messages, when no thread calls :meth:`exchange` any more."""
        backoff = Backoff()
        if not self.leads:
            while self._answer is not None and not self._answer.Test():
                backoff.pause(PEERS_COMPUTE)
            self._send(b"", _HUB, _LAST)
        while self.leads and self._left < self._comm.size:
            self._take_in(0.0)
            backoff.pause(PEERS_COMPUTE)
        for request, _ in self._sending:
            while not request.Test():
                backoff.pause(PEERS_COMPUTE)
