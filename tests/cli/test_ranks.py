"""Commands on several ranks: wrong words are told once; what a command loads."""

import sys
from pathlib import Path

import pytest
from jobs import clean_environment, mpiexec, run_job

SLOW_FIRST = """
import os
import sys
import time
from mpigraph.cli import main
from mpigraph.config import launcher_rank

def say_late(text, say=main.say):
    time.sleep(0.5)
    say(text)

if launcher_rank() == 0:
    time.sleep(1)
    main.say = say_late
os.environ["MPIGRAPH_RANKS_PER_NODE"] = str(launcher_rank())
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["info"], "python -m mpigraph info: error: the following arguments are required: PART_CONFIG"),
        (["infos"], "mpigraph: error: 'infos' is no command (did you mean info?); python -m mpigraph lists them"),
        (["info", "g.json"], "mpigraph info: error: ranks of one job differ in their settings"),
    ],
)
def test_errors_of_all_are_told_though_the_first_rank_is_late(tmp_path: Path, words: list[str], error: str) -> None:
    """Launchers end all ranks when one ends with an error."""
    script = tmp_path / "slow_first.py"
    script.write_text(SLOW_FIRST)
    done = run_job([*mpiexec(3), sys.executable, script, *words], clean_environment())
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert done.status == 2 and len(errors) == 1 and errors[0].startswith(error), done.output


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_commands_load_no_torch_and_one_process_no_mpi(oracle, tmp_path: Path, ranks: int) -> None:
    """Torch takes each rank seconds, and memory that the graph needs."""
    path, to = oracle(2), str(tmp_path)
    commands = [
        ["generate", "--nodes", "1", "--edges", "4", "-o", f"{to}/x"],  # an error, once the ranks are there
        ["partition", path, "--parts", "2", "--method", "random", "-o", f"{to}/parts"],
        ["info", path],
        ["verify", path],
    ]
    if ranks > 1:
        commands.append(["stage", path, "--to", f"{to}/staged"])
    check = (
        "import sys; from mpigraph.cli.main import main; "
        f"assert [main(words) for words in {commands!r}] == [2, 0, 0, 0, 0][:{len(commands)}]; "
        f"assert ('mpi4py.MPI' in sys.modules) == ({ranks} > 1) and 'torch' not in sys.modules"
    )
    start = mpiexec(2) if ranks > 1 else []
    done = run_job([*start, sys.executable, "-c", check], clean_environment())
    assert done.status == 0, done.output
