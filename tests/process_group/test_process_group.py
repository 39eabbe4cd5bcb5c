"""torch.distributed over MPI: every collective beside numpy, DDP beside gloo, handles, errors, and how it ends."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from jobs import SOON, run_script, soon, wait_for
from layouts import WAIT, Job, Layout, SharedJob, api, needs_threads, on_layouts, own_on_layouts
from mpi4py import MPI
from torch import Tensor, nn
from torch.distributed import ReduceOp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from mpigraph.errors import ClosedError, CollectiveError, InvalidArgumentError, NotInitializedError
from mpigraph.mpi.coroutine import Task
from mpigraph.mpi.world import World
from mpigraph.process_group.operations import Outstanding
from mpigraph.session.context import current
from mpigraph.trace import Snapshot, sums

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
SHAPES = [(), (0,), (5,), (2, 3), (70_000,)]
Reduced = Callable[[np.ndarray], np.ndarray]
OPS: list[tuple[ReduceOp, Reduced, list[torch.dtype]]] = [
    (ReduceOp.SUM, partial(np.sum, axis=0), [*FLOATS, *INTEGERS, *DTYPES[-2:]]),
    (ReduceOp.PRODUCT, partial(np.prod, axis=0), [*FLOATS, *INTEGERS]),
    (ReduceOp.MAX, partial(np.max, axis=0), [*FLOATS, *INTEGERS]),
    (ReduceOp.MIN, partial(np.min, axis=0), [*FLOATS, *INTEGERS]),
    (ReduceOp.AVG, partial(np.mean, axis=0), [*FLOATS, *DTYPES[-2:]]),
    (ReduceOp.BAND, np.bitwise_and.reduce, [torch.int64]),
    (ReduceOp.BXOR, np.bitwise_xor.reduce, [torch.int64]),
    (ReduceOp.SUM, partial(np.any, axis=0), [torch.bool]),
    (ReduceOp.PRODUCT, partial(np.all, axis=0), [torch.bool]),
    (ReduceOp.BXOR, np.logical_xor.reduce, [torch.bool]),
]


# One to four trainers, on one node and on two, with and without servers
GROUPS = [Layout(1, 0, 0), Layout(2, 0, 0), Layout(3, 0, 2), Layout(4, 1, 2), Layout(4, 0, 1)]
groups, groups_of_several = on_layouts(GROUPS), on_layouts(GROUPS[1:])


@contextmanager
def started(backend: str = "mpi4py", seconds: float = 120) -> Iterator[tuple[int, int]]:
    """A default process group; its rank and size."""
    method = "mpi4py://" if backend == "mpi4py" else None
    dist.init_process_group(backend, init_method=method, timeout=timedelta(seconds=seconds))
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def input_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a rank's input: small whole numbers, with exact sums and products over four ranks in every dtype."""
    numbers = torch.from_numpy(((np.arange(int(np.prod(shape))) * 7 + rank * 5) % 4).reshape(shape))
    if dtype is torch.bool:
        return numbers > 1
    return (numbers + 2j * numbers if dtype.is_complex else numbers).to(dtype)


