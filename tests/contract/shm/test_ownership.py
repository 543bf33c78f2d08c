"""docs/shm.md says who owns which memory; each row of its table is proven here by a test body.

A new row without a body fails, and so does a body whose row is gone. These bodies prove what the
memory itself does when processes are killed; what the server tells whom meanwhile is proven with
real servers in tests/system.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from naiad.protocol.errors import RequestError
from naiad.shm.cuda.key import cuda_region
from naiad.shm.janitor import Janitor
from naiad.shm.mappings import Mappings
from naiad.shm.objects import DIRECTORY, describe, is_same
from naiad.shm.output_arena import OutputArena
from naiad.shm.page import PageReader, Phase, SlotPage
from naiad.shm.segment import Mapping
from naiad.worker.device_regions import DeviceRegions
from support import fake_cuda_ipc
from support.shm_process import ShmProcess

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "shm.md"
COLUMNS = [
    "memory",
    "allocates",
    "may write",
    "frees",
    "client dies",
    "worker dies",
    "broker dies",
    "gateway dies",
]
SIZE = 100_000


class Place:
    """Where a body may put things: a server name and a key of its own."""

    def __init__(self, server: str, foreign_key: str, directory: Path) -> None:
        self.server = server
        self.foreign_key = foreign_key
        self.directory = directory

    def sweep(self, keep: tuple[str, ...] = ()) -> list[str]:
        """What the broker's janitor removes a minute from now."""
        janitor = Janitor(self.server, now_s=lambda: time.time() + 60)
        removed: list[str] = []
        while True:
            some, _, is_complete = janitor.sweep(keep)
            removed += some
            if is_complete:
                return removed


def client_arena(place: Place) -> None:
    for role in ("client", "gateway"):
        with ShmProcess("own", place.server, role, str(SIZE)) as owner:
            (region,) = owner.regions
            with ShmProcess("map", region=region) as worker:
                assert place.sweep() == []
                worker.kill()
            with Mapping.open(region, writable=True) as another_worker:
                # The dead one wrote its first byte; the rest is what the client had written.
                assert bytes(another_worker.slice(0, 3)) == b"baa"
                assert is_same(region), "the next broker finds it where the first one did"
                owner.kill()
                assert bytes(another_worker.slice(1, SIZE - 1)) == b"a" * (SIZE - 1)
            assert place.sweep() == [region.key]
            assert not is_same(region)


def clients_own_region(place: Place) -> None:
    with pytest.raises(RequestError, match="reserved"):
        describe(f"/naiad.{place.server}.client.1.0123456789abcdef")
    with open(DIRECTORY + place.foreign_key, "wb") as file:
        file.write(b"a" * SIZE)
    region = describe(place.foreign_key).region
    with ShmProcess("map", region=region) as worker:
        worker.kill()
    assert place.sweep() == []
    with Mapping.open(region, writable=False, foreign=True) as mapping:
        assert bytes(mapping.slice(0, 3)) == b"baa"
    assert is_same(region)


def worker_output_arena(place: Place) -> None:
    arena = OutputArena(place.server)
    first, second = arena.lease(1, 1, SIZE), arena.lease(2, 1, SIZE)
    assert first is not None
    assert second is not None
    first.view[:] = b"r" * SIZE
    with Mappings(writable=False) as client:
        client.define(arena.arenas())
        view = client.view(first.region, first.offset, first.size)
        with pytest.raises(TypeError):
            view[0] = 0
        arena.end_session(1)  # that client died: only its lease ended
        assert arena.leases() == ((2, 1),)
        arena.end(2, 1)
        arena.close()
        assert bytes(view[:3]) == b"rrr", "mapped as long as it is looked at"
        view.release()
    with ShmProcess("own", place.server, "worker", str(SIZE)) as worker:
        (region,) = worker.regions
        worker.kill()
        assert place.sweep(keep=(region.key,)) == [], "a lease is left"
        with Mapping.open(region, writable=False) as late_client:
            assert bytes(late_client.slice(0, SIZE)) == b"a" * SIZE
        assert place.sweep() == [region.key]
    assert not is_same(region)


