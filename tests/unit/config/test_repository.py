"""Repositories and models on disk: what is found, what is passed over, what is said."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.config.model_directory import read_model
from naiad.config.repository import Scan, scan
from naiad.config.surroundings import Surroundings

IDENTITY = 'backend: "identity"'
PYTHON = 'backend: "python"'
ONNX = 'backend: "onnxruntime"'


def add_model(
    repository: Path, name: str, config: str | None = IDENTITY, versions: tuple[str, ...] = ("1",)
) -> Path:
    directory = repository / name
    for version in versions:
        (directory / version).mkdir(parents=True)
    directory.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
    return directory


def kinds(found: Scan) -> list[str]:
    return [fault.kind for fault in found.faults]


def test_finds_models_in_the_order_of_their_names(tmp_path: Path) -> None:
    add_model(tmp_path, "b")
    add_model(tmp_path, "a", versions=("1", "3"))
    (tmp_path / "README").write_text("a file is no model")

    found = scan([str(tmp_path)])

    assert [model.name for model in found.models] == ["a", "b"]
    a = found.models[0]
    assert (a.versions, a.existing, a.faults, a.refusals) == ((3,), (1, 3), (), ())
    assert a.config is not None
    assert a.config["backend"] == "identity"
    assert a.config["version_policy"] == {"latest": {"num_versions": 1}}
    assert a.directory == str(tmp_path / "a")


def test_links_are_followed_hidden_directories_are_noted(tmp_path: Path) -> None:
    add_model(tmp_path / "elsewhere", "real")
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / "model").symlink_to(tmp_path / "elsewhere" / "real")
    (repository / "broken").symlink_to(tmp_path / "nothing")

    found = scan([str(repository)])

    broken, model = found.models
    assert (model.name, model.faults) == ("model", ())
    assert str(broken.faults[0]) == (
        f"expected the model's directory, but '{repository}/broken' is a link to nothing "
        f"('{tmp_path}/nothing'); correct the link, or remove it"
    )
    assert any("hidden" in note and ".git" in note for note in found.notes)


def test_b53_version_directories(tmp_path: Path) -> None:
    model = add_model(tmp_path, "m", f"{ONNX} version_policy {{ all {{ }} }}")
    for version in ("2", "0", "01", "-1", "abc", "1.0", "5", "99999999999999999999", "warmup"):
        (model / version).mkdir()
    (model / ".DS_Store").write_text("")
    (model / "3").symlink_to(model / "2")
    for version in ("0", "1", "2"):
        (model / version / "model.onnx").write_text("")

    (found,) = scan([str(tmp_path)]).models

    assert found.faults == ()
    assert found.versions == (0, 1, 2, 3)
    ignored = "\n".join(found.warnings)
    for name in ("'01'", "'-1'", "'abc'", "'1.0'", "'5'", "'99999999999999999999'"):
        assert name in ignored
    assert "warmup" not in ignored
    assert "DS_Store" not in ignored


@pytest.mark.parametrize("versions", [(), ("01", "abc"), ("1",)])
def test_b53_no_usable_version(tmp_path: Path, versions: tuple[str, ...]) -> None:
    add_model(tmp_path, "m", ONNX, versions)

    (found,) = scan([str(tmp_path)]).models

    (fault,) = found.faults
    assert fault.message.startswith(
        "at least one version must be available under the version policy of model 'm'"
    )
    assert "no model version was found" in fault.message
    assert all(f"'{version}'" in fault.message for version in versions)


def test_a_policy_that_leaves_no_version(tmp_path: Path) -> None:
    add_model(tmp_path, "m", f"{IDENTITY} version_policy {{ specific {{ versions: 7 }} }}")

    (found,) = scan([str(tmp_path)]).models

    assert found.versions == ()
    assert "leaves none of the versions 1" in found.faults[0].message
    assert "version 7 of the version policy does not exist" in found.warnings


def test_a_model_without_config_is_known_by_its_file(tmp_path: Path) -> None:
    model = add_model(tmp_path, "m", None)
    (model / "1" / "model.py").write_text("")

    (found,) = scan([str(tmp_path)]).models

    assert found.faults == ()
    assert found.config is not None
    assert (found.config["name"], found.config["backend"]) == ("m", "python")


def test_a_directory_that_is_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    add_model(tmp_path, "m")

    docs, _ = scan([str(tmp_path)]).models

    assert "neither a config.pbtxt nor a version directory" in str(docs.faults[0])


def test_a_config_under_a_wrong_name_is_noticed(tmp_path: Path) -> None:
    model = add_model(tmp_path, "m", None)
    (model / "1" / "model.onnx").write_text("")
    (model / "config.pbtxt.txt").write_text("")

    (found,) = scan([str(tmp_path)]).models

    assert found.warnings == (
        "'config.pbtxt.txt' is not read; the configuration's name is config.pbtxt",
    )


def test_one_broken_model_stops_nothing(tmp_path: Path) -> None:
    add_model(tmp_path, "bad", "max_batch_size: ${x}")
    add_model(tmp_path, "good")
    (add_model(tmp_path, "odd", None) / "config.pbtxt").mkdir()

    bad, good, odd = scan([str(tmp_path)]).models

    assert "config.pbtxt:1:17: unreplaced template" in str(bad.faults[0])
    assert bad.config is None
    assert good.faults == ()
    assert "expected a file, but it is a directory" in str(odd.faults[0])


def test_a_pipe_called_config_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(add_model(tmp_path, "m", None) / "config.pbtxt")

    (found,) = scan([str(tmp_path)]).models

    assert "expected a file, but it is a named pipe" in str(found.faults[0])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_a_fault_of_that_model(tmp_path: Path) -> None:
    model = add_model(tmp_path, "m")
    model.chmod(0)
    try:
        (found,) = scan([str(tmp_path)]).models
    finally:
        model.chmod(0o700)

    assert "Permission denied" in str(found.faults[0])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_a_link_to_where_one_may_not_look_is_a_fault_of_that_entry(tmp_path: Path) -> None:
    add_model(tmp_path / "closed", "m")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "m").symlink_to(tmp_path / "closed" / "m")
    add_model(tmp_path / "repository", "z")
    (tmp_path / "closed").chmod(0)
    try:
        odd, good = scan([str(tmp_path / "repository")]).models
    finally:
        (tmp_path / "closed").chmod(0o700)

    assert good.faults == ()
    assert "is a link that cannot be followed" in str(odd.faults[0])
    assert "Permission denied" in str(odd.faults[0])


def test_a_link_loop_is_a_fault_of_that_model(tmp_path: Path) -> None:
    model = add_model(tmp_path, "m", None)
    (model / "config.pbtxt").symlink_to("config.pbtxt")

    (found,) = scan([str(tmp_path)]).models

    assert str(found.faults[0]) == (
        "config.pbtxt: expected a file, but it is a link that leads in a circle ('config.pbtxt'); "
        "write the configuration into a file"
    )


def ends_at_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def ends_at_itself(path: Path) -> None:
    path.symlink_to(path.name)


def is_a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def is_zeros_without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def is_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


ODD_THINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (Path.touch, "a file"),
    "a directory": (Path.mkdir, "a directory"),
    "a pipe": (os.mkfifo, "a named pipe"),
    "a socket": (is_a_socket, "a socket"),
    "a device": (is_zeros_without_end, "a device"),
    "a link to nothing": (ends_at_nothing, "a link to nothing ('nowhere')"),
    "a loop": (ends_at_itself, "a link that leads in a circle"),
    "huge": (is_huge, "bytes, expected at most"),
}


@pytest.mark.parametrize("thing", [thing for thing in ODD_THINGS if thing != "a file"])
def test_whatever_stands_for_a_config_is_that_models_fault(tmp_path: Path, thing: str) -> None:
    make, said = ODD_THINGS[thing]
    make(add_model(tmp_path, "m", None) / "config.pbtxt")
    add_model(tmp_path, "good")

    good, odd = scan([str(tmp_path)]).models

    assert good.faults == ()
    assert said in str(odd.faults[0])
    assert str(odd.faults[0]).startswith("config.pbtxt: ")


@pytest.mark.parametrize("thing", [thing for thing in ODD_THINGS if thing != "a directory"])
def test_whatever_stands_for_a_model_harms_no_other(tmp_path: Path, thing: str) -> None:
    make, said = ODD_THINGS[thing]
    make(tmp_path / "odd")
    add_model(tmp_path, "good")

    found = scan([str(tmp_path)])

    good, *others = found.models
    assert (good.name, good.faults) == ("good", ())
    if "link" in said:
        assert f"expected the model's directory, but '{tmp_path}/odd' is {said}" in str(
            others[0].faults[0]
        )
    else:
        assert others == []
        is_noted = any(f"skipped '{tmp_path}/odd': it is {said}" in note for note in found.notes)
        assert is_noted == (thing not in ("a file", "huge"))


@pytest.mark.parametrize("thing", [thing for thing in ODD_THINGS if thing != "a directory"])
@pytest.mark.parametrize("other_versions", [(), ("1",)])
def test_whatever_stands_for_a_version_is_told_and_passed_over(
    tmp_path: Path, thing: str, other_versions: tuple[str, ...]
) -> None:
    make, said = ODD_THINGS[thing]
    make(add_model(tmp_path, "m", versions=other_versions) / "2")

    (found,) = scan([str(tmp_path)]).models

    said = f"version 2 is {'a file' if thing == 'huge' else said}"
    assert found.versions == tuple(map(int, other_versions))
    assert any(said in warning for warning in found.warnings)
    assert [said in str(fault) for fault in found.faults] == [True] * (not other_versions)


@pytest.mark.parametrize("thing", ["a pipe", "a socket", "a device", "a link to nothing", "a loop"])
def test_whatever_stands_for_a_models_file_is_told(tmp_path: Path, thing: str) -> None:
    make, said = ODD_THINGS[thing]
    make(add_model(tmp_path, "m", ONNX) / "1" / "model.onnx")

    (found,) = scan([str(tmp_path)]).models

    assert found.versions == ()
    assert f"version directory '1': model.onnx is {said}" in str(found.faults[0])


def test_files_that_are_not_there_are_named_once(tmp_path: Path) -> None:
    files = 'cc_model_filenames [ { key: "8.9" value: "e" }, { key: "9.0" value: "e" } ]'
    add_model(tmp_path, "m", f'backend: "tensorrt" default_model_filename: "d" {files}')

    (found,) = scan([str(tmp_path)]).models

    assert any(text.endswith("version directory '1' has no d, e") for text in found.warnings)


@pytest.mark.parametrize("thing", ["a loop", "a link to nothing", "a pipe", "a socket"])
def test_odd_things_beside_a_models_files_are_nothing_to_it(tmp_path: Path, thing: str) -> None:
    directory = add_model(tmp_path, "m")
    ODD_THINGS[thing][0](directory / "notes")
    ODD_THINGS[thing][0](directory / "1" / "more")

    (found,) = scan([str(tmp_path)]).models

    assert (found.versions, found.faults) == ((1,), ())
    assert found.fingerprint


@pytest.mark.parametrize(
    ("name", "shown", "said"),
    [
        ("m\udcff", "m\\xff", "is not UTF-8"),
        ("two\nlines", "two\\nlines", "must not contain control characters"),
        ("\x1b[31mred", "\\x1b[31mred", "must not contain control characters"),
        ("  ", "'  '", "cannot be empty"),
    ],
)
def test_a_name_that_no_model_can_have_is_a_fault_that_can_be_shown(
    tmp_path: Path, name: str, shown: str, said: str
) -> None:
    add_model(tmp_path, name)
    add_model(tmp_path, "z")

    odd, good = sorted(scan([str(tmp_path)]).models, key=lambda model: model.name)

    assert odd.name == shown
    assert said in str(odd.faults[0])
    assert "rename the directory" in str(odd.faults[0])
    assert good.faults == ()
    json.dumps(odd.to_json()["faults"], ensure_ascii=False).encode()


def test_a_name_spelled_out_is_no_other_models_name(tmp_path: Path) -> None:
    add_model(tmp_path, "m\udcff")
    add_model(tmp_path, "m\\xff")

    found = {model.name: model.faults for model in scan([str(tmp_path)]).models}

    assert found["m\\xff"] == ()
    assert "is not UTF-8" in str(found["m\\xff?"])


def test_a_name_of_255_bytes_is_fine(tmp_path: Path) -> None:
    add_model(tmp_path, "é" * 127 + "x")

    (found,) = scan([str(tmp_path)]).models

    assert (found.versions, found.faults) == ((1,), ())


def test_the_name_in_the_config_must_be_the_directorys(tmp_path: Path) -> None:
    add_model(tmp_path, "m", f'name: "other" {IDENTITY}')

    (found,) = scan([str(tmp_path)]).models

    assert [str(fault) for fault in found.faults] == [
        "name: unexpected directory name 'm' for model 'other', directory name must equal model "
        "name; rename one of them, or leave `name` out"
    ]


def test_label_files_must_be_there(tmp_path: Path) -> None:
    outputs = 'output { name: "a" label_filename: "l" } output { name: "b" label_filename: "no" }'
    text = f"{PYTHON} {outputs}"
    directory = add_model(tmp_path, "m", text)
    (directory / "l").write_text("cat\n")
    (directory / "1" / "model.py").touch()

    (found,) = scan([str(tmp_path)]).models

    assert [fault.where for fault in found.faults] == ["output[1].label_filename"]


def test_refusals_are_there_and_the_config_too(tmp_path: Path) -> None:
    add_model(tmp_path, "m", 'backend: "nothing" response_cache { enable: true }')

    (found,) = scan([str(tmp_path)], surroundings=Surroundings(backends=("python",))).models

    assert found.faults == ()
    assert len(found.refusals) == 2
    assert found.config is not None
    assert found.to_json()["faults"] == list(found.refusals)


def test_a_model_in_two_repositories_is_served_from_neither(tmp_path: Path) -> None:
    add_model(tmp_path / "a", "m")
    add_model(tmp_path / "b", "m")
    add_model(tmp_path / "b", "n")

    m, n = scan([str(tmp_path / "a"), str(tmp_path / "b")]).models

    assert (m.versions, m.config) == ((), None)
    assert "duplicate" in str(m.faults[0])
    assert str(tmp_path / "a" / "m") in str(m.faults[0])
    assert str(tmp_path / "b" / "m") in str(m.faults[0])
    assert n.faults == ()


def test_one_repository_given_twice_is_one(tmp_path: Path) -> None:
    add_model(tmp_path / "a", "m")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    (model,) = scan([str(tmp_path / "a"), f"{tmp_path}/./a/", str(tmp_path / "b")]).models

    assert model.faults == ()


def test_only_the_models_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        add_model(tmp_path, name)

    found = scan([str(tmp_path)], ["c", "a", "c"])

    assert [model.name for model in found.models] == ["c", "a"]


def test_b51_a_model_nowhere_is_named_but_not_where_it_was_looked_for(tmp_path: Path) -> None:
    add_model(tmp_path, "resnet")

    missing = scan([str(tmp_path)], ["resnett", "../x", ""]).missing

    assert missing["resnett"].startswith("no directory named 'resnett' in the model repository; ")
    assert tmp_path.name not in missing["resnett"]
    both = scan([str(tmp_path), str(tmp_path / "resnet")], ["resnett"]).missing
    assert "in any of the 2 model repositories" in both["resnett"]
    assert 'did you mean "resnet"?' in missing["resnett"]
    assert "path traversal" in missing["../x"]
    assert "cannot be empty" in missing[""]


def test_paths_that_are_no_repository(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    add_model(tmp_path / "repository", "m")
    onnx = add_model(tmp_path / "repository", "n", None)
    (onnx / "1" / "model.onnx").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nothing")
    (tmp_path / "\udcff").mkdir()

    for path, kind, text in (
        (tmp_path / "nowhere", "missing", "does not exist"),
        (tmp_path / "file", "not_a_directory", "is a file"),
        (tmp_path / "empty", "empty", "holds no models"),
        (tmp_path / "repository" / "m", "model_folder", f"its parent '{tmp_path}/repository'"),
        (tmp_path / "repository" / "n", "model_folder", "one model's folder"),
        (tmp_path / "pipe", "not_a_directory", "is a named pipe"),
        (tmp_path / "loop", "permission", "it is a link that leads in a circle"),
        (tmp_path / "gone", "missing", "does not exist (a link to nothing ('nothing'))"),
        (tmp_path / "\udcff", "not_utf8", "is not UTF-8; rename the directory, or give a link"),
        ("s3://bucket/models", "remote", "not in this release"),
    ):
        found = scan([str(path)])
        assert kinds(found) == [kind]
        assert text in found.faults[0].message
        assert found.models == ()


def test_a_good_repository_beside_a_bad_one_is_scanned(tmp_path: Path) -> None:
    add_model(tmp_path, "m")

    found = scan([str(tmp_path / "nowhere"), str(tmp_path)])

    assert kinds(found) == ["missing"]
    assert [model.name for model in found.models] == ["m"]


def test_an_override_stands_in_for_the_file(tmp_path: Path) -> None:
    model = add_model(tmp_path, "m", "this is no config")

    found = read_model(str(model), override='{"backend": "identity", "max_batch_size": 4}')

    assert found.faults == ()
    assert found.config is not None
    assert found.config["max_batch_size"] == 4
    assert found.fingerprint


def test_a_configuration_of_the_chosen_name_stands_in_for_the_usual_one(tmp_path: Path) -> None:
    both = add_model(tmp_path, "both", f"{PYTHON} max_batch_size: 1")
    only = add_model(tmp_path, "only", None)
    usual = add_model(tmp_path, "usual", f"{PYTHON} max_batch_size: 3")
    for model in (both, only):
        (model / "configs").mkdir()
        (model / "configs" / "big.pbtxt").write_text(f"{PYTHON} max_batch_size: 8")

    def sizes(name: str) -> dict[str, int]:
        found = scan([str(tmp_path)], surroundings=Surroundings(config_name=name))
        return {one.name: one.config["max_batch_size"] for one in found.models if one.config}

    assert sizes("big") == {"both": 8, "only": 8, "usual": 3}
    assert sizes("other") == sizes("") == {"both": 1, "only": 0, "usual": 3}
    (usual / "configs").mkdir()
    (usual / "configs" / "big.pbtxt").write_text("max_batch_size: x")
    (fault,) = read_model(str(usual), Surroundings(config_name="big")).faults
    assert "configs/big.pbtxt" in str(fault)


def test_nothing_is_filled_in_where_that_is_not_wanted(tmp_path: Path) -> None:
    strict = Surroundings(auto_complete=False)
    whole = (
        f"{PYTHON} input {{ name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }}"
        " output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }"
    )
    model = add_model(tmp_path, "whole", whole)
    (model / "1" / "model.py").write_text("")
    assert read_model(str(model), strict).faults == ()
    for name, config, said in (
        ("bare", None, "there is no config.pbtxt"),
        ("sides", PYTHON, "input, output not given"),
        ("type", whole.replace("data_type: TYPE_FP32 dims: [ 1 ] } output", "} output"), "x"),
    ):
        model = add_model(tmp_path, name, config)
        (model / "1" / "model.py").write_text("")
        assert said in " ".join(map(str, read_model(str(model), strict).faults)), name
        assert read_model(str(model)).faults == (), name
