"""A slot that dies young waits longer each time; a long life starts anew."""

from pathlib import Path

import pytest

from naiad.worker.throttle import (
    FREE_DEATHS,
    WAIT_S,
    WAIT_S_MAX,
    YOUNG_S,
    StartFile,
    deaths_in_a_row,
    wait_s,
)


@pytest.mark.parametrize(
    ("lived", "before", "after"),
    [(0.1, 0, 1), (0.1, 4, 5), (YOUNG_S, 4, 0), (3600, 4, 0), (-5, 4, 0)],
)
def test_deaths_in_a_row(lived: float, before: int, after: int) -> None:
    assert deaths_in_a_row(1000, before, 1000 + lived) == after


def test_the_first_deaths_are_free_and_the_wait_is_bounded() -> None:
    waits = [wait_s(deaths) for deaths in range(FREE_DEATHS + 8)]
    assert waits[: FREE_DEATHS + 1] == [0] * (FREE_DEATHS + 1)
    assert waits[FREE_DEATHS + 1 : FREE_DEATHS + 4] == [WAIT_S, 2 * WAIT_S, 4 * WAIT_S]
    assert waits[-1] == wait_s(10**6) == WAIT_S_MAX


def test_the_file_remembers_and_survives_nonsense(tmp_path: Path) -> None:
    file = StartFile(str(tmp_path / "s.starts"))
    assert file.read() is None
    file.write(12.5, 3)
    assert file.read() == (12.5, 3)
    (tmp_path / "s.starts").write_text("[[")
    assert file.read() is None
    file.clear()
    file.clear()
    assert list(tmp_path.iterdir()) == []
    StartFile(str(tmp_path / "no" / "dir")).write(1, 1)