def server_registered_foreign_region(place: Place) -> None:
    with open(DIRECTORY + place.foreign_key, "wb") as file:
        file.write(b"a" * SIZE)
    region = describe(place.foreign_key).region
    with ShmProcess("map", region=region) as worker, ShmProcess("map", region=region) as other:
        worker.kill()
        other.kill()
    assert place.sweep() == []
    assert is_same(region), "what a restarted broker reads from its state is still true"
    os.unlink(DIRECTORY + place.foreign_key)
    assert not is_same(region), "its creator freed it: the registration ends"
    with open(DIRECTORY + place.foreign_key, "wb") as file:
        file.write(b"b" * SIZE)
    assert not is_same(region), "another object under the same name is another region"


def slot_page(place: Place) -> None:
    path = str(place.directory / "slot.page")
    child = os.fork()
    if not child:
        page = SlotPage(path)
        page.start()
        page.set_phase(Phase.EXECUTING)
        page.begin(77, 5)
        os._exit(9)
    assert os.waitpid(child, 0)[1] == 9 << 8
    reader = PageReader.open(path)
    successor = SlotPage(path)
    successor.start()
    successor.begin(78, 6)
    words = reader.read()
    assert words is not None
    assert (words.executing, words.phase, words.pid) == (77, Phase.EXECUTING, child)
    reader.close()
    next_broker = PageReader.open(path)
    found = next_broker.read()
    assert found is not None
    assert found.executing == 78
    next_broker.close()
    successor.close()


def gpu_memory(place: Place) -> None:
    gpu = fake_cuda_ipc.reset()
    handle = fake_cuda_ipc.device_of_another(b"\xee" * SIZE)
    worker, other = (DeviceRegions(fake_cuda_ipc.loaded) for _ in range(2))
    for regions in (worker, other):
        regions.define(cuda_region(handle, SIZE, 0, "theirs", region_id=1))
    worker.write(worker.span(1, 10, 2), b"ab")
    assert fake_cuda_ipc.content_of_another(handle)[9:13] == b"\xeeab\xee"
    del worker, regions  # it dies, and the request runs again elsewhere
    assert bytes(other.host_copy(other.span(1, 10, 2))) == b"ab"
    other.forget([1])
    assert fake_cuda_ipc.open_count(handle) == 0
    fake_cuda_ipc.forget_another(handle)  # its client died
    other.define(cuda_region(handle, SIZE, 0, "theirs", region_id=2))
    with pytest.raises(RequestError, match="'theirs' cannot be opened"):
        other.span(2, 0, 1)
    gpu.close()
    assert place.sweep() == [], "no segment of ours is involved"


def inline_frame(place: Place) -> None:
    payload = bytearray(b"x" * SIZE)
    with (
        zmq.Context() as context,
        context.socket(zmq.PAIR) as sender,
        context.socket(zmq.PAIR) as receiver,
    ):
        sender.bind("inproc://frame")
        receiver.connect("inproc://frame")
        tracker = sender.send(payload, copy=False, track=True)
        assert tracker is not None
        frame = receiver.recv(copy=False)
        assert bytes(frame.buffer[:2]) == b"xx"
        assert not tracker.done, "the receiver reads the sender's own bytes: leave them alone"
        del frame
        tracker.wait(10)
    assert place.sweep() == [], "no shared memory is involved"


BODIES: dict[str, Callable[[Place], None]] = {
    "client arena": client_arena,
    "client's own region": clients_own_region,
    "worker output arena": worker_output_arena,
    "server-registered foreign region": server_registered_foreign_region,
    "GPU memory": gpu_memory,
    "slot page": slot_page,
    "inline frame": inline_frame,
}


def table() -> list[dict[str, str]]:
    """The rows of the table under "## Ownership", by column."""
    section = DOCUMENT.read_text().split("\n## Ownership\n", 1)[1]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, _, *rows = cells
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_the_table_has_its_columns_and_no_empty_cell() -> None:
    rows = table()
    assert [row["memory"] for row in rows] == list(BODIES), "a body for each row, in order"
    for row in rows:
        assert list(row) == COLUMNS
        assert all(row.values()), row


@pytest.mark.parametrize("row", [row["memory"] for row in table()])
def test_the_row_is_true(row: str, server: str, foreign_key: str, tmp_path: Path) -> None:
    assert row in BODIES, f"docs/shm.md says something about {row!r} that nothing proves"
    BODIES[row](Place(server, foreign_key, tmp_path))
