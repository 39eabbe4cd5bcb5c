"""What is shown of an error that nobody catches: the user's lines and the message, once for the job."""

import sys
import threading
from itertools import product
from pathlib import Path

import pytest
from jobs import clean_environment, run_job, run_script, warm_python

from mpigraph.errors import CollectiveError, InvalidArgumentError, check_integer
from mpigraph.tracebacks import format_error, install, line_of

OPEN = 'mpigraph.distributed.DistGraph("wrong", part_config=part_config)'
USERS = {
    "the library's": (OPEN, "PartitionError", [OPEN]),
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
        "MaskLengthError",
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
    assert status != 0 and "/mpigraph/" not in output, output
    assert output.count("Traceback") == 1 + (len(lines) > 1), output
    for text in (message, *lines):
        assert output.count(text) == 1, output


def test_the_rest_is_shown_for_debugging(tmp_path: Path, oracle) -> None:
    path = oracle(2)
    start = f"import mpigraph\npart_config = {str(path)!r}\n{OPEN}"
    status, output, _ = run_script(tmp_path, path, start, ranks=1, MPIGRAPH_LOG_LEVEL="DEBUG")
    assert status != 0 and "/mpigraph/mpi/agree.py" in output and OPEN in output


def caught(raised: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise raised from cause
    except Exception as error:
        return error


def test_what_is_not_the_librarys_is_shown_as_before(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    before = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: before.append(error))
    install()
    theirs, ours = caught(ValueError("theirs")), caught(InvalidArgumentError("ours"))
    for error in (theirs, ours):
        sys.excepthook(type(error), error, error.__traceback__)
    assert before == [(ValueError, theirs, theirs.__traceback__)]
    assert capsys.readouterr().err == format_error(ours)


def test_causes_are_shown_where_they_are_the_users() -> None:
    user = caught(KeyError("mine"))
    text = format_error(caught(CollectiveError("all"), caught(InvalidArgumentError("inner"), user)))
    assert "KeyError: 'mine'" in text and text.endswith("CollectiveError: all\n") and "inner" not in text
    assert line_of(user).startswith("test_tracebacks.py:") and line_of(ValueError("never raised")) == ""
    assert "without frames" in format_error(InvalidArgumentError("without frames"))


def test_of_a_thread_of_the_library_the_last_line_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(args.exc_value))
    thread = threading.Thread(target=check_integer, args=("rows", -1, 0))
    thread.start()
    thread.join()
    text = format_error(errors[0])
    assert text.count("  File ") == 1 and "errors.py" in text and "rows" in text.splitlines()[-1]


@pytest.mark.parametrize("backend", ["gloo", "mpi4py"])
def test_a_process_group_before_initialize_says_what_is_missing(backend: str) -> None:
    code = f"import torch, mpigraph; torch.distributed.init_process_group({backend!r})"
    done = run_job([*warm_python(), "-c", code], clean_environment())
    assert done.status == 1 and done.stderr.endswith(
        "mpigraph.distributed.initialize() sets RANK and the other variables that torch reads: call it before "
        "torch.distributed.init_process_group()\n"
    )
