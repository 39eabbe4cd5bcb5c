"""An error that nobody catches is shown once for the job, with the user's lines; a message names the user's line."""

import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from jobs import clean_environment, mpiexec, run_job, run_script

from mpigraph.log import line_of

OPEN = 'mpigraph.distributed.DistGraph("wrong", part_config=part_config)'
USERS = {
    "the library's": (OPEN, "errors.PartitionError: ", [OPEN]),
    "an init_func": (
        "def fill(shape, dtype):\n    return torch.zeros(shape, dtype=unknown)\n"
        'dist.DistTensor((g.num_nodes(),), torch.float32, "t", init_func=fill)',
        "(at script.py:",
        ["return torch.zeros(shape, dtype=unknown)", 'dist.DistTensor((g.num_nodes(),), torch.float32, "t"'],
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
    if "errors." in message:
        assert "mpigraph/distgraph" not in output and "torch/" not in output, output  # the user's lines alone


REMEDIES = {  # what raises an error of torch, and words of its remedy
    "torch.nn.Linear(3, 2)(torch.ones(4, 3).double())": ".float()",
    "torch.nn.Linear(3, 2, bias=False)(torch.ones(4, 3).double())": ".float()",
    "torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([0, -1]))": "ignore_index=-1",
    "torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([0.0, 1.0]))": ".long()",
    "torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([0, 5]))": "fewer outputs than classes",
    "torch.nn.functional.cross_entropy(torch.ones(4, 3), torch.tensor([0, 1]))": "a fanout for each layer",
    "torch.nn.Embedding(3, 2)(torch.tensor([-1]))": "len(categories) + 1",
    "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))": "after mpigraph.distributed.initialize()",
    'torch.distributed.init_process_group("nccl")': 'init_process_group("gloo")',
    """
torch.distributed.init_process_group("gloo")
net = torch.nn.Module()
net.used, net.unused = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
net.forward = lambda rows: net.used(rows)
model = torch.nn.parallel.DistributedDataParallel(net)
for _ in range(2): model(torch.ones(4, 3)).sum().backward()
""": "find_unused_parameters=True",
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="nccl works here")
def test_the_errors_of_torch_that_first_scripts_meet_have_a_remedy(tmp_path: Path, oracle) -> None:
    body = f"""
from mpigraph.remedies import remedy
for cause in {list(REMEDIES)!r}:
    try:
        exec(cause)
    except Exception as error:
        print(f"remedy: {{remedy(error) or error!r}}")
    else:
        print("remedy: no error")
"""
    status, output, _ = run_script(tmp_path, oracle(2), body, ranks=1)
    remedies = [line for line in output.splitlines() if line.startswith("remedy: ")]
    assert status == 0 and len(remedies) == len(REMEDIES), output
    for line, words in zip(remedies, REMEDIES.values(), strict=True):
        assert words in line, output


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_forgotten_initialize_ends_with_its_remedy(tmp_path: Path, ranks: int) -> None:
    script = tmp_path / "script.py"
    script.write_text('import torch\nimport mpigraph\ntorch.distributed.init_process_group("gloo")\n')
    done = run_job([*mpiexec(ranks), sys.executable, script], clean_environment())
    assert done.status == 1, done.output
    assert done.stderr.count("call mpigraph.distributed.initialize() before init_process_group()") == 1, done.output


def test_ctrl_c_in_a_process_alone_prints_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import mpigraph, numpy, time\nprint('up', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, script]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stdout is not None and job.stdout.readline() == b"up\n"
        job.send_signal(signal.SIGINT)
        _, printed = job.communicate(timeout=60)
    assert job.returncode == -signal.SIGINT
    assert printed.startswith(b"[mpigraph] interrupted at script.py:") and printed.count(b"\n") == 1, printed


def test_a_misspelt_variable_is_warned_of_once(tmp_path: Path, oracle) -> None:
    status, output, _ = run_script(tmp_path, oracle(2), "", ranks=2, MPIGRAPH_NUM_SERVER="0", MPIGRAPH_TEST_X="1")
    assert status == 0, output
    assert output.count("MPIGRAPH_NUM_SERVER (do you mean MPIGRAPH_NUM_SERVERS?)") == 1, output
    assert "MPIGRAPH_TEST_X" not in output


def test_a_line_is_the_last_of_the_users() -> None:
    try:
        raise KeyError("mine")
    except KeyError as user:
        assert line_of(user).startswith("test_tracebacks.py:")
    assert line_of(ValueError("never raised")) == ""
