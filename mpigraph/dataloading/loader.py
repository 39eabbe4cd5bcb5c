"""Loaders: every trainer's seeds, batch by batch, sampled ahead of the model.

``seeds -> batches -> collate (sampling, gathering) -> queue -> model``: everything before the queue runs in a thread,
``num_prefetch`` batches ahead, on a channel of its own. A trainer that has finished, or left its loop early, goes on
answering the others in the background until all are done, so that loops need not be in step.

Where MPI lacks ``MPI_THREAD_MULTIPLE`` nothing runs in the background: batches are made when they are asked for, and a
trainer that has finished or left its loop waits there, answering the others, until all are done. Its trainers must then
end their loops in the same order.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.dataloading.batches import block_batches, for_output, moved
from mpigraph.dataloading.prefetch import Prefetch
from mpigraph.dataloading.pyg_batches import pyg_batches
from mpigraph.dataloading.sampler import Names
from mpigraph.dataloading.seeds import Seeds, agreed_steps, batch_bounds, shuffled
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.ids import as_ids
from mpigraph.distgraph.sampling_args import edge_weights
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.in_memory import exact_device
from mpigraph.log import get_logger
from mpigraph.sampling.hops import RandomContext
from mpigraph.sampling.protocol import Operation
from mpigraph.session.context import Session, current

__all__ = ["DistDataLoader", "DistNodeDataLoader", "SampledDataLoader"]

_MAKERS = {"dgl": block_batches, "pyg": pyg_batches}


class _Epochs:
    """Runs a loader's epochs on a channel of its own; does not know the loader, so the loader can be dropped.

    Collective on the trainers: construction, in a call that is checked.
    """

    def __init__(self, session: Session, seed: int, depth: int) -> None:
        self._session = session
        self._seed = seed
        self._depth = depth
        self._service = session.open_service()
        self._last: Prefetch | None = None

    def start(self, epoch: int, batches: Callable[[], Iterator[Any]]) -> Prefetch:
        """Begin an epoch, once the one before is over on every trainer."""
        self.stop()
        draw = RandomContext(self._seed, epoch)

        def produce() -> Iterator[Any]:
            for make in batches():
                self._session.use(self._service, draw)
                try:
                    batch = make()
                finally:
                    self._session.use(None, None)
                yield batch

        background = self._session.world.threads_may_communicate
        self._last = Prefetch(produce, self._service.serve_until_idle, self._depth, background)
        self._session.loops[self._service.channel_number] = self._last
        return self._last

    def stop(self) -> None:
        """End the epoch under way: wait until every trainer has ended its own."""
        last, self._last = self._last, None
        if last is not None:
            with self._session.world.watch("the end of a loader's epoch on every trainer"):
                last.stop()

    def retire(self) -> None:
        """Drop the channel once no thread uses it."""
        last = self._last
        if last is not None:
            last.abandon()
        if last is None or not last.running:
            self._drop()
            return
        threading.Thread(target=self._drop_after, args=(last,), name="mpigraph-retire", daemon=True).start()

    def _drop_after(self, last: Prefetch) -> None:
        last.stop()
        self._drop()

    def _drop(self) -> None:
        self._session.control.drop(self._service.channel_number)


class DistDataLoader:
    """Batches of a dataset of ids, made by the user's ``collate_fn``.

    Every rank yields its own ids, each once, in the same number of batches (see ``dataloading/seeds.py``). One epoch
    runs at a time: beginning another one ends the one before. Order, batches and draws depend on ``seed`` and the
    number of the epoch alone.

    Collective on the trainers: construction and :meth:`close`. Iterating is collective when hosts are far, but trainers
    may take different numbers of steps and leave early.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        queue_size: int | None = None,
        *,
        num_prefetch: int = 2,
        seed: int | None = None,
    ) -> None:
        """Plan the batches.

        Args:
            dataset: int[n], this rank's ids; or type -> int[n], whose batches mix the types.
            batch_size: most ids of a batch.
            shuffle: another order in each epoch.
            collate_fn: makes a batch of a list of ids, or of ``(type, id)``; by default a tensor of the ids, or type ->
                tensor. It may sample and read features.
            drop_last: leave out ids that do not fill a batch.
            queue_size: DGL's name for ``num_prefetch``.
            num_prefetch: how many batches to be ahead; 0 makes them when they are asked for. The same batches result.
            seed: of order and draws; the job's by default.

        Raises:
            InvalidArgumentError: ``batch_size`` or ``num_prefetch`` out of range.
            CollectiveError: other trainers are in another call; on every trainer.
        """
        session = current()
        if batch_size < 1:
            raise InvalidArgumentError(f"batch_size must be >= 1 (got {batch_size})")
        depth = num_prefetch if queue_size is None else queue_size
        if depth < 0:
            raise InvalidArgumentError(f"num_prefetch must be >= 0 (got {depth})")
        if depth > 0 and not session.world.threads_may_communicate:
            get_logger().warning("MPI lacks MPI_THREAD_MULTIPLE: batches are made without prefetching")
            depth = 0
        self._seeds = Seeds(checked_ids(dataset, "dataset"))
        self._shuffle = shuffle
        self._seed = session.state.seed if seed is None else seed
        self._collate = collate_fn
        self._epochs = _Epochs(session, self._seed, depth)  # its checked call before the plain one below
        self._retire = weakref.finalize(self, self._epochs.retire)
        self._retire.atexit = False
        steps = agreed_steps(len(self._seeds), batch_size, drop_last, session.world.agree)
        self._bounds = batch_bounds(len(self._seeds), batch_size, drop_last, steps)
        self._rank = session.rank
        self._epoch = 0

    def __len__(self) -> int:
        """Number of batches that this rank yields in an epoch."""
        return len(self._bounds) - 1

    @property
    def expected_idxs(self) -> int:
        """DGL's name for ``len``."""
        return len(self)

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch, for example when training resumes."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        positions = self._positions(epoch)
        bounds, make = self._bounds.tolist(), self._batch_maker()

        def batches() -> Iterator[Callable[[], Any]]:
            for begin, end in pairwise(bounds):
                yield partial(make, positions(begin, end))

        return _hold(self, iter(self._epochs.start(epoch, batches)))

    def _batch_maker(self) -> Callable[[I64], Any]:
        """What turns positions of seeds into a batch.

        It must not refer to the loader, which can be dropped while a thread works.
        """
        collate, seeds = self._collate, self._seeds
        if collate is None:
            return lambda positions: as_tensors(seeds.take(positions))
        return lambda positions: collate(seeds.items(positions))

    def _positions(self, epoch: int) -> Callable[[int, int], I64]:
        """Which seeds come from one place in an epoch to another."""
        if not self._shuffle:
            return np.arange
        order = shuffled(len(self._seeds), self._seed, epoch, self._rank)
        return lambda begin, end: order[begin:end]

    def close(self) -> None:
        """End the epoch under way; the channel is freed at the next collective call. Collective on the trainers."""
        self._epochs.stop()
        self._retire()


