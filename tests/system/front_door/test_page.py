"""The page for people, in a real browser and without one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.client import Client
from naiad.testing.server import Server, serve
from support.browser import Browser, Page
from support.front_door import Given, GrpcDoor, HttpDoor, Refused
from support.models import add_echo, write_config
from support.waiting import wait_until

ONE = Given("INPUT0", "FP32", [1], struct.pack("<f", 1))
MARKUP = "<img src=x onerror='document.title=1'><script>"
STATE = "document.getElementById('state').textContent"
PHONE_WIDTH = 360


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(browser: Browser, http: HttpDoor, grpc_door: GrpcDoor) -> Iterator[Page]:
    page = browser.open(f"http://{http.address[0]}:{http.address[1]}/")
    wait_until(lambda: page.evaluate(STATE) != "connecting", "the page knows the server")
    yield page
    assert page.complaints() == []
    page.close()


def row(name: str) -> str:
    """A model's row, as JavaScript."""
    rows = "[...document.querySelectorAll('#models tr')]"
    return f"{rows}.find((one) => one.querySelector('.name').textContent === {json.dumps(name)})"


def text(page: Page, name: str, part: str) -> str:
    found = page.evaluate(f"{row(name)}?.querySelector('.{part}')?.textContent ?? ''")
    assert isinstance(found, str)
    return found


def known(http: HttpDoor) -> dict[str, str]:
    """States of the models that were ever asked for."""
    return {name: found["state"] for name, found in http.index().items() if "state" in found}


# --- without a browser --------------------------------------------------------------------------


