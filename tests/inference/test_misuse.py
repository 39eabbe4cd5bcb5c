"""Layers and arguments that layer-wise inference does not expect: one error for all, and it works afterwards."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_checks import sums
from layouts import SharedJob, on_all
from torch import nn

import mpigraph.distributed as dist
from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError, TensorMismatchError
from mpigraph.inference import layerwise

run = functools.partial(layerwise, batch_size=9)


def test_a_layer_meets_nobody(job: SharedJob, g: dist.DistGraph) -> None:
    """Trainers have different numbers of blocks, so that a call of all would be one of some."""
    x, last = g.ndata["feat"], job.rank == job.trainers.size - 1

    def only(call: Callable[[], Any]) -> Callable[..., torch.Tensor]:
        def layer(block: Any, h: Any) -> torch.Tensor:
            if last:
                call()
            return sums(block, h)

        return layer

    policy = g.get_node_partition_policy()
    for call in (
        g.barrier,
        lambda: run(g, [sums], x),
        lambda: dist.DistTensor((g.num_nodes(), 1), torch.float32, part_policy=policy),
    ):
        with pytest.raises(CollectiveError, match="not in step"):
            run(g, [only(call)], x)
    on_all(job.trainers, torch.equal(run(g, [only(lambda: None)], x)[:], run(g, [sums], x)[:]))


class Unwell(nn.Module):
    """Raises in some block."""

    def __init__(self, error: BaseException, when: int) -> None:
        super().__init__()
        self.error, self.left = error, when

    def forward(self, block: Any, h: Any) -> torch.Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.left -= 1
        if self.left == 0:
            raise self.error
        return sums(block, h)


def test_what_fails_in_the_middle_leaves_nothing_behind(job: SharedJob, g: dist.DistGraph) -> None:
    x, last = g.ndata["feat"], job.rank == job.trainers.size - 1
    wanted = run(g, [sums, sums], x)[:]
    state = g.session.store
    g.barrier()
    before = len(state.tensors)
    cases: list[tuple[BaseException, int, Any]] = [
        (KeyError("third block"), 3 if last else -1, MPIGraphError),
        (StopIteration(), 2 if last else -1, MPIGraphError),
        (KeyboardInterrupt(), 1, KeyboardInterrupt),  # of all trainers at once, as a terminal does it
    ]
    for error, when, kind in cases:
        layer = Unwell(error, when)
        with pytest.raises(kind):
            run(g, [sums, layer], x)
        assert layer.training
        assert torch.is_grad_enabled()
        error.__traceback__ = None
        on_all(job.trainers, torch.equal(run(g, [sums, sums], x)[:], wanted))
    for _ in range(2):
        g.barrier()  # which frees what was dropped
    on_all(job.trainers, (len(state.tensors), len(state.caches)) == (before, 0), f"{state.tensors.keys()}")


def test_types_may_share_the_memory_of_what_a_layer_returns(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    x = {ntype: g.nodes[ntype].data["feat"] for ntype in g.ntypes}
    memory = torch.empty(200, 2)

    def doubles(block: Any, h: Any) -> dict[str, torch.Tensor]:
        return {t: torch.mul(rows, 2, out=memory[: len(rows)]) for t, rows in h[1].items() if len(rows)}

    found = run(g, [doubles], {t: rows for t, rows in x.items() if len(rows)})
    on_all(job.trainers, all(torch.equal(rows[:], 2 * x[t][:]) for t, rows in found.items()), str(found.keys()))


class NoSteps(nn.Module):
    """Layers, and a forward that may do anything between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3)])

    def forward(self, blocks: Any, h: Any) -> Any:
        return h


def test_what_is_wrong_is_one_error_on_every_trainer(job: SharedJob, g: dist.DistGraph) -> None:
    x = g.ndata["feat"]
    last = job.rank == job.trainers.size - 1

    def fails(block: Any, h: Any) -> torch.Tensor:
        if last:
            raise KeyError("no luck")
        return sums(block, h)

    cases: dict[type[MPIGraphError], list[tuple[Any, Any, dict[str, Any], str]]] = {
        MPIGraphError: [([fails], x, {}, "no luck"), ([sums, 3], x, {}, "layer 2 of 2 .* not callable")],
        InvalidArgumentError: [
            ([lambda block, h: h[1][1:]], x, {}, "a row for each of"),
            ([lambda block, h: None], x, {}, "a row for each of"),
            ([lambda block, h: h[1].sum()], x, {}, "a row for each"),
            ([lambda block, h: h[1].numpy()], x, {}, "a row for each"),
            ([lambda block, h: {"_N": h[1]}], x, {}, "a row for each"),
            ([lambda block, h: (h[1],)], x, {}, "a row for each"),
            ([lambda block, h: h[1].to(torch.float8_e4m3fn)], x, {}, "cannot be stored"),
            ([sums], x, {"batch_size": 0 if last else 1}, "batch_size"),
            ([sums], x[:], {}, "DistTensor"),
            *((layers, x, {}, "layer") for layers in ([], iter([sums]), "layers", None, nn.ModuleDict())),
            (nn.Linear(1, 1), x, {}, "no layers"),
            (NoSteps(), x, {}, "forward_layer"),
        ],
        TensorMismatchError: [([sums], g.edata["weight"], {}, "nodes of type")],
    }
    if job.trainers.size > 1:
        cases[TensorMismatchError] += [
            ([lambda block, h: h[1][:, : 1 + last]], x, {}, "trainer"),
            ([sums] * (1 + last), x, {}, "number of layers"),
            ([sums], x, {"batch_size": 5 + last}, "batch_size"),
        ]
    for kind, some in cases.items():
        for layers, rows, options, text in some:
            with pytest.raises(kind, match=text):
                layerwise(g, layers, rows, **({"batch_size": 20} | options))
    nothing = run(g, [lambda block, h: h[1][:, :0], lambda block, h: h[1].sum(1)], x)
    on_all(job.trainers, torch.equal(nothing[:], torch.zeros(g.num_nodes())))


def test_types_may_lack_rows(job: SharedJob, typed_oracle: str) -> None:
    """In the input, and in what a layer returns."""
    g = job.open(typed_oracle)
    x = {ntype: g.nodes[ntype].data["feat"] for ntype in ("author", "paper")}

    def cited(block: Any, h: Any) -> dict[str, torch.Tensor]:
        src, dst = block.edges(etype="cites")
        return {"paper": torch.zeros_like(h[1]["paper"]).index_add(0, dst, h[0]["paper"][src])}

    src, dst = g.find_edges(torch.arange(g.num_edges("cites")), "cites")
    wanted = x["paper"][:]
    for _ in range(2):
        wanted = torch.zeros_like(wanted).index_add_(0, dst, wanted[src])
    for batch_size in (10, 1000):
        found = layerwise(g, [cited] * 2, x, batch_size=batch_size)
        on_all(job.trainers, found.keys() == {"paper"} and torch.equal(found["paper"][:], wanted), f"{batch_size}")
