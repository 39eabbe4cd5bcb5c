"""Message passing against dense matrices and edge-by-edge loops."""

import numpy as np
import pytest
import torch

import mpigraph.function as fn
from mpigraph.errors import FieldNameError, InvalidArgumentError
from mpigraph.graphs.aggregate import spmm
from mpigraph.graphs.block import Block, to_block
from mpigraph.graphs.hetero import graph, heterograph
from mpigraph.metadata.schema import DEFAULT_ETYPE, Schema

OPS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
REDUCERS = ["sum", "mean", "max", "min"]


def random_graph(seed=0, nodes=12, edges=40):
    """A graph with duplicate edges, loops, unsorted destinations and isolated nodes."""
    rng = np.random.default_rng(seed)
    return graph((rng.integers(0, nodes - 2, edges), rng.integers(0, nodes - 2, edges)), num_nodes=nodes)


def random_block(seed=0):
    rng = np.random.default_rng(seed)
    degrees = np.array([3, 0, 4, 1, 0])
    indptr = np.concatenate([[0], degrees.cumsum()])
    csc = indptr, rng.integers(0, 9, degrees.sum()).astype(np.int32), None
    return Block.from_csc(Schema.homogeneous(), {DEFAULT_ETYPE: csc}, {"_N": np.arange(9)}, {"_N": 5})


GRAPHS = {"graph": random_graph, "block": random_block, "to_block": lambda: to_block(random_graph(2))}


@pytest.fixture(params=GRAPHS)
def g(request):
    return GRAPHS[request.param]()


def fill(g, shape=(3,), dtype=torch.float64, grad=False):
    """Put random fields u on sources, v on destinations, e on edges."""
    gen = torch.Generator().manual_seed(1)
    u, v, e = (
        (torch.rand(n, *shape, generator=gen, dtype=torch.float64) + 0.5).to(dtype).requires_grad_(grad)
        for n in (g.num_src_nodes(), g.num_dst_nodes(), g.num_edges())
    )
    g.srcdata["u"], g.dstdata["v"], g.edata["e"] = u, v, e
    return u, v, e


def by_loop(g, rows, op):
    """Reduce one row for each edge (by edge id) to the destinations, one at a time."""
    dst = g.edges()[1]
    out = torch.zeros(g.num_dst_nodes(), *rows.shape[1:], dtype=rows.dtype)
    for d in range(g.num_dst_nodes()):
        mine = rows[dst == d]
        if len(mine):
            out[d] = {"sum": mine.sum(0), "mean": mine.mean(0), "max": mine.amax(0), "min": mine.amin(0)}[op]
    return out


@pytest.mark.parametrize("op", REDUCERS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_copy_u(g, op, shape):
    u, _, _ = fill(g, shape)
    g.update_all(fn.copy_u("u", "m"), getattr(fn, op)("m", "out"))
    torch.testing.assert_close(g.dstdata["out"], by_loop(g, u[g.edges()[0]], op))


@pytest.mark.parametrize("op", REDUCERS)
def test_copy_e(g, op):
    _, _, e = fill(g)
    g.update_all(fn.copy_e("e", "m"), getattr(fn, op)("m", "out"))
    torch.testing.assert_close(g.dstdata["out"], by_loop(g, e, op))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("sides", ["uv", "vu", "ue", "eu", "ve", "ev"])
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_the_binary_family(g, op, sides, reduce):
    u, v, e = fill(g)
    src, dst = g.edges()
    rows = {"u": u[src], "v": v[dst], "e": e}
    message = getattr(fn, f"{sides[0]}_{op}_{sides[1]}")(sides[0], sides[1], "m")
    want = OPS[op](rows[sides[0]], rows[sides[1]])
    g.apply_edges(message)
    torch.testing.assert_close(g.edata["m"], want)
    g.update_all(message, getattr(fn, reduce)("m", "out"))
    torch.testing.assert_close(g.dstdata["out"], by_loop(g, want, reduce))


def test_dot_keeps_a_last_dimension_of_one(g):
    u, v, _ = fill(g, (2, 3))
    g.apply_edges(fn.u_dot_v("u", "v", "score"))
    src, dst = g.edges()
    torch.testing.assert_close(g.edata["score"], (u[src] * v[dst]).sum(-1, keepdim=True))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    ("features", "weights"), [((3,), ()), ((3,), (1,)), ((), ()), ((), (1,)), ((2, 3), (1,)), ((2, 3), (2, 1))]
)
def test_weights_broadcast_from_the_last_dimension(g, reduce, features, weights):
    u, _, _ = fill(g, features)
    w = g.edata["w"] = torch.rand(g.num_edges(), *weights, dtype=torch.float64)
    rows = u[g.edges()[0]]
    dim = max(rows.dim(), w.dim())
    want = rows.reshape(len(w), *[1] * (dim - rows.dim()), *features) * w.reshape(
        len(w), *[1] * (dim - w.dim()), *weights
    )
    for message in (fn.u_mul_e("u", "w", "m"), fn.e_mul_u("w", "u", "m")):
        g.update_all(message, getattr(fn, reduce)("m", "out"))
        torch.testing.assert_close(g.dstdata["out"], by_loop(g, want, reduce))


