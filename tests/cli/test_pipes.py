"""Commands whose output is read in part, as by ``head``: they end quietly, by SIGPIPE as other tools."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import clean_environment, started
from oracle import write_oracle


@pytest.mark.parametrize(
    "words", ["verify PATH", *(pytest.param(words, marks=pytest.mark.slow) for words in ("info PATH", "--help"))]
)
def test_a_reader_that_leaves(tmp_path: Path, words: str) -> None:
    graph = write_oracle(tmp_path / "parts")
    command = [sys.executable, "-m", "mpigraph", *words.replace("PATH", graph).split()]
    with started(command, clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        job.stdout.close()
        job.stdout = None
        error = job.communicate()[1].decode()
        assert job.returncode == -signal.SIGPIPE  # 141 in a shell
        assert [line for line in error.splitlines() if "%" not in line] == []
