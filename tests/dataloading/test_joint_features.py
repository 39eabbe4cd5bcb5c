"""Edge features of relations that share tables: one window, one dataset, one request to each owner; else as others."""

from functools import cache
from pathlib import Path
from threading import Timer
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from layouts import SharedJob, alone, everywhere, on_all, rotated
from oracle import partitioned

import mpigraph.distributed as dist
from mpigraph.dataloading import DistNodeDataLoader, NeighborSampler
from mpigraph.dataloading.fetcher import FeatureFetcher
from mpigraph.distributed import DistGraph, DistTensor
from mpigraph.errors import ClosedError, FieldNameError, OutOfRangeError
from mpigraph.formats.shards import read_partition
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.rows.row_tensor import Copying
from mpigraph.storage.part_config import PartConfig

NODES, SHARING = 300, 12
SIZES = [600, *(k % 5 * 9 for k in range(SHARING))]  # of relations: the first has tables of its own, some no edges
SCHEMA = Schema(("n",), tuple(("n", f"r{r}", "n") for r in range(len(SIZES))))
WITHOUT = SCHEMA.relations[4]


def rows_of(relation: int, ids: Any, name: str) -> Any:
    one = 1000 * relation + np.asarray(ids)
    return {"w": one.astype(np.float32), "mask": one % 2, "x": one[:, None] + np.float32([0, 0.5, 0.25])}[name]


def write(directory: Path, num_parts: int) -> str:
    rng = np.random.default_rng(1)
    edges = tuple((rng.integers(0, NODES, n), rng.integers(0, NODES, n)) for n in SIZES)
    features = {}
    for r, (src, name, dst) in enumerate(SCHEMA.relations):
        if (src, name, dst) != WITHOUT:
            rows = {of: rows_of(r, np.arange(SIZES[r]), of) for of in ("w", "mask", "x")}
            rows |= {"mask": rows["mask"].astype(bool), "x": rows["x"].astype(np.float32)}
            features[f"{src}:{name}:{dst}"] = {of: Feature.of(of_edges) for of, of_edges in rows.items()}
    path = partitioned(GraphSource(SCHEMA, (NODES,), edges, {}, features), "joint", num_parts, directory)
    assert len(PartConfig.read(path).shared_features) == 3
    return path


@cache
def orig_ids(path: str) -> dict[Relation, Any]:
    ids = read_partition(path).edge_ids
    assert ids is not None
    return {relation: of[:] for relation, of in zip(SCHEMA.relations, ids, strict=True)}


def right(path: str, relation: Relation, name: str, ids: torch.Tensor, rows: torch.Tensor) -> bool:
    expected = rows_of(SCHEMA.relation_id(relation), orig_ids(path)[relation][ids.numpy()], name)
    return np.array_equal(rows.numpy(), expected)


def some(g: DistGraph, relation: Relation, seed: int) -> torch.Tensor:
    """Edges in any order, with repeats; of one relation none."""
    count = 0 if relation == SCHEMA.relations[2] else g.num_edges(relation)
    return torch.randint(max(count, 1), (2 * count,), generator=torch.Generator().manual_seed(seed))


@everywhere
@rotated(2)
@pytest.mark.parametrize("num_parts", [1, 5])
def test_one_read_serves_all_relations(job: SharedJob, num_parts: int) -> None:
    path = job.write(write, num_parts)
    g = job.open(path)
    fetcher = FeatureFetcher(g.edges, False, "w", "x")
    assert sorted(len(of._tensors) for of in fetcher.together) == [1, 1, SHARING - 1, SHARING - 1]
    ids = {relation: some(g, relation, job.rank) for relation in SCHEMA.relations}
    data: dict[Relation, dict[str, torch.Tensor]] = {relation: {} for relation in SCHEMA.relations}
    transport, asked = g.session.store.rows.transport, []
    if transport is not None:
        read = transport.read
        noted: Any = lambda window, remote, *rest: (asked.append(len(remote)), read(window, remote, *rest))  # noqa: E731
        with mock.patch.object(transport, "read", noted):
            fetcher.fetch(ids.__getitem__, data.__getitem__)
        others = int(np.count_nonzero(~g.session.world.is_local))
        on_all(job.trainers, len(asked) <= 4 and max(asked, default=0) <= others, f"{asked}")
    else:
        fetcher.fetch(ids.__getitem__, data.__getitem__)
    wrong = [
        (relation, name)
        for relation, read_rows in data.items()
        for name, rows in read_rows.items()
        if not right(path, relation, name, ids[relation], rows)
        or not torch.equal(rows, g.edges[relation].data[name][ids[relation]])
    ]
    on_all(job.trainers, not wrong and WITHOUT not in wrong and not data[WITHOUT], f"{wrong}")
    with pytest.raises(OutOfRangeError, match="'w'.*row 9"):
        fetcher.fetch(lambda r: torch.arange(10 * (r == SCHEMA.relations[2])), data.__getitem__)
    with pytest.raises(OutOfRangeError, match="row -1"):
        g.edges[SCHEMA.relations[3]].data["w"][[-1]]


