"""Files that come with a load: what is refused before anything is written, and where they go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from naiad.gateway.limits import Limits
from naiad.gateway.uploads import checked_files, written
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import RequestError

LIMITS = Limits(load_files_max=3, load_files_bytes_max=10, load_path_chars_max=12)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"file:../x": b"x"}, 'contains ".."'),
        ({"file:1/../../x": b"x"}, 'contains ".."'),
        ({"file:/etc/x": b"x"}, "is absolute"),
        ({"file:": b"x"}, "is empty"),
        ({"file:1/": b"x"}, "is no file's"),
        ({"file:1\0": b"x"}, "control characters"),
        ({"file:" + 13 * "a": b"x"}, "longer than 12 characters"),
        ({f"file:1/{i}": b"" for i in range(4)}, "4 files in one load, expected at most 3"),
        ({"file:a": b"123456", "file:b": b"12345"}, "11 bytes, expected at most 10"),
    ],
)
def test_what_is_refused_before_it_is_written(files: dict[str, bytes], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        checked_files(files, LIMITS)


def test_files_lie_in_a_private_folder_of_the_model_s_name(tmp_path: Path) -> None:
    files = {"file:1/model.py": b"one", "file:labels.txt": b"two"}
    checked_files(files, Limits())
    upload = written(str(tmp_path), "m", files)
    assert re.fullmatch("[0-9a-f]{32}", upload)
    folder = Path(Endpoints(str(tmp_path)).uploads_dir) / upload
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "m" / "1" / "model.py").read_bytes() == b"one"
    assert (folder / "m" / "labels.txt").read_bytes() == b"two"


def test_paths_that_are_in_each_other_s_way_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="one is in another"):
        written(str(tmp_path), "m", {"file:a": b"x", "file:a/b": b"x"})
    assert list(Path(Endpoints(str(tmp_path)).uploads_dir).iterdir()) == []
