"""Loaders with times: each seed has its own, also those of edges and of negatives, and nothing newer is ever seen."""

from typing import Any

import numpy as np
import pytest
import torch
from layouts import SharedJob, on_all, rotated
from temporal_graphs import Temporal, temporal, write

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.dataloading.negative_sampler import GlobalUniform, Uniform
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import EID, NID, SEED_TIME, TREE

SEED = 1
KINDS = pytest.mark.parametrize(("typed", "of_nodes"), [(False, False), (False, True), (True, False), (True, True)])
SAMPLERS = [
    NeighborSampler([3, 2], time_attr="time"),
    NeighborSampler([-1, 3], time_attr="time", temporal_strategy="last", temporal_comparison="<", time_window=4),
]


def wrapped(by_type: dict[Any, Any]) -> Any:
    return by_type if len(by_type) > 1 else next(iter(by_type.values()))


def nothing_newer(some: Temporal, blocks: list[Any], sampler: NeighborSampler) -> int:
    """Check the time of each drawn edge against that of its tree; return how many have times."""
    how = sampler.time_filter
    assert how is not None
    checked = 0
    for block in blocks:
        for relation in some.schema.relations:
            times = some.time_of(relation)
            ends, eids = block.all_edges(etype=relation), block.edges[relation].data[EID].numpy()
            src, dst = block.srcnodes[relation[0]].data, block.dstnodes[relation[2]].data
            assert torch.equal(src[TREE][ends[0]], dst[TREE][ends[1]])
            if times is None:
                continue
            now = dst[SEED_TIME][ends[1]].numpy()
            assert (times[eids] < now if how.comparison == "<" else times[eids] <= now).all()
            checked += len(eids)
    return checked


@rotated(4)
@KINDS
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_node_loader(job: SharedJob, typed: bool, of_nodes: bool, sampler: NeighborSampler) -> None:
    some = temporal(SEED, typed, of_nodes)
    g = job.open(job.write(write, SEED, typed, of_nodes))
    rng = np.random.default_rng(job.rank)
    seeds = {t: rng.integers(0, count, 12) for t, count in some.counts.items()}
    times = {t: rng.integers(-3, 10, 12) for t in some.counts}
    expected = sorted((t, i, int(now)) for t in seeds for i, now in zip(seeds[t].tolist(), times[t], strict=True))
    given = dict(input_time=wrapped(times), batch_size=5, shuffle=True, features=["other"])
    found, checked = [], 0
    for inputs, outputs, blocks in dist.DistNodeDataLoader(g, wrapped(seeds), sampler, **given):
        checked += nothing_newer(some, blocks, sampler)
        for ntype in some.schema.ntypes:
            last = blocks[-1].dstnodes[ntype].data
            ids = outputs if torch.is_tensor(outputs) else outputs.get(ntype, torch.empty(0))
            found += [(ntype, i, now) for i, now in zip(ids.tolist(), last[SEED_TIME].tolist(), strict=True)]
            first = blocks[0].srcnodes[ntype].data
            assert torch.equal(first[NID], inputs if torch.is_tensor(inputs) else inputs[ntype])
            assert torch.equal(first["other"], first[NID])
    on_all(job.trainers, sorted(found) == expected and checked > 0)


@KINDS
def test_pyg_minibatches(job: SharedJob, typed: bool, of_nodes: bool) -> None:
    pytest.importorskip("torch_geometric")
    some = temporal(SEED, typed, of_nodes)
    g = job.open(job.write(write, SEED, typed, of_nodes))
    (ntype, count) = next(iter(some.counts.items()))
    seeds, times = np.arange(count), np.arange(count) % 9
    options = dict(input_time={ntype: times}, batch_size=7, output="pyg", features=["other"])
    for data in dist.DistNodeDataLoader(g, {ntype: seeds}, SAMPLERS[0], **options):
        stores = {t: data[t] if typed else data for t in some.counts}
        root, at = stores[ntype], stores[ntype].input_id
        assert torch.equal(root.n_id[: root.batch_size], torch.from_numpy(seeds)[at])
        assert torch.equal(root.seed_time, torch.from_numpy(times)[at])
        assert torch.equal(root.batch[: root.batch_size], torch.arange(root.batch_size))
        for t, store in stores.items():
            assert torch.equal(store.other, store.n_id)
            pairs = torch.stack([store.batch, store.n_id])
            assert len(torch.unique(pairs, dim=1).T) == pairs.shape[1]
            if t in some.node_time:
                assert torch.equal(store.time, torch.from_numpy(some.node_time[t])[store.n_id])
        for relation in some.schema.relations:
            store = data[relation] if typed else data
            src, dst = stores[relation[0]], stores[relation[2]]
            assert torch.equal(src.batch[store.edge_index[0]], dst.batch[store.edge_index[1]])
            now = root.seed_time[dst.batch[store.edge_index[1]]].numpy()
            edge_times = some.time_of(relation)
            if edge_times is not None:
                assert (edge_times[store.e_id.numpy()] <= now).all()
            if relation in some.edge_time:
                assert torch.equal(store.time, torch.from_numpy(edge_times)[store.e_id])


