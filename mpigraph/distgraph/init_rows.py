"""What the rows of a new tensor are: made on the trainers, each of which fills the rows that it owns."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import convert, to_torch
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.rng import combine
from mpigraph.rows.owners import RowOwners
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.session.context import Session
from mpigraph.session.control import Operation

__all__ = ["Fill", "InitFunc", "by_chunk", "by_range", "fill_rows"]

InitFunc = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
Fill = Callable[[RowTensor, RowOwners], None]
"""Fills the rows that this trainer owns."""

CHUNK = 1 << 14  # rows of one call; whoever changes it changes the rows that a seed makes
_DRAWS = 0x1217  # separates these draws from others with the same seed


@collective("trainers")
def fill_rows(session: Session, rows: RowTensor, fill: Fill) -> None:
    """Fill the rows of a new tensor.

    Raises:
        CollectiveError: ``fill`` raised somewhere; on every trainer.
    """
    with session.world.together(f"init_func of tensor {rows.name!r}"):
        fill(rows, RowOwners(session.world, rows.window.offsets))
    session.control.call(Operation.BARRIER)


def by_range(init_func: InitFunc, dtype: torch.dtype) -> Fill:
    """Call ``init_func(shape, dtype)`` once for each range of rows that a trainer owns."""

    def fill(rows: RowTensor, owners: RowOwners) -> None:
        for owned in owners.ranges():
            shape = (owned.last - owned.first, *rows.shape[1:])
            values = convert(init_func(shape, dtype), dtype, "what it returns")
            _check_shape(values, shape)
            with rows.writing(owned.host) as segment:
                to_torch(segment[owned.rows], rows.dtype)[:] = values

    return fill


def by_chunk(init_func: InitFunc, dtype: torch.dtype, seed: int) -> Fill:
    """Call ``init_func(shape, dtype)`` for :data:`CHUNK` rows at a time, with draws that depend on the chunk alone.

    The rows are then the same whoever makes them. A chunk that several trainers own rows of is made by each of them,
    who keeps its own rows.
    """
    return partial(_fill_chunks, init_func, dtype, seed)


def _fill_chunks(init_func: InitFunc, dtype: torch.dtype, seed: int, rows: RowTensor, owners: RowOwners) -> None:
    ranges = owners.ranges()
    for number, begin in enumerate(range(0, rows.shape[0], CHUNK)):
        end = min(begin + CHUNK, rows.shape[0])
        mine = [owned for owned in ranges if owned.first < end and begin < owned.last]
        if not mine:
            continue
        with _draws_of(int(combine(seed, _DRAWS, number))):
            values = convert(init_func((end - begin, *rows.shape[1:]), dtype), dtype, "what it returns")
        _check_shape(values, (end - begin, *rows.shape[1:]))
        for owned in mine:
            first, last = max(begin, owned.first), min(end, owned.last)
            at = owned.rows.start + first - owned.first
            with rows.writing(owned.host) as segment:
                out = to_torch(segment[at : at + last - first], rows.dtype)
                out[:] = values[first - begin : last - begin]


def _check_shape(values: torch.Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(values.shape) != wanted:
        raise InvalidArgumentError(f"it must return a tensor of shape {wanted} (got {tuple(values.shape)})")


@contextmanager
def _draws_of(seed: int) -> Iterator[None]:
    """Seed the default generators of torch (CPU), numpy and Python, and give them back as they were."""
    before: tuple[Any, Any, Any] = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would touch the generators of GPUs, too
        np.random.seed(seed % 2**32)  # noqa: NPY002 - what a user's function draws from
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])
