"""Complete a knowledge graph by DistMult or ComplEx; the same script in all three starts.

    python examples/knowledge_graph.py
    mpiexec -n 4 python examples/knowledge_graph.py --num_servers 1
    srun -N 8 --ntasks-per-node=9 python examples/knowledge_graph.py --graph_name G --part_config DIR/G.json \
        --triples DIR/held_out.npz

The graph has the training triples (head, r, tail) as edges with edata["rel"] = r, and each in the other direction as
well, (tail, r + R, head): so heads are predicted as tails, and what is known of a head is among its in-edges. The npz
file has num_relations (R) and the triples that are held out, {valid,test}_{src,rel,dst}, in ids of the partitioned
graph (partition_graph(return_mapping=True) tells them). Without --part_config a graph is generated.
Printed are filtered ranks: of a held-out tail among all entities that are not known to be right, too. Every trainer
ranks its share of the triples and reads the entities block by block.
"""

import argparse
import os
import shutil
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg

SETTINGS = {
    "graph_name": "default",
    "part_config": os.environ.get("MPIGRAPH_PART_CONFIG", ""),  # <name>.json of a partitioned graph
    "triples": "",  # npz file of held-out triples
    "num_servers": None,  # on each node (MPIGRAPH_NUM_SERVERS, else 1); 0: every trainer hosts a share of the graph
    "backend": "gloo",  # of gradients; nccl: train on GPUs; mpi4py: by MPI, with no port opened
    "model": "DistMult",  # or ComplEx
    "num_epochs": 6,
    "eval_every": 3,  # epochs
    "batch_size": 1000,  # of all trainers together
    "num_negatives": 500,  # entities drawn for a minibatch; each of its edges is told from all of them
    "num_hidden": 100,
    "lr": 0.003,  # of the relations, by Adam
    "sparse_lr": 0.03,  # of the entities, by Adagrad
    "seed": 0,
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, value in SETTINGS.items():
    parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value, help="(%(default)s)")
args = parser.parse_args()
if args.part_config and not args.triples:
    parser.error("a partitioned graph needs --triples")
TRIPLES, ENTITIES = 500, 10_000  # that are ranked together


class Relations(nn.Module):
    """Turns a head into the row that it looks for: the score of a triple is the dot product of that with its tail."""

    def __init__(self, num_relations, width):
        super().__init__()
        self.rows = nn.Embedding(num_relations, width)
        nn.init.normal_(self.rows.weight, std=0.1)

    def forward(self, heads, relations):
        rows = self.rows(relations)
        if args.model == "DistMult":
            return heads * rows
        (a, b), (c, d) = heads.chunk(2, 1), rows.chunk(2, 1)  # real and imaginary halves
        return torch.cat([a * c - b * d, a * d + b * c], 1)


def train_epoch(entities, model, optimizers, loader, device):
    """Make one pass; return the loss of this trainer's last minibatch."""
    loss = torch.zeros(())
    for inputs, positives, negatives, _ in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        rows = entities(inputs, device)
        heads, tails = positives.edges()
        wanted = model(rows[heads], positives.edata["rel"])
        right = (wanted * rows[tails]).sum(1, keepdim=True)
        wrong = wanted @ rows[negatives.edges()[1][: args.num_negatives]].T  # the same for every edge
        loss = F.cross_entropy(torch.cat([right, wrong], 1), torch.zeros_like(heads))
        loss.backward()
        for optimizer in optimizers:  # that of the entities is collective: gradients go to the owners of the rows
            optimizer.step()
    return loss.item()


