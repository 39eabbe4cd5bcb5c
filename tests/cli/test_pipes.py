"""Commands whose output is read in part, as by ``head``, end quietly, by SIGPIPE as other tools; full streams."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import SOON, clean_environment, started
from oracle import write_oracle

from mpigraph.cli.main import main


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


def test_a_full_stderr_costs_no_result_and_a_full_stdout_is_told(tmp_path: Path, capsys, monkeypatch) -> None:
    graph, out = write_oracle(tmp_path / "parts"), tmp_path / "out"
    with open("/dev/full", "w") as full:

        def run(*words: object, **streams: Any) -> tuple[int, bytes]:
            command = [sys.executable, "-m", "mpigraph", *map(str, words)]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
            done = subprocess.run(command, env=clean_environment(), timeout=SOON, **streams)
            return done.returncode, done.stdout or done.stderr or b""

        status, result = run("verify", graph, stderr=full)
        assert status == 0 and result.endswith(b"all checksums right\n")
        assert run("verify", tmp_path / "none.json", stderr=full) == (2, b"")
        for words in (["export", graph, "-o", out], ["--help"]):
            status, error = run(*words, stdout=full)
            told = b"error: standard output cannot be written: No space left on device\n"
            assert status == 2 and error.endswith(told)
    assert (out / "README").exists()
    monkeypatch.setattr(sys, "stderr", None)  # closed from the start
    assert main(["partition", graph, "--parts", "3", "-o", str(tmp_path / "three"), "--json"]) == 0
    json.loads(capsys.readouterr().out)
