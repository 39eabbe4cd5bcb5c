"""The data of a report: ``summary.json``, everything that its page shows, as dataclasses, and ``trace.json.gz``.

In the summary, times are seconds and sizes bytes, unless the name says otherwise. None, or an empty list, means that a
value is not known.

The trace has the spans of a job in Chrome's format, which Perfetto reads ("Trace Event Format", Google, 2016). A
process is a rank, a track one of its threads. Spans are complete events ("X"), which must nest; times are microseconds.
"""

import dataclasses
import gzip
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TextIO, TypeVar, get_args, get_origin, get_type_hints

from mpigraph.errors import StorageError

FORMAT = "mpigraph report"
VERSION = 1
FILE = "summary.json"

T = TypeVar("T")


@dataclass
class Window:
    """The steps that were recorded: from ``first_step`` to ``last_step``, which is not among them."""

    first_step: int = 0
    last_step: int = 0


@dataclass
class GraphSize:
    """A graph that the job opened."""

    name: str = ""
    nodes: int = 0
    edges: int = 0


@dataclass
class Job:
    """The command, its settings, and versions; ``asked``: the steps to record, if the script asked for some."""

    began: str = ""
    seconds: float = 0.0
    window: Window | None = None
    asked: Window | None = None
    versions: dict[str, str] = field(default_factory=dict)
    transport: str = ""
    exchange: str = ""
    process_group: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    graphs: list[GraphSize] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


@dataclass
class Node:
    """A machine."""

    name: str = ""


@dataclass
class Stage:
    """The spans of one name: ``seconds`` with the spans inside them, ``own`` without; bins: ``trace.Stage``."""

    seconds: float = 0.0
    own: float = 0.0
    count: int = 0
    histogram: list[int] = field(default_factory=list)


@dataclass
class Thread:
    """A thread that had spans, and the time that it spent in no span."""

    name: str = ""
    stages: dict[str, Stage] = field(default_factory=dict)
    rest: float | None = None


@dataclass
class Cpu:
    """Processor time; time in which the rank could run and did not; time in which the node lacked memory (PSI)."""

    seconds: float | None = None
    run_delay: float | None = None
    major_faults: int | None = None
    memory_pressure: float | None = None


class ToHost(NamedTuple):
    """Traffic with a host, by its rank; ``waited_seconds`` is the sum over requests, each until its last answer."""

    host_rank: int
    messages_sent: int
    bytes_sent: int
    bytes_received: int
    requests: int
    waited_seconds: float


class ToTrainer(NamedTuple):
    """Bytes of torch's process group, if that is MPI; in collectives as if ranks passed them on in a ring."""

    trainer_number: int
    bytes_sent: int
    bytes_received: int


@dataclass
class CacheEpoch:
    """Rows of other nodes that an epoch read, those of them in the cache, and those that were transferred."""

    remote: int = 0
    cached: int = 0
    fetched: int = 0
    fetched_bytes: int = 0


@dataclass
class Cache:
    """A rank's part of the cache of remote rows."""

    epochs: list[CacheEpoch] = field(default_factory=list)


@dataclass
class Steps:
    """A number for each step of the window: duration, waits for the minibatch and for other trainers, and sizes.

    ``delay``: time outside of the wait for the minibatch in which the script's thread could run and had no processor.
    """

    begin: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    meet: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    delay: list[float] = field(default_factory=list)


@dataclass
class Rank:
    """One process. ``number`` counts within the role, ``hosts`` is set if it holds rows of the graph."""

    rank: int = 0
    role: str = "trainer"
    number: int = 0
    node: int = 0
    hosts: bool = False
    pid: int = 0
    seconds: float = 0.0
    threads: list[Thread] = field(default_factory=list)
    cpu: Cpu = field(default_factory=Cpu)
    to_hosts: list[ToHost] = field(default_factory=list)
    to_trainers: list[ToTrainer] = field(default_factory=list)
    cache: Cache = field(default_factory=Cache)
    steps: Steps = field(default_factory=Steps)
    last_spans: str = ""

    @property
    def name(self) -> str:
        """The rank in words, such as "trainer 5"."""
        return f"{self.role} {self.number}"


@dataclass
class Summary:
    """A report's contents. If the job died, it is not ``complete``, and ``ended`` has the reason."""

    complete: bool = True
    ended: str = ""
    job: Job = field(default_factory=Job)
    clock_error: float | None = None
    nodes: list[Node] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)

    @property
    def trainers(self) -> list[Rank]:
        """The ranks that run the user's script, by number."""
        return sorted((rank for rank in self.ranks if rank.role == "trainer"), key=lambda rank: rank.number)

    def node_of(self, rank: Rank) -> str:
        """Return the name of a rank's node."""
        return self.nodes[rank.node].name if rank.node < len(self.nodes) else f"node {rank.node}"


def encode(value: object) -> bytes:
    """Return a dataclass of this module as JSON, which :func:`decode` reads."""
    content = dataclasses.asdict(value)  # type: ignore[call-overload]
    if isinstance(value, Summary):
        content = {"format": FORMAT, "version": VERSION} | content
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def decode(form: type[T], data: bytes, name: str) -> T:
    """Read a value that :func:`encode` wrote. Unknown fields are ignored.

    Args:
        form: its dataclass.
        data: the JSON.
        name: the data's name in messages, such as the path of a file.

    Raises:
        StorageError: the data is damaged, or of another program or version.
    """
    try:
        content = json.loads(data)
        head = (content.get("format"), content.get("version"))
        if form is not Summary or head == (FORMAT, VERSION):
            return _made(form, content)  # type: ignore[no-any-return]
        problem = f"it must have the fields format: {FORMAT!r} and version: {VERSION} (got {head})"
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise StorageError(f"{name} is no report of this version of mpigraph ({problem[:300]}); make the report again")