def known_answers(g, triples, held_out, num_relations):
    """All right tails for the head and relation of each triple: (position of the triple, tail)."""
    into_heads = g.sample_neighbors(triples[:, 0].unique(), -1)  # the answers, seen from the other end
    src, dst = into_heads.edges()
    reverse = (g.edata["rel"][into_heads.edata[mg.EID]] + num_relations // 2) % num_relations
    known = torch.cat([torch.stack([dst, reverse, src], 1), held_out])
    keys, order = torch.sort(known[:, 0] * num_relations + known[:, 1])
    wanted = triples[:, 0] * num_relations + triples[:, 1]
    begin, end = torch.searchsorted(keys, wanted), torch.searchsorted(keys, wanted, right=True)
    count = end - begin
    position = torch.repeat_interleave(torch.arange(len(triples)), count)
    place = torch.arange(len(position)) + (end - count.cumsum(0))[position]
    return position, known[order[place], 2]


@torch.no_grad()
def evaluate(g, entities, model, triples, held_out, device):
    """Filtered mean reciprocal rank and hits@1, 3, 10 of triples, each trainer ranking its share."""
    rank, size = g.rank(), torch.distributed.get_world_size()
    blocks = -(-len(triples) // (size * TRIPLES))  # on every trainer: reading known answers is collective
    sums = torch.zeros(5, dtype=torch.float64)
    for block in triples[rank::size].tensor_split(blocks):
        position, answer = known_answers(g, block, held_out, model.module.rows.num_embeddings)
        wanted = model.module(entities(block[:, 0], device), block[:, 1].to(device)).cpu()
        best = (wanted * entities(block[:, 2])).sum(1, keepdim=True)
        ranks = torch.ones(len(block), dtype=torch.float64)
        for begin in range(0, g.num_nodes(), ENTITIES):
            rows = entities.weight[begin : min(begin + ENTITIES, g.num_nodes())]
            scores = wanted @ rows.T
            here = (answer >= begin) & (answer < begin + len(rows))
            scores[position[here], answer[here] - begin] = -torch.inf
            ranks += (scores > best).sum(1) + (scores == best).sum(1) / 2  # equal scores come in any order
        sums += torch.stack([1 / ranks, ranks <= 1, ranks <= 3, ranks <= 10, torch.ones_like(ranks)]).sum(1)
    sums = sums.to(device)
    torch.distributed.all_reduce(sums)
    return "MRR {:.4f}  hits@1 {:.4f}  hits@3 {:.4f}  hits@10 {:.4f}".format(*(sums[:4] / sums[4]).tolist())


def train(g, parts, num_relations, device):
    """Train; print the ranks of the validation triples on the way, and of the test triples at the end."""
    num_trainers = torch.distributed.get_world_size()
    eids = mg.distributed.edge_split(torch.ones(g.num_edges(), dtype=torch.bool), g.get_partition_book())
    no_layers = mg.dataloading.NeighborSampler([])
    options = {"batch_size": -(-args.batch_size // num_trainers), "shuffle": True, "labels": "rel"}
    options["negative_sampler"] = mg.dataloading.negative_sampler.JointUniform(args.num_negatives)
    loader = mg.distributed.DistEdgeDataLoader(g, eids, no_layers, device, **options)
    torch.manual_seed(args.seed)
    model = nn.parallel.DistributedDataParallel(Relations(num_relations, args.num_hidden).to(device))
    entities = mg.distributed.DistEmbedding(
        g.num_nodes(), args.num_hidden, "emb", lambda shape, _: torch.randn(shape) / 100
    )
    optimizers = [torch.optim.Adam(model.parameters(), lr=args.lr)]
    optimizers.append(mg.distributed.SparseAdagrad([entities], lr=args.sparse_lr, reduction="sum"))
    held_out = torch.cat(list(parts.values()))
    for epoch in range(args.num_epochs):
        line = f"epoch {epoch:2d}  last loss {train_epoch(entities, model, optimizers, loader, device):.4f}"
        if (epoch + 1) % args.eval_every == 0:
            line += f"  validation {evaluate(g, entities, model, parts['valid'], held_out, device)}"
        if g.rank() == 0:
            print(line, flush=True)
    found = evaluate(g, entities, model, parts["test"], held_out, device)
    if g.rank() == 0:
        print("test", found)


def generate(directory, num_entities=1000, num_relations=10):
    """Write a graph where the tails of a head and relation are the 8 entities whose hidden rows fit best."""
    random = torch.Generator().manual_seed(0)
    hidden = F.normalize(torch.randn(num_entities, 8, generator=random))
    signs = torch.randn(num_relations, 1, 8, generator=random).sign()
    tails = (hidden * signs @ hidden.T).topk(8).indices.flatten()
    number = torch.randperm(len(tails), generator=random)  # of relation, head and tail
    triples = torch.stack([number // 8 % num_entities, number // (8 * num_entities), tails[number]], 1)
    held_out, train = triples.split([4000, len(triples) - 4000])
    src, rel, dst = torch.cat([train, train[:, [2, 1, 0]] + torch.tensor([0, num_relations, 0])]).T
    g = mg.graph((src, dst), num_nodes=num_entities)
    g.edata["rel"] = rel
    orig_nids, _ = mg.distributed.partition_graph(g, "default", 2, directory, return_mapping=True)
    arrays, new = {"num_relations": num_relations}, torch.argsort(orig_nids)
    for part, (src, rel, dst) in zip(("valid", "test"), held_out.T.split(2000, 1), strict=True):
        arrays |= {f"{part}_src": new[src], f"{part}_rel": rel, f"{part}_dst": new[dst]}
    np.savez(f"{directory}/held_out.npz", **arrays)


def read_triples(path):
    """The held-out triples by part, int64[n, 3] each, in both directions; and how many relations that makes."""
    with np.load(path) as file:
        count, parts = int(file["num_relations"]), {}
        for part in ("valid", "test"):
            src, rel, dst = (torch.from_numpy(file[f"{part}_{column}"]).long() for column in ("src", "rel", "dst"))
            parts[part] = torch.cat([torch.stack([src, rel, dst], 1), torch.stack([dst, rel + count, src], 1)])
    return parts, 2 * count


def main():
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if args.backend == "nccl" else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(args.backend, init_method="mpi4py://" if args.backend == "mpi4py" else None)
    directory = f"{tempfile.gettempdir()}/mpigraph-{os.environ['MASTER_PORT']}"  # the same on every trainer
    if not args.part_config and torch.distributed.get_rank() == 0:
        generate(directory)
    torch.distributed.barrier()
    parts, num_relations = read_triples(args.triples or f"{directory}/held_out.npz")
    g = mg.distributed.DistGraph(args.graph_name, part_config=args.part_config or f"{directory}/default.json")
    if not args.part_config and g.rank() == 0:
        shutil.rmtree(directory)  # all of it is in memory now
    train(g, parts, num_relations, device)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