def as_tensors(ids: I64 | dict[Any, I64]) -> Any:
    """Ids, or ids by type, as tensors."""
    return {t: torch.from_numpy(some) for t, some in ids.items()} if isinstance(ids, dict) else torch.from_numpy(ids)


def checked_ids(given: Any, what: str) -> I64 | dict[Any, I64]:
    """int64[n] ids, or type -> int64[n].

    Raises:
        InvalidArgumentError: the values are not integers in one dimension.
    """
    if isinstance(given, Mapping):
        return {kind: as_ids(ids, f"{what} of {kind!r}") for kind, ids in given.items()}
    return as_ids(given, what)


def _hold(loader: DistDataLoader, batches: Iterator[Any]) -> Iterator[Any]:
    """Iterate, keeping the loader alive: ``for batch in DistDataLoader(...)`` has no other reference to it."""
    yield from batches


class SampledDataLoader(DistDataLoader):
    """What loaders of nodes and of edges share: a sampler makes the batches, on a device of the caller's choice.

    Collective on the trainers: construction and :meth:`close`.
    """

    def __init__(
        self,
        g: DistGraph,
        ids: Any,
        sampler: Any,
        make: Callable[[Any], Any],
        device: torch.device | str | None,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        queue_size: int | None,
        num_prefetch: int,
        seed: int | None,
    ) -> None:
        """Plan the batches, and have the hosts prepare the edge weights that ``sampler.prob`` names, if any.

        ``make`` makes a minibatch of int64[b] ids, or of ids by type, which is moved to ``device`` unless that is None.
        The other arguments are those of :class:`DistDataLoader`.
        """
        prob = getattr(sampler, "prob", None)
        weights = {} if prob is None else edge_weights(g, prob)
        if device is None:
            self._make = make
        else:
            target = exact_device(device)  # each thread has a current GPU of its own
            self._make = lambda batch: moved(make(batch), target)
        super().__init__(ids, batch_size, shuffle, None, drop_last, queue_size, num_prefetch=num_prefetch, seed=seed)
        if weights:
            current().control.call(Operation.PREPARE_WEIGHTS, numbers=sorted(weights.values()))

    def _batch_maker(self) -> Callable[[I64], Any]:
        make, seeds = self._make, self._seeds
        return lambda positions: make(as_tensors(seeds.take(positions)))


