"""Write DGL's partition files of a graph that mpigraph has cut; run with DGL_PYTHON by ``prepare.py``.

    $DGL_PYTHON dgl_convert.py FLAT OUT

The files hold what ``dgl.distributed.partition_graph`` writes: the edges into a part's nodes, then the edges from them
into other parts, halo nodes behind the part's own. ``partition_graph`` itself needs more than 22 GB for products.
Nodes keep their ids; edges keep theirs, too, since both systems number the edges part by part.
"""

import json
import sys
from pathlib import Path

import dgl
import numpy as np
import torch
from dgl.data.utils import save_tensors

MASKS = ("train_mask", "val_mask", "test_mask")


def main():
    flat, out = Path(sys.argv[1]), Path(sys.argv[2])
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
        names = ("feat", "label", *MASKS)
        feats = {
            f"_N/{name}": torch.from_numpy(np.load(flat / f"{name}.npy", mmap_mode="r")[rows].copy()) for name in names
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


if __name__ == "__main__":
    main()