def everyone(size: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> np.ndarray:
    """Return [size, *shape], the inputs of all ranks; those of 16 bits as float32, integers as int64."""
    inputs = torch.stack([input_of(rank, shape, dtype) for rank in range(size)])
    wide = torch.float32 if dtype in FLOATS[:2] else torch.int64 if dtype in INTEGERS else dtype
    return inputs.to(wide).numpy()


def same(got: Tensor, want: np.ndarray) -> None:
    """Equal, as numbers of the tensor's dtype."""
    torch.testing.assert_close(got, torch.as_tensor(want).to(got.dtype), rtol=1e-6, atol=0)


def spread(tensor: Tensor) -> Tensor:
    """The same values in memory with gaps."""
    wide = torch.zeros(*tensor.shape, 3, dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


@groups
def test_reductions(job: SharedJob) -> None:
    with started() as (rank, size):
        for op, joined, dtypes in OPS:
            for dtype in dtypes:
                for shape in SHAPES if op in (ReduceOp.SUM, ReduceOp.MAX) else SHAPES[1:3]:
                    for place in (torch.clone, spread):
                        x = place(input_of(rank, shape, dtype))
                        dist.all_reduce(x, op)
                        same(x, joined(everyone(size, shape, dtype)))
                part = torch.zeros(3, dtype=dtype)
                dist.reduce_scatter_single(part, input_of(rank, (3 * size,), dtype), op)
                same(part, joined(everyone(size, (3 * size,), dtype))[3 * rank : 3 * rank + 3])
        half = torch.tensor([256.0 if rank == 0 else 0.5 / max(1, size - 1)], dtype=torch.bfloat16)
        dist.all_reduce(half)  # added one by one in bfloat16 the small ones would be lost
        assert half.item() == torch.tensor(256.0 + (0.5 if size > 1 else 0)).bfloat16().item()


@groups
def test_broadcast_and_all_gather(job: SharedJob) -> None:
    with started() as (rank, size):
        for dtype in DTYPES:
            for shape in SHAPES[1:]:
                want, root = everyone(size, shape, dtype), size // 2
                x = spread(input_of(rank, shape, dtype))
                dist.broadcast(x, root)
                same(x, want[root])
                parts = [spread(torch.zeros(shape, dtype=dtype)) for _ in range(size)]
                dist.all_gather(parts, input_of(rank, shape, dtype))
                same(torch.stack(parts), want)
                whole = torch.zeros(size * shape[0], *shape[1:], dtype=dtype)
                dist.all_gather_single(whole, input_of(rank, shape, dtype))
                same(whole, want.reshape(whole.shape))
                dist.all_gather_single(whole, whole[rank * shape[0] : (rank + 1) * shape[0]])  # overlapping
                same(whole, want.reshape(whole.shape))


@groups_of_several
def test_messages(job: SharedJob) -> None:
    with started() as (rank, size):
        to, source = (rank + 1) % size, (rank - 1) % size
        for shape in SHAPES:
            works = [dist.isend(input_of(rank, shape), to, tag=3), dist.isend(input_of(rank, (4,)), to, tag=9)]
            x, y = spread(torch.zeros(shape)), torch.zeros(4)
            assert dist.recv(y, source, tag=9) == source
            assert dist.recv(x, source, tag=3) == source
            same(x, everyone(size, shape)[source])
            same(y, everyone(size, (4,))[source])
            for work in works:
                work.wait()
        ops = [dist.P2POp(dist.isend, input_of(rank, (3,)), to), dist.P2POp(dist.irecv, x := torch.zeros(3), source)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(x, everyone(size, (3,))[source])
        works = [dist.isend(torch.zeros(3), to)]
        with pytest.raises(InvalidArgumentError, match=f"rank {source} sent 12 bytes, the tensor has 20"):
            dist.recv(torch.zeros(5), source)
        works[0].wait()
        for values in (3, 300_000) if MPI.get_vendor()[0] == "MPICH" else (3,):  # Open MPI aborts at a long one
            work = dist.isend(torch.zeros(values), to)
            with pytest.raises(InvalidArgumentError, match=f"recv from {source}: a message has more than the 8 bytes"):
                dist.recv(torch.zeros(2), source)
            work.wait()
        dist.barrier()


@groups_of_several
def test_a_begin_costs_the_same_however_many_are_outstanding(job: SharedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    advance = Task.advance
    monkeypatch.setattr(Task, "advance", lambda task: (looks.append(threading.get_ident()), advance(task))[1])
    with started() as (rank, _):
        for progress in (True, False):
            if not progress:
                dist.group.WORLD._outstanding._progress = None
            parts = torch.zeros(300, 2)
            looks.clear()
            works = [dist.irecv(part, 1) for part in parts] if rank == 0 else []
            assert looks.count(threading.get_ident()) <= 3 * len(parts)
            if rank == 0:
                outstanding = dist.group.WORLD.outstanding
                assert [operation.what for operation in outstanding] == ["recv from 1"] * 300
                assert re.fullmatch(r"test_process_group.py:\d+", outstanding[0].line)
            dist.barrier()
            for i in range(300 if rank == 1 else 0):
                dist.send(torch.full((2,), float(i)), 0)
            for work in works:
                work.wait()
            same(parts, np.arange(300)[:, None] * np.ones(2) * (rank == 0))
            assert not dist.group.WORLD.outstanding


@groups
def test_objects_and_subgroups(job: SharedJob) -> None:
    with started() as (rank, size):
        names: list[object] = [None] * size
        dist.all_gather_object(names, {"rank": rank})
        assert names == [{"rank": r} for r in range(size)]
        values = [rank, "x"] if rank == 0 else [None, None]
        dist.broadcast_object_list(values)
        assert values == [0, "x"]
        if size > 1 and rank < 2:
            values = [{"from": rank}] if rank else [None]
            (dist.send_object_list if rank else dist.recv_object_list)(values, 1 - rank)
            assert values == [{"from": 1}]
        members = list(range(0, size, 2))
        group = dist.new_group(members)
        x = input_of(rank, (6,))
        dist.all_reduce(x, group=group) if rank in members else None
        inputs = everyone(size, (6,))
        same(x, inputs[members].sum(0) if rank in members else inputs[rank])
        if rank in members:
            x = input_of(rank, (6,))
            dist.broadcast(x, members[-1], group=group)
            same(x, inputs[members[-1]])
            dist.destroy_process_group(group)
        everybody = dist.new_group()
        x = input_of(rank, (6,))
        dist.all_reduce(x, group=everybody)
        same(x, inputs.sum(0))


@groups
def test_handles(job: SharedJob) -> None:
    with started() as (rank, size):
        tensors = [input_of(rank + i, (50_000,)) for i in range(8)]
        works = [dist.all_reduce(x, async_op=True) for x in tensors]
        futures = [work.get_future() for work in works[::2]]
        for x, future in zip(tensors[::2], futures, strict=True):
            assert future.wait()[0] is x
        for work in reversed(works):
            assert work.wait(timedelta(seconds=120)) and work.is_completed() and work.is_success()
        for i, x in enumerate(tensors):
            same(x, sum(input_of(r + i, (50_000,)).double().numpy() for r in range(size)))
        doubled = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda f: f.value()[0] * 2)
        assert torch.equal(doubled.wait(), torch.full((3,), 2.0 * size))
        work = dist.barrier(async_op=True)
        if rank == 0:
            time.sleep(0.1)
        work.wait()


CALLS: dict[str, Callable[..., object]] = {
    "all_reduce": lambda n, count=4, dtype=None, op=ReduceOp.SUM: dist.all_reduce(torch.ones(count, dtype=dtype), op),
    "broadcast": lambda n, count=4, root=0: dist.broadcast(torch.ones(count), root % n),
    "all_gather": lambda n, count=4: dist.all_gather_single(torch.ones(n * count), torch.ones(count)),
    "reduce_scatter": lambda n, count=4: dist.reduce_scatter_single(torch.ones(count), torch.ones(n * count)),
}
BARRIER = ("barrier", lambda n: dist.barrier())
BEGUN = ("all_reduce(SUM) of 300000", lambda n: dist.all_reduce(torch.ones(300_000), async_op=True).wait())


def called(name: str, words: str = "", **options: Any) -> tuple[str, Callable[[int], object]]:
    """What a message says of a call, and the call on so many trainers."""
    return f"{name}{words}", lambda n: CALLS[name](n, **options)


CROSSINGS = [  # the first trainer's call and that of the others
    (called("all_reduce", "(SUM) of 35 torch.float32", count=35), called("all_reduce", "(SUM) of 1 ", count=1)),
    (called("all_reduce", "(SUM) of 4 torch.int64", dtype=torch.int64), called("all_reduce", "(SUM) of 4 torch.float")),
    (called("all_reduce", "(MAX) of 4", op=ReduceOp.MAX), called("all_reduce", "(SUM) of 4")),
    (called("all_gather", " of 4 torch.float32"), called("all_gather", " of 5", count=5)),
    (
        called("broadcast", " of 4 torch.float32 with root 0"),
        called("broadcast", " of 4 torch.float32 with root {last}", root=-1),
    ),
    (called("all_reduce", "(SUM) of 4 torch.float32"), called("reduce_scatter", "(SUM) of 4 torch.float32")),
    (BARRIER, BEGUN),
]


@groups_of_several
def test_calls_that_differ_raise_on_every_trainer(job: SharedJob) -> None:
    with started() as (rank, size):
        for number, ((one, first), (another, rest)) in enumerate(CROSSINGS):
            with pytest.raises(
                CollectiveError, match=f"call {2 * number + 1} of process group .* is not the same"
            ) as caught:
                (rest if rank else first)(size)
            text = str(caught.value)
            assert re.search(rf"trainer\(s\) 0: {re.escape(one)}.* at test_process_group.py:\d+", text), text
            others_text = re.escape(another.format(last=size - 1))
            numbers = ", ".join(map(str, range(1, size)))
            assert re.search(rf"trainer\(s\) {numbers}: {others_text}.* at test_process_group.py:\d+", text), text
            x = input_of(rank, (6,))
            dist.all_reduce(x)  # nothing was begun by the wrong calls
            same(x, everyone(size, (6,)).sum(0))


@groups_of_several
def test_another_backend_needs_a_store(job: SharedJob) -> None:
    with started() as (rank, size):
        for members in (None, [0, 1]):
            with (
                pytest.raises(InvalidArgumentError, match=r"no key-value store.* without init_method")
                if (members is None or rank in members)
                else nullcontext()
            ):
                dist.new_group(members, backend="gloo")
        x = input_of(rank, (6,))
        dist.all_reduce(x, group=dist.new_group())
        same(x, everyone(size, (6,)).sum(0))


@groups_of_several
def test_outstanding_calls_that_differ(job: SharedJob) -> None:
    """Some are begun before, some after; a call that one trainer leaves out shifts all that follow."""
    with started() as (rank, size):
        tensors = [torch.full((100,), float(rank)) for _ in range(6)]
        works = [
            dist.all_reduce(x[: 9 if rank == 0 and i in (2, 3) else 100], async_op=True) for i, x in enumerate(tensors)
        ]
        for i, (x, work) in enumerate(zip(tensors, works, strict=True)):
            with pytest.raises(CollectiveError, match=f"call {i + 1} ") if i in (2, 3) else nullcontext():
                work.wait()
            same(x, np.full(100, rank if i in (2, 3) else sum(range(size))))
        if rank == 0:
            model = DistributedDataParallel(nn.Linear(3, 2))
            with pytest.raises(
                RuntimeError, match=r"CollectiveError: call \d+ (.*\n)*.*trainer\(s\) 1.*: barrier at test_proc"
            ):
                model(torch.ones(1, 3)).sum().backward()
        else:
            DistributedDataParallel(nn.Linear(3, 2))
            with pytest.raises(
                CollectiveError, match=r"trainer\(s\) 0: all_reduce\(SUM\) of 8 torch.float32 at test_process"
            ):
                dist.barrier()


@groups
def test_a_callback_may_wait_for_other_operations(job: SharedJob) -> None:
    def again(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        return dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().then(last).wait()

    def last(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        return dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()[0]

    with started() as (rank, size):
        for _ in range(5):
            work = dist.all_reduce(torch.ones(3), async_op=True)
            result = work.get_future().then(again).wait()
            same(result, np.full(3, size**3))
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)))
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for step in range(5):
            model(torch.ones(2, 32) * (rank + step)).sum().backward()
        sums = [p.grad.double().sum().reshape(1) for p in model.parameters()]
        for one in sums:
            everywhere = one.clone()
            dist.broadcast(everywhere, 0)
            assert torch.equal(one, everywhere)
    assert soon(lambda: not [t for t in threading.enumerate() if t.name.startswith("mpigraph-callbacks")])


@groups_of_several
def test_a_message_that_is_never_received_is_dropped(job: SharedJob, caplog: pytest.LogCaptureFixture) -> None:
    """By an isend whose handle is kept, by one that is waited for, and by a small one."""
    with started() as (rank, _):
        if rank == 0:
            works = [dist.isend(torch.zeros(count), 1, tag=5) for count in (1_000_000, 3)]
        elif rank == 1:
            dist.send(torch.zeros(1_000_000), 0)  # who is in destroy_process_group()
    if rank == 0:
        assert all(work.is_success() for work in works)
    if rank < 2:
        assert f"{1 + rank} message(s) were never received and are dropped" in caplog.text


@needs_threads
@groups_of_several
def test_an_operation_goes_on_without_being_waited_for(job: SharedJob, tmp_path: Path) -> None:
    """One trainer neither waits nor calls MPI again: the others need its part in a sum that is made in steps."""
    folder = job.one_has(lambda: tmp_path)
    with started() as (rank, size):
        big = torch.full((1_000_000,), float(rank))
        dist.barrier()  # all begin at the same time
        work = dist.all_reduce(big, async_op=True)
        if rank == 0:
            assert wait_for([folder / str(other) for other in range(1, size)])
        work.wait()
        (folder / str(rank)).touch()
        assert bool((big == sum(range(size))).all())


@own_on_layouts([Layout(1, 0, 0), Layout(2, 0, 0), Layout(3, 1, 0), Layout(4, 1, 2)])
def test_without_threads(layout: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "threads_may_communicate", False)

    def body() -> None:
        with started() as (rank, size):
            to, source = (rank + 1) % size, (rank - 1) % size
            x, big = torch.zeros(300_000), torch.full((300_000,), float(rank))
            if size > 1:
                dist.isend(big, to)  # without keeping the handle
                dist.recv(x, source)
                same(x, np.full(300_000, source))
            total = big.clone()  # big may still be on its way
            work = dist.all_reduce(total, async_op=True)
            dist.barrier()
            assert work.get_future().done() and total[0] == sum(range(size))
            assert progress_threads() == before
            if size > 1:
                group = dist.new_group()
                with pytest.raises(CollectiveError, match=r"trainer\(s\) 0: .* torch.int32.*\n.* torch.float32"):
                    dist.all_reduce(torch.ones(2, dtype=torch.float32 if rank else torch.int32), group=group)

    def progress_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "mpigraph-progress"}

    before = progress_threads()  # those of a job that other tests share
    layout.run(body)


@groups
def test_torch_operators(job: SharedJob) -> None:
    """The collectives that compiled code calls, through torch's dispatcher and the group's name."""
    with started() as (rank, size):
        group = dist.group.WORLD
        inputs = everyone(size, (2 * size,))
        same(functional.all_reduce(input_of(rank, (2 * size,)), "sum", group), inputs.sum(0))
        got = functional.reduce_scatter_single(input_of(rank, (2 * size,)), "sum", 0, group)
        same(got, inputs.sum(0)[2 * rank : 2 * rank + 2])
        same(functional.all_gather_single(input_of(rank, (2,)), 0, group), everyone(size, (2,)).reshape(-1))
        with pytest.raises(InvalidArgumentError, match="several tensors in one call"):
            functional.all_reduce_coalesced([torch.ones(1), torch.ones(2)], "sum", group)


@groups
def test_errors_name_the_thing(job: SharedJob) -> None:
    with started() as (rank, size):
        with pytest.raises(InvalidArgumentError, match="all_reduce .* dense CPU tensors .* on meta"):
            dist.all_reduce(torch.ones(3, device="meta"))
        with pytest.raises(InvalidArgumentError, match="cannot do AVG of torch.int64"):
            dist.all_reduce(torch.ones(3, dtype=torch.int64), ReduceOp.AVG)
        with pytest.raises(InvalidArgumentError, match="cannot do BXOR of torch.float32"):
            dist.all_reduce(torch.ones(3), ReduceOp.BXOR)
        with pytest.raises(InvalidArgumentError, match="cannot do MAX of torch.complex64"):
            dist.reduce_scatter_single(torch.ones(1) + 0j, torch.ones(size) + 0j, ReduceOp.MAX)
        with pytest.raises(InvalidArgumentError, match="is not|are not"):
            dist.all_gather_single(torch.zeros(size + 1), torch.ones(1))
        with pytest.raises(InvalidArgumentError, match=r"needs \d tensors of 3 value\(s\), .*got 2"):
            dist.all_gather([torch.ones(2)] * size, torch.ones(3))
        one, parts = torch.ones(1), [torch.ones(1)] * size
        for call in (
            lambda: dist.reduce(one, 0),
            lambda: dist.gather(one, parts if rank == 0 else None),
            lambda: dist.scatter(one, parts if rank == 0 else None),
            lambda: dist.reduce_scatter(one, parts),
            lambda: dist.all_to_all(parts, parts),
            lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size)),
            lambda: dist.recv(one),
            lambda: dist.gather_object(1, parts if rank == 0 else None),
        ):
            with pytest.raises(InvalidArgumentError, match="has all_reduce, .* use a group of gloo for other calls"):
                call()
        dist.all_reduce(torch.ones(1))  # nothing was begun by the wrong calls


