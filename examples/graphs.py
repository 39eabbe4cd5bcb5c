"""The graph of an example: the user's, or one that is generated for the job on every node.

``write_...(folder)`` generate the typed graphs and those with edges to predict, and partition them. The plain ones come
from ``mpigraph.data.generate``.
"""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import mpigraph as mg


@contextmanager
def graph_files(write: Callable[[str], None], part_config: str = "") -> Iterator[str]:
    """Yield the path of a partition configuration: ``part_config``, else that of a graph generated for this job.

    All trainers pass the same path to ``DistGraph``, and each host reads its parts from there on its own node. So
    trainer 0 makes a private folder with a random name, and ``write(folder)`` writes the partitioned graph "default"
    into it. Nodes with disks of their own get a folder of the same name with copies of the files. The trainer that made
    a folder removes it at the end of the ``with`` block, when the graph is in memory.
    """
    if part_config:
        yield part_config
        return
    folder = tempfile.mkdtemp(prefix="mpigraph-") if dist.get_rank() == 0 else None
    makes_folder = folder is not None
    try:
        if makes_folder:
            print("generating a graph", file=sys.stderr, flush=True)
            write(folder)
        folder = from_trainer_0(folder)
        makes_folder = makes_folder or make_folder(folder)
        copy_files(Path(folder), makes_folder)
        dist.barrier()  # all files are there
        yield f"{folder}/default.json"
        dist.barrier()  # all trainers have read their files
    finally:
        if makes_folder:
            shutil.rmtree(folder)


def from_trainer_0(value):
    """Give every trainer the value of trainer 0."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def make_folder(folder):
    """Make a folder for this user alone; return False if another trainer, which sees the same disk, has made it.

    Raises:
        FileExistsError: another user's folder, or a file, has this name.
    """
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        status = os.lstat(folder)
        if status.st_uid != os.getuid() or status.st_mode != stat.S_IFDIR | 0o700:
            raise
        return False
    return True


def copy_files(folder, makes_folder):
    """Copy the files of trainer 0's folder into the folders of other nodes, if any."""
    makers = [False] * dist.get_world_size()
    dist.all_gather_object(makers, makes_folder)
    if sum(makers) == 1:
        return
    files = None
    if dist.get_rank() == 0:
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files = from_trainer_0(files)
    if makes_folder and dist.get_rank() > 0:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


def write_links(folder):
    """Write a graph of 95,000 edges, each in both directions, and held_out.npz with 5,000 edges to predict.

    Their ends, src and dst, are ids of the partitioned graph, by the return value of ``partition_graph``.
    """
    whole = mg.data.generate(10_000, 200_000, feat_dim=64, num_classes=40, homophily=0.9)
    ends = torch.stack(whole.edges())
    order = torch.randperm(100_000, generator=torch.Generator().manual_seed(0))  # the other half are the reverses
    to_predict, edges = ends[:, order].split([5_000, 95_000], 1)
    g = mg.graph(torch.cat([edges, edges.flip(0)], 1), num_nodes=10_000)
    g.ndata["feat"] = whole.ndata["feat"]
    orig_nids, _ = mg.distributed.partition_graph(g, "default", 2, folder, return_mapping=True)
    new_nids = torch.argsort(orig_nids)
    src, dst = new_nids[to_predict]
    np.savez(f"{folder}/held_out.npz", src=src, dst=dst)


def read_links(part_config, path=""):
    """Return the ends of the edges to predict, int64[n] each, from ``held_out.npz`` beside the graph or ``path``."""
    with np.load(path or Path(part_config).with_name("held_out.npz")) as file:
        return torch.from_numpy(file["src"]), torch.from_numpy(file["dst"])


def write_triples(folder, num_entities=1000, num_relations=10):
    """Write a knowledge graph: the tails of a head and relation are the 8 entities whose hidden rows fit best.

    The graph has the training triples (head, r, tail) as edges with edata["rel"] = r, and each in the other direction
    as well, (tail, r + R, head). So heads are predicted as tails, and the known tails of a head are among its in-edges.
    Beside it is held_out.npz, with num_relations (R) and the triples {valid,test}_{src,rel,dst}, in ids of the
    partitioned graph.
    """
    random = torch.Generator().manual_seed(0)
    hidden = F.normalize(torch.randn(num_entities, 8, generator=random))
    signs = torch.randn(num_relations, 1, 8, generator=random).sign()
    tails = (hidden * signs @ hidden.T).topk(8).indices.flatten()
    number = torch.randperm(len(tails), generator=random)  # of relation, head and tail
    heads = number // 8 % num_entities
    relations = number // (8 * num_entities)
    triples = torch.stack([heads, relations, tails[number]], 1)
    valid, test, train = triples.split([2000, 2000, len(triples) - 4000])
    reverse = train[:, [2, 1, 0]] + torch.tensor([0, num_relations, 0])
    src, rel, dst = torch.cat([train, reverse]).T
    g = mg.graph((src, dst), num_nodes=num_entities)
    g.edata["rel"] = rel
    orig_nids, _ = mg.distributed.partition_graph(g, "default", 2, folder, return_mapping=True)
    new_nids = torch.argsort(orig_nids)
    arrays = {"num_relations": num_relations}
    for part, (src, rel, dst) in {"valid": valid.T, "test": test.T}.items():
        arrays |= {f"{part}_src": new_nids[src], f"{part}_rel": rel, f"{part}_dst": new_nids[dst]}
    np.savez(f"{folder}/held_out.npz", **arrays)


