"""Commands whose output is read in part, as by ``head``: they end quietly, with the status of other tools."""

import subprocess
import sys
from pathlib import Path

import pytest
from jobs import clean_environment, mpiexec, started
from oracle import write_oracle

CLOSED = 141  # 128 and SIGPIPE


@pytest.mark.parametrize(
    "words", ["verify PATH", *(pytest.param(words, marks=pytest.mark.slow) for words in ("info PATH", "--help"))]
)
def test_a_reader_that_leaves(tmp_path: Path, words: str) -> None:
    status, error = read_nothing([sys.executable, "-m", "mpigraph", *words.replace("PATH", graph(tmp_path)).split()])
    assert (status, without_progress(error)) == (CLOSED, [])


@pytest.mark.slow
def test_on_ranks(tmp_path: Path) -> None:
    """Each rank has a pipe of its own, since mpiexec itself would be ended by SIGPIPE; all ranks end."""
    command = f'"{sys.executable}" -m mpigraph info "{graph(tmp_path)}" | (exec 0<&-); echo status ${{PIPESTATUS[0]}}'
    with started([*mpiexec(2), "bash", "-c", command], clean_environment(), stdout=subprocess.PIPE) as job:
        assert sorted(job.communicate()[0].decode().splitlines()) == ["status 0", f"status {CLOSED}"]


@pytest.mark.slow
def test_work_goes_on(tmp_path: Path) -> None:
    """The output is complete, although the reader of both streams has left."""
    out = tmp_path / "data"
    command = [sys.executable, "-m", "mpigraph", "generate", "--nodes", "50", "--edges", "90", "-o", str(out)]
    assert read_nothing(command, stderr=subprocess.STDOUT)[0] == CLOSED
    assert (out / "meta.json").exists() and not list(out.glob(".*"))


def graph(folder: Path) -> str:
    return write_oracle(folder / "parts")


def read_nothing(command: list[str], stderr: int = subprocess.PIPE) -> tuple[int, str]:
    """Run a command into a pipe without a reader; return its status and its output elsewhere."""
    with started(command, clean_environment(), stdout=subprocess.PIPE, stderr=stderr) as job:
        job.stdout.close()
        job.stdout = None
        error = job.communicate()[1] or b""
        return job.returncode, error.decode()


def without_progress(text: str) -> list[str]:
    return [line for line in text.splitlines() if "%" not in line]