def ports() -> set[str]:
    """The listening TCP sockets of the machine, by number."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    listening = {words[9] for words in lines if words[3] == "0A"}
    own = {path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    return {number for number in listening if f"socket:[{number}]" in own}


@api
def test_its_beginning_and_its_end(layout: Job) -> None:
    """Without a port, by the default rendezvous and by its own; it ends with the job where nobody destroys it."""

    def body() -> None:
        for method in (None, "mpi4py://"):
            before = ports()
            dist.init_process_group("mpi4py", init_method=method, timeout=timedelta(seconds=120))
            assert (dist.get_rank(), dist.get_world_size()) == (current().rank, current().num_trainers)
            assert dist.get_backend() == "mpi4py" and (method is None or ports() <= before)
            x = torch.ones(1)
            dist.all_reduce(x)
            assert x.item() == dist.get_world_size()
            dist.barrier()
            if method is None:
                dist.destroy_process_group()

    layout.run(body)  # closes the job; the group is still torch's
    if dist.is_initialized():
        with pytest.raises(ClosedError, match="the process group was closed"):
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()


def test_before_initialize() -> None:
    with pytest.raises(NotInitializedError, match="initialize"):
        dist.init_process_group("mpi4py", init_method="mpi4py://")
    assert not dist.is_initialized()
    # torch counted the attempt and names groups by the count: this rank's next group would not find the other ranks'
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


class Net(nn.Module):
    """Several buckets of gradients, and a parameter in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 5))
        self.scale = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
        self.norm = nn.BatchNorm1d(5)  # buffers, which DDP broadcasts

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layers(x) * self.scale)


