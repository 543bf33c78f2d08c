"""Which of the GPUs a server uses."""

from __future__ import annotations

import pytest

from naiad.config.gpus import GPUS_MAX, Gpu, GpuFault, chosen_uuids, described, visible

A, B, C = "GPU-aaaa-1", "GPU-bbbb-2", "GPU-aaab-3"
GPUS = [Gpu(A, "H", 0), Gpu(B, "H", 1), Gpu(C, "L", 2)]
DIVIDED = [Gpu("MIG-1", "H", 0), Gpu("MIG-2", "H", 0), Gpu(B, "H", 1)]


@pytest.mark.parametrize(
    ("choice", "uuids"),
    [
        ("auto", None),
        ("all", None),
        ("none", ()),
        (A, (A,)),
        (f"{B},{A},{B}", (B, A)),
        ("MIG-GPU-8932f937/1/0", ("MIG-GPU-8932f937/1/0",)),
    ],
)
def test_choices(choice: str, uuids: tuple[str, ...] | None) -> None:
    assert chosen_uuids(choice) == uuids


@pytest.mark.parametrize(
    "choice", ["", "0", "GPU-", f"{A},", f"{A} ,{B}", "gpu-1", "GPU-a\n", "Auto"]
)
def test_what_is_no_choice(choice: str) -> None:
    with pytest.raises(GpuFault, match="expected auto, all, none, or UUIDs"):
        chosen_uuids(choice)


def test_choices_are_bounded() -> None:
    with pytest.raises(GpuFault, match=f"at most {GPUS_MAX}"):
        chosen_uuids(",".join(f"GPU-{number}" for number in range(GPUS_MAX + 1)))
    with pytest.raises(GpuFault):
        chosen_uuids("GPU-" + "a" * 61)


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        (None, [A, B, C]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [B]),
        ("2, 0", [C, A]),
        ("0,0,1", [A, B]),
        ("0,7,1", [A]),
        (B, [B]),
        ("GPU-bb", [B]),
        ("GPU-aaab,1", [C, B]),
        (f"{A},GPU-zz,{B}", [A]),
    ],
)
def test_visible_as_cuda_reads_it(text: str | None, uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in visible(GPUS, text)] == uuids


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        (None, ["MIG-1", "MIG-2", B]),
        ("0", ["MIG-1"]),
        ("1", [B]),
        ("MIG-2,MIG-1", ["MIG-2", "MIG-1"]),
    ],
)
def test_a_divided_gpu_is_its_parts(text: str | None, uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in visible(DIVIDED, text)] == uuids


def test_one_line_names_them_by_the_numbers_of_configs() -> None:
    assert described([GPUS[1], GPUS[0]]) == f"0 {B} (H), 1 {A} (H)"
