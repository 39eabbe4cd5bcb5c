"""The stages of a minibatch. All loaders gather features in :meth:`FeatureFetcher.fetch`."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from mpigraph.dataloading.sampler import Needs
from mpigraph.dataloading.seeds import TypedIds
from mpigraph.distgraph.features import Kind, Spaces
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Blocks, Names, NodeTensors, to_rows
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs import block
from mpigraph.graphs.fields import by_first_appearance
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.trace import count, span

Sample = TypeVar("Sample")


def _tell_nobody(sample: object, batch: int) -> None:
    """Announce nothing."""


def _as_made(batch: Any) -> Any:
    return batch


@dataclass(frozen=True)
class Stages(Generic[Sample]):
    """The stages of a loader; they must not refer to the loader, which can be dropped while they work.

    Attributes:
        sample: draws a minibatch for some seeds (:class:`.Chosen`). Collective when hosts are remote, else local.
        fetch: turns a sample into the loader's minibatch. One-sided.
        announce: tells ``inputs`` the rows that :attr:`fetch` of this sample will read, with the number of the
            minibatch. Local.
        receive: turns the result of :attr:`fetch` into the consumer's minibatch, in its thread. Local.
    """

    seeds: TypedIds
    sample: Callable[[Any], Sample]
    fetch: Callable[[Sample], Any] = _as_made
    announce: Callable[[Sample, int], None] = _tell_nobody
    inputs: Sequence["FeatureFetcher[Any]"] = ()  # gather the features of nodes and edges, which may be remote
    receive: Callable[[Any], Any] = _as_made
    times: TypedIds | None = None  # of the seeds, in their form, if they have any
    placed: bool = False  # the minibatch needs the places of its seeds in ``seeds``


class FeatureFetcher(Generic[Kind]):
    """Gathers rows of features, by type (of edges: the relation) and name, for minibatches.

    One-sided: :meth:`fetch`.

    Attributes:
        readers: the features that are read through a cache.
        upcoming: rows that sampled minibatches will read, by type of the features with readers, and by the hosts
            whose rows are free: features of a type with the same hosts share one.
        counted: count priced rows that are read without a cache, as for the inputs of minibatches.
    """

    def __init__(self, spaces: Spaces[Kind], pin_memory: bool, *names: Names, repeated: bool = False) -> None:
        """Look features up by name in ``g.nodes`` or ``g.edges``; errors are those of :meth:`.Spaces.named`.

        ``repeated``: minibatches repeat ids, as those of disjoint trees do, so read each row once.
        """
        self.tensors: dict[tuple[Kind, str], DistTensor] = spaces.named(*names)
        self.readers: dict[tuple[Kind, str], CachedRows] = {}
        self.upcoming: dict[tuple[Kind, bytes], UpcomingReads] = {}
        self.counted = False
        self._pin_memory = pin_memory
        self._repeated = repeated

    def announce(self, ids: Callable[[Kind], torch.Tensor], batch: int) -> None:
        """Note that minibatch ``batch`` will fetch the rows ``ids(type)``; call it for each, in the order of fetching.

        Raises OutOfRangeError if a row does not exist.
        """
        for (kind, _), upcoming in self.upcoming.items():
            readers = [reader for reader in self.readers.values() if reader.upcoming is upcoming]
            rows = readers[0].rows
            index = to_rows(self._once(ids(kind))[0], rows.shape[0], rows.name)
            rows.check(index)
            read, fresh = upcoming.announce(batch, index)
            for reader in readers:
                reader.announce(read, fresh)

    def forget(self) -> None:
        """Forget all that was announced and not fetched."""
        for upcoming in self.upcoming.values():
            upcoming.clear()
        for reader in self.readers.values():
            reader.clear()

    def fetch(
        self, ids: Callable[[Kind], torch.Tensor], data: Callable[[Kind], MutableMapping[str, torch.Tensor]]
    ) -> None:
        """Put the rows ``ids(type)`` of each feature into ``data(type)``. One-sided; the target does nothing."""
        once: dict[Kind, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for (kind, name), tensor in self.tensors.items():
            reader = self.readers.get((kind, name))
            if kind not in once:
                once[kind] = self._once(ids(kind))
            chosen, places = once[kind]
            if reader is None:
                rows = self._gather(tensor, chosen)
            else:
                rows = tensor.read_announced(reader.upcoming.reads[0], reader, self._pin_memory)
            data(kind)[name] = rows if places is None else self._repeat(rows, places)
        for upcoming in self.upcoming.values():
            upcoming.done()

    def _once(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the ids, each once if they may repeat, and then the place of each original id among them."""
        return by_first_appearance(ids) if self._repeated else (ids, None)

    def _repeat(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        out = torch.empty(
            (len(places), *rows.shape[1:]), dtype=rows.dtype, pin_memory=self._pin_memory and rows.is_pinned()
        )
        return torch.index_select(rows, 0, places, out=out)

    def _gather(self, tensor: DistTensor, ids: torch.Tensor) -> torch.Tensor:
        with span("fetch"):
            rows = tensor.gather(ids, pin_memory=self._pin_memory)
        window = tensor.rows.window
        if self.counted and not window.free.all():
            index = to_rows(ids, tensor.rows.shape[0], tensor.rows.name)
            priced = int(np.count_nonzero(~window.free[window.host_of(index)]))
            count("remote_rows", priced)
            count("fetched_rows", priced)
            count("fetched_bytes", priced * window.row_bytes)
        return rows


class BlockFetcher:
    """Gathers the node features of a minibatch's blocks: ``inputs`` those of the input nodes. One-sided: a call."""

    def __init__(self, g: DistGraph, needs: Needs, features: Names, labels: Names, pin_memory: bool) -> None:
        """Look up ``features`` for the input nodes, ``labels`` for the output nodes, and what the sampler needs."""
        self.inputs = FeatureFetcher(g.nodes, pin_memory, features, needs.node_feats, repeated=needs.disjoint)
        self._outputs = FeatureFetcher(g.nodes, pin_memory, labels, needs.labels, repeated=needs.disjoint)

    def announce(self, sample: tuple[Any, ...], batch: int) -> None:
        """Note the input nodes of a sample, which come first in it. Raises OutOfRangeError if one does not exist."""
        self.inputs.announce(lambda t: _of_type(sample[0], t), batch)

    def __call__(self, sample: Blocks) -> Blocks:
        """Put rows of a sample's nodes into ``blocks[0].srcnodes`` and ``blocks[-1].dstnodes``."""
        input_nodes, output_nodes, blocks = sample
        if not blocks and (self.inputs.tensors or self._outputs.tensors):
            raise InvalidArgumentError("features and labels come with blocks: the sampler has no layer")
        if isinstance(blocks, block.Blocks):  # a sampler of the user's may give a plain list
            blocks.explain_missing()
        self.inputs.fetch(lambda t: _of_type(input_nodes, t), lambda t: blocks[0].srcnodes[t].data)
        self._outputs.fetch(lambda t: _of_type(output_nodes, t), lambda t: blocks[-1].dstnodes[t].data)
        return sample


def _of_type(nodes: NodeTensors, ntype: str) -> torch.Tensor:
    return nodes[ntype] if isinstance(nodes, dict) else nodes
