"""A torch process group whose bytes travel by MPI: ``torch.distributed.init_process_group("mpi4py")``.

Registered when ``mpigraph.distributed`` is imported; it works between ``initialize()`` and ``exit_client()``, on the
trainers, for CPU tensors. Two ways to start it::

    init_process_group("mpi4py", init_method="mpi4py://")   opens no port: the ranks know one another from MPI
    init_process_group("mpi4py")                            the same group, but torch first opens its TCP store
                                                            (``env://``), on one port of the first trainer

With ``mpi4py://`` each rank has a key-value store of its own: collectives go by MPI and ask for no keys. Code that
passes keys through torch's store needs ``env://``.

A call begins a non-blocking MPI operation. With ``async_op=True``, and for DDP's gradients, a thread makes it advance
while the caller computes (see ``collectives.py``). Measured between two hosts over a 1 Gbit/s link: an all_reduce
of 4 MB takes 32 ms, beside 52 ms of computing 6 ms more than the computing alone; of 52 ms for DDP's gradients 20 to
31 ms remain. Within one node the bytes are moved by the cores that compute, and there is little to hide. Below
``MPI_THREAD_MULTIPLE`` operations advance when they are waited for, and DDP's are completed one after the other.
Every operation has the deadline ``MPIGRAPH_TIMEOUT``; torch's ``timeout`` is not read, but for ``Work.wait(timeout)``.

float16 and bfloat16 are reduced in float32 and rounded once; sums of bool are "any", products are "all". MPI chooses
the order of sums by size and layout: the same job gives the same bits again, another layout may differ in the last.
"""

# mypy: disable-error-code="override,assignment"
# (torch overloads each method; it calls the form that is here)

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, register_rendezvous_handler  # type: ignore[attr-defined]

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError
from mpigraph.process_group.collectives import ANY_RANK, Collectives, Pending
from mpigraph.process_group.work import MPIWork, apart, check, flat, reduction, refill, words
from mpigraph.session.context import current

__all__ = ["MPIProcessGroup"]

_NAME = "mpi4py"