class DistNodeDataLoader(SampledDataLoader):
    """Minibatches of nodes: yields ``(input_nodes, output_nodes, blocks)``, or what PyG's models take.

    Where the graph has several node types, input and output nodes are by type, with every type.

    Collective on the trainers: construction and :meth:`close`.
    """

    def __init__(
        self,
        g: DistGraph,
        nids: Any,
        graph_sampler: Any,
        device: torch.device | str | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        features: Names = (),
        labels: Names = (),
        output: str = "dgl",
        num_prefetch: int = 2,
        seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        queue_size: int | None = None,
    ) -> None:
        """Plan the minibatches.

        Args:
            g: the graph.
            nids: int[n], this rank's seed nodes; or node type -> int[n], which graphs with several node types need, and
                whose minibatches mix the types.
            graph_sampler: has ``sample_blocks(g, seeds)``, for example a ``NeighborSampler``.
            device: where to put the blocks; the CPU by default. "cuda" is the caller's current GPU.
            batch_size: most seeds of a minibatch.
            shuffle: another order in each epoch.
            drop_last: leave out seeds that do not fill a batch.
            features: names of node features to gather for the input nodes, into ``blocks[0].srcdata``; besides the
                sampler's ``prefetch_node_feats``. A name is for all node types that have it; or node type -> names.
                Their memory is used again once nothing refers to them.
            labels: names of node features to gather for the output nodes, into ``blocks[-1].dstdata``; besides the
                sampler's ``prefetch_labels``.
            output: "dgl"; or "pyg": what PyG's ``NeighborLoader`` yields, see :mod:`.pyg_batches`. Features
                and labels are then of all its nodes, and the sampler's fanouts the reverse of ``num_neighbors``.
            num_prefetch: how many minibatches to be ahead.
            seed: of order and draws; the job's by default.
            num_workers: accepted for DGL's scripts; see ``num_prefetch``.
            pin_memory: accepted for DGL's scripts.
            queue_size: DGL's name for ``num_prefetch``.

        Raises:
            InvalidArgumentError: ``batch_size``, ``num_prefetch`` or ``output`` is not one of these, PyG is not
                installed, or the sampler cannot make what it wants.
            FieldNameError: a feature, or the sampler's edge weights, do not exist.
            NodeTypeError: a node type does not exist, or there are several and ``nids`` are not by type.
            CollectiveError: other trainers are in another call; on every trainer.
            GraphDataError: an edge weight is negative, infinite or NaN; on every rank.
        """
        ids, make = for_output(_MAKERS, output)(g, nids, graph_sampler, features, labels)
        super().__init__(
            g,
            ids,
            graph_sampler,
            make,
            device,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            queue_size=queue_size,
            num_prefetch=num_prefetch,
            seed=seed,
        )
