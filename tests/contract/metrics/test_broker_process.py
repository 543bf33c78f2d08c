"""prometheus_client's figures of a process: what they say, and that the document shows them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from naiad.metrics.broker_process import NAMESPACE, BrokerProcess
from naiad.metrics.families import FAMILIES
from support.exposition import parsed, total

ROOT = Path(__file__).resolve().parents[3]


def test_the_figures_of_a_process_that_runs() -> None:
    found = parsed(BrokerProcess().text(os.getpid()))
    assert total(found, "naiad_broker_process_resident_memory_bytes") > 1e6
    assert total(found, "naiad_broker_process_cpu_seconds_total") > 0
    limit = total(found, "naiad_broker_process_max_fds")
    assert 0 < total(found, "naiad_broker_process_open_fds") <= limit


def test_nothing_of_one_that_is_gone_and_all_of_the_next() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    process = BrokerProcess()
    assert process.text(child.pid) == b""
    assert parsed(process.text(os.getpid()))


def test_the_document_shows_them_and_no_other() -> None:
    document = (ROOT / "docs" / "metrics.md").read_text()
    shown = re.findall(rf"^\| `({NAMESPACE}_process_\w+)` \| (\w+) \| (.*) \|$", document, re.M)
    page = BrokerProcess().text(os.getpid()).decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))
    helps = re.findall(r"^# HELP (\S+) (.*)$", page, re.M)
    assert len(helps) >= 6
    assert shown == [(name, kinds[name], text) for name, text in helps]
    assert not {name for name, _, _ in shown} & {one.name for one in FAMILIES}
