"""DGL's side of the comparisons, run with DGL_PYTHON: the name of a command and its arguments."""

import json
import sys
import time
from pathlib import Path

import common
import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
from dgl.data.utils import save_tensors

FEATURES = ("feat", "label", "train_mask", "val_mask", "test_mask")


def convert(flat, out):
    """Write the partition files of a graph that mpigraph has cut (``flat-2``).

    They hold what ``dgl.distributed.partition_graph`` writes: the edges into a part's nodes, then the edges from them
    into other parts, halo nodes behind the part's own. ``partition_graph`` itself needs more than 22 GB for products.
    Nodes keep their ids; edges keep theirs, too, since both systems number the edges part by part.
    """
    flat, out = Path(flat), Path(out)
    meta = json.loads((flat / "meta.json").read_text())
    nodes, edges = np.array(meta["node_offsets"]), np.array(meta["edge_offsets"])
    key, parts = "_N:_E:_N", len(nodes) - 1
    config = {
        "graph_name": meta["name"],
        "num_nodes": int(nodes[-1]),
        "num_edges": int(edges[-1]),
        "part_method": "metis",
        "num_parts": parts,
        "halo_hops": 1,
        "node_map": {"_N": [nodes[p : p + 2].tolist() for p in range(parts)]},
        "edge_map": {key: [edges[p : p + 2].tolist() for p in range(parts)]},
        "ntypes": {"_N": 0},
        "etypes": {key: 0},
    }
    for part in range(parts):
        where = out / f"part{part}"
        where.mkdir(parents=True, exist_ok=True)
        dgl.save_graphs(str(where / "graph.dgl"), [part_graph(flat, nodes, part)])
        rows = slice(nodes[part], nodes[part + 1])
        feats = {
            f"_N/{name}": torch.from_numpy(np.load(flat / f"{name}.npy", mmap_mode="r")[rows].copy())
            for name in FEATURES
        }
        save_tensors(str(where / "node_feat.dgl"), {name: as_dgl(values) for name, values in feats.items()})
        save_tensors(str(where / "edge_feat.dgl"), {})
        files = {"node_feats": "node_feat.dgl", "edge_feats": "edge_feat.dgl", "part_graph": "graph.dgl"}
        config[f"part-{part}"] = {what: f"part{part}/{name}" for what, name in files.items()}
    path = out / f"{meta['name']}.json"
    path.write_text(json.dumps(config, indent=1))
    dgl.distributed.dgl_partition_to_graphbolt(str(path))


def as_dgl(values):
    return values.bool() if values.dtype == torch.uint8 else values


def part_graph(flat, nodes, part):
    """One part as DGL holds it in memory."""
    low, high = int(nodes[part]), int(nodes[part + 1])
    src, dst, eids, num_inner = part_edges(flat, low, high)
    halo = np.unique(np.concatenate([ids[(ids < low) | (ids >= high)] for ids in (src, dst)]))
    for ids in (src, dst):
        other = (ids < low) | (ids >= high)
        ids[~other] -= low
        ids[other] = np.searchsorted(halo, ids[other]) + high - low
    g = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=high - low + len(halo))
    ids = np.concatenate([np.arange(low, high), halo])
    g.ndata[dgl.NID] = torch.from_numpy(ids)
    g.ndata["inner_node"] = torch.from_numpy((np.arange(len(ids)) < high - low).astype(np.uint8))
    g.ndata["part_id"] = torch.from_numpy(np.searchsorted(nodes, ids, side="right") - 1)
    g.edata[dgl.EID] = torch.from_numpy(eids)
    g.edata["inner_edge"] = torch.from_numpy((np.arange(len(eids)) < num_inner).astype(np.uint8))
    return g


def part_edges(flat, low, high):
    """Sources, destinations and ids of a part's edges, and how many end in it; these come first."""
    indptr, indices = np.load(flat / "indptr.npy"), np.load(flat / "indices.npy", mmap_mode="r")
    first, last = int(indptr[low]), int(indptr[high])
    inner = np.arange(first, last)
    outer = [np.flatnonzero((piece >= low) & (piece < high)) + at for at, piece in others(indices, first, last)]
    eids = np.concatenate([inner, *outer])
    dst = np.searchsorted(indptr, eids, side="right") - 1
    return indices[eids], dst, eids, last - first


def others(indices, first, last):
    """The sources of the edges that end in other parts, and where each piece begins."""
    for begin, end in ((0, first), (last, len(indices))):
        for at in range(begin, end, 1 << 24):
            yield at, indices[at : min(end, at + (1 << 24))]


def hetero(data, parts, name, out):
    """Write the partition files of the graph of ``mag.py`` in given parts.

    ``dgl.distributed.partition_graph`` does the work, with METIS's answer replaced by the parts that mpigraph has made;
    so both systems have the same nodes in each part, under the same ids. Every relation gets its reverse
    ``rev_<name>``. The parts are also written for GraphBolt, which in DGL 2.1 samples typed graphs, too.
    """
    g = read(np.load(data))
    given = np.load(parts)
    answer = torch.from_numpy(np.concatenate([given[ntype] for ntype in g.ntypes]))
    module = sys.modules[dgl.distributed.partition_graph.__module__]
    module.metis_partition_assignment = lambda *arguments, **options: answer
    dgl.distributed.partition_graph(g, name, int(answer.max()) + 1, out, part_method="metis")
    dgl.distributed.dgl_partition_to_graphbolt(f"{out}/{name}.json")


