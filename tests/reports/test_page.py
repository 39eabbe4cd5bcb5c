"""report.html: well formed, in order, without addresses, and nothing of the file is taken for HTML."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_summaries import Fault, Setup, made

from mpigraph.reports.page import render, write_page
from mpigraph.reports.summary import GraphSize, Summary, ToTrainer, decode, encode

VOID = {"meta"}
OPEN_ENDED = {"td", "th", "tr", "li", "html"}  # tags that HTML closes by itself
HOSTILE = "\"'><script>alert(1)</script><img src=http://evil onerror=x>&amp;{}\u202e" + "x" * 300


class Reader(HTMLParser):
    """Checks that tags are closed in their order, and keeps names, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == [] or self.open == ["html"]

    def handle_starttag(self, tag, attributes) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in VOID | OPEN_ENDED:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag not in VOID | OPEN_ENDED:
            assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


def pages() -> list[Summary]:
    return [
        Summary(),
        decode(Summary, encode(made(1, Setup(servers=True), Fault("model", 2))), "x"),
        made(2, Setup(trainers=1)),
        made(3, Setup(trainers=9, nodes=3, steps=600, prefetch=False)),
    ]


@pytest.mark.parametrize("summary", pages(), ids=["nothing", "four", "one", "nine"])
def test_every_page_is_well_formed_and_asks_for_nothing(summary: Summary) -> None:
    page = render(summary)
    reader = Reader(page)
    assert reader.tags.isdisjoint(
        {"script", "link", "img", "iframe", "object", "base", "a", "image", "use", "foreignobject"}
    )
    assert reader.attributes.isdisjoint({"href", "src", "xlink:href", "srcset"})
    assert not re.search(r"https?:|//|url\(|@import", page)
    assert not re.search(r"\b(nan|inf|None)\b", page)


def test_sections_come_in_the_order_of_their_use() -> None:
    page = render(pages()[1])
    heads = re.findall(r"<h2>(.*?)</h2>", page)
    assert heads == [
        "Steps of all trainers",
        "Which trainer waits for which",
        "Bytes between ranks and hosts",
        "Stages by rank",
        "Settings, versions and layout",
    ]
    assert page.index("Trainer 2 on node n2 is the slowest") < page.index("<h2>")
    assert "Most waited for: trainer 2 (n2)" in page
    assert page.count('role="img" aria-label="') == page.count('class="chart"') == 2 and page.count("--share:") > 8


def test_hostile_names_stay_text() -> None:
    summary = made(1, Setup())
    job = summary.job
    job.began = job.transport = job.exchange = job.process_group = HOSTILE
    job.command = [HOSTILE]
    job.settings = job.arguments = job.versions = {HOSTILE: HOSTILE}
    job.graphs = [GraphSize(HOSTILE, 1, 1)]
    for node in summary.nodes:
        node.name = HOSTILE
    for rank in summary.ranks:
        for thread in rank.threads:
            thread.name = HOSTILE
            thread.stages |= {HOSTILE: next(iter(thread.stages.values()))}
    page = render(summary)
    reader = Reader(page)
    assert "script" not in reader.tags and "img" not in reader.tags and "onerror" not in reader.attributes
    assert HOSTILE in reader.text


def test_ranks_that_no_chart_can_show_are_cut(tmp_path: Path) -> None:
    """More ranks than rows, and numbers that the file does not justify memory for."""
    summary = made(4, Setup(trainers=400, nodes=400, servers=True, steps=50))
    summary.ranks[3].rank = 1 << 60
    summary.ranks[3].number = 1 << 60
    write_page(tmp_path, summary)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page) <= 5_000_000
    Reader(page)


def test_tensors_of_a_process_group_are_among_the_bytes() -> None:
    summary = made(1, Setup(servers=True))
    assert "Tensors of torch" not in render(summary)
    for rank in summary.trainers:
        rank.to_trainers = [ToTrainer((rank.number + 1) % 4, 3 << 40, 0), ToTrainer(99, 1, 1)]
    page = render(summary)
    assert re.search(r"Both ways, 1229\d\.\d GiB in all\. Tensors of torch", page) and "<th>t3" in page
