"""The pre- and post-processing of the example models, without the models."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@pytest.mark.parametrize(
    ("content", "first", "last"),
    [
        pytest.param(b"print('hi')", b"print('hi')", b"print('hi')", id="short"),
        pytest.param(b" \n\tabcdefgh\n\n", b"abcdefgh\n\n", b" \n\tabcdefgh", id="whitespace"),
        pytest.param(b"a" * 1024 + b"b" * 9000, b"a" * 1024, b"b" * 1024, id="long"),
        pytest.param(
            b" " * 4088 + b"12345678" + b"z" * 99 + b" " * 4000,
            b"12345678",
            b"z" * 96,
            id="only the outer 4096 bytes are looked at",
        ),
        pytest.param(bytes(range(256)), bytes(range(256)), bytes(range(256)), id="any byte"),
        pytest.param(b"\0" * 8 + b" " * 5000, b"\0" * 8 + b" " * 1016, b"", id="blank end"),
    ],
)
def test_magika_sees_the_ends_of_a_file(
    demo_inputs: ModuleType, tmp_path: Path, content: bytes, first: bytes, last: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    tokens = demo_inputs.magika_input(path)
    assert tokens.dtype == np.int32
    expected = list(first) + [256] * (1024 - len(first))
    expected += [256] * (1024 - len(last)) + list(last)
    assert tokens.tolist() == expected


@pytest.mark.parametrize("content", [b"", b"1234567", b"   1234567   "[:10], b" " * 5000])
def test_magika_refuses_what_is_too_short_to_classify(
    demo_inputs: ModuleType, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"short\.txt: expected at least 8 bytes .* got [07]"):
        demo_inputs.magika_input(path)


@pytest.fixture
def rules_folder(tmp_path: Path) -> Path:
    config = {
        "thresholds": {"markdown": 0.75},
        "medium_confidence_threshold": 0.5,
        "overwrite_map": {"randombytes": "unknown"},
    }
    known = ["markdown", "elf", "randombytes", "unknown", "txt"]
    types = {name: {"is_text": name in ("markdown", "txt"), "description": name} for name in known}
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "config.min.json").write_text(json.dumps(config))
    (tmp_path / "1" / "content_types_kb.min.json").write_text(json.dumps(types))
    (tmp_path / "labels.txt").write_text("markdown\nelf\nrandombytes\n")
    return tmp_path


@pytest.mark.parametrize(
    ("scores", "label"),
    [
        ([0.8, 0.1, 0.1], "markdown"),
        ([0.7, 0.2, 0.1], "txt"),
        ([0.2, 0.6, 0.2], "elf"),
        ([0.3, 0.4, 0.3], "unknown"),
        ([0.1, 0.1, 0.8], "unknown"),
    ],
    ids=["sure", "below its own threshold", "default threshold", "unsure, binary", "overwritten"],
)
def test_scores_become_a_type(
    demo_inputs: ModuleType, rules_folder: Path, scores: list[float], label: str
) -> None:
    answer = demo_inputs.FileTypeRules.load(rules_folder).type_of(np.array(scores, np.float32))
    assert answer.label == label
    assert answer.score == pytest.approx(max(scores))


def test_scores_of_another_length_are_refused(demo_inputs: ModuleType, rules_folder: Path) -> None:
    rules = demo_inputs.FileTypeRules.load(rules_folder)
    with pytest.raises(ValueError, match=r"expected shape \[3\], got \[1, 3\]"):
        rules.type_of(np.zeros((1, 3), np.float32))


@pytest.mark.parametrize(("samples", "chunks"), [(0, 0), (1, 1), (512, 1), (513, 2), (1300, 3)])
def test_chunks_overlap_by_their_context(
    demo_inputs: ModuleType, samples: int, chunks: int
) -> None:
    sound = np.arange(1, samples + 1, dtype=np.float32)
    padded = np.concatenate([np.zeros(64), sound, np.zeros(512 * chunks - samples)])
    got = list(demo_inputs.silero_chunks(sound))
    assert len(got) == chunks
    for index, chunk in enumerate(got):
        assert chunk.dtype == np.float32
        assert chunk.shape == (1, 576)
        assert chunk[0].tolist() == padded[512 * index : 512 * index + 576].tolist()


def test_the_state_is_carried_from_chunk_to_chunk(demo_inputs: ModuleType) -> None:
    seen: list[float] = []

    def ask(chunk: Float32, state: Float32) -> tuple[Float32, Float32]:
        assert chunk.shape == (1, 576)
        seen.append(float(state[0, 0, 0]))
        return np.array([[len(seen) / 10]], np.float32), state + 1

    probabilities = demo_inputs.speech_probabilities(np.ones(1500, np.float32), ask)
    assert seen == [0.0, 1.0, 2.0]
    assert probabilities == pytest.approx([0.1, 0.2, 0.3])


def test_the_recording_is_what_its_segments_say(demo_inputs: ModuleType) -> None:
    samples, segments = demo_inputs.demo_recording()
    assert samples.dtype == np.float32
    assert [part.sound for part in segments] == ["silence", "voice", "silence", "tone"]
    assert segments[-1].stop_seconds * 16_000 == len(samples)
    for part in segments:
        piece = samples[int(part.start_seconds * 16_000) : int(part.stop_seconds * 16_000)]
        loudness = float(np.sqrt(np.mean(piece**2)))
        assert (loudness < 0.001) == (part.sound == "silence"), part
    again, _ = demo_inputs.demo_recording()
    assert (samples == again).all()


def test_a_segments_chunks_leave_out_the_settling(demo_inputs: ModuleType) -> None:
    segment = demo_inputs.Segment("voice", 1.0, 3.0)
    assert segment.chunks(settle_seconds=0.0) == slice(32, 93)
    assert segment.chunks() == slice(41, 93)


def test_wav_round_trip(demo_inputs: ModuleType, tmp_path: Path) -> None:
    samples = np.linspace(-1, 1, 1001, dtype=np.float32)
    demo_inputs.write_wav(tmp_path / "sound.wav", samples)
    assert np.abs(demo_inputs.read_wav(tmp_path / "sound.wav") - samples).max() < 1 / 16_384


def test_a_wav_of_another_form_is_refused(demo_inputs: ModuleType, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "cd.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes(b"\0" * 8)
    with pytest.raises(
        ValueError, match=r"cd\.wav: expected 1 channel.* got 2, 16, 44100; .*ffmpeg"
    ):
        demo_inputs.read_wav(tmp_path / "cd.wav")