def read(arrays):
    """The heterograph of an npz file, with the reverse of every relation."""
    edges = {}
    for key in arrays.files:
        src, *rel, dst, end = key.split("__") if key.count("__") == 3 else [""] * 4
        if end == "src":
            ends = [torch.from_numpy(arrays[f"{key[:-3]}{end}"].astype(np.int64)) for end in ("src", "dst")]
            edges[src, rel[0], dst] = tuple(ends)
            edges[dst, f"rev_{rel[0]}", src] = tuple(reversed(ends))
    counts = {key[: -len("__num_nodes")]: int(arrays[key]) for key in arrays.files if key.endswith("__num_nodes")}
    g = dgl.heterograph(edges, num_nodes_dict=counts)
    for name in FEATURES:
        g.nodes["paper"].data[name] = torch.from_numpy(arrays[f"paper__{name}"])
    return g


def partition(data, out):
    """``dgl.distributed.partition_graph`` of a generated graph into two parts."""
    data = Path(data)
    src, dst = (torch.from_numpy(np.load(data / f"edge_{end}.npy").astype(np.int64)) for end in ("src", "dst"))
    g = dgl.graph((src, dst), num_nodes=len(np.load(data / "label.npy", mmap_mode="r")))
    del src, dst
    for name in ("label", "train_mask", "val_mask", "test_mask"):
        g.ndata[name] = torch.from_numpy(np.load(data / f"{name}.npy"))
    g.ndata["feat"] = torch.from_numpy(np.load(data / "feat.npy", mmap_mode="c"))  # not copied
    dgl.seed(0)
    begin = time.perf_counter()
    balance = {"balance_ntypes": g.ndata["train_mask"].long(), "balance_edges": True}
    dgl.distributed.partition_graph(g, "g", 2, out, part_method="metis", **balance)
    print(f"seconds of the call: {time.perf_counter() - begin}")


def edges_cut(config):
    """Print how many edges come from another part than the one they are in, which is that of their destination."""
    config = Path(config)
    content, cut = json.loads(config.read_text()), 0
    for part in range(content["num_parts"]):
        g = dgl.load_graphs(str(config.parent / content[f"part-{part}"]["part_graph"]))[0][0]
        src = g.edges()[0][g.edata["inner_edge"] != 0]
        cut += int((g.ndata["inner_node"][src] == 0).sum())
    print(cut)


class Samplers:
    """The kinds, each on a graph that is made when it is first asked for; all share the arrays."""

    def __init__(self, flat):
        self._csc = [torch.from_numpy(np.load(flat / f"{name}.npy")) for name in ("indptr", "indices")]
        self._seeds = torch.from_numpy(np.load(flat / "seeds.npy"))
        self._graphs = {}

    def sample(self, kind, fanouts, batches):
        fanouts = [int(fanout) for fanout in fanouts.split(",")]
        run = self._graphbolt(fanouts) if kind == "graphbolt" else self._neighbor_sampler(fanouts, kind == "fused")
        watch, edges = common.Stopwatch(), 0
        for seeds in self._seeds[:batches]:
            with watch:
                found = run(seeds)
            edges += found()
        return watch.medians() | {"edge": sum(watch.wall) / edges, "edges": edges / batches}

    def _neighbor_sampler(self, fanouts, fused):
        if "dgl" not in self._graphs:
            csc = ("csc", (*self._csc, torch.empty(0, dtype=torch.int64)))
            self._graphs["dgl"] = dgl.graph(csc, num_nodes=len(self._csc[0]) - 1).formats("csc")
        g, sampler = self._graphs["dgl"], dgl.dataloading.NeighborSampler(fanouts, fused=fused)

        def run(seeds):
            blocks = sampler.sample_blocks(g, seeds)[2]
            return lambda: sum(block.num_edges() for block in blocks)

        return run

    def _graphbolt(self, fanouts):
        if "graphbolt" not in self._graphs:
            self._graphs["graphbolt"] = gb.fused_csc_sampling_graph(*self._csc)
        g = self._graphs["graphbolt"]

        def run(seeds):
            edges = []
            for fanout in reversed(fanouts):
                sampled = g.sample_neighbors(seeds, torch.LongTensor([fanout])).sampled_csc
                seeds, compacted = gb.unique_and_compact_csc_formats(sampled, seeds)
                edges.append(len(compacted.indices))
            return lambda: sum(edges)

        return run


def samplers(flat):
    """Answer ``sampling.py``."""
    dgl.seed(0)
    common.answer(sample=Samplers(Path(flat)).sample)


if __name__ == "__main__":
    commands = {command.__name__: command for command in (convert, hetero, partition, edges_cut, samplers)}
    commands[sys.argv[1]](*sys.argv[2:])
