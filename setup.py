"""Compiles the hot modules with mypyc, if asked to; everything else is pyproject.toml's.

NAIAD_COMPILE=1 asks, in an installation; `make compile` does in a checkout. Needs a C compiler and
Python's headers. Without, naiad is plain Python: it behaves the same, and what would be compiled
takes about three times as long. src/naiad/compiled.py decides what runs.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "src"))

from naiad import compiled  # noqa: E402 - below the path it is found by

SWITCH: Final = "NAIAD_COMPILE"
PACKAGE: Final = "naiad._compiled"

HOT: Final = {
    "protocol": (
        "bundle checks client_messages codec datatypes errors messages parts worker_messages"
    ),
    "broker/core": (
        "accounts admission answers batcher client_events closings deadlines dispatch instances "
        "job lanes lowest memory models packing prediction queue recovery results scheduler "
        "sessions signature statistics withdrawal worker_events world"
    ),
    "broker": "clients log loop repository transport waiting worker_process workers",
    "worker": "batch execution held loop outputs regions results series shapes tensors transport",
    "shm": "arena output_arena page",
    "client": (
        "arguments calls connection driver fields leases outstanding packing requests session texts"
    ),
    "gateway": (
        "budget grpc_connection http_answer http_connection http_known_heads http_message "
        "http_parameters http_quick http_reader http_request http_status http_template "
        "json_tensors transports"
    ),
    "gateway/http2": "connection frames hpack huffman sending streams",
    "gateway/grpc_codec": "answers contents head messages parameters requests wire",
}
"""What is compiled, by folder: what runs for every request, without coroutines. What such a module
may hold is in CONTRIBUTING.md."""

GROUPS: Final = {
    "naiad_server": ("protocol", "broker", "broker/core"),
    "naiad_doors": ("shm", "client", "worker", "gateway", "gateway/http2", "gateway/grpc_codec"),
}
"""Each group is one library, so that two processors can compile at the same time."""


def missing() -> str:
    """Why nothing can be compiled here; empty when it can."""
    if os.environ.get(SWITCH, "0") != "1":
        return f"{SWITCH}=1 asks for more"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there is no Python.h (Debian: apt-get install python3-dev)"
    try:
        import mypyc.build  # noqa: F401
    except ImportError:
        return "there is no mypy"
    return ""


def sources(folders: tuple[str, ...]) -> list[str]:
    """Files to compile, relative to src/naiad."""
    return [f"{folder}/{name}.py" for folder in folders for name in HOT[folder].split()]


class CompileHot(build_ext):
    """Compiles when it is run, not when setuptools only asks what there is."""

    def run(self) -> None:
        reason = missing()
        if reason:
            print(f"naiad is installed as plain Python: {reason}", file=sys.stderr)
            return
        work = build_ext(self.distribution)
        self.distribution.ext_modules = self._extensions()
        for option in ("inplace", "build_lib", "build_temp"):
            setattr(work, option, getattr(self, option))
        work.parallel = self.parallel or len(GROUPS)
        work.ensure_finalized()
        work.run()
        self._write_index()

    def get_outputs(self) -> list[str]:
        """What is there after `run`, not what is declared."""
        return [str(path) for path in Path(self.build_lib).rglob(f"*{compiled.SUFFIX}")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def _extensions(self) -> list[Any]:
        from mypyc.build import mypycify

        os.environ["MYPYPATH"] = str(ROOT / "src")
        groups = [(name, sources(folders)) for name, folders in GROUPS.items()]
        separate: list[tuple[list[str], str | None]] = [
            ([f"src/naiad/{file}" for file in files], name) for name, files in groups
        ]
        options = ["--explicit-package-bases", "--ignore-missing-imports", "--no-error-summary"]
        extensions = mypycify(
            [*options, *(path for paths, _ in separate for path in paths)],
            separate=separate,
            opt_level="1",  # 2 takes half as long again and gains a twentieth
            debug_level="0",
            multi_file=True,
            target_dir=str(Path(self.build_temp, "c")),
        )
        for extension in extensions:
            extension.name = f"{PACKAGE}.{compiled.file_stem(extension.name)}"
            arguments = extension.extra_compile_args  # another compiler has other warnings
            extension.extra_compile_args = [one for one in arguments if one != "-Werror"]
            # Each file of a group has the same empty pointer to the other group; one is enough.
            extension.extra_link_args = [*extension.extra_link_args, "-Wl,-z,muldefs"]
        return extensions

    def _write_index(self) -> None:
        lines = [f"- {name}__mypyc " for name in GROUPS]
        for file in (file for folders in GROUPS.values() for file in sources(folders)):
            module = file.removesuffix(".py").replace("/", ".")
            found = compiled.checksum(str(ROOT / "src" / "naiad" / file))
            lines.append(f"{found} naiad.{module} {file}")
        folder = Path("src" if self.inplace else self.build_lib, *PACKAGE.split("."))
        index = folder / f"{compiled.INDEX}{compiled.SUFFIX}"
        index.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    setup(ext_modules=[Extension(PACKAGE, sources=[])], cmdclass={"build_ext": CompileHot})


if __name__ == "__main__":  # as build tools run it
    main()