def _made(form: Any, value: Any) -> Any:
    """Return a value of JSON as one of the type ``form``."""
    inner = get_args(form)
    origin = get_origin(form) or form
    if value is None or origin in (int, float, str, bool):
        return value
    if origin is UnionType:
        return _made(inner[0], value)
    if origin is list:
        return [_made(inner[0], item) for item in value]
    if origin is dict:
        return {key: _made(inner[1], item) for key, item in value.items()}
    if isinstance(value, list):  # a named tuple of numbers and words
        return form(*value)
    return form(**{name: _made(hint, value[name]) for name, hint in _hints(form).items() if name in value})


def write(folder: Path, summary: Summary) -> None:
    """Write ``summary.json`` to a folder. Raises StorageError."""
    with replacing(folder / FILE) as temporary:
        temporary.write_bytes(encode(summary))


def read(folder: Path) -> Summary:
    """Read the summary of a report's folder, or join those that the witnesses of several nodes wrote.

    Raises:
        StorageError: the folder has no report, or a file is damaged; names the file.
    """
    summaries = []
    for path in (folder / FILE, *sorted(folder.glob("summary-*.json"))):
        try:
            data = path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error})") from None
        if data is not None:
            summaries.append(decode(Summary, data, str(path)))
    if not summaries:
        raise StorageError(f"{folder / FILE} is not a file; give the folder of a report")
    summaries.sort(key=lambda summary: summary.job.seconds)  # the first witness to write saw the cause
    joined = summaries[0]
    for other in summaries[1:]:
        known = {rank.rank for rank in joined.ranks}
        joined.ranks += [rank for rank in other.ranks if rank.rank not in known]
        joined.nodes = max(joined.nodes, other.nodes, key=len)
        joined.ended = "\n".join(filter(None, (joined.ended, other.ended)))
    joined.ranks.sort(key=lambda rank: rank.rank)
    joined.complete = joined.complete and len(summaries) == 1
    return joined


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a temporary file that replaces ``path`` at the end: readers see the old file or the new one.

    Raises:
        StorageError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error})") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


_hints = cache(get_type_hints)


@contextmanager
def writing_trace(path: Path, summary: Summary) -> Iterator["TraceWriter"]:
    """Write one file, thread by thread; the summary has the names of the ranks. Raises StorageError at the end."""
    with replacing(path) as temporary, gzip.open(temporary, "wt", compresslevel=4, encoding="ascii") as file:
        yield TraceWriter(file, summary)
        file.write("\n]}\n")


class TraceWriter:
    """Writer of the events of a file."""

    def __init__(self, file: TextIO, summary: Summary) -> None:
        self._file = file
        self._threads: dict[int, int] = {}
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n{"ph":"M","pid":0,"name":"mpigraph"}')
        for order, rank in enumerate(summary.ranks):
            self._write("M", rank.rank, 0, "process_name", name=f"{rank.name} on {summary.node_of(rank)}")
            self._write("M", rank.rank, 0, "process_sort_index", sort_index=order)

    def thread(self, rank: int, name: str, spans: Iterable[tuple[str, float, float, str, int]]) -> None:
        """Write all spans of a thread.

        Args:
            rank: the thread's rank.
            name: of the thread.
            spans: (stage, begin, end, more words, minibatch or 0) in any order; seconds since the window began. A span
                that ends after the one around it is cut, as the format requires.
        """
        thread = self._threads[rank] = self._threads.get(rank, 0) + 1
        self._write("M", rank, thread, "thread_name", name=name)
        self._write("M", rank, thread, "thread_sort_index", sort_index=thread)
        ends: list[int] = []  # of the spans around this one
        for stage, begin, end, detail, batch in sorted(spans, key=lambda span: (span[1], -span[2])):
            first = round(begin * 1e9)
            while ends and ends[-1] <= first:
                ends.pop()
            last = min([max(round(end * 1e9), first), *ends[-1:]])
            ends.append(last)
            words = ({"minibatch": batch} if batch else {}) | ({"detail": detail} if detail else {})
            self._write("X", rank, thread, stage, first, last - first, **words)

    def counter(self, rank: int, name: str, points: Iterable[tuple[float, float]]) -> None:
        """Write a counter of a rank as (seconds since the window began, value)."""
        for seconds, value in points:
            self._write("C", rank, 0, name, round(seconds * 1e9), value=value)

    def _write(
        self, phase: str, rank: int, thread: int, event: str, begin: int = 0, length: int = 0, **words: object
    ) -> None:
        fields = {"ph": phase, "pid": rank, "tid": thread, "name": event}
        times = "" if phase == "M" else f',"ts":{_microseconds(begin)}'
        times += f',"dur":{_microseconds(length)}' if phase == "X" else ""
        arguments = f',"args":{json.dumps(words, separators=(",", ":"))}' if words else ""
        self._file.write(f",\n{json.dumps(fields, separators=(',', ':'))[:-1]}{times}{arguments}}}")


def _microseconds(nanoseconds: int) -> str:
    """Return exact decimal digits, since a double would round times of long jobs."""
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03}"