@pytest.mark.parametrize("op", REDUCERS)
@pytest.mark.parametrize("message", ["copy_u", "copy_e", "u_mul_e", "u_add_v", "u_mul_w"])
def test_gradients(g, op, message):
    tensors = (*fill(g, (2,), grad=True), torch.rand(g.num_edges(), 1, dtype=torch.float64, requires_grad=True))

    def run(u, v, e, w):
        with g.local_scope():
            g.srcdata["u"], g.dstdata["v"], g.edata["e"], g.edata["w"] = u, v, e, w
            sent = {
                "copy_u": fn.copy_u("u", "m"),
                "copy_e": fn.copy_e("e", "m"),
                "u_mul_e": fn.u_mul_e("u", "e", "m"),
                "u_add_v": fn.u_add_v("u", "v", "m"),
                "u_mul_w": fn.u_mul_e("u", "w", "m"),
            }[message]
            g.update_all(sent, getattr(fn, op)("m", "out"))
            return g.dstdata["out"]

    assert torch.autograd.gradcheck(run, tensors)


@pytest.mark.parametrize("op", ["max", "min"])
def test_ties_share_the_gradient(g, op):
    x = (torch.arange(g.num_src_nodes() * 3).reshape(-1, 3) % 2).double().requires_grad_()
    factor = torch.randn(g.num_dst_nodes(), 3, dtype=torch.float64)
    g.srcdata["u"] = x
    g.update_all(fn.copy_u("u", "m"), getattr(fn, op)("m", "out"))
    (found,) = torch.autograd.grad((g.dstdata["out"] * factor).sum(), x)
    (want,) = torch.autograd.grad((by_loop(g, x[g.edges()[0]], op) * factor).sum(), x)
    torch.testing.assert_close(found, want)


def test_no_transposed_structure_for_features_without_gradient(g):
    fill(g)
    w = g.edata["w"] = torch.rand(g.num_edges(), dtype=torch.float64, requires_grad=True)
    g.update_all(fn.u_mul_e("u", "w", "m"), fn.sum("m", "out"))
    g.dstdata["out"].sum().backward()
    assert w.grad is not None and "transposed" not in vars(g.structure(DEFAULT_ETYPE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32])
@pytest.mark.parametrize("op", REDUCERS)
def test_other_types(g, dtype, op):
    fill(g)
    g.srcdata["u"] = (torch.arange(g.num_src_nodes() * 2).reshape(-1, 2) % 7).to(dtype)
    g.edata["e"] = (torch.arange(g.num_edges()) % 3 - 1).to(dtype)
    for message, rows in (
        (fn.copy_u("u", "m"), g.srcdata["u"][g.edges()[0]]),
        (fn.u_mul_e("u", "e", "m"), g.srcdata["u"][g.edges()[0]] * g.edata["e"].reshape(-1, 1)),
    ):
        g.update_all(message, getattr(fn, op)("m", "out"))
        want = by_loop(g, rows.to(torch.float64), op)
        found = g.dstdata["out"]
        of_integers = {"sum": torch.int64, "mean": torch.float32}.get(op, torch.int64 if message.rhs else dtype)
        assert found.dtype == (dtype if dtype.is_floating_point else of_integers)
        tolerance = 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6
        torch.testing.assert_close(found.to(torch.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", REDUCERS)
@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (4, 0), (3, 2)])
@pytest.mark.parametrize("dim", [0, 3])
def test_empty_blocks(op, num_src, num_dst, dim):
    b = Block.from_csc(Schema.homogeneous(), {}, {"_N": np.arange(num_src)}, {"_N": num_dst})
    x = b.srcdata["u"] = torch.ones(num_src, dim, requires_grad=True)
    b.edata["e"] = torch.ones(0, 1)
    for message in (fn.copy_u("u", "m"), fn.u_mul_e("u", "e", "m"), fn.copy_e("e", "m")):
        b.update_all(message, getattr(fn, op)("m", "out"))
        out = b.dstdata["out"]
        assert out.shape[0] == num_dst and (out == 0).all()
    b.update_all(fn.copy_u("u", "m"), fn.sum("m", "out"))
    (b.dstdata["out"].sum() + x.sum()).backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("op", REDUCERS)
def test_no_edges_give_the_shape_that_edges_give(op):
    g = heterograph({("a", "few", "b"): ([0, 1], [1, 1]), ("a", "none", "b"): ([], [])}, {"a": 2, "b": 3})
    g.nodes["a"].data["h"] = torch.ones(2, 1)
    for name in ("few", "none"):
        g.edges[name].data["w"] = torch.ones(g.num_edges(name), 5)
    functions = fn.u_mul_e("h", "w", "m"), getattr(fn, op)("m", "out")
    g.multi_update_all({"few": functions, "none": functions}, "stack")
    assert g.nodes["b"].data["out"].shape == (3, 2, 5)