@pytest.mark.slow
def test_loaders_see_writes(job: SharedJob) -> None:
    """Rows that were cached, and then written through their own tensors, or through views of them."""
    path = job.write(write, 5)
    g = job.open(path)
    pytest.importorskip("torch_geometric")
    sampler = NeighborSampler([3, 3], prefetch_edge_feats=["w", "x"])
    seeds = torch.arange(NODES)[job.rank :: job.trainers.size]
    loader = DistNodeDataLoader(g, seeds, sampler, batch_size=20, shuffle=True, output="pyg", cache="1MiB")
    relation = SCHEMA.relations[3]
    tensor = g.edges[relation].data["w"]
    before = tensor[:].clone()
    on_all(job.trainers, right(path, relation, "w", torch.arange(len(tensor)), before))
    for change in (0, 7):
        for owned in tensor.owned() if change else []:
            tensor[owned.first : owned.last] = before[owned.first : owned.last] + change
        g.barrier()
        wrong = []
        for data in loader:
            for r in SCHEMA.relations:
                ids, of_edges = data[r].e_id, data[r]
                expected = of_edges.get("w", torch.empty(0)) - (change if r == relation else 0)
                fits = r == WITHOUT or (right(path, r, "w", ids, expected) and right(path, r, "x", ids, of_edges["x"]))
                wrong += [] if fits else [r]
        on_all(job.trainers, not wrong, f"{change}: {wrong}")
    for owned in tensor.owned():
        tensor[owned.first : owned.last] = before[owned.first : owned.last]
    g.barrier()
    folder = Path(job.one_has(lambda: str(Path(path).parent)))
    tensor.save(folder / "w.npy")
    assert np.array_equal(np.load(folder / "w.npy"), rows_of(3, np.arange(SIZES[3]), "w"))
    loader.close()


def test_weights_are_looked_up_again(job: SharedJob) -> None:
    """A weight that was assigned or deleted counts in the next minibatch, and a closed one is an error."""
    g = job.open(job.write(write, 5))
    relations = SCHEMA.relations[1:3]

    def of_relations(prob: str) -> set[int]:
        return set(g.edge_weights(prob))

    with pytest.raises(FieldNameError):
        g.edge_weights("new")
    for relation in relations:
        policy = g.get_edge_partition_policy(relation)
        g.edges[relation].data["new"] = DistTensor((g.num_edges(relation),), torch.float32, part_policy=policy)
    drawn = g.sample_neighbors(torch.arange(NODES), 2, prob="new")
    assert of_relations("new") == {1, 2} and not any(drawn.num_edges(relation) for relation in relations)
    first = g.edges[relations[0]].data["new"]
    del g.edges[relations[0]].data["new"]
    assert of_relations("new") == {2}
    g.edges[relations[0]].data["new"] = first
    assert of_relations("new") == {1, 2}
    first.close()
    with pytest.raises(ClosedError):
        g.edge_weights("new")
    for relation in relations:
        del g.edges[relation].data["new"]


def test_memory_goes_with_the_last_of_them(tmp_path: Path) -> None:
    path = write(tmp_path, 2)

    def body() -> None:
        g = DistGraph("joint", part_config=path)
        tensors = [g.edges[relation].data["w"] for relation in SCHEMA.relations[1:] if relation != WITHOUT]
        window = tensors[0].rows.window
        copied, open_meanwhile = Copying(), list[bool]()
        tensors[-1].rows.copying = copied  # as for a checkpoint

        def end() -> None:
            try:
                open_meanwhile.append(len(window.memory(0)) > 0)
            finally:
                copied.end()

        ends = Timer(0.2, end)
        ends.start()
        for tensor in tensors:
            assert len(window.gather(np.arange(len(window)))) == sum(SIZES[1:]) - SIZES[4]
            tensor.close()
        ends.join()
        assert open_meanwhile == [True]
        with pytest.raises(ClosedError):
            window.gather(np.arange(len(window)))
        assert dist.DistTensor is DistTensor and len(g.edges[SCHEMA.relations[1]].data["x"][:]) == SIZES[1]

    alone(body)


@everywhere
def test_one_of_them_is_closed_alone(job: SharedJob) -> None:
    g = job.open(job.write(write, 4))
    first, second = (g.edges[SCHEMA.relations[r]].data["x"] for r in (1, 2))
    want = second[:]
    g.barrier()
    first[:1] = 0
    first.close()
    host = int(np.flatnonzero(g.session.world.is_local)[0])
    uses = (
        lambda: first[[0]],
        lambda: first.rows.scatter(np.array([0]), want.numpy()[:1]),
        lambda: first.rows.memory(host),
    )
    for use in uses:
        with pytest.raises(ClosedError, match="'x' was closed"):
            use()
    on_all(job.trainers, torch.equal(second[:], want) and not second.rows.window.untold)
    again = job.open(job.write(write, 4))
    assert "x" not in again.edges[SCHEMA.relations[1]].data and "x" in again.edges[SCHEMA.relations[2]].data
