"""Output: tables, names that are safe in a terminal, and readers that leave (``info parts/g.json | head``)."""

import io
import sys
from types import TracebackType
from typing import Any

_OPTIONS = ("encoding", "errors", "line_buffering", "write_through")
_STATUS = 141  # a shell's status of a program that SIGPIPE has ended


def printable(name: str) -> str:
    """Return a name with control characters escaped as in Python, so that it cannot move a terminal's cursor."""
    return name if name.isprintable() else repr(name)[1:-1]


def table(names: list[str], rows: list[list[str]], left: tuple[int, ...] = ()) -> list[str]:
    """Return lines with columns as wide as their widest cell, numbers to the right."""
    columns = list(zip(names, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (names, *rows)
    ]


class Pipes:
    """A context manager that drops output to stdout and stderr once their reader has left; the exit status is 141 then.

    The command goes on: other ranks would wait for one that ends. Streams that were replaced, as by a test, stay.
    """

    def __init__(self) -> None:
        self._replaced: dict[str, Any] = {}
        self._pipes: list[_Pipe] = []

    def __enter__(self) -> "Pipes":
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None or stream is not getattr(sys, f"__{name}__"):
                continue
            pipe = _Pipe(stream.fileno(), "w", closefd=False)
            options = {option: getattr(stream, option) for option in _OPTIONS}
            text = io.TextIOWrapper(io.BufferedWriter(pipe), **options)
            self._replaced[name] = stream
            self._pipes.append(pipe)
            setattr(sys, name, text)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, stream in self._replaced.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)
        if any(pipe.reader_left for pipe in self._pipes):
            raise SystemExit(_STATUS)


class _Pipe(io.FileIO):
    """A standard stream that drops output once its reader has left."""

    reader_left = False

    def write(self, data: Any) -> int:
        if not self.reader_left:
            try:
                return super().write(data) or 0
            except BrokenPipeError:
                self.reader_left = True
        return memoryview(data).nbytes
