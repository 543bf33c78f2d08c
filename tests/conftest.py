"""What every test relies on: one name per module, and no component folder without its link."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
COMPONENTS = {
    "protocol", "shm", "config", "broker", "worker", "client", "gateway", "metrics", "cli",
    "testing",
}  # fmt: skip

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before a test imports it
# The same models in the same places on every machine: tests that want a GPU plant one.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def _import_sources() -> None:
    """In this process naiad runs as plain Python, so that tests can replace parts of it; servers
    that tests start run compiled modules where there are any. NAIAD_COMPILED=1: both do."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = before or "0"
    import naiad  # noqa: F401

    if before is None:
        del os.environ[SWITCH]


SWITCH = "NAIAD_COMPILED"
_import_sources()


# An example that takes long says how busy the machine is: no test fails for that.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def one_name_per_module() -> Iterator[None]:
    """A component is only ever imported as naiad.<component>."""
    yield
    assert not COMPONENTS & sys.modules.keys()


def pytest_sessionstart() -> None:
    # As a shell starts background jobs, and nohup all: tests that send these would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    links = {path.name for path in (ROOT / "src" / "naiad").iterdir() if path.is_symlink()}
    assert links == COMPONENTS, f"src/naiad links {sorted(links)}, expected {sorted(COMPONENTS)}"
