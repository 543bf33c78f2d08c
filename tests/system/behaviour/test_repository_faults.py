"""What can be wrong in a repository: each fault is told by name, and no other model suffers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client, Code, InternalError, ModelError, NaiadError, RequestError
from naiad.testing.server import Server, serve
from support.models import add_echo, add_python, write_config
from support.models_python import CONTRADICTS_ITS_CONFIG, ECHO, HANGS_IN_INITIALIZE, python_model
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("unharmed")

ARRAYS = {"INPUT0": np.arange(16, dtype=np.float32)}
NAMES_OUTSIDE = ("../secret", "../../etc", "/etc", "model/", "good/../good", "..", " ..", ".", "\t")
VARIANTS = {
    "comments and CRLF": """# a comment\r\nbackend: "identity" # another\r\ninput { name: "INPUT0"
        data_type: TYPE_FP32 dims: [ 16 ] }\r\noutput { name: "OUTPUT0" data_type: TYPE_FP32
        dims: [ 16 ] }\r\n""",
    "a BOM": """\ufeffbackend: "identity"
        input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }""",
    "colons before braces, separators": """backend: 'identity';
        input: { name: "INPUT0", data_type: TYPE_FP32, dims: [ 16 ] },
        output: { name: 'OUTPUT0'; data_type: TYPE_FP32; dims: [ 16 ]; };""",
    "lists of messages": """backend: "identity"
        input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
        output: [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]""",
    "angle brackets and adjacent strings": """backend: "iden" 'tity'
        input < name: "INPUT" "0" data_type: TYPE_FP32 dims: 0x10 >
        output < name: "OUTPUT0" data_type: TYPE_FP32 dims: 020 >""",
    "enums by number": """backend: "identity"
        input { name: "INPUT0" data_type: 11 dims: [ 16 ] }
        output { name: "OUTPUT0" data_type: 11 dims: [ 16 ] }
        instance_group { kind: 2 count: 1 }""",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("top") / "repository"
    repository.mkdir()
    add_echo(repository, "good")
    add_echo(repository.parent, "secret")
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    asked = ["--load-model", "good", "--load-model", "does_not_exist"]
    with serve(repository, arguments=["--control-mode", "explicit", *asked]) as server:
        yield server


@pytest.fixture(autouse=True)
def others_serve(client: Client) -> Iterator[None]:
    """Whatever is wrong with one model, the others are served."""
    yield
    assert (client.infer("good", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()


def load_fault(client: Client, name: str, config: str | None = None) -> NaiadError:
    with pytest.raises(NaiadError) as caught:
        client.load(name, config)
    return caught.value


def test_a_model_to_load_at_the_start_that_is_nowhere_is_named_but_no_folder(
    client: Client, server: Server, repository: Path
) -> None:

    def is_logged() -> bool:
        lines = [line for line in server.log.splitlines() if "does_not_exist" in line]
        return any("ERROR" in line and "in the model repository" in line for line in lines)

    wait_until(is_logged, "an error in the log")
    (row,) = [row for row in client.index() if row["name"] == "does_not_exist"]
    assert row["state"] == "UNAVAILABLE"
    assert row["reason"].count("failed to poll from model repository") == 1
    assert "in the model repository" in row["reason"]
    assert str(repository) not in row["reason"]
    assert not client.ready()
    client.unload("does_not_exist")
    assert client.ready()
    assert "does_not_exist" not in {row["name"] for row in client.index()}


def test_loading_what_is_nowhere_fails_and_is_forgotten(client: Client, repository: Path) -> None:
    fault = load_fault(client, "goot")
    assert isinstance(fault, InternalError)
    assert fault.message.startswith("failed to load 'goot', failed to poll from model repository")
    assert "in the model repository" in fault.message
    assert str(repository) not in fault.message
    assert 'did you mean "good"?' in fault.message
    assert {row["name"] for row in client.index()}.isdisjoint({"goot"})


@pytest.mark.parametrize("override", [None, '{"backend": "identity"}'])
@pytest.mark.parametrize("name", NAMES_OUTSIDE)
def test_a_name_that_is_a_path_or_blank_is_refused_whether_or_not_something_is_there(
    client: Client, name: str, override: str | None
) -> None:
    before = client.index()
    fault = load_fault(client, name, override)
    assert isinstance(fault, RequestError)
    assert fault.code == Code.INVALID_ARGUMENT
    expected = "must not contain path traversal characters" if name.strip() else "cannot be empty"
    assert fault.message.startswith("Model name ")
    assert expected in fault.message
    other = load_fault(client, name.replace("secret", "nothing"), override)
    assert other.message == fault.message.replace("secret", "nothing")
    assert client.index() == before


def test_an_empty_name_is_refused(client: Client) -> None:
    with pytest.raises(RequestError, match="a string of 1 to"):
        client.load("")


@pytest.mark.parametrize("name", ["...", "..m", "m..1", "with space", "ünïcode"])
def test_names_that_only_look_odd_are_fine(client: Client, repository: Path, name: str) -> None:
    add_echo(repository, name)
    if name.startswith("."):  # hidden directories are nobody's models
        assert "no directory" in load_fault(client, name).message
        return
    client.load(name)
    assert (client.infer(name, ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    client.unload(name)


def test_an_ensemble_step_that_is_a_path_is_refused_as_a_name(
    client: Client, repository: Path
) -> None:
    tensor = 'name: "A" data_type: TYPE_FP32 dims: [ 16 ]'
    write_config(
        repository,
        "escaping",
        f"""platform: "ensemble" input {{ {tensor} }} output {{ {tensor.replace('"A"', '"B"')} }}
        ensemble_scheduling {{ step {{
          model_name: "../secret"
          input_map {{ key: "INPUT0" value: "A" }} output_map {{ key: "OUTPUT0" value: "B" }}
        }} }}""",
    )
    fault = load_fault(client, "escaping")
    assert "ensemble_scheduling.step[0].model_name" in fault.message
    assert "must not contain path traversal characters" in fault.message
    client.unload("escaping")


def test_a_config_completed_against_itself_fails_the_load_with_file_and_line(
    client: Client, repository: Path
) -> None:
    add_python(repository, "contradicts", CONTRADICTS_ITS_CONFIG)
    fault = load_fault(client, "contradicts")
    assert isinstance(fault, ModelError)
    assert fault.code == Code.LOAD_FAILED
    assert fault.message.startswith(
        "load failed for model 'contradicts': version 1 is at UNAVAILABLE state: "
    )
    for detail in ("INPUT0", "TYPE_INT64", "TYPE_FP32", "model.py:"):
        assert detail in fault.message
    client.unload("contradicts")


def test_a_load_that_hangs_fails_after_its_timeout(client: Client, repository: Path) -> None:
    add_python(repository, "hangs", HANGS_IN_INITIALIZE, parameters={"naiad.load_timeout_s": 1})
    hang = repository / "hangs.hang"
    hang.touch()
    assert (
        "loading took longer than naiad.load_timeout_s = 1 s" in load_fault(client, "hangs").message
    )
    hang.unlink()
    client.load("hangs")
    assert client.model_ready("hangs")
    client.unload("hangs")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import no_such_module_anywhere\n", "no_such_module_anywhere"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("class Other: pass\n", "expected a class TritonPythonModel"),
        (python_model("return []", more="def initialize(self, args): 1 / 0"), "ZeroDivisionError"),
    ],
)
def test_a_python_model_that_does_not_import_fails_alone_and_loads_once_it_is_right(
    client: Client, repository: Path, source: str, said: str
) -> None:
    directory = add_python(repository, "faulty", source)
    fault = load_fault(client, "faulty")
    assert said in fault.message
    (directory / "1" / "model.py").write_text(ECHO)
    client.load("faulty")
    assert (client.infer("faulty", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    client.unload("faulty")


def test_only_real_version_directories_are_versions(
    client: Client, server: Server, repository: Path
) -> None:
    directory = add_python(
        repository,
        "versions",
        ECHO,
        versions=(0, 2),
        extra='version_policy { all { } }\ndefault_model_filename: "model.py"',
    )
    bad = ("01", "-1", "abc", "1.0", "99999999999999999999", ".hidden")
    for name in (*bad, "4", "warmup"):
        (directory / name).mkdir()
    for name in bad:
        (directory / name / "model.py").write_text(ECHO)
    (directory / ".DS_Store").write_text("")
    (directory / "5").write_text("a file")
    (directory / "3").symlink_to(directory / "2")
    (directory / "7").symlink_to("nowhere")
    client.load("versions")
    rows = [row for row in client.index() if row["name"] == "versions"]
    assert [(row["version"], row["state"]) for row in rows] == [
        (version, "READY") for version in ("0", "2", "3")
    ]
    assert client.infer("versions", ARRAYS).version == 3
    assert client.infer("versions", ARRAYS, version=0).version == 0

    def is_warned_of(text: str) -> bool:
        lines = [line for line in server.log.splitlines() if "WARNING" in line]
        return any("model versions: " in line and text in line for line in lines)

    for name in bad[:-1]:
        wait_until(lambda ignored=name: is_warned_of(f"'{ignored}'"), f"a warning about {name}")  # type: ignore[misc]
    wait_until(lambda: is_warned_of("'4' has no"), "a warning about 4")
    client.unload("versions")


def test_without_any_version_the_directories_and_their_faults_are_told(
    client: Client, repository: Path
) -> None:
    directory = add_echo(repository, "versionless", versions=())
    (directory / "01").mkdir()
    fault = load_fault(client, "versionless")
    assert "at least one version must be available" in fault.message
    assert "no model version was found" in fault.message
    assert "'01' has a leading zero" in fault.message
    client.unload("versionless")


@pytest.mark.parametrize("text", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_spelling_of_the_text_format_is_read(
    client: Client, repository: Path, text: str
) -> None:
    write_config(repository, "spelling", "")
    (repository / "spelling" / "config.pbtxt").write_bytes(text.encode())
    client.load("spelling")
    assert (client.infer("spelling", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_batch_size: ${max_batch}", ("config.pbtxt:1:17", "template", "${max_batch}")),
        ("\nmax_batch_size: {{ size }}", ("config.pbtxt:2:", "template", "{{ size }}")),
        ("backend: “identity”", ("config.pbtxt:1:10", "quot")),
        ('backend: "identity"\nmax_batchsize: 8', (":2:1", 'did you mean "max_batch_size"?')),
        ("instance_group { kind: KIND_CPUS }", (":1:24", "KIND_CPUS", "KIND_CPU")),
        ("max_batch_size: eight", ("config.pbtxt:1:17", "eight")),
    ],
)
def test_a_fault_in_a_config_has_its_place_and_a_remedy(
    client: Client, repository: Path, text: str, said: tuple[str, ...]
) -> None:
    write_config(repository, "misspelt", text)
    fault = load_fault(client, "misspelt")
    assert isinstance(fault, RequestError)
    for part in said:
        assert part in fault.message, fault.message
    client.unload("misspelt")
