"""Messages between two ranks of a process group."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from torch import Tensor

from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.log import get_logger
from mpigraph.mpi.coroutine import Coroutine, Task
from mpigraph.mpi.wait import PEERS_COMPUTE, Backoff
from mpigraph.process_group.tensors import check, flat, refill, words

_ARRIVING = 5.0  # seconds that a message may be on its way when a group is shut down


class _Receive:
    """A receive whose message may be longer than its tensor: a request, for coroutines.

    Open MPI 5.0 itself ends the job where such a message is too long to be sent at once (some kilobytes).
    """

    def __init__(self, name: str, nbytes: int, request: MPI.Request) -> None:
        self._name, self._nbytes, self._request = name, nbytes, request

    def Test(self, status: MPI.Status) -> bool:
        """Return whether the message is here; raise an InvalidArgumentError if it is too long."""
        try:
            return self._request.Test(status)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            raise InvalidArgumentError(
                f"{self._name}: a message has more than the {self._nbytes} bytes of the tensor"
            ) from None

    def Cancel(self) -> None:
        self._request.Cancel()


def send(comm: MPI.Comm, tensor: Tensor, to: int, tag: int) -> Coroutine[None]:
    """Send the values of a tensor."""
    check("send", tensor)
    yield comm.Isend(words(flat(tensor)), to, tag)


def receive(name: str, comm: MPI.Comm, tensor: Tensor, source: int, tag: int) -> Coroutine[int]:
    """Receive the values of a tensor and return the sender."""
    check("recv", tensor)
    vector = flat(tensor)
    array = words(vector)
    status = yield _Receive(name, array.nbytes, comm.Irecv(array, source, tag))  # type: ignore[misc]
    sender, nbytes = status.Get_source(), status.Get_count(MPI.BYTE)
    if nbytes != array.nbytes:
        raise InvalidArgumentError(f"{name}: rank {sender} sent {nbytes} bytes, the tensor has {array.nbytes}")
    refill(tensor, vector)
    return sender


def _drop(message: MPI.Message, nbytes: int) -> Coroutine[None]:
    yield message.Irecv([np.empty(nbytes, np.uint8), MPI.BYTE])


@collective("comm")
def finish_messages(
    comm: MPI.Comm, sends: Sequence[Task[Any]], receives: Sequence[Task[Any]], trainers: Sequence[int]
) -> None:
    """Complete this rank's ``sends`` and ``receives`` when no rank begins more messages.

    A receive without a message is cancelled after some seconds. A message that was never received is received here and
    dropped, with a warning that names its trainer: else its sender would wait for ever.
    """
    status = MPI.Status()
    tasks, lost = [*sends, *receives], list[str]()
    end, backoff = time.monotonic() + _ARRIVING, Backoff()
    everyone: MPI.Request | None = None
    while everyone is None or not everyone.Test():
        moved = any([task.advance() for task in tasks])
        if (message := comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            nbytes = status.Get_count(MPI.BYTE)
            tasks.append(Task(_drop(message, nbytes), "a message that is dropped"))
            lost.append(f"{nbytes} bytes from trainer {trainers[status.Get_source()]} (tag {status.Get_tag()})")
            moved = True
        tasks = [task for task in tasks if not task.done]
        if not tasks and everyone is None:
            everyone = comm.Ibarrier()
        elif time.monotonic() > end:
            end = float("inf")
            for task in receives:
                task.cancel()
        if moved:
            backoff.reset()
        else:
            backoff.pause(PEERS_COMPUTE)
    if lost:
        shown = ", ".join(lost[:5]) + (", ..." if len(lost) > 5 else "")
        get_logger().warning("%d message(s) were never received and are dropped: %s", len(lost), shown)
