"""Standard streams: names that a terminal shows as they are, and readers that leave (``info parts/g.json | head``)."""

import io
import sys
from types import TracebackType
from typing import Any

__all__ = ["Pipes", "printable"]

_STATUS = 141  # what a shell reports of a program that SIGPIPE has ended


def printable(name: str) -> str:
    """Return a name without what would move the cursor or colour a terminal: escaped as in Python."""
    return name if name.isprintable() else repr(name)[1:-1]


class Pipes:
    """Drop what is written to stdout and stderr once their reader has left; exit with status 141 then.

    The command goes on: on several ranks the others would wait for one that ends. A context manager. Streams that
    someone else has put in place, such as a test, are left alone.
    """

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}
        self._pipes: list[_Pipe] = []

    def __enter__(self) -> "Pipes":
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None or stream is not getattr(sys, f"__{name}__"):
                continue
            pipe = _Pipe(stream.fileno(), "w", closefd=False)
            text = io.TextIOWrapper(
                io.BufferedWriter(pipe),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            self._given[name] = stream
            self._pipes.append(pipe)
            setattr(sys, name, text)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, stream in self._given.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)
        if any(pipe.reader_left for pipe in self._pipes):
            raise SystemExit(_STATUS)


class _Pipe(io.FileIO):
    """A standard stream, written to as long as somebody reads it."""

    reader_left = False

    def write(self, data: Any) -> int:
        if not self.reader_left:
            try:
                return super().write(data) or 0
            except BrokenPipeError:
                self.reader_left = True
        return memoryview(data).nbytes