def gradients(steps: int, wrap: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
    """Train with steps that differ between trainers; the last step's gradients, and the weights."""
    net = Net()
    model = wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    with model.join():
        for _ in range(steps + rank):
            optimizer.zero_grad()
            model(torch.randn(16, 20)).square().mean().backward()
            optimizer.step()
    return [x.detach().clone() for p in net.parameters() for x in (p, p.grad)]


@groups
def test_ddp_does_what_it_does_with_gloo(job: SharedJob) -> None:
    def wrap(net: nn.Module) -> nn.Module:
        return DistributedDataParallel(net, bucket_cap_mb=0.02)

    results = []
    for backend in ("gloo", "mpi4py", "mpi4py"):
        with started(backend) as (rank, size):
            results.append(gradients(4, wrap))
            if backend == "gloo":  # both beside each other
                group = dist.new_group(list(range(size)), backend="mpi4py")
                sums = [input_of(rank, (6,)), input_of(rank, (6,))]
                works = [dist.all_reduce(sums[0], group=group, async_op=True), dist.all_reduce(sums[1], async_op=True)]
                for work in works:
                    work.wait()
                assert torch.equal(*sums)
    for gloo, mpi, again in zip(*results, strict=True):
        torch.testing.assert_close(mpi, gloo, rtol=1e-5, atol=1e-6 if gloo.dtype is torch.float32 else 1e-2)
        assert torch.equal(mpi, again)


@pytest.mark.slow
def test_exit_without_a_wait(tmp_path: Path, oracle: Callable[..., str]) -> None:
    """Nor is the group destroyed."""
    body = """
import torch.distributed as td
td.init_process_group("mpi4py", init_method="mpi4py://")
work = td.all_reduce(torch.ones(3), async_op=True)
print("begun")
"""
    status, output, seconds = run_script(tmp_path, oracle(2), body)
    assert status == 0 and output.count("begun") == 2 and seconds < SOON, output


@groups_of_several
def test_memory_of_what_nobody_waits_for_any_more_is_kept(job: SharedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI writes to it when the others come. The time given to a group is that of each operation in it."""
    kept: list[Task[Any]] = []
    keep = Outstanding.keep
    monkeypatch.setattr(Outstanding, "keep", lambda self, task: (kept.append(task), keep(self, task))[1])
    with started(seconds=0.05) as (rank, _):
        if rank == 0:
            with pytest.raises(TimeoutError, match="all_reduce is not complete"):
                dist.all_reduce(torch.ones(9, dtype=torch.bfloat16))
            assert [task.name for task in kept] == ["all_reduce"]
        current().world.trainers.Barrier()
        if rank != 0:
            dist.all_reduce(torch.ones(9, dtype=torch.bfloat16), async_op=True).wait(timedelta(seconds=WAIT))


@groups_of_several
def test_a_receive_that_nothing_is_sent_for_is_given_up(job: SharedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpigraph.process_group.process_group._ARRIVING", 0.05)
    with started() as (rank, _):
        work = dist.irecv(torch.zeros(1), 1) if rank == 0 else None
        current().world.trainers.Barrier()
    assert work is None or work.is_completed()


@groups
def test_bytes_are_counted_by_trainer(job: SharedJob) -> None:
    """What all send is what all receive; a sum takes 2 (n - 1) / n of its bytes on each link of a ring."""
    with started() as (rank, size):
        before = sums()[1]

        def passed(name: str) -> dict[int, int]:
            found: dict[int, int] = {}
            for thread, now in sums()[1].items():
                for key, number in now.since(before.get(thread, Snapshot())).counts.items():
                    if isinstance(key, tuple) and key[0] == name and number:
                        found[key[1]] = found.get(key[1], 0) + number
            return found

        values = torch.ones(1200)
        dist.all_reduce(values)
        ring = 2 * 4800 * (size - 1) // size
        assert passed("group_sent_bytes") == ({(rank + 1) % size: ring} if size > 1 else {})
        assert passed("group_received_bytes") == ({(rank - 1) % size: ring} if size > 1 else {})
        dist.broadcast(values, size - 1)
        dist.all_gather([torch.empty(3) for _ in range(size)], torch.ones(3))
        dist.reduce_scatter_single(torch.empty(3), torch.ones(size * 3))
        if size > 1 and rank < 2:
            (dist.send if rank else dist.recv)(values, 1 - rank)
        dist.barrier()
        totals = torch.tensor([sum(passed(f"group_{way}_bytes").values()) for way in ("sent", "received")])
        everyone = [torch.empty_like(totals) for _ in range(size)]
        dist.all_gather(everyone, totals)
        sent, received = torch.stack(everyone).sum(0).tolist()
        assert sent == received and (sent > 0) == (size > 1)
