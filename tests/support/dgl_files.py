"""Writes what DGL writes: tensors, graphs, and whole partitions, byte by byte as the files of DGL 2.1 have them."""

import json
import struct
from dataclasses import dataclass

import numpy as np

from mpigraph.metadata.schema import parse_relation

COO, CSR, CSC = 1, 2, 4
CODES = {"i": 0, "u": 1, "f": 2}


def number(value):
    return struct.pack("<Q", value)


def text(value):
    return number(len(value.encode())) + value.encode()


def array(values):
    values = np.ascontiguousarray(values.astype(np.uint8) if values.dtype == bool else values)
    head = number(0xDD5E40F096B4A13F) + number(0) + struct.pack("<ii", 1, 0) + struct.pack("<i", values.ndim)
    head += struct.pack("<BBH", CODES[values.dtype.kind], 8 * values.dtype.itemsize, 1)
    return head + struct.pack(f"<{values.ndim}q", *values.shape) + number(values.nbytes) + values.tobytes()


def named(arrays):
    return number(len(arrays)) + b"".join(text(name) + array(values) for name, values in arrays.items())


def tensors(arrays):
    return number(0xDD5A9FBE3FA2443F) + number(len(arrays)) + named(arrays)


def csr(indptr, indices, edges):
    head = number(0xDD6CD31205DFF127) + number(len(indptr) - 1) * 2
    return head + b"".join(map(array, (indptr, indices, edges))) + b"\0"


TYPES = number(0xDD3C5FFE20046ABF) + csr(np.array([0, 1]), np.array([0]), np.array([0]))


def compressed(rows, others, num_nodes):
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_nodes))])
    return csr(indptr, others[order], order)


def relation(src, dst, num_nodes, formats):
    found = number(0xDD2E60F0F6B4A127) + number(1 << 32 | formats) + number(1 << 32 | 7)
    if formats & COO:
        coo = number(0xDD61FFD305DFF127) + number(num_nodes) * 2
        found += TYPES + coo + array(src) + array(dst) + array(np.zeros(0, np.int64)) + b"\0\0"
    if formats & CSR:
        found += TYPES + compressed(src, dst, num_nodes)
    if formats & CSC:
        found += TYPES + compressed(dst, src, num_nodes)
    return found


def graph(src, dst, ndata, edata, num_nodes, formats=COO):
    head = number(0xDD2E4FF046B4A13F) + number(2) + number(2) + number(1)
    labels = number(4096 + 8 + 8) + number(0)
    body = number(0xDD589FBE35224ABF) + TYPES + number(1) + relation(src, dst, num_nodes, formats)
    body += number(1) + number(num_nodes) + number(1) + named(ndata) + number(1) + named(edata)
    body += number(1) + text("_N") + number(1) + text("_E")
    places = number(1) + number(4096 + len(labels))
    return head.ljust(4096, b"\0") + labels + body + number(len(places)) + places + number(len(places))


@dataclass
class Layout:
    """How a partition is written: as DGL's versions and tools differ."""

    formats: int = COO
    ids: str = ""  # where original ids are: "graph", "beside", or nowhere


