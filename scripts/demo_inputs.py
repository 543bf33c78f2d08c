"""Real inputs for the example models, and what their answers mean.

Between a file or a recording and a tensor stands a little code of the model's own, called pre- and
post-processing. Here it is for the two real models of model_repository/: magika (a file → bytes;
scores → a type) and silero_vad (a recording → chunks, and a state carried from one to the next).
Pure NumPy: nothing here asks a server or imports naiad or onnxruntime, so any client can use it.
"""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

# --- magika ---

MAGIKA_BLOCK_BYTES = 4096
MAGIKA_PART_BYTES = 1024
MAGIKA_PADDING = 256
MAGIKA_BYTES_MIN = 8


def magika_input(path: str | Path) -> NDArray[np.int32]:
    """A file as magika's input `bytes`, INT32 [2048], made as magika's own client makes it.

    It is the first 1024 bytes after leading whitespace, filled up behind with 256, then the last
    1024 before trailing whitespace, filled up in front; at most 8 KiB of the file are read. With
    fewer than 8 bytes left it is a ValueError: magika answers those without the model.
    """
    with open(path, "rb") as file:
        head = file.read(MAGIKA_BLOCK_BYTES)
        size_bytes = file.seek(0, 2)
        file.seek(max(0, size_bytes - MAGIKA_BLOCK_BYTES))
        tail = file.read(MAGIKA_BLOCK_BYTES)
    first = head.lstrip()[:MAGIKA_PART_BYTES]
    last = tail.rstrip()[-MAGIKA_PART_BYTES:]
    if len(first) < MAGIKA_BYTES_MIN:
        raise ValueError(
            f"{path}: expected at least {MAGIKA_BYTES_MIN} bytes after leading whitespace, got "
            f"{len(first)}; the model does not know shorter files: call this one empty or too short"
        )
    tokens = np.full(2 * MAGIKA_PART_BYTES, MAGIKA_PADDING, dtype=np.int32)
    tokens[: len(first)] = np.frombuffer(first, dtype=np.uint8)
    if last:
        tokens[-len(last) :] = np.frombuffer(last, dtype=np.uint8)
    return tokens


@dataclass(frozen=True, slots=True)
class FileType:
    """A file's type and how sure the model was of its first choice, 0 to 1."""

    label: str
    score: float
    description: str


@dataclass(frozen=True, slots=True)
class FileTypeRules:
    """How magika's own client turns scores into a type; read from what came with the model."""

    labels: tuple[str, ...]
    thresholds: dict[str, float]
    default_threshold: float
    overwrites: dict[str, str]
    known_types: dict[str, dict[str, Any]]

    @classmethod
    def load(cls, model_folder: str | Path) -> FileTypeRules:
        """Read `<model_folder>/labels.txt` and the two JSON files of version 1."""
        folder = Path(model_folder)
        config = json.loads((folder / "1" / "config.min.json").read_text(encoding="utf-8"))
        known_types = (folder / "1" / "content_types_kb.min.json").read_text(encoding="utf-8")
        return cls(
            labels=tuple((folder / "labels.txt").read_text(encoding="utf-8").splitlines()),
            thresholds=config["thresholds"],
            default_threshold=config["medium_confidence_threshold"],
            overwrites=config["overwrite_map"],
            known_types=json.loads(known_types),
        )

    def type_of(self, scores: Float32) -> FileType:
        """One row of `target_label`, FP32 [214], as a type.

        The best label counts when its score reaches its threshold; below it only "text" or "not
        text" is claimed, as labels "txt" and "unknown" (magika's high-confidence mode).
        """
        if scores.shape != (len(self.labels),):
            raise ValueError(
                f"scores: expected shape [{len(self.labels)}], got {list(scores.shape)}"
            )
        best = int(scores.argmax())
        score, model_label = float(scores[best]), self.labels[best]
        label = self.overwrites.get(model_label, model_label)
        if score < self.thresholds.get(model_label, self.default_threshold):
            label = "txt" if self.known_types[label]["is_text"] else "unknown"
        return FileType(label, score, str(self.known_types[label]["description"]))


# --- silero_vad ---

SAMPLE_RATE_HZ = 16_000
CHUNK_SAMPLES = 512
CONTEXT_SAMPLES = 64


def silero_state() -> Float32:
    """The state at a recording's start: zeros, FP32 [2, 1, 128]."""
    return np.zeros((2, 1, 128), dtype=np.float32)


def silero_chunks(samples: Float32) -> Iterator[Float32]:
    """A recording (mono, 16 kHz, FP32 [n], −1 to 1) as inputs FP32 [1, 576], one for each 32 ms.

    Each holds the 64 samples before it (zeros at the start) and 512 new ones; a shorter rest is
    padded with zeros, as silero-vad's own code does. Send them in order, each with the state that
    the one before gave back.
    """
    for start in range(0, len(samples), CHUNK_SAMPLES):
        chunk = np.zeros((1, CONTEXT_SAMPLES + CHUNK_SAMPLES), dtype=np.float32)
        begin = max(0, start - CONTEXT_SAMPLES)
        piece = samples[begin : start + CHUNK_SAMPLES]
        offset = CONTEXT_SAMPLES - (start - begin)
        chunk[0, offset : offset + len(piece)] = piece
        yield chunk