def test_sums_are_deterministic_and_match_the_dense_matrix():
    g = random_graph(4, nodes=60, edges=900)
    src, dst = g.edges()
    x = torch.randn(60, 5, dtype=torch.float64)
    dense = torch.zeros(60, 60, dtype=torch.float64).index_put_((dst, src), torch.ones((), dtype=torch.float64), True)
    found = spmm(g.structure(DEFAULT_ETYPE), x)
    torch.testing.assert_close(found, dense @ x)
    assert torch.equal(found, spmm(g.structure(DEFAULT_ETYPE), x))


def test_python_functions_on_edges_and_nodes(g):
    u, v, e = fill(g)
    src, dst = g.edges()
    g.apply_edges(lambda edges: {"z": edges.src["u"] - edges.dst["v"] * edges.data["e"]})
    torch.testing.assert_close(g.edata["z"], u[src] - v[dst] * e)
    g.update_all(fn.copy_u("u", "m"), fn.sum("m", "s"), lambda nodes: {"s2": nodes.data["s"] * 2})
    assert torch.equal(g.dstdata["s2"], g.dstdata["s"] * 2)


A_C, B_C = ("a", "x", "c"), ("b", "y", "c")


def bipartite():
    g = heterograph({A_C: ([0, 1, 1], [0, 0, 3]), B_C: ([0, 0], [3, 1])}, {"a": 2, "b": 1, "c": 5})
    g.nodes["a"].data["h"] = torch.tensor([[-1.0], [-4.0]])
    g.nodes["b"].data["h"] = torch.tensor([[-2.0]])
    return g


@pytest.mark.parametrize(
    ("op", "want"), [("sum", [-5, -2, 0, -6, 0]), ("max", [-1, -2, 0, -2, 0]), ("min", [-4, -2, 0, -4, 0])]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_relations_into_one_type_are_reduced_together(op, want, dtype):
    g = bipartite()
    for ntype in "ab":
        g.nodes[ntype].data["h"] = g.nodes[ntype].data["h"].to(dtype)
    g.update_all(fn.copy_u("h", "m"), getattr(fn, op)("m", "out"))
    assert g.nodes["c"].data["out"].flatten().tolist() == want and "out" not in g.nodes["a"].data


@pytest.mark.parametrize(
    ("cross", "want"),
    [("sum", [-2.5, -2, 0, -6, 0]), ("mean", [-1.25, -1, 0, -3, 0]), ("max", [0, 0, 0, -2, 0]), ("stack", None)],
)
def test_multi_update_all(cross, want):
    g = bipartite()
    mean = fn.copy_u("h", "m"), fn.mean("m", "out")
    g.multi_update_all({"x": mean, B_C: mean}, cross, lambda nodes: {"neg": -nodes.data["out"]})
    out = g.nodes["c"].data["out"]
    assert torch.equal(g.nodes["c"].data["neg"], -out)
    if want is None:
        assert out.squeeze(-1).tolist() == [[-2.5, 0], [0, -2], [0, 0], [-4, -2], [0, 0]]
    else:
        assert out.flatten().tolist() == want


def test_a_relation_may_have_a_function_of_its_own() -> None:
    """As in DGL it sees the destinations' features and the reduced messages, and its results are what is combined."""
    g, plain = bipartite(), bipartite()
    sums = fn.copy_u("h", "m"), fn.sum("m", "out")
    plain.multi_update_all({"x": sums}, "sum")
    x = plain.nodes["c"].data["out"]
    plain.multi_update_all({B_C: sums}, "sum")
    y = plain.nodes["c"].data["out"]
    g.nodes["c"].data["bias"] = torch.arange(5.0)[:, None]
    half = (*sums, lambda nodes: {"out": nodes.data["out"] / 2 + nodes.data["bias"], "more": nodes.data["out"]})
    g.multi_update_all({"x": half, B_C: (*sums, None)}, "sum", lambda nodes: {"neg": -nodes.data["out"]})
    want = x / 2 + torch.arange(5.0)[:, None] + y
    assert torch.equal(g.nodes["c"].data["out"], want) and torch.equal(g.nodes["c"].data["neg"], -want)
    assert torch.equal(g.nodes["c"].data["more"], x)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: g.update_all("h", fn.sum("m", "o")), InvalidArgumentError, "message function"),
        (lambda g: g.update_all(fn.copy_u("h", "m"), "sum"), InvalidArgumentError, "reduce function"),
        (lambda g: g.update_all(fn.copy_u("h", "m"), fn.sum("n", "o")), InvalidArgumentError, "'m' but 'n'"),
        (lambda g: g.update_all(fn.copy_u("h", "m"), fn.mean("m", "o")), InvalidArgumentError, "needs an etype"),
        (lambda g: g.update_all(fn.copy_u("z", "m"), fn.sum("m", "o"), etype="x"), FieldNameError, "'z'"),
        (lambda g: g.multi_update_all({}, "median"), InvalidArgumentError, "median"),
        (lambda g: g.multi_update_all({"x": fn.sum("m", "o")}, "sum"), InvalidArgumentError, "relation .* needs"),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(bipartite())
