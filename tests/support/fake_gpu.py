"""A fake GPU, for what can be shown without one: in which order a loader asks for things, how long memory lives.

It stands in for :class:`mpigraph.graphs.accelerators.Accelerator`, the one object through which the library asks torch
for pinned memory, streams and events. Its device has the memory of the CPU, and is as late as a GPU may be: a copy
happens only when a stream waits for an event that was recorded after it, or at :meth:`FakeGpu.synchronize`; until then
the new tensor has wrong values. Pinned memory is given to the next one who asks as soon as nothing refers to it and no
copy from it is outstanding, as torch's allocator does. So who forgets to wait, or writes to memory that is still being
copied, gets wrong minibatches.

That torch and a GPU do what is said here of them is shown by the tests that run on one.
"""

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from mpigraph.graphs.accelerators import Accelerator

DEVICE = torch.device("cuda", 1)  # not the one on which a thread begins
_WRONG = 0xA5


class Call(NamedTuple):
    """What was asked of the fake: what, in which thread, on which stream, and of which memory."""

    what: str
    thread: int
    stream: object = None
    memory: int = 0


class FakeStream:
    """Copies that were begun and have not happened, the oldest first."""

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self.num_begun = 0
        self._copies: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    def begin(self, tensor: torch.Tensor, new: torch.Tensor) -> None:
        self._copies.append((tensor, new))
        self.num_begun += 1

    def finish(self, number: int) -> None:
        """Let the copies before this one happen."""
        while self.num_begun - len(self._copies) < number:
            tensor, new = self._copies.popleft()
            new.copy_(tensor)


class FakeGpu(Accelerator):
    """See the module's text.

    Attributes:
        calls: what was asked, in this order.
    """

    def __init__(self) -> None:
        super().__init__("cuda")
        self.calls: list[Call] = []
        self._lock = threading.RLock()
        self._streams = threading.local()
        self._free: dict[int, list[np.ndarray]] = {}
        self._pinned: set[int] = set()

    def log(self, what: str, stream: object = None, memory: int = 0) -> None:
        self.calls.append(Call(what, threading.get_ident(), stream, memory))

    def of(self, *what: str) -> list[Call]:
        return [call for call in list(self.calls) if call.what in what]

    @property
    def num_pinned(self) -> int:
        """How many pieces of pinned memory are in use."""
        return len(self._pinned)

    def available(self) -> bool:
        return True

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        size = 1 << max(nbytes - 1, 1).bit_length()
        with self._lock:
            free = self._free.setdefault(size, [])
            memory = free.pop() if free else np.empty(size, np.uint8)
            memory[:] = _WRONG
            root = np.frombuffer(memoryview(memory), np.uint8)  # dies with the last tensor that looks at the memory
            address = memory.ctypes.data
            self._pinned.add(address)
            weakref.finalize(root, self._release, size, memory).atexit = False
        self.log("pinned", memory=address)
        return torch.from_numpy(root)[:nbytes].view(dtype).view(tuple(shape))

    def _release(self, size: int, memory: np.ndarray) -> None:
        with self._lock:
            self._pinned.discard(memory.ctypes.data)
            self._free[size].append(memory)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def new_stream(self, device: torch.device | None) -> FakeStream:
        return FakeStream(device)

    def current_stream(self, device: torch.device) -> FakeStream:
        if not hasattr(self._streams, "current"):
            self._streams.current = FakeStream(device)
        return self._streams.current

    @contextmanager
    def on(self, stream: FakeStream, own_thread: bool) -> Iterator[None]:
        self.log("enter thread" if own_thread else "enter", stream)
        before = getattr(self._streams, "current", None)
        self._streams.current = stream
        yield
        if before is None:
            del self._streams.current
        else:
            self._streams.current = before

    def copy(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert self.is_pinned(tensor), "a copy from memory that is not pinned keeps its thread waiting"
        new = torch.empty_like(tensor)
        new.view(-1).view(torch.uint8).fill_(_WRONG)
        stream = self.current_stream(device)
        with self._lock:
            stream.begin(tensor, new)
        self.log("copy", stream, new.data_ptr())
        return new

    def record(self, stream: FakeStream) -> tuple[FakeStream, int]:
        self.log("record", stream)
        return stream, stream.num_begun

    def wait(self, stream: FakeStream, event: tuple[FakeStream, int]) -> None:
        self.log("wait", stream)
        with self._lock:
            event[0].finish(event[1])

    def used_on(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        self.log("used on", stream, tensor.data_ptr())

    def synchronize(self, stream: FakeStream) -> None:
        """Let all copies of a stream happen."""
        with self._lock:
            stream.finish(stream.num_begun)
