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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from mpigraph.errors import StorageError
from mpigraph.recording import Span

FORMAT = "mpigraph report"
VERSION = 1
FILE = "summary.json"
TRACE = "trace.json.gz"
PAGE = "report.html"

T = TypeVar("T")


@dataclass
class GraphSize:
    """A graph that the job opened."""

    name: str = ""
    nodes: int = 0
    edges: int = 0


@dataclass
class Job:
    """The command, its settings, and versions."""

    began: str = ""
    seconds: float = 0.0
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
class Steps:
    """A number for each of the last steps: duration, waits for the minibatch and for other trainers, and sizes.

    ``delay``: time outside of the wait for the minibatch in which the script's thread could run and had no processor.
    """

    seconds: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    meet: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    delay: list[float] = field(default_factory=list)


@dataclass
class Rank:
    """One process. ``number`` counts within the role, ``hosts`` is set if it holds rows of the graph.

    ``remote_rows`` were read of other nodes, ``cached_rows`` of them were in the cache.
    """

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
    remote_rows: int = 0
    cached_rows: int = 0
    steps: Steps = field(default_factory=Steps)

    @property
    def name(self) -> str:
        """The rank in words, such as "trainer 5"."""
        return f"{self.role} {self.number}"


@dataclass
class Summary:
    """A report's contents."""

    job: Job = field(default_factory=Job)
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
    """Read the summary of a report's folder.

    Raises:
        StorageError: the folder has no report, or the file is damaged; names the file.
    """
    try:
        data = (folder / FILE).read_bytes()
    except OSError as error:
        raise StorageError(f"{folder / FILE} cannot be read ({error.strerror}); give the folder of a report") from None
    return decode(Summary, data, str(folder / FILE))


def is_report(folder: Path) -> bool:
    """Return whether a folder has the summary of a report, maybe of another version."""
    path = folder / FILE
    return path.is_file() and FORMAT.encode() in path.read_bytes()[:100]


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


def events_of(rank: int, threads: Sequence[tuple[str, Iterable[Span]]], begin: int, scale: float) -> bytes:
    """Return the spans of a rank as events: lines of JSON, each behind a comma.

    Args:
        rank: the rank.
        threads: the name of each, and its spans in any order. A span that ends after the one around it is cut, as the
            format requires.
        begin: the time that becomes 0.
        scale: nanoseconds of the trace in one of the rank's.
    """
    events = list[dict[str, Any]]()
    for thread, (name, spans) in enumerate(threads, 1):
        events.append(_name_of("thread", rank, thread, name))
        ends: list[int] = []  # of the spans around this one
        for stage, first, last, batch, detail in sorted(spans, key=lambda span: (span[1], -span[2])):
            while ends and ends[-1] <= first:
                ends.pop()
            ends.append(min([max(last, first), *ends[-1:]]))
            at, end = (round((time - begin) * scale) for time in (first, ends[-1]))
            event = {"ph": "X", "pid": rank, "tid": thread, "name": stage, "ts": at / 1000, "dur": (end - at) / 1000}
            words = ({"minibatch": batch} if batch else {}) | ({"detail": detail} if detail else {})
            events.append(event | ({"args": words} if words else {}))
    return _lines(events)


def _name_of(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    """Return the event that names a process or a thread."""
    return {"ph": "M", "pid": rank, "tid": thread, "name": f"{what}_name", "args": {"name": name}}


def _lines(events: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f",\n{json.dumps(event, separators=(',', ':'))}" for event in events).encode()


def write_trace(folder: Path, summary: Summary, events: Iterable[bytes]) -> None:
    """Write ``trace.json.gz`` to a folder, given the events of each rank (:func:`events_of`). Raises StorageError."""
    with replacing(folder / TRACE) as temporary, gzip.open(temporary, "wb", compresslevel=4) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n{"ph":"M","pid":0,"name":"mpigraph"}')
        file.write(
            _lines(
                _name_of("process", rank.rank, 0, f"{rank.name} on {summary.node_of(rank)}") for rank in summary.ranks
            )
        )
        for part in events:
            file.write(part)
        file.write(b"\n]}\n")
