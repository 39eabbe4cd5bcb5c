"""Complete a knowledge graph by DistMult or ComplEx; the same script in all three starts.

    python examples/knowledge_graph.py
    mpiexec -n 4 python examples/knowledge_graph.py --num_servers 1
    srun -N 8 -n 72 --mpi=pmi2 python examples/knowledge_graph.py --graph_name G --part_config DIR/G.json

The edges are the training triples with edata["rel"], in both directions; the npz file has the triples that are held
out. graphs.write_triples, which generates such a graph where none is given, tells how both are numbered. Printed are
filtered ranks: of a held-out tail among all entities that are not known to be right, too.
"""

import common
import graphs
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg

TRIPLES = 500  # that a trainer ranks together
ENTITIES = 10_000  # whose rows it reads together


def train(g, num_relations, parts, args, device):
    """Train; print the ranks of the validation triples on the way, and of the test triples at the end."""
    loader = mg.distributed.DistEdgeDataLoader(
        g,
        mg.distributed.edge_split(torch.ones(g.num_edges(), dtype=torch.bool), g.get_partition_book()),
        mg.dataloading.NeighborSampler([]),  # no layers
        device,
        batch_size=common.per_trainer(args.batch_size),
        shuffle=True,
        labels="rel",
        negative_sampler=mg.dataloading.negative_sampler.JointUniform(args.num_negatives),
    )
    torch.manual_seed(args.seed)
    model = nn.parallel.DistributedDataParallel(Relations(num_relations, args.num_hidden, args.model).to(device))
    emb = mg.distributed.DistEmbedding(g.num_nodes(), args.num_hidden, "emb", lambda shape, _: torch.randn(shape) / 100)
    dense = torch.optim.Adam(model.parameters(), lr=args.lr)
    sparse = mg.distributed.SparseAdagrad([emb], lr=args.sparse_lr, reduction="sum")
    held_out = torch.cat(list(parts.values()))
    progress = common.Progress(args.num_epochs)
    for epoch in range(args.num_epochs):
        for inputs, edges, negatives, _ in progress.batches(loader):
            dense.zero_grad()
            sparse.zero_grad()
            rows = emb(inputs, device)
            heads, tails = edges.edges()
            queries = model(rows[heads], edges.edata["rel"])
            right = (queries * rows[tails]).sum(1, keepdim=True)
            wrong = queries @ rows[negatives.edges()[1][: args.num_negatives]].T  # shared by all edges
            loss = F.cross_entropy(torch.cat([right, wrong], 1), torch.zeros_like(heads))
            loss.backward()
            dense.step()
            sparse.step()  # collective: the gradients of a row go to its owner, from all trainers
            progress.add(loss)
        if (epoch + 1) % args.eval_every == 0:
            progress.note(f"validation {evaluate(g, emb, model, parts['valid'], held_out, device)}")
        progress.report()
    common.print_once(f"test {evaluate(g, emb, model, parts['test'], held_out, device)}")


class Relations(nn.Module):
    """Map a head and a relation to a query: the score of a triple is the dot product of the query with its tail."""

    def __init__(self, num_relations, width, kind):
        super().__init__()
        self.rows = nn.Embedding(num_relations, width)
        nn.init.normal_(self.rows.weight, std=0.1)
        self.kind = kind

    def forward(self, heads, relations):
        rows = self.rows(relations)
        if self.kind == "DistMult":
            return heads * rows
        a, b = heads.chunk(2, 1)  # real and imaginary halves
        c, d = rows.chunk(2, 1)
        return torch.cat([a * c - b * d, a * d + b * c], 1)


@torch.no_grad()
def evaluate(g, emb, model, triples, held_out, device):
    """Filtered mean reciprocal rank and hits@k of triples; each trainer ranks some of them."""
    size = torch.distributed.get_world_size()
    num_blocks = -(-len(triples) // (size * TRIPLES))  # on every trainer: reading known answers is collective
    ranking = common.Ranks(device, ks=[1, 3, 10])
    for block in common.shown(triples[g.rank() :: size].tensor_split(num_blocks), "ranking"):
        position, answer = graphs.known_tails(g, block, held_out, model.module.rows.num_embeddings)
        queries = model.module(emb(block[:, 0], device), block[:, 1].to(device)).cpu()
        best = (queries * emb(block[:, 2])).sum(1, keepdim=True)
        ranks = torch.ones(len(block), dtype=torch.float64)
        for begin in range(0, g.num_nodes(), ENTITIES):
            rows = emb.weight[begin : min(begin + ENTITIES, g.num_nodes())]
            scores = queries @ rows.T
            here = (answer >= begin) & (answer < begin + len(rows))
            scores[position[here], answer[here] - begin] = -torch.inf
            ranks += (scores > best).sum(1) + (scores == best).sum(1) / 2  # ties count half
        ranking.add(ranks)
    return ranking.compute()


SETTINGS = {
    "triples": ("", "npz file of held-out triples; default: held_out.npz beside the graph"),
    "model": ("DistMult", "DistMult or ComplEx"),
    "num_epochs": (6, "passes over the triples"),
    "eval_every": (3, "evaluate after every so many epochs"),
    "batch_size": (1000, "of all trainers together"),
    "num_negatives": (500, "entities drawn for a minibatch; each of its edges is told from all of them"),
    "num_hidden": (100, "width of the rows of entities and relations"),
    "lr": (0.003, "learning rate of the relations, by Adam"),
    "sparse_lr": (0.03, "of the entities, by Adagrad"),
}


def main():
    args = common.parse_arguments(__doc__, SETTINGS)
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = common.start_torch(args.backend)
    with graphs.graph_files(graphs.write_triples, args.part_config) as part_config:
        g = mg.distributed.DistGraph(args.graph_name, part_config=part_config)
        num_relations, parts = graphs.read_triples(part_config, args.triples)
    train(g, num_relations, parts, args, device)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