def test_the_page_is_html_with_a_strict_policy(http: HttpDoor) -> None:
    reply = http.call("GET", "/?x=1")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    head = http.call("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(reply.body))
    assert http.call("POST", "/").status == 405


def test_what_was_never_loaded_is_not_shown(http: HttpDoor, repository: Path) -> None:
    """It is in the index, for who looks for something to load."""
    add_echo(repository, "never", "FP32 -1")
    assert "never" in http.index()
    began = http.call("GET", "/status.json").json["time"]

    def newer() -> list[str]:
        state = http.call("GET", "/status.json").json
        return [one["name"] for one in state["models"]] if state["time"] > began else []

    wait_until(newer, "a state from after that")
    assert "fp32" in newer()
    assert "never" not in newer()
    shutil.rmtree(repository / "never")


def test_its_state_tells_what_the_open_routes_tell_and_no_more(
    http: HttpDoor, server: Server, repository: Path
) -> None:
    reply = http.call("GET", "/status.json")
    assert reply.headers["cache-control"] == "no-store"
    state = reply.json
    assert state["server"]["name"] == server.name
    assert {one["name"] for one in state["models"]} >= set(known(http))
    for secret in (str(repository), str(server.run_dir), os.getcwd(), '"pid"'):
        assert secret.encode() not in reply.body


def test_the_broker_is_asked_once_a_second_however_many_look(http: HttpDoor) -> None:
    seen = [http.call("GET", "/status.json").json["time"] for _ in range(100)]
    assert len(set(seen)) <= 1 + (seen[-1] - seen[0] + 1)


# --- with one -----------------------------------------------------------------------------------


def test_every_model_is_shown_with_its_state(page: Page, http: HttpDoor) -> None:
    for name, state in known(http).items():
        wait_until(lambda name=name: text(page, name, "name"), f"{name} is shown")  # type: ignore[misc]
        if state == "READY":
            assert text(page, name, "pill") == "ready"
    here = f"http://{http.address[0]}:{http.address[1]}/"
    asked = {address for address in page.requested() if not address.startswith("data:")}
    assert asked == {here, f"{here}status.json"}


def test_figures_follow_what_is_asked(page: Page, http: HttpDoor) -> None:
    before = text(page, "fp32", "failed")
    for _ in range(50):
        http.infer("fp32", [ONE])
    for _ in range(2):
        with pytest.raises(Refused):
            http.infer("fp32", [ONE], parameters={"raise": "no luck"})
    wait_until(lambda: text(page, "fp32", "rate") not in ("", "–", "0"), "a rate")
    wait_until(lambda: text(page, "fp32", "median").endswith("ms"), "a latency")
    wait_until(lambda: int(text(page, "fp32", "failed")) == int(before or 0) + 2, "the failures")
    assert text(page, "fp32", "busy").startswith("1 of 1")
    line = f"{row('fp32')}.querySelector('.spark .line').getAttribute('d')"
    wait_until(lambda: page.evaluate(line), "a line")


def test_what_does_not_load_is_shown_with_its_reason(
    page: Page, native: Client, repository: Path
) -> None:
    write_config(repository, "faulty", 'backend: "identity"\nmax_batch_size: many\n')
    with pytest.raises(Exception, match="max_batch_size"):
        native.load("faulty")
    wait_until(lambda: text(page, "faulty", "pill") == "unavailable", "its state")
    assert "max_batch_size" in text(page, "faulty", "reason")
    wait_until(lambda: page.evaluate(STATE) == "not ready", "the server is not ready")
    native.unload("faulty")
    wait_until(lambda: page.evaluate(STATE) == "ready", "the server is ready")


def test_a_name_is_never_markup(page: Page, native: Client, repository: Path) -> None:
    model = add_echo(repository, "markup", "FP32 -1")
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "markup"\n', "", 1))
    model.rename(repository / MARKUP)
    native.load(MARKUP)
    wait_until(lambda: text(page, MARKUP, "name") == MARKUP, "its name, as text")
    assert page.evaluate("document.querySelectorAll('#models img, #models script').length") == 0
    assert page.evaluate("document.title") != "1"
    native.unload(MARKUP)


def test_it_can_be_read_on_a_phone_and_in_the_dark(
    browser: Browser, http: HttpDoor, page: Page
) -> None:
    url = f"http://{http.address[0]}:{http.address[1]}/"
    phone = browser.open(url, width=PHONE_WIDTH, height=700, scheme="dark")
    wait_until(lambda: text(phone, "fp32", "pill") == "ready", "the models are shown")
    assert phone.evaluate("document.documentElement.scrollWidth") == PHONE_WIDTH
    colour = "getComputedStyle(document.body).backgroundColor"
    assert brightness(phone.evaluate(colour)) < 60 < 200 < brightness(page.evaluate(colour))
    phone.close()


def brightness(colour: str) -> float:
    """Of "rgb(1, 2, 3)", 0 to 255."""
    parts = [float(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
    return sum(parts) / len(parts)


def test_while_the_server_does_not_answer_it_says_so_and_comes_back(
    browser: Browser, tmp_path: Path
) -> None:
    add_echo(tmp_path, "echo", "FP32 -1")
    with serve(tmp_path, arguments=["--http-port", "0", "--spares", "0"]) as own:
        page = browser.open(f"{own.http_url}/")
        wait_until(lambda: page.evaluate(STATE) == "ready", "the page knows the server")
        broker = own.pids["broker"]
        os.kill(broker, signal.SIGSTOP)
        try:
            wait_until(lambda: page.evaluate(STATE) == "reconnecting", "it says so")
            assert HttpDoor(own).call("GET", "/status.json").status == 503
            assert text(page, "echo", "pill") == "ready", "what was known stays"
        finally:
            os.kill(broker, signal.SIGCONT)
        wait_until(lambda: page.evaluate(STATE) == "ready", "it is back")
        page.close()


def test_a_server_that_keeps_its_state_to_itself_is_shown_as_such(
    browser: Browser, tmp_path: Path
) -> None:
    add_echo(tmp_path, "echo", "FP32 -1")
    arguments = ["--http-port", "0", "--spares", "0"]
    arguments += ["--http-restricted-api", "statistics:key=secret"]
    with serve(tmp_path, arguments=arguments) as own:
        page = browser.open(f"{own.http_url}/")
        wait_until(lambda: page.evaluate(STATE) == "restricted", "it says so")
        assert "secret" in page.evaluate("document.getElementById('none').textContent")
        assert not page.evaluate("document.querySelector('.tiles').checkVisibility()")
        page.close()
