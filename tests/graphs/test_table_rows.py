"""Rows of a table that are gathered when somebody looks: always what the gathered rows would give."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.graphs.aggregate import TableRows, first_rows
from mpigraph.graphs.block import Block
from mpigraph.metadata.schema import Schema
from mpigraph.nn import SAGEConv

WIDTH = 5
SCRIPTED = torch.jit.script(torch.nn.Linear(WIDTH, WIDTH))


def table_and_rows() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.normal(size=(40, WIDTH)).astype(np.float32)), torch.from_numpy(rng.permutation(40)[:30])


LOOKS: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": lambda x: (x.shape, x.dtype, x.device, x.dim(), x.size(0), len(x), x.numel(), x.ndim, x.requires_grad),
    "arithmetic": lambda x: x * 2 + x,
    "reversed": lambda x: 1 / x,
    "matmul": lambda x: x @ x.T,
    "linear": lambda x: F.linear(x, torch.ones(3, WIDTH)),
    "slice": lambda x: x[2:7, 1:],
    "cat": lambda x: torch.cat([x, x]),
    "out": lambda x: torch.add(x, 1, out=torch.empty(30, WIDTH)),
    "numpy": lambda x: torch.from_numpy(x.numpy() + np.asarray(x)),
    "list": lambda x: x.tolist(),
    "iteration": lambda x: torch.stack(list(x)),
    "copy": copy.deepcopy,
    "double": lambda x: x.double(),
    "view": lambda x: x.view(-1, 1),
    "repr": repr,
    "scripted": lambda x: SCRIPTED(x).detach(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_it_is_the_gathered_rows(look: str) -> None:
    table, rows = table_and_rows()
    x = TableRows(table, rows)
    result, expected = LOOKS[look](x), LOOKS[look](table[rows])
    if isinstance(expected, torch.Tensor):
        assert type(result) is torch.Tensor and torch.equal(result, expected)
    else:
        assert result == expected
    assert x.in_place == (look == "shape")


def test_what_is_written_to_it_is_read_from_it_and_the_table_stays() -> None:
    table, rows = table_and_rows()
    before = table.clone()
    x = TableRows(table, rows)
    x.mul_(2)
    x[:4] += 1
    torch.add(x, 1, out=x)
    expected = before[rows] * 2
    expected[:4] += 1
    expected += 1
    assert torch.equal(x + 0, expected) and torch.equal(first_rows(x, 9), expected[:9]) and torch.equal(table, before)
    assert x.requires_grad_().requires_grad
    x.requires_grad_(False)
    block = chain()
    with torch.no_grad():
        block.srcdata["h"] = x
        block.update_all(fn.copy_u("h", "m"), fn.sum("m", "s"))
    assert torch.equal(block.dstdata["s"], expected[:20] + expected[10:])


def test_where_they_are_gathered_does_not_matter() -> None:
    """They are what they are also after somebody asked for shapes alone, or for no gradients."""
    table, rows = table_and_rows()
    x = TableRows(table, rows)
    assert FakeTensorMode().from_tensor(x).shape == x.shape
    with FakeTensorMode():
        _ = x.gathered()
    assert torch.equal(x + 0, table[rows])
    x = TableRows(table, rows)
    with torch.inference_mode():
        _ = x + 0
    weights = torch.ones(WIDTH, requires_grad=True)
    assert torch.equal(torch.autograd.grad((x * weights).sum(), [weights])[0], table[rows].sum(0))


def chain() -> Block:
    """20 destinations, each with in-edges from the source of its number and the tenth behind it."""
    sources = np.stack([np.arange(20), np.arange(10, 30)], 1).reshape(-1).astype(np.int32)
    schema = Schema.homogeneous()
    edges = {schema.relations[0]: (np.arange(0, 41, 2), sources, np.arange(40))}
    return Block.from_csc(schema, edges, {schema.ntypes[0]: np.arange(30)}, {schema.ntypes[0]: 20})


def test_sums_and_means_read_the_table() -> None:
    """Weights get the gradients of the gathered rows, too."""
    table, rows = table_and_rows()
    weights = torch.arange(40, dtype=torch.float32, requires_grad=True)
    layer = SAGEConv(WIDTH, 8, "mean").eval()
    for message in (fn.copy_u("h", "m"), fn.u_mul_e("h", "w", "m")):
        for reduce in (fn.sum, fn.mean):
            result = []
            for x in (TableRows(table, rows), table[rows]):
                block = chain()
                block.edata["w"] = weights
                block.srcdata["h"] = x
                with torch.no_grad():
                    block.update_all(message, reduce("m", "s"))
                    result += [block.dstdata["s"], layer(block, x), layer(block, (x, first_rows(x, 20)))]
                assert not isinstance(x, TableRows) or x.in_place
                block.update_all(fn.u_mul_e("h", "w", "m"), reduce("m", "s"))
                result += torch.autograd.grad(block.dstdata["s"].sum(), [weights])
            for one, other in zip(result[:4], result[4:], strict=True):
                assert torch.equal(one, other)
