"""An error that nobody catches is shown once for the job, with the user's lines; a message names the user's line."""

from itertools import product
from pathlib import Path

import pytest
from jobs import run_script

from mpigraph.log import line_of

OPEN = 'mpigraph.distributed.DistGraph("wrong", part_config=part_config)'
USERS = {
    "the library's": (OPEN, "errors.PartitionError: ", [OPEN]),
    "an init_func": (
        "def fill(shape, dtype):\n    return torch.zeros(shape, dtype=unknown)\n"
        'dist.DistTensor((g.num_nodes(),), torch.float32, "t", init_func=fill)',
        "(at script.py:",
        [
            "return torch.zeros(shape, dtype=unknown)",
            'dist.DistTensor((g.num_nodes(),), torch.float32, "t"',
        ],
    ),
    "a layer": (
        "class Layer(torch.nn.Module):\n    def forward(self, block, h):\n        return h[0] @ torch.zeros(2, 2)\n"
        'mpigraph.inference.layerwise(g, [Layer()], g.ndata["feat"], batch_size=10)',
        "layer 1 of 1 of inference failed on",
        ["return h[0] @ torch.zeros(2, 2)", "mpigraph.inference.layerwise(g"],
    ),
    "each trainer's": (
        "dist.node_split(torch.ones(3, dtype=torch.bool))",
        "errors.MaskLengthError: ",
        ["dist.node_split(torch.ones(3, dtype=torch.bool))"],
    ),
}


@pytest.mark.parametrize(
    ("what", "ranks"),
    [("each trainer's", 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in product(USERS, [1, 3]))],
)
def test_the_users_lines_and_the_message_once_for_the_job(tmp_path: Path, oracle, what: str, ranks: int) -> None:
    path = oracle(2)
    body, message, lines = USERS[what]
    start = f"import mpigraph\npart_config = {str(path)!r}\n{body}"
    status, output, _ = run_script(tmp_path, path, start, ranks=ranks)
    assert status != 0, output
    assert output.count("uncaught exception") == (ranks > 1), output  # once for the job
    for text in (message, *lines):
        assert text in output, output


def test_a_line_is_the_last_of_the_users() -> None:
    try:
        raise KeyError("mine")
    except KeyError as user:
        assert line_of(user).startswith("test_tracebacks.py:")
    assert line_of(ValueError("never raised")) == ""