def read_triples(part_config, path=""):
    """Return the number of relations, both directions counted, and the held-out triples by part, int64[n, 3] each."""
    parts = {}
    with np.load(path or Path(part_config).with_name("held_out.npz")) as file:
        count = int(file["num_relations"])
        for part in ("valid", "test"):
            src, rel, dst = (torch.from_numpy(file[f"{part}_{column}"]).long() for column in ("src", "rel", "dst"))
            parts[part] = torch.cat([torch.stack([src, rel, dst], 1), torch.stack([dst, rel + count, src], 1)])
    return 2 * count, parts


def known_tails(g, triples, held_out, num_relations):
    """Return all right tails for the head and relation of each triple: (position of the triple, tail)."""
    into_heads = g.sample_neighbors(triples[:, 0].unique(), -1)  # the answers, seen from the other end
    src, dst = into_heads.edges()
    reverse = (g.edata["rel"][into_heads.edata[mg.EID]] + num_relations // 2) % num_relations
    known = torch.cat([torch.stack([dst, reverse, src], 1), held_out])
    keys, order = torch.sort(known[:, 0] * num_relations + known[:, 1])
    queries = triples[:, 0] * num_relations + triples[:, 1]
    end = torch.searchsorted(keys, queries, right=True)
    count = end - torch.searchsorted(keys, queries)
    position = torch.repeat_interleave(torch.arange(len(triples)), count)
    place = torch.arange(len(position)) + (end - count.cumsum(0))[position]
    return position, known[order[place], 2]


def write_authors(folder, authors=4000, papers=8000, venues=64, subjects=8):
    """Write a graph of authors, papers and venues; the subject of node i of any type is i modulo ``subjects``.

    An author's subject shows only in the papers, a paper's mostly in the venue. Labels and masks are the authors'.
    """
    rng = np.random.default_rng(0)
    paper = np.arange(papers)

    def partners(num, same):
        """Draw a node of another type for each paper, of the same subject with probability ``same``."""
        subject = np.where(rng.random(papers) < same, paper, rng.integers(0, subjects, papers)) % subjects
        return rng.integers(0, num // subjects, papers) * subjects + subject

    author = np.concatenate([partners(authors, 0.7) for _ in range(3)])
    written = np.tile(paper, 3)
    venue = partners(venues, 0.9)
    edges = {
        ("author", "writes", "paper"): (author, written),
        ("paper", "by", "author"): (written, author),
        ("paper", "in", "venue"): (paper, venue),
        ("venue", "of", "paper"): (venue, paper),
        ("paper", "cites", "paper"): tuple(rng.integers(0, papers, (2, 3 * papers))),  # at random
    }
    g = mg.heterograph(edges, {"author": authors, "paper": papers, "venue": venues})
    feat = np.eye(subjects)[paper % subjects] + 2 * rng.standard_normal((papers, subjects))
    g.nodes["paper"].data["feat"] = torch.from_numpy(feat).float()
    g.nodes["author"].data["label"] = torch.arange(authors) % subjects
    quarter = torch.from_numpy(rng.permutation(authors) * 4 // authors)
    masks = {"train_mask": quarter < 2, "val_mask": quarter == 2, "test_mask": quarter == 3}
    g.nodes["author"].data.update(masks)
    mg.distributed.partition_graph(g, "default", 2, folder)


def write_facts(folder, facts, num_entities=10_000, num_facts=50_000, num_classes=8):
    """Write a graph of entities with a relation for each kind of fact, and a label for each entity.

    Facts are an npz file of triples, train_{src,rel,dst}, with num_entities and relation_names such as
    /film/actor/starred_in: the label is the first word of most facts that an entity is the head of, and minibatches
    have those that it is the tail of. Or facts are a number of relations: most tails of a relation have one label.
    """
    rng = np.random.default_rng(0)
    if facts.isdigit():
        names = [f"r{number}" for number in range(int(facts))]
        src, rel = rng.integers(0, num_entities, num_facts), rng.integers(0, len(names), num_facts)
        same = rng.integers(0, num_entities // num_classes, num_facts) * num_classes + rel % num_classes
        dst = np.where(rng.random(num_facts) < 0.8, same, rng.integers(0, num_entities, num_facts))
        label, known = np.arange(num_entities) % num_classes, np.ones(num_entities, bool)
    else:
        with np.load(facts) as file:
            src, rel, dst = (
                file[f"train_{column}"].astype(np.int64, casting="safe") for column in ("src", "rel", "dst")
            )
            names = [name.decode() for name in file["relation_names"]]
            num_entities = int(file["num_entities"])
        _, word = np.unique([name.split("/")[1] for name in names], return_inverse=True)
        counts = np.zeros((num_entities, word.max() + 1), np.int64)
        np.add.at(counts, (src, word[rel]), 1)
        label, known = counts.argmax(1), counts.any(1)
    ends = np.bincount(rel, minlength=len(names)).cumsum()
    by_relation = zip(names, np.split(np.argsort(rel, kind="stable"), ends[:-1]), strict=True)
    g = mg.heterograph(
        {("entity", name, "entity"): (src[i], dst[i]) for name, i in by_relation}, {"entity": num_entities}
    )
    quarter = rng.integers(0, 4, num_entities)
    masks = {"train_mask": quarter < 2, "val_mask": quarter == 2, "test_mask": quarter == 3}
    g.ndata.update({"label": label} | {name: mask & known for name, mask in masks.items()})
    mg.distributed.partition_graph(g, "default", 2, folder)


def write_papers(folder, num_classes=8):
    """Write a graph of papers, authors and fields: 70% of the edges join nodes of one class; features hint at it."""
    counts = {"author": 4000, "field": 200, "paper": 6000}
    widths = {"author": 16, "field": 8, "paper": 32}
    relations = {("author", "writes"): 18_000, ("field", "covers"): 12_000, ("paper", "cites"): 24_000}  # of papers
    rng = np.random.default_rng(0)
    classes = {ntype: rng.integers(0, num_classes, count) for ntype, count in counts.items()}
    edges = {}
    for (src, relation), count in relations.items():
        papers = rng.integers(0, counts["paper"], count)
        partner_class = np.where(rng.random(count) < 0.7, classes["paper"][papers], rng.integers(0, num_classes, count))
        by_class = np.argsort(classes[src], kind="stable")
        bounds = np.searchsorted(classes[src][by_class], np.arange(num_classes + 1))
        partners = by_class[rng.integers(bounds[partner_class], bounds[partner_class + 1])]
        edges[src, relation, "paper"] = (partners, papers)
        edges["paper", f"rev_{relation}", src] = (papers, partners)
    g = mg.heterograph(edges, counts)
    for ntype, width in widths.items():
        centroids = rng.normal(0, 0.3, (num_classes, width))
        rows = centroids[classes[ntype]] + rng.normal(0, 1, (counts[ntype], width))
        g.nodes[ntype].data["feat"] = rows.astype(np.float32)
    split = rng.random(counts["paper"])
    masks = {"train_mask": split < 0.3, "val_mask": (split >= 0.3) & (split < 0.5), "test_mask": split >= 0.5}
    g.nodes["paper"].data.update({"label": classes["paper"]} | masks)
    mg.distributed.partition_graph(g, "default", 2, folder)


def write_stream(folder, path="", num_nodes=1000, num_communities=20, num_contacts=20_000):
    """Write a stream of contacts, each an edge in both directions with its time, in edata["time"].

    edata["forward"] marks one edge of each contact. Features are random: a node is known only by its contacts. The
    stream comes from an npz file with ``src``, ``dst`` and ``time`` (or ``edge_src``, ...), or is generated: all
    contacts are within communities, and each node moves to another one about twice.
    """
    rng = np.random.default_rng(0)
    if path:
        with np.load(path) as file:
            prefix = "edge_" if "edge_src" in file else ""
            src, dst, time = (file[prefix + name].astype(np.int64) for name in ("src", "dst", "time"))
        num_nodes = int(max(src.max(), dst.max())) + 1
    else:
        community = rng.integers(0, num_communities, num_nodes)
        src, dst, time = np.empty(num_contacts, np.int64), np.empty(num_contacts, np.int64), np.arange(num_contacts)
        for contact in range(num_contacts):
            if contact * 2 * num_nodes // num_contacts > (contact - 1) * 2 * num_nodes // num_contacts:
                community[rng.integers(num_nodes)] = rng.integers(num_communities)
            src[contact] = rng.integers(num_nodes)
            dst[contact] = rng.choice(np.flatnonzero(community == community[src[contact]]))
    g = mg.graph((np.concatenate([src, dst]), np.concatenate([dst, src])), num_nodes=num_nodes)
    g.ndata["feat"] = torch.from_numpy(rng.normal(0, 1 / 8, (num_nodes, 64)).astype(np.float32))  # of length 1 or so
    g.edata["time"] = torch.from_numpy(np.concatenate([time, time]))
    g.edata["forward"] = torch.arange(2 * len(src)) < len(src)
    mg.distributed.partition_graph(g, "default", 2, folder)