def test_pyg_minibatches_of_edges_have_their_times(job: SharedJob) -> None:
    pytest.importorskip("torch_geometric")
    some = temporal(SEED, True, False)
    g = job.open(job.write(write, SEED, True, False))
    eids = {r: np.arange(min(len(ends[0]), 20)) for r, ends in some.ends.items()}
    times = {r: ids % 9 for r, ids in eids.items()}
    options = dict(edge_label_time=times, negative_sampler=Uniform(2), batch_size=16, output="pyg")
    for data in dist.DistEdgeDataLoader(g, eids, SAMPLERS[0], **options):
        for relation in eids:
            store = data[relation]
            now = torch.from_numpy(times[relation])[store.input_id]
            assert torch.equal(store.seed_time, now)
            assert torch.equal(store.edge_label_time, torch.cat([now, now.repeat_interleave(2)]))
            assert store.edge_label_index.shape == (2, len(store.edge_label_time))


@rotated(4)
@KINDS
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_edge_loader(job: SharedJob, typed: bool, of_nodes: bool, sampler: NeighborSampler) -> None:
    some = temporal(SEED, typed, of_nodes)
    g = job.open(job.write(write, SEED, typed, of_nodes))
    eids = {r: np.arange(len(ends[0]))[job.rank :: 3] for r, ends in some.ends.items()}
    times = {r: (some.time_of(r)[ids] if some.time_of(r) is not None else ids % 9) for r, ids in eids.items()}
    how = dict(edge_label_time=wrapped(times), batch_size=16, negative_sampler=Uniform(2), exclude="self")
    checked = 0
    seen = {r: [] for r in eids}
    for _, pairs, negatives, blocks in dist.DistEdgeDataLoader(g, wrapped(eids), sampler, **how):
        checked += nothing_newer(some, blocks, sampler)
        for ntype in some.counts:
            ids = blocks[-1].dstnodes[ntype].data
            assert torch.equal(pairs.nodes[ntype].data[NID], ids[NID])
            assert torch.equal(pairs.nodes[ntype].data[SEED_TIME], ids[SEED_TIME])
        for relation in some.schema.relations:
            wanted = dict(zip(eids[relation].tolist(), times[relation].tolist(), strict=True))
            batch = pairs.edges[relation].data[EID]
            seen[relation] += batch.tolist()
            now = torch.tensor([wanted[edge] for edge in batch.tolist()], dtype=torch.int64)
            for graph, wanted_times in ((pairs, now), (negatives, now.repeat_interleave(2))):
                (src, of_src), (dst, of_dst) = (
                    (graph.nodes[t].data[NID][ends], graph.nodes[t].data[SEED_TIME][ends])
                    for ends, t in zip(graph.all_edges(etype=relation), relation[::2], strict=True)
                )
                assert torch.equal(of_src, of_dst)
                if graph is pairs or relation[2] not in some.node_time:
                    assert torch.equal(of_src, wanted_times)
                else:  # those that are not there yet were drawn anew, or left out
                    assert len(src) <= len(wanted_times)
                    own = torch.from_numpy(some.node_time[relation[2]])[dst]
                    strict = sampler.time_filter.comparison == "<"
                    assert bool((own < of_dst if strict else own <= of_dst).all())
    on_all(job.trainers, all(sorted(seen[r]) == eids[r].tolist() for r in eids) and checked > 0)


def test_negatives_of_edges_with_times_keep_their_sources(job: SharedJob) -> None:
    g, seeds = job.open(job.write(write, SEED, False, False)), np.arange(4)
    loader = dist.DistEdgeDataLoader(g, seeds, SAMPLERS[0], edge_label_time=seeds, negative_sampler=GlobalUniform(1))
    with pytest.raises(InvalidArgumentError, match="must keep the sources of their edges"):
        list(loader)
