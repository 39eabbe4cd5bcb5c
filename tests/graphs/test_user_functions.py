"""Message, reduce and node functions of the user's own, against built-in functions and loops over nodes."""

import pytest
import torch

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError, OutOfRangeError
from mpigraph.graphs.block import to_block
from mpigraph.graphs.hetero import graph, heterograph

SRC, DST = [2, 0, 3, 1, 4, 4, 0], [1, 1, 0, 1, 0, 3, 5]  # in-degrees 2, 3, 0, 1, 0, 1


def whole():
    g = graph((SRC, DST), num_nodes=6)
    fill(g)
    return g


def part():
    block = to_block(graph((SRC, DST), num_nodes=6), [3, 1, 2, 0, 5])
    fill(block)
    return block


def fill(g):
    generator = torch.Generator().manual_seed(1)
    g.srcdata["h"] = torch.randn(g.num_src_nodes(), 3, dtype=torch.float64, generator=generator)
    g.dstdata["d"] = torch.randn(g.num_dst_nodes(), 3, dtype=torch.float64, generator=generator)
    g.edata["w"] = torch.randn(g.num_edges(), 1, dtype=torch.float64, generator=generator)


@pytest.fixture(params=[whole, part], ids=["graph", "block"])
def g(request):
    return request.param()


def own_message(edges):
    return {"m": edges.src["h"] * edges.data["w"] + edges.dst["d"], "other": edges.data["w"]}


def test_own_functions_equal_built_in_ones(g):
    builtin, own = fn.u_mul_e("h", "w", "m"), lambda edges: {"m": edges.src["h"] * edges.data["w"]}
    reducers = {
        fn.sum: lambda nodes: {"own": nodes.mailbox["m"].sum(1)},
        fn.mean: lambda nodes: {"own": nodes.mailbox["m"].mean(1)},
        fn.max: lambda nodes: {"own": nodes.mailbox["m"].amax(1)},
    }
    for named, reduce in reducers.items():
        g.update_all(builtin, named("m", "out"))
        for message, by in ((own, named("m", "own")), (builtin, reduce), (own, reduce)):
            g.update_all(message, by)
            torch.testing.assert_close(g.dstdata.pop("own"), g.dstdata["out"])


def test_mailboxes_are_in_the_order_of_edge_ids_and_the_rest_keeps_zeros(g):
    seen = []

    def reduce(nodes):
        seen.append(nodes.mailbox["other"].shape[1])
        assert nodes.batch_size() == len(nodes) == len(nodes.nodes()) == len(nodes.data["d"])
        weights = 10.0 ** torch.arange(nodes.mailbox["m"].shape[1], dtype=torch.float64)  # tells messages apart
        return {"out": (nodes.mailbox["m"] * weights[None, :, None]).sum(1) + nodes.data["d"], "n": nodes.nodes()}

    g.dstdata["out"] = torch.full((g.num_dst_nodes(), 3), 7.0, dtype=torch.float64)
    g.update_all(own_message, reduce)
    assert seen == [1, 2, 3]
    src, dst = g.edges()
    ids = g.dstdata["_ID"] if g.is_block else g.nodes()
    for v in range(g.num_dst_nodes()):
        eids = (dst == v).nonzero().squeeze(1)
        messages = g.srcdata["h"][src[eids]] * g.edata["w"][eids] + g.dstdata["d"][v]
        want = sum((10.0**k * m for k, m in enumerate(messages)), g.dstdata["d"][v])
        torch.testing.assert_close(g.dstdata["out"][v], want if len(eids) else torch.zeros(3, dtype=torch.float64))
        assert g.dstdata["n"][v] == (ids[v] if len(eids) else 0)


def test_gradients_go_through_own_functions(g):
    def run(h, w):
        with g.local_scope():
            g.srcdata["h"], g.edata["w"] = h, w
            g.update_all(own_message, lambda nodes: {"out": nodes.mailbox["m"].prod(1) + nodes.mailbox["other"].sum(1)})
            return g.dstdata["out"]

    assert torch.autograd.gradcheck(run, (g.srcdata["h"].requires_grad_(), g.edata["w"].requires_grad_()))


def test_what_a_batch_of_edges_knows(g):
    def message(edges):
        src, dst, eids = edges.edges()
        assert edges.canonical_etype == ("_N", "_E", "_N") and len(edges) == edges.batch_size() == len(eids)
        return {"ends": torch.stack([src, dst, eids], 1)}

    g.apply_edges(message)
    src, dst, eids = g.edges("all")
    assert torch.equal(g.edata["ends"], torch.stack([src, dst, eids], 1))
    g.apply_edges(lambda edges: {"ends": -torch.stack(edges.edges(), 1)}, [5, 2])
    assert (g.edata["ends"] < 0).any(1).tolist() == [k in (2, 5) for k in range(7)] and g.edata["ends"][5, 2] == -5
    g.apply_edges(fn.copy_u("h", "some"), [3])
    assert (g.edata["some"] != 0).any(1).tolist() == [k == 3 for k in range(7)]