def speech_probabilities(
    samples: Float32, ask: Callable[[Float32, Float32], tuple[Float32, Float32]]
) -> Float32:
    """The probability of speech for each 32 ms of a recording, FP32 [chunks].

    `ask(input, state)` puts one question to the model and returns its `output` and `stateN`.
    """
    state = silero_state()
    probabilities = []
    for chunk in silero_chunks(samples):
        output, state = ask(chunk, state)
        probabilities.append(np.float32(output[0, 0]))
    return np.array(probabilities, dtype=np.float32)


# --- a recording to try it on ---

# The first three resonances of a mouth that says each vowel (Peterson and Barney 1952, men).
FORMANTS_HZ = {
    "a": (730, 1090, 2440),
    "e": (530, 1840, 2480),
    "i": (270, 2290, 3010),
    "o": (570, 840, 2410),
    "u": (300, 870, 2240),
}
FORMANT_WIDTHS_HZ = (80, 100, 140)
SYLLABLE_SECONDS = 0.2
HARMONICS = 34


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a recording: what is heard, from when to when."""

    sound: str
    start_seconds: float
    stop_seconds: float

    def chunks(self, settle_seconds: float = 0.3) -> slice:
        """Its chunks' indexes but the first ones: the model needs a moment to change its mind."""
        chunks_per_second = SAMPLE_RATE_HZ / CHUNK_SAMPLES
        start = int(np.ceil((self.start_seconds + settle_seconds) * chunks_per_second))
        return slice(start, int(self.stop_seconds * chunks_per_second))


def demo_recording() -> tuple[Float32, tuple[Segment, ...]]:
    """Five seconds, generated, always the same: silence, a voice, silence, and a plain tone.

    Nobody speaks in it: the voice is a buzz shaped by the resonances of vowels, which silero_vad
    takes for speech. The tone, as loud, is not taken for it: so it is more than loudness it tells.
    """
    silence, tone_seconds = np.zeros(SAMPLE_RATE_HZ), np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    voice = vowels("aiueoaeiou")
    tone = 0.15 * np.sin(2 * np.pi * 440 * tone_seconds)
    parts = (("silence", silence), ("voice", voice), ("silence", silence), ("tone", tone))
    samples = np.concatenate([part for _, part in parts])
    # No room is quite silent. RandomState, because its stream is frozen by NumPy's promise.
    samples += 0.0005 * np.random.RandomState(1).standard_normal(len(samples))
    segments, start = [], 0
    for sound, part in parts:
        stop = start + len(part)
        segments.append(Segment(sound, start / SAMPLE_RATE_HZ, stop / SAMPLE_RATE_HZ))
        start = stop
    return samples.astype(np.float32), tuple(segments)


def vowels(text: str, pitch_hz: float = 120.0) -> NDArray[np.float64]:
    """A voice-like sound, FP64 [3200 × letters]: 0.2 s for each letter, one of a, e, i, o, u.

    It is the harmonics of a gliding pitch, each as strong as the vowel's resonances let through.
    """
    per_syllable = int(SYLLABLE_SECONDS * SAMPLE_RATE_HZ)
    count = per_syllable * len(text)
    formants = np.repeat(
        np.array([FORMANTS_HZ[letter] for letter in text], float), per_syllable, axis=0
    )
    window = np.hanning(1201) / np.hanning(1201).sum()
    padded = np.pad(formants, ((600, 600), (0, 0)), mode="edge")
    glide = np.stack([np.convolve(column, window, "valid") for column in padded.T])
    seconds = np.arange(count) / SAMPLE_RATE_HZ
    pitch = pitch_hz * (1 + 0.15 * np.sin(2 * np.pi * 0.7 * seconds))
    phase = np.cumsum(pitch) / SAMPLE_RATE_HZ
    sound = np.zeros(count)
    for harmonic in range(1, HARMONICS + 1):
        frequency = harmonic * pitch
        gain = 1.0 / harmonic
        for formant, width in zip(glide, FORMANT_WIDTHS_HZ, strict=True):
            gain = gain * formant**2 / np.hypot(formant**2 - frequency**2, width * frequency)
        sound += gain * np.sin(2 * np.pi * harmonic * phase)
    quarter = per_syllable // 4
    rise = np.linspace(0.15, 1, quarter)
    envelope = np.concatenate([rise, np.ones(per_syllable - 2 * quarter), rise[::-1]])
    sound *= np.tile(envelope, len(text))
    loudness: NDArray[np.float64] = 0.3 * sound / np.abs(sound).max()
    return loudness


def write_wav(path: str | Path, samples: Float32) -> None:
    """Write mono 16 kHz samples (−1 to 1) as a WAV file of 16 bits a sample."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())


def read_wav(path: str | Path) -> Float32:
    """Read a WAV file as FP32 [n], −1 to 1; anything but mono, 16 bits, 16 kHz is a ValueError."""
    with wave.open(str(path), "rb") as file:
        form = (file.getnchannels(), file.getsampwidth() * 8, file.getframerate())
        if form != (1, 16, SAMPLE_RATE_HZ):
            raise ValueError(
                f"{path}: expected 1 channel, 16 bits, {SAMPLE_RATE_HZ} Hz, got "
                f"{form[0]}, {form[1]}, {form[2]}; to convert it: ffmpeg -i {path} -ac 1 -ar 16000 "
                "-sample_fmt s16 out.wav"
            )
        frames = file.readframes(file.getnframes())
    return np.frombuffer(frames, dtype="<i2").astype(np.float32) / np.float32(32768)
