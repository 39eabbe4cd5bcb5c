"""Where every rank is: a board in each node's shared memory, and summaries of it that nodes can send to one another.

Each rank's watchdog writes its own slot of the board several times a second, so a slot that stands still tells of a
process that does. A process that holds Python's lock for minutes writes nothing either, but it takes processor time,
which the kernel tells its neighbours.

Beside what it does, a slot has the words by which trainers agree to stop (:mod:`.stopping`).

A :class:`Summary` is small however many ranks it is about: ranks that do the same at the same line of the script are
one group, and the longest lists are cut.
"""

import json
import socket
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.mpi.compat import as_array
from mpigraph.mpi.stopping import Said
from mpigraph.trace import Trace, address

__all__ = ["Board", "Group", "Record", "Summary", "spans"]

_SLOT = 1024  # bytes a rank has on the board
_HEAD = 56  # of these: how often it was written, checksum, length, whether the rank speaks for its node, and stopping
_SPEAKS = 3  # which of these words
_STOPPING = slice(4, 7)
_TEXT = 300  # characters of what a rank does
_PLACES = 8  # of a trainer's threads, in a record
_GROUPS = 16  # in a summary
_OLD = 3.0  # seconds: who has not written for longer is stopped, or holds Python's lock
_SPANS = 16  # of ranks in a group

Span = tuple[int, int]


@dataclass
class Record:
    """What one rank does.

    Attributes:
        who: role, rank in role and rank.
        number: index of a trainer, rank of a server.
        trains: whether it is a trainer.
        text: what it does, and where in the user's script.
        seconds: for how long.
        blocked: for how many seconds nothing of a trainer has run that could go on without other trainers; 0 if
            something does.
        places: where threads of a trainer wait for all other trainers to come.
        known: whether these are all places that matter; else it may be that somebody comes without any of them.
        in_step: whether a thread is inside a protocol step, which has a deadline of its own.
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
    """Ranks that do the same, for some seconds: ``spans`` of trainers' or servers' numbers, ``first`` to ``last``."""

    text: str
    trains: bool
    spans: list[Span]
    shortest: float
    longest: float


@dataclass
class Summary:
    """What some ranks do.

    Attributes:
        trainers: how many trainers these are.
        blocked: how many of them wait for other trainers.
        shortest: the fewest seconds that one of these has waited; 0 if none does.
        longest: the most.
        in_step: whether one is inside a protocol step.
        known: whether ``at`` tells where all of them wait.
        at: how many trainers have a thread at each place.
        groups: who does what.
        still: who has shown no sign of life, and for how many seconds.
        last: who is still, or has waited for long, and its last spans.
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
            one = Group(record.text, record.trains, [(record.number, record.number)], record.seconds, record.seconds)
            summary._join(one)
            summary.in_step |= record.in_step
            if not record.trains:
                continue
            summary._count(1, record.blocked > 0, record.blocked, record.blocked)
            summary.known &= record.known
            summary.at = dict(Counter(summary.at) + Counter(set(record.places)))
        return summary

    def add(self, other: "Summary") -> None:
        """Take in what other ranks do."""
        self._count(other.trainers, other.blocked, other.shortest, other.longest)
        self.in_step |= other.in_step
        self.known &= other.known
        self.at = dict(Counter(self.at) + Counter(other.at))
        self.still += other.still
        self.last += other.last
        for group in other.groups:
            self._join(group)

    def _count(self, trainers: int, blocked: int, shortest: float, longest: float) -> None:
        if blocked:
            self.shortest = min(self.shortest, shortest) if self.blocked else shortest
            self.longest = max(self.longest, longest)
        self.trainers += trainers
        self.blocked += blocked

    def _join(self, group: Group) -> None:
        for known in self.groups:
            if (known.text, known.trains) == (group.text, group.trains):
                known.spans = spans([*known.spans, *group.spans])
                known.shortest = min(known.shortest, group.shortest)
                known.longest = max(known.longest, group.longest)
                return
        self.groups.append(group)

    def encode(self) -> bytes:
        """The summary as bytes, cut to a few kilobytes."""
        content = asdict(self)
        for group in content["groups"]:
            group["spans"] = group["spans"][:_SPANS]
        content["groups"] = content["groups"][:_GROUPS]
        content["last"] = content["last"][:_GROUPS]
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Summary":
        """The reverse of :meth:`encode`."""
        content = json.loads(data)
        groups = [Group(**group | {"spans": [(a, b) for a, b in group["spans"]]}) for group in content.pop("groups")]
        still = [(who, seconds) for who, seconds in content.pop("still")]
        return cls(groups=groups, still=still, said=Said(**content.pop("said")), **content)

    def lines(self) -> list[str]:
        """Who does what, for people; at most a few lines."""
        lines = [f"{who} has shown no sign of life for {seconds:.0f} s" for who, seconds in self.still[:_GROUPS]]
        for group in sorted(self.groups, key=lambda group: (not group.trains, group.spans))[:_GROUPS]:
            lines.append(f"{_named(group)}: {group.text} {_range(group.shortest, group.longest)}")
        if len(self.groups) > _GROUPS:
            lines.append(f"... and {len(self.groups) - _GROUPS} more groups of ranks")
        return lines + [f"last spans of {who}: {text}" for who, text in self.last[:_GROUPS]]


