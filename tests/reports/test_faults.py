"""Reports of real jobs with a fault name its rank and stage; those of balanced jobs name no rank (``faults.py``)."""

from pathlib import Path

import jobs
import pytest
from faults import BALANCED, FAULTS, Fault, missing, run, write_graph

from mpigraph.reports.summary import read

alone = jobs.needs("hosts", "")  # as root, for those on hosts of their own


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    write_graph(folder)
    return folder


def judge(fault: Fault, graph: Path, folder: Path) -> None:
    if why := missing(fault):
        pytest.skip(why)
    outcome = run(fault, graph, folder)
    assert outcome.named, f"{outcome.verdict}\n{outcome.output}"
    summary = read(folder / "report")
    for rank in summary.ranks:
        for thread in rank.threads:
            assert 0 <= sum(stage.own for stage in thread.stages.values()) <= 1.02 * rank.seconds
        waited = [to.waited_seconds for to in rank.to_hosts]
        assert max(waited, default=0) <= rank.seconds * 8  # minibatches ahead
    for trainer in summary.trainers:
        stages = next(thread.stages for thread in trainer.threads if "step" in thread.stages)
        both = stages["step"].seconds + stages["wait"].seconds
        delay = sum(trainer.steps.delay)  # on a busy machine also between spans
        assert 0.98 * both <= sum(trainer.steps.seconds) <= 1.02 * both + delay


@alone
@pytest.mark.study
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_each_fault_is_named(fault: Fault, graph: Path, tmp_path: Path) -> None:
    judge(fault, graph, tmp_path)


@alone
@pytest.mark.study
@pytest.mark.parametrize("job", BALANCED, ids=[job.name for job in BALANCED])
def test_a_balanced_job_names_no_rank(job: Fault, graph: Path, tmp_path: Path) -> None:
    judge(job, graph, tmp_path)