def _cut(vector: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    return torch.split(vector, list(sizes))  # type: ignore[no-untyped-call, no-any-return]


def _join(tensors: Sequence[Tensor]) -> Tensor:
    """One vector of the values of several tensors, never their own memory."""
    vector = tensors[0].new_empty(sum(t.numel() for t in tensors))
    for part, tensor in zip(_cut(vector, _sizes(tensors)), tensors, strict=True):
        part.copy_(tensor.detach().reshape(-1))
    return vector


def _sizes(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def _deal(tensors: Sequence[Tensor], vector: Tensor) -> None:
    """Copy a vector's pieces to several tensors."""
    for tensor, part in zip(tensors, _cut(vector, _sizes(tensors)), strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def _even(what: str, whole: Tensor, part: Tensor, ranks: int) -> list[int]:
    if whole.numel() != ranks * part.numel():
        raise InvalidArgumentError(f"{what}: {whole.numel()} values are not {part.numel()} for each of {ranks} rank(s)")
    return [part.numel()] * ranks


def _one_each(what: str, tensors: Sequence[Tensor], ranks: int) -> None:
    if len(tensors) != ranks:
        raise InvalidArgumentError(f"{what} needs a tensor for each of {ranks} rank(s) (got {len(tensors)})")


class MPIProcessGroup(dist.ProcessGroup):
    """Carries torch's collectives over a communicator of its own. Users meet it through ``torch.distributed``.

    The methods are those that torch calls, with torch's arguments; each returns a handle to wait with.

    Collective on the group: every method but :meth:`send`, :meth:`recv` and :meth:`recv_anysource`. All ranks must
    call them in the same order.
    """

    def __init__(self, group: Collectives) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self._group = group
        self._names = {"name": "", "description": ""}

    def getBackendName(self) -> str:
        """The name that it is registered by."""
        return _NAME

    def setGroupName(self, name: str) -> None:
        """Torch's name for the group."""
        self._names["name"] = name

    def getGroupName(self) -> str:
        """Torch's name for the group."""
        return self._names["name"]

    def setGroupDesc(self, text: str) -> None:
        """What torch says of the group."""
        self._names["description"] = text

    def getGroupDesc(self) -> str:
        """What torch says of the group."""
        return self._names["description"]

    def _work(self, parts: Sequence[Pending], outputs: list[Tensor], opts: Any) -> MPIWork:
        work = MPIWork(self._group, parts, outputs)
        if getattr(opts, "asyncOp", True):
            work.go_on()
        return work

    def _reduced(self, what: str, tensor: Tensor, opts: Any) -> tuple[str, Tensor, int]:
        """The operation, the values to reduce, and what to divide the result by. Collective on the group."""
        check(what, tensor)
        name, dtype, mean = reduction(what, tensor.dtype, getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        return name, flat(tensor, dtype), self.size() if mean else 1

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """``torch.distributed.all_reduce``. Collective on the group."""
        parts = []
        for tensor in tensors:
            name, vector, divisor = self._reduced("all_reduce", tensor, opts)
            part = self._group.allreduce(vector.numpy(), name)
            part.finish = partial(refill, tensor, vector, divisor)
            parts.append(part)
        return self._work(parts, tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """Several :meth:`allreduce` at once. Collective on the group."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> MPIWork:
        """``torch.distributed.reduce``. Collective on the group."""
        name, vector, divisor = self._reduced("reduce", tensors[0], opts)
        part = self._group.reduce(vector.numpy(), name, opts.rootRank)
        if self.rank() == opts.rootRank:
            part.finish = partial(refill, tensors[0], vector, divisor)
        return self._work([part], tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> MPIWork:
        """``torch.distributed.broadcast``. Collective on the group."""
        parts = []
        for tensor in tensors:
            check("broadcast", tensor)
            vector = flat(tensor)
            part = self._group.broadcast(words(vector), opts.rootRank)
            part.finish = partial(refill, tensor, vector)
            parts.append(part)
        return self._work(parts, tensors, opts)

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """``torch.distributed.all_gather``; ranks may give different numbers of values. Collective on the group."""
        _one_each("all_gather", outputs[0], self.size())
        check("all_gather", tensors[0], *outputs[0])
        vector = outputs[0][0].new_empty(sum(_sizes(outputs[0])))
        part = self._group.allgather(words(vector), words(flat(tensors[0])), _sizes(outputs[0]))
        part.finish = partial(_deal, outputs[0], vector)
        return self._work([part], outputs[0], opts)

    def _gather_into(self, output: Tensor, tensor: Tensor) -> Pending:
        check("all_gather", tensor, output)
        counts = _even("all_gather", output, tensor, self.size())
        vector = flat(output)
        part = self._group.allgather(words(vector), words(apart(flat(tensor), vector)), counts)
        part.finish = partial(refill, output, vector)
        return part

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MPIWork:
        """``torch.distributed.all_gather_single``, once ``all_gather_into_tensor``. Collective on the group."""
        return self._work([self._gather_into(output, tensor)], [output], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """Several :meth:`all_gather_single` at once. Collective on the group."""
        parts = [self._gather_into(*pair) for pair in zip(outputs, tensors, strict=True)]
        return self._work(parts, outputs, opts)

    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> MPIWork:
        """``torch.distributed.gather``. Collective on the group."""
        if self.rank() != opts.rootRank:
            check("gather", tensors[0])
            part = self._group.gather(None, words(flat(tensors[0])), [], opts.rootRank)
            return self._work([part], [], opts)
        _one_each("gather", outputs[0], self.size())
        check("gather", tensors[0], *outputs[0])
        vector = outputs[0][0].new_empty(sum(_sizes(outputs[0])))
        part = self._group.gather(words(vector), words(flat(tensors[0])), _sizes(outputs[0]), opts.rootRank)
        part.finish = partial(_deal, outputs[0], vector)
        return self._work([part], outputs[0], opts)

    def scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> MPIWork:
        """``torch.distributed.scatter``. Collective on the group."""
        array: Array | None = None
        counts: list[int] = []
        check("scatter", outputs[0])
        if self.rank() == opts.rootRank:
            _one_each("scatter", tensors[0], self.size())
            check("scatter", outputs[0], *tensors[0])
            array, counts = words(_join(tensors[0])), _sizes(tensors[0])
        vector = flat(outputs[0])
        part = self._group.scatter(words(vector), array, counts, opts.rootRank)
        part.finish = partial(refill, outputs[0], vector)
        return self._work([part], outputs, opts)

    def _reduce_into(self, output: Tensor, source: Tensor, counts: list[int], opts: Any) -> Pending:
        check("reduce_scatter", source, output)
        name, vector, divisor = self._reduced("reduce_scatter", source, opts)
        mine = flat(output, vector.dtype)
        part = self._group.reduce_scatter(mine.numpy(), apart(vector, mine).numpy(), counts, name)
        part.finish = partial(refill, output, mine, divisor)
        return part

    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None) -> MPIWork:
        """``torch.distributed.reduce_scatter``; ranks may get different numbers of values. Collective on the group."""
        _one_each("reduce_scatter", tensors[0], self.size())
        check("reduce_scatter", outputs[0], *tensors[0])
        counts = _sizes(tensors[0])
        if counts[self.rank()] != outputs[0].numel():
            raise InvalidArgumentError(
                f"reduce_scatter: {counts[self.rank()]} values do not fit an output of {outputs[0].numel()}"
            )
        return self._work([self._reduce_into(outputs[0], _join(tensors[0]), counts, opts)], outputs, opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MPIWork:
        """``torch.distributed.reduce_scatter_single``, once ``reduce_scatter_tensor``. Collective on the group."""
        counts = _even("reduce_scatter", tensor, output, self.size())
        return self._work([self._reduce_into(output, tensor, counts, opts)], [output], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None
    ) -> MPIWork:
        """Several :meth:`reduce_scatter_single` at once. Collective on the group."""
        parts = []
        for output, tensor in zip(outputs, tensors, strict=True):
            counts = _even("reduce_scatter", tensor, output, self.size())
            parts.append(self._reduce_into(output, tensor, counts, opts))
        return self._work(parts, outputs, opts)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_rows: list[int], rows: list[int], opts: Any = None
    ) -> MPIWork:
        """``torch.distributed.all_to_all_single``; empty lists of rows mean equal shares. Collective on the group."""
        check("all_to_all", tensor, output)
        counts, output_counts = self._shares(tensor, rows), self._shares(output, output_rows)
        vector = flat(output)
        array = words(apart(flat(tensor), vector))
        part = self._group.alltoall(words(vector), array, output_counts, counts)
        part.finish = partial(refill, output, vector)
        return self._work([part], [output], opts)

    def _shares(self, tensor: Tensor, rows: Sequence[int]) -> list[int]:
        """How many values of a tensor are for or from each rank."""
        height = tensor.shape[0] if tensor.dim() else 1
        if not rows:
            if height % self.size():
                raise InvalidArgumentError(f"all_to_all: {height} row(s) do not divide among {self.size()} rank(s)")
            rows = [height // self.size()] * self.size()
        if len(rows) != self.size() or sum(rows) != height:
            raise InvalidArgumentError(f"all_to_all: {list(rows)} rows are not the {height} of {self.size()} rank(s)")
        width = tensor.numel() // max(1, height)
        return [width * count for count in rows]

    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """``torch.distributed.all_to_all``. Collective on the group."""
        for given in (outputs, tensors):
            _one_each("all_to_all", given, self.size())
        check("all_to_all", *tensors, *outputs)
        vector = outputs[0].new_empty(sum(_sizes(outputs)))
        part = self._group.alltoall(words(vector), words(_join(tensors)), _sizes(outputs), _sizes(tensors))
        part.finish = partial(_deal, outputs, vector)
        return self._work([part], outputs, opts)

    def barrier(self, opts: Any = None) -> MPIWork:
        """``torch.distributed.barrier``. Collective on the group."""
        return self._work([self._group.barrier()], [], opts)

    def send(self, tensors: list[Tensor], to: int, tag: int) -> MPIWork:
        """``torch.distributed.send``. Communicates with the receiver."""
        check("send", tensors[0])
        return self._work([self._group.send(words(flat(tensors[0])), to, tag)], [], None)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> MPIWork:
        """``torch.distributed.recv``. Communicates with the sender."""
        check("recv", tensors[0])
        vector = flat(tensors[0])
        part = self._group.recv(words(vector), source, tag)
        part.finish = partial(refill, tensors[0], vector)
        return self._work([part], tensors, None)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> MPIWork:
        """:meth:`recv` from whoever sends. Collective on the group."""
        return self.recv(tensors, ANY_RANK, tag)

    _allgather_base = all_gather_single  # the names of older torch
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def shutdown(self) -> None:
        """Complete what is under way and free the communicator; a second call does nothing. Collective on the group."""
        self._group.close()

    def abort(self) -> None:
        """The same as :meth:`shutdown`: an MPI collective cannot be taken back. Collective on the group."""
        self._group.close()


def _create(options: Any, _: Any = None) -> MPIProcessGroup:
    """Make a group of the trainers that torch names. Collective on those trainers."""
    session = current()
    world = session.world
    members = list(options.global_ranks_in_group) or list(range(session.num_trainers))
    expected = members.index(session.rank), len(members)
    if (options.group_rank, options.group_size) != expected:
        raise InvalidArgumentError(
            f"torch's rank and world size are {options.group_rank} and {options.group_size}, "
            f"the trainer's are {expected[0]} and {expected[1]}: unset RANK and WORLD_SIZE"
        )
    group = Collectives(world.group(members), world.watch, world.threads_may_communicate)
    world.at_close(group.close)
    return MPIProcessGroup(group)


def _rendezvous(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[tuple[HashStore, int, int]]:
    """The rank and size by MPI, and a store that nobody else sees."""
    session = current()
    yield HashStore(), session.rank, session.num_trainers


dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])
register_rendezvous_handler(_NAME, _rendezvous)  # type: ignore[no-untyped-call]
