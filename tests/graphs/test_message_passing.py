"""Message passing, by built-in functions and by functions of the user's, against loops over edges and nodes."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from layer_checks import agree

import mpigraph.function as fn
from mpigraph.errors import EdgeTypeError, FieldNameError, InvalidArgumentError
from mpigraph.graphs.block import Block, to_block
from mpigraph.graphs.hetero import graph, heterograph
from mpigraph.metadata.schema import DEFAULT_ETYPE, Schema

OPS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "copy": lambda lhs, _: lhs}
OPS["dot"] = lambda lhs, rhs: (lhs * rhs).sum(-1, keepdim=True)
REDUCERS = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.amax(0),
    "min": lambda rows: rows.amin(0),
}


def random_graph(seed=0, nodes=12, edges=40):
    """A graph with duplicate edges, loops, unsorted destinations and isolated nodes."""
    rng = np.random.default_rng(seed)
    return graph((rng.integers(0, nodes - 2, edges), rng.integers(0, nodes - 2, edges)), num_nodes=nodes)


def block_of(degrees, num_src):
    """A block as samplers make it, with sources at random."""
    indices = np.random.default_rng(0).integers(0, max(num_src, 1), sum(degrees)).astype(np.int32)
    csc = np.concatenate([[0], np.cumsum(degrees, dtype=np.int64)]), indices, None
    return Block.from_csc(Schema.homogeneous(), {DEFAULT_ETYPE: csc}, {"_N": np.arange(num_src)}, {"_N": len(degrees)})


GRAPHS = {"graph": random_graph, "block": partial(block_of, [3, 0, 4, 1, 0], 9)}
GRAPHS["to_block"] = lambda: to_block(random_graph(2))
EMPTY = {f"{n} to {len(none)}": partial(block_of, none, n) for n, none in ((0, []), (4, []), (3, [0, 0]))}


@pytest.fixture(params=GRAPHS)
def g(request):
    return GRAPHS[request.param]()


def fill(g, u=(3,), v=(3,), e=(3,), grad=False):
    gen = torch.Generator().manual_seed(1)
    fields = [
        (torch.rand(n, *shape, generator=gen, dtype=torch.float64) + 0.5).requires_grad_(grad)
        for n, shape in ((g.num_src_nodes(), u), (g.num_dst_nodes(), v), (g.num_edges(), e))
    ]
    g.srcdata["u"], g.dstdata["v"], g.edata["e"] = fields
    return fields


def by_loop(g, rows, op):
    """Reduce one row for each edge (by edge id) to the destinations, one at a time."""
    dst = g.edges()[1]
    out = torch.zeros(g.num_dst_nodes(), *rows.shape[1:], dtype=rows.dtype)
    for d in dst.unique().tolist():
        out[d] = REDUCERS[op](rows[dst == d])
    return out


MESSAGES = [
    *(("copy_u", {"u": shape}) for shape in ((), (3,), (2, 4), (0,))),
    ("copy_e", {"e": (3,)}),
    *((f"{a}_{op}_{b}", {}) for a, b in ("uv", "vu", "ue", "eu", "ve", "ev") for op in ("add", "sub", "mul", "div")),
    ("u_dot_v", {"u": (2, 3), "v": (2, 3)}),  # keeps a last dimension of one
    *(  # broadcast from the last dimension
        (name, {"u": u, "e": e})
        for u, e in (((3,), ()), ((3,), (1,)), ((), ()), ((), (1,)), ((2, 3), (1,)), ((2, 3), (2, 1)), ((1,), (5,)))
        for name in ("u_mul_e", "e_mul_u")
    ),
]  # fmt: skip


CASES = [*product(GRAPHS, MESSAGES), *product(EMPTY, [case for case in MESSAGES if case[1]])]


@pytest.mark.parametrize(("kind", "case"), CASES, ids=str)
def test_built_in_functions_and_their_gradients(kind, case):
    g, (name, shapes) = (GRAPHS | EMPTY)[kind](), case
    leaves = fill(g, **shapes, grad=True)
    lhs, op, rhs = name.split("_") if name.count("_") == 2 else (name[-1], "copy", name[-1])
    message = getattr(fn, name)(*([lhs, "m"] if op == "copy" else [lhs, rhs, "m"]))
    src, dst = g.edges()
    rows = dict(zip("uve", (leaves[0][src], leaves[1][dst], leaves[2]), strict=True))
    dims = max(rows[lhs].dim(), rows[rhs].dim())
    one, other = (x.reshape(len(x), *[1] * (dims - x.dim()), *x.shape[1:]) for x in (rows[lhs], rows[rhs]))
    want = OPS[op](one, other)
    if op != "copy":
        g.apply_edges(message)
        torch.testing.assert_close(g.edata["m"], want)
    for reduce in REDUCERS:
        g.update_all(message, getattr(fn, reduce)("m", "out"))
        agree({"out": g.dstdata["out"]}, {"out": by_loop(g, want, reduce)}, *leaves)


@pytest.mark.parametrize("op", ["max", "min"])
def test_ties_share_the_gradient(g, op):
    x = (torch.arange(g.num_src_nodes() * 3).reshape(-1, 3) % 2).double().requires_grad_()
    g.srcdata["u"] = x
    g.update_all(fn.copy_u("u", "m"), getattr(fn, op)("m", "out"))
    agree({"out": g.dstdata["out"]}, {"out": by_loop(g, x[g.edges()[0]], op)}, x)


def test_no_transposed_structure_for_features_without_gradient(g):
    fill(g)
    w = g.edata["w"] = torch.rand(g.num_edges(), dtype=torch.float64, requires_grad=True)
    g.update_all(fn.u_mul_e("u", "w", "m"), fn.sum("m", "out"))
    g.dstdata["out"].sum().backward()
    assert w.grad is not None and "transposed" not in vars(g.structure(DEFAULT_ETYPE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32])
@pytest.mark.parametrize("op", REDUCERS)
def test_other_types(g, dtype, op):
    g.srcdata["u"] = (torch.arange(g.num_src_nodes() * 2).reshape(-1, 2) % 7).to(dtype)
    g.edata["e"] = (torch.arange(g.num_edges()) % 3 - 1).to(dtype)
    sent = g.srcdata["u"][g.edges()[0]]
    for message, rows in ((fn.copy_u("u", "m"), sent), (fn.u_mul_e("u", "e", "m"), sent * g.edata["e"].reshape(-1, 1))):
        g.update_all(message, getattr(fn, op)("m", "out"))
        found = g.dstdata["out"]
        of_integers = {"sum": torch.int64, "mean": torch.float32}.get(op, torch.int64 if message.rhs else dtype)
        assert found.dtype == (dtype if dtype.is_floating_point else of_integers)
        tolerance = 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6
        torch.testing.assert_close(found.double(), by_loop(g, rows.double(), op), rtol=tolerance, atol=tolerance)


# Several relations

A_C, B_C = ("a", "x", "c"), ("b", "y", "c")


def bipartite(dtype=torch.float32):
    g = heterograph({A_C: ([0, 1, 1], [0, 0, 3]), B_C: ([0, 0], [3, 1])}, {"a": 2, "b": 1, "c": 5})
    g.nodes["a"].data["h"] = torch.tensor([[-1], [-4]], dtype=dtype)
    g.nodes["b"].data["h"] = torch.tensor([[-2]], dtype=dtype)
    return g


def out_of(g, name="out"):
    return g.nodes["c"].data[name].flatten(1).squeeze(1).tolist()


MEANS = fn.copy_u("h", "m"), fn.mean("m", "out")
LAST = lambda edges: {"m": edges.src["h"]}, lambda nodes: {"out": nodes.mailbox["m"][:, -1]}
OWN = fn.copy_u("h", "m"), lambda nodes: {"out": 10 * nodes.mailbox["m"][:, -1]}


@pytest.mark.parametrize(
    ("pairs", "cross", "want"),
    [
        ({"x": MEANS, B_C: MEANS}, "sum", [-2.5, -2, 0, -6, 0]),
        ({"x": MEANS, B_C: MEANS}, "mean", [-1.25, -1, 0, -3, 0]),
        ({"x": MEANS, B_C: MEANS}, "max", [0, 0, 0, -2, 0]),
        ({"x": MEANS, B_C: MEANS}, "stack", [[-2.5, 0], [0, -2], [0, 0], [-4, -2], [0, 0]]),
        ({"x": LAST, "y": OWN}, "sum", [-4, -20, 0, -24, 0]),
        ({"x": LAST, "y": OWN}, lambda tensors: tensors[0] - tensors[1], [-4, 20, 0, 16, 0]),
    ],
)
def test_multi_update_all(pairs, cross, want):
    g = bipartite()
    g.multi_update_all(pairs, cross, lambda nodes: {"neg": -nodes.data["out"]})
    assert out_of(g) == want and torch.equal(g.nodes["c"].data["neg"], -g.nodes["c"].data["out"])


def test_graphs_without_edges_pass_no_message() -> None:
    g = graph(([], []), num_nodes=3)
    g.ndata["h"] = torch.ones(3, 2)
    g.update_all(LAST[0], fn.sum("m", "s"))
    assert torch.equal(g.ndata["s"], torch.zeros(3, 2))
    for message in (fn.copy_u("h", "m"), LAST[0]):
        g.update_all(message, LAST[1])
        assert "out" not in g.ndata  # no reduction has told its name


# Functions of the user's own

SRC, DST = [2, 0, 3, 1, 4, 4, 0], [1, 1, 0, 1, 0, 3, 5]  # in-degrees 2, 3, 0, 1, 0, 1


@pytest.fixture(params=["graph", "block"])
def small(request):
    g = graph((SRC, DST), num_nodes=6)
    g = g if request.param == "graph" else to_block(g, [3, 1, 2, 0, 5])
    fill(g, e=(1,))
    return g


def own_message(edges):
    return {"m": edges.src["u"] * edges.data["e"] + edges.dst["v"], "other": edges.data["e"]}


def test_mailboxes_are_in_the_order_of_edge_ids_and_the_rest_keeps_zeros(small):
    g, seen = small, []

    def reduce(nodes):
        seen.append(nodes.mailbox["other"].shape[1])
        assert nodes.batch_size() == len(nodes) == len(nodes.nodes()) == len(nodes.data["v"])
        weights = 10.0 ** torch.arange(nodes.mailbox["m"].shape[1], dtype=torch.float64)  # tells messages apart
        return {"out": (nodes.mailbox["m"] * weights[None, :, None]).sum(1) + nodes.data["v"], "n": nodes.nodes()}

    g.dstdata["out"] = torch.full((g.num_dst_nodes(), 3), 7.0, dtype=torch.float64)
    g.update_all(own_message, reduce)
    assert seen == [1, 2, 3]
    src, dst = g.edges()
    ids = g.dstdata["_ID"] if g.is_block else g.nodes()
    for v in range(g.num_dst_nodes()):
        eids = (dst == v).nonzero().squeeze(1)
        messages = g.srcdata["u"][src[eids]] * g.edata["e"][eids] + g.dstdata["v"][v]
        want = sum((10.0**k * m for k, m in enumerate(messages)), g.dstdata["v"][v])
        torch.testing.assert_close(g.dstdata["out"][v], want if len(eids) else torch.zeros(3, dtype=torch.float64))
        assert g.dstdata["n"][v] == (ids[v] if len(eids) else 0)


def test_gradients_go_through_own_functions(small):
    def run(u, e):
        with small.local_scope():
            small.srcdata["u"], small.edata["e"] = u, e
            reduce = lambda nodes: {"out": nodes.mailbox["m"].prod(1) + nodes.mailbox["other"].sum(1)}  # noqa: E731
            small.update_all(own_message, reduce)
            return small.dstdata["out"]

    assert torch.autograd.gradcheck(run, (small.srcdata["u"].requires_grad_(), small.edata["e"].requires_grad_()))


def test_what_a_batch_of_edges_knows(small):
    def message(edges):
        src, dst, eids = edges.edges()
        assert edges.canonical_etype == ("_N", "_E", "_N") and len(edges) == edges.batch_size() == len(eids)
        return {"ends": torch.stack([src, dst, eids], 1)}

    g = small
    g.apply_edges(message)
    assert torch.equal(g.edata["ends"], torch.stack(g.edges("all"), 1))


def test_functions_of_nodes(small):
    g = small
    g.apply_nodes(lambda nodes: {"twice": 2 * nodes.data["v"], "id": nodes.nodes()})
    assert torch.equal(g.dstdata["twice"], 2 * g.dstdata["v"])
    g.update_all(own_message, fn.sum("m", "s"), lambda nodes: {"s": -nodes.data["s"]})
    g.apply_edges(own_message)
    for name, reduce in (("sum", fn.sum), ("mean", fn.mean), ("max", fn.max)):
        g.update_all(own_message, reduce("m", "t"))
        torch.testing.assert_close(g.dstdata["t"], by_loop(g, g.edata["m"], name))
        assert name != "sum" or torch.equal(g.dstdata["s"], -g.dstdata["t"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: g.update_all("u", fn.sum("m", "o")), "message function must be"),
        (lambda g: g.update_all(own_message, "sum"), "reduce function must be"),
        (lambda g: g.update_all(fn.copy_u("u", "m"), fn.sum("n", "o")), "'m' but 'n'"),
        (lambda g: g.update_all(fn.copy_u("z", "m"), fn.sum("m", "o")), "'z'"),
        (lambda g: g.update_all(own_message, fn.sum("x", "o")), r"\['m', 'other'\] but 'x'"),
        (lambda g: g.update_all(lambda e: 3, fn.sum("m", "o")), "dict of tensors .got int"),
        (
            lambda g: g.update_all(lambda e: {"m": torch.ones(2)}, fn.sum("m", "o")),
            r"message function must return 'm' as a tensor of 7 rows \(got shape \(2,\)",
        ),
        (
            lambda g: g.update_all(own_message, lambda n: {"o": n.mailbox["m"].sum(0)}),
            "reduce function must return 'o' as a tensor of",
        ),
        (
            lambda g: g.update_all(own_message, lambda n: {f"o{n.mailbox['m'].shape[1]}": n.mailbox["m"].sum(1)}),
            "same names for each degree",
        ),
        (lambda g: g.update_all(own_message, lambda n: {"o": n.mailbox["m"].flatten(1)}), "rows of one shape"),
        (lambda _: bipartite().update_all(*MEANS), "edge type is ambiguous"),
        (lambda _: bipartite().multi_update_all({}, "median"), "median"),
        (lambda _: bipartite().multi_update_all({"x": fn.sum("m", "o")}, "sum"), "relation .* needs"),
    ],
)
def test_misuse_is_named(small, call, message):
    with pytest.raises((InvalidArgumentError, EdgeTypeError, FieldNameError), match=message):
        call(small)