def spans(given: Iterable[Span]) -> list[Span]:
    """Join ranges of numbers, ``first`` to ``last``, that touch each other."""
    joined: list[Span] = []
    for first, last in sorted(given):
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
    """The slots of a node's ranks. Each rank writes its own; anybody may read."""

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
        self._slots[node.rank][:] = 0
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._last = [Record(f"rank {r} of the node", -1, False) for r in range(node.size)]
        self._seen = [(-1, -1.0)] * node.size  # how often written, processor time
        self._alive = [0.0] * node.size  # when that last changed
        self._wrote = [0.0] * node.size  # when it was last written
        node.Barrier()

    def write(self, record: Record) -> None:
        """Say what this rank does."""
        record.text = record.text[:_TEXT]
        record.known &= len(record.places) <= _PLACES
        record.places = record.places[:_PLACES]
        while len(data := json.dumps(asdict(record)).encode()) > _SLOT - _HEAD:  # what is not ASCII takes more
            record.text = record.text[: len(record.text) // 2]
            record.places = []
            record.known = False
        slot, head = self._slots[self.rank], self._heads[self.rank]
        slot[_HEAD : _HEAD + len(data)] = np.frombuffer(data, np.uint8)
        head[1] = zlib.crc32(data)
        head[2] = len(data)
        head[0] += 1

    def read(self, rank: int) -> Record:
        """What a rank of the node does; what it did before if it is writing just now."""
        length = min(max(int(self._heads[rank][2]), 0), _SLOT - _HEAD)
        checksum = int(self._heads[rank][1])
        data = self._slots[rank][_HEAD : _HEAD + length].tobytes()
        if length and zlib.crc32(data) == checksum:
            self._last[rank] = Record(**json.loads(data))
        return self._last[rank]

    def look(self, now: float) -> None:
        """See which ranks of the node are alive, at the time ``now``."""
        for rank in range(self.size):
            written = int(self._heads[rank][0])
            moved = written != self._seen[rank][0]
            self._wrote[rank] = now if moved else self._wrote[rank]
            used = self._seen[rank][1] if moved else _processor_time(int(self._pids[rank]))
            if moved or used != self._seen[rank][1]:
                self._seen[rank] = written, used
                self._alive[rank] = now

    def still(self, rank: int, now: float) -> float:
        """For how many seconds a rank of the node has shown no sign of life."""
        return 0.0 if rank == self.rank else now - self._alive[rank]

    def summary(self, now: float, limit: float, last: bool = False) -> Summary:
        """Return what the ranks of the node do.

        Args:
            now: the watchdog's time.
            limit: how many seconds without a sign of life are worth a word, or of waiting for others the last spans.
            last: with the last spans of every rank.
        """
        records = [self._now_of(rank, now) for rank in range(self.size)]
        ages = [self.still(rank, now) for rank in range(self.size)]
        still = [
            (f"{record.who} on {self._host}", age) for record, age in zip(records, ages, strict=True) if age > limit
        ]
        summary = Summary.of(records, still)
        for record, age, trace in zip(records, ages, self._traces, strict=True):
            if (last or age > limit or record.blocked > limit) and (text := trace.last()):
                summary.last.append((record.who, text))
        return summary

    def _now_of(self, rank: int, now: float) -> Record:
        """What a rank of the node does. What it said long ago is over: it may wait no more for what it waited for."""
        record = self.read(rank)
        age = now - self._wrote[rank]
        if rank == self.rank or age <= _OLD:
            return record
        return Record(record.who, record.number, record.trains, f"busy or stopped since it was {record.text}", age)

    def claim(self, seconds: float) -> bool:
        """Whether this rank may speak for the node, which one rank may; it takes some seconds to find out."""
        if any(int(head[_SPEAKS]) for head in self._heads):
            return False
        self._heads[self.rank][_SPEAKS] = 1
        time.sleep(seconds)  # others who claim it at the same time
        return not any(int(head[_SPEAKS]) for head in self._heads[: self.rank])

    def fence(self) -> None:
        """Order what this rank wrote before and what it reads after."""
        self._win.Sync()

    @collective("node")
    def close(self) -> None:
        """Free the board; a second call does nothing."""
        win, self._win = self._win, MPI.WIN_NULL
        if win:
            self._slots.clear()
            self._heads.clear()
            self.stopping.clear()
            win.Unlock_all()
            win.Free()


def _processor_time(pid: int) -> float:
    """Processor time that a process has used, in ticks; -1 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return float(fields[11]) + float(fields[12])
    except (OSError, IndexError, ValueError):
        return -1.0
