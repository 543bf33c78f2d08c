"""The slot page: the broker reads what a worker wrote last, also after a new one came."""

import os
from pathlib import Path

import pytest

from naiad.shm.page import MAGIC, PAGE_BYTES, PageReader, PageState, Phase, SlotPage


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "s.page")
    page = SlotPage(path)
    page.start()
    reader = PageReader.open(path)
    assert reader.read() == PageState(0, 0, 0, Phase.EMPTY, os.getpid(), 0, 0)
    page.set_phase(Phase.READY)
    page.begin(2**64 - 1, 123)
    page.count_io_faults(2)
    assert reader.read() == PageState(2**64 - 1, 123, 0, Phase.READY, os.getpid(), 2, 2**64 - 1)
    page.end()
    assert reader.read() == PageState(0, 123, 1, Phase.READY, os.getpid(), 2, 2**64 - 1)
    page.close()
    assert reader.read() == PageState(0, 123, 1, Phase.READY, os.getpid(), 2, 2**64 - 1)
    reader.close()
    assert os.path.getsize(path) == PAGE_BYTES


def test_a_new_worker_of_the_slot_does_not_overwrite_the_last_words_of_the_old(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "s.page")
    first = SlotPage(path)
    first.start()
    reader = PageReader.open(path)
    first.begin(7, 1)
    second = SlotPage(path)
    second.start()
    old, new = reader.read(), PageReader.open(path).read()
    assert old is not None
    assert new is not None
    assert (old.executing, new.executing) == (7, 0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.page"]


def test_a_file_that_is_no_page(tmp_path: Path) -> None:
    path = tmp_path / "s.page"
    for content in (b"", MAGIC, b"x" * PAGE_BYTES):
        path.write_bytes(content)
        assert PageReader.open(str(path)).read() is None


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        SlotPage(str(tmp_path / "no" / "s.page")).start()


def test_a_page_that_was_not_started_takes_everything_and_keeps_it_to_itself() -> None:
    page = SlotPage("/nowhere")
    page.begin(1, 2)
    page.end()
    page.set_phase(Phase.DONE)
    page.close()