def write_partition(folder, source, parts, layout, name="g"):
    """Write a graph of sources as DGL would cut it; return old ids by new id of nodes and of edges, by type.

    New ids go part by part and type by type; edges lie with their destination, each part's in an order at random, and
    beside them copies of edges between nodes of other parts.
    """
    rng = np.random.default_rng(3)
    schema = source.schema
    number_of_parts = int(max(part.max(initial=0) for part in parts)) + 1
    bases = np.concatenate([[0], np.cumsum(source.num_nodes)])
    edge_bases = np.concatenate([[0], np.cumsum(source.edge_counts)])
    node_map = {ntype: [] for ntype in schema.ntypes}
    edge_map = {":".join(r): [] for r in schema.relations}
    new_ids = np.zeros(bases[-1], np.int64)
    nids = {t: [] for t in schema.ntypes}
    eids = {":".join(r): [] for r in schema.relations}
    owned = []
    node_at = edge_at = 0
    edges = []  # of all parts: homogeneous ends by old ids, relation, old id, new id, owner
    for part in range(number_of_parts):
        for t, ntype in enumerate(schema.ntypes):
            own = np.flatnonzero(parts[t] == part)
            new_ids[bases[t] + own] = node_at + np.arange(len(own))
            node_map[ntype].append([node_at, node_at + len(own)])
            nids[ntype].append(own)
            node_at += len(own)
        owned.append(node_at)
        for r, rel in enumerate(schema.relations):
            src, dst = (np.asarray(end[:]) for end in source.edges[r])
            own = np.flatnonzero(parts[schema.ends(r)[1]][dst] == part)
            edge_map[":".join(rel)].append([edge_at, edge_at + len(own)])
            eids[":".join(rel)].append(own)
            ends = [bases[t] + some[own] for t, some in zip(schema.ends(r), (src, dst), strict=True)]
            new = edge_at + np.arange(len(own))
            edges.append(np.stack([*ends, np.full(len(own), r), own, new, np.full(len(own), part)], 1))
            edge_at += len(own)
    edges = np.concatenate(edges)
    old_nodes = np.argsort(new_ids)
    types = np.repeat(np.arange(len(schema.ntypes)), source.num_nodes)
    config = {"graph_name": name, "num_nodes": int(bases[-1]), "num_edges": int(edge_bases[-1]), "part_method": "metis"}
    config |= {"num_parts": number_of_parts, "halo_hops": 2}
    for part in range(number_of_parts):
        path = folder / f"part{part}"
        path.mkdir(parents=True, exist_ok=True)
        begin, end = ([0, *owned])[part], owned[part]
        inside = (new_ids[edges[:, 0]] >= begin) & (new_ids[edges[:, 0]] < end)
        mine = (edges[:, 5] == part) | inside  # edges out of the part are copies
        held = edges[mine][rng.permutation(mine.sum())]
        ends = new_ids[held[:, :2]]
        halo = np.setdiff1d(ends, np.arange(begin, end))
        local_to_new = np.concatenate([np.arange(begin, end), halo])
        local = np.empty(bases[-1], np.int64)
        local[local_to_new] = np.arange(len(local_to_new))
        old = old_nodes[local_to_new]
        ndata = {"_ID": local_to_new, "part_id": np.searchsorted(owned, local_to_new, side="right").astype(np.int32)}
        ndata["inner_node"] = (np.arange(len(old)) < end - begin).astype(np.uint8)
        edata = {"_ID": held[:, 4], "inner_edge": (held[:, 5] == part).astype(np.uint8)}
        ndata["_TYPE"] = types[old].astype(np.int32)
        edata["_TYPE"] = held[:, 2].astype(np.int32)
        if layout.ids == "graph":
            ndata["orig_id"] = old
            edata["orig_id"] = edge_bases[held[:, 2]] + held[:, 3]
        elif layout.ids == "beside":
            (path / "orig_nids.dgl").write_bytes(tensors({t: found[part] for t, found in nids.items()}))
            (path / "orig_eids.dgl").write_bytes(tensors({key: found[part] for key, found in eids.items()}))
        content = graph(local[ends[:, 0]], local[ends[:, 1]], ndata, edata, len(old), layout.formats)
        (path / "graph.dgl").write_bytes(content)
        edge_feats = {":".join(parse_relation(key)): features for key, features in source.edge_feats.items()}
        for what, feats, found in (("node", source.node_feats, nids), ("edge", edge_feats, eids)):
            written = {}
            for key, features in feats.items():
                for feature, rows in features.items():
                    written[f"{key}/{feature}"] = np.asarray(rows.values[:])[found[key][part]]
            (path / f"{what}_feat.dgl").write_bytes(tensors(written))
        files = {"node_feats": "node_feat.dgl", "edge_feats": "edge_feat.dgl", "part_graph": "graph.dgl"}
        config[f"part-{part}"] = {key: f"part{part}/{file}" for key, file in files.items()}
    config |= {"node_map": node_map, "edge_map": edge_map}
    config |= {"ntypes": {ntype: i for i, ntype in enumerate(schema.ntypes)}}
    config |= {"etypes": {key: i for i, key in enumerate(edge_map)}}
    (folder / f"{name}.json").write_text(json.dumps(config))
    joined = ({key: np.concatenate(found) for key, found in table.items()} for table in (nids, eids))
    return tuple(joined)