def test_functions_of_nodes(g):
    g.apply_nodes(lambda nodes: {"twice": 2 * nodes.data["d"], "id": nodes.nodes()})
    assert torch.equal(g.dstdata["twice"], 2 * g.dstdata["d"])
    g.apply_nodes(lambda nodes: {"twice": -nodes.data["d"], "new": torch.ones(len(nodes))}, [4, 1])
    assert torch.equal(g.dstdata["twice"][[1, 4]], -g.dstdata["d"][[1, 4]]) and g.dstdata["new"].sum() == 2
    assert torch.equal(g.dstdata["twice"][0], 2 * g.dstdata["d"][0])
    g.update_all(own_message, fn.sum("m", "s"), lambda nodes: {"s": -nodes.data["s"]})
    g.update_all(own_message, fn.sum("m", "t"))
    assert torch.equal(g.dstdata["s"], -g.dstdata["t"])


def test_several_relations():
    g = heterograph({("a", "x", "b"): ([0, 1, 1], [0, 0, 2]), ("c", "y", "b"): ([0, 0], [2, 1])}, {"b": 4})
    g.nodes["a"].data["h"], g.nodes["c"].data["h"] = torch.tensor([1.0, 2.0]), torch.tensor([5.0])
    message = lambda edges: {"m": edges.src["h"]}  # noqa: E731
    last = lambda nodes: {"h": nodes.mailbox["m"][:, -1]}  # noqa: E731
    g.update_all(message, last, etype="x")
    assert g.nodes["b"].data["h"].tolist() == [2, 0, 2, 0]
    pairs = {"x": (message, last), "y": (fn.copy_u("h", "m"), last, lambda nodes: {"h": 10 * nodes.data["h"]})}
    g.multi_update_all(pairs, "sum")
    assert g.nodes["b"].data["h"].tolist() == [2, 50, 52, 0]
    g.multi_update_all(pairs, lambda tensors: tensors[0] - tensors[1])
    assert g.nodes["b"].data["h"].tolist() == [2, -50, -48, 0]
    with pytest.raises(InvalidArgumentError, match="need an etype, or multi_update_all"):
        g.update_all(message, fn.sum("m", "h"))


def test_a_graph_without_edges():
    g = graph(([], []), num_nodes=3)
    g.ndata["h"] = torch.ones(3, 2)
    g.update_all(lambda edges: {"m": edges.src["h"]}, fn.sum("m", "s"))
    assert torch.equal(g.ndata["s"], torch.zeros(3, 2))
    g.update_all(fn.copy_u("h", "m"), lambda nodes: {"r": nodes.mailbox["m"].sum(1)})
    assert "r" not in g.ndata  # no reduction has told its name


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: g.update_all("h", fn.sum("m", "o")), InvalidArgumentError, "message function must be"),
        (lambda g: g.update_all(own_message, "sum"), InvalidArgumentError, "reduce function must be"),
        (lambda g: g.update_all(own_message, fn.sum("x", "o")), InvalidArgumentError, r"\['m', 'other'\] but 'x'"),
        (lambda g: g.update_all(lambda e: 3, fn.sum("m", "o")), InvalidArgumentError, "dict of tensors .got int"),
        (
            lambda g: g.update_all(lambda e: {"m": torch.ones(2)}, fn.sum("m", "o")),
            InvalidArgumentError,
            r"message function must return 'm' as a tensor of 7 rows \(got shape \(2,\)",
        ),
        (
            lambda g: g.update_all(own_message, lambda n: {"o": n.mailbox["m"].sum(0)}),
            InvalidArgumentError,
            "reduce function must return 'o' as a tensor of",
        ),
        (
            lambda g: g.update_all(own_message, lambda n: {f"o{n.mailbox['m'].shape[1]}": n.mailbox["m"].sum(1)}),
            InvalidArgumentError,
            "same names for each degree",
        ),
        (
            lambda g: g.update_all(own_message, lambda n: {"o": n.mailbox["m"].flatten(1)}),
            InvalidArgumentError,
            "rows of one shape",
        ),
        (lambda g: g.apply_edges(own_message, "x"), InvalidArgumentError, "expected edge ids"),
        (lambda g: g.apply_edges(own_message, [99]), OutOfRangeError, "99"),
        (lambda g: g.apply_nodes(lambda n: {}, [99]), OutOfRangeError, "99"),
        (lambda g: g.apply_nodes(lambda n: {}, "x"), InvalidArgumentError, "expected node ids"),
    ],
)
def test_misuse_is_named(g, call, error, message):
    with pytest.raises(error, match=message):
        call(g)
