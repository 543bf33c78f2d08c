"""The models of these benchmarks on mosec: raw little-endian FP32 in and out.

`/identity` and `/identbig` give back what they get, one request at a time; `/vad` (when VAD_MODEL
names its file) takes batches of 8 within 1 ms.

VAD_MODEL=silero_vad_16k_op15.onnx python mosec_models.py --address 127.0.0.1 --port PORT
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mosec import Runtime, Server, Worker


class Echo(Worker):
    resp_mime_type = "application/octet-stream"
    shape: tuple[int, ...] = (1, 16)

    def deserialize(self, data: bytes) -> Any:
        return np.frombuffer(data, dtype=np.float32).reshape(self.shape)

    def serialize(self, data: Any) -> bytes:
        return data.tobytes()

    def forward(self, data: Any) -> Any:
        return data


class LargeEcho(Echo):
    shape = (1, 3, 224, 224)


class Vad(Echo):
    shape = (1, 576)

    def __init__(self) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            os.environ["VAD_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        self._rate = np.array(16000, dtype=np.int64)

    def forward(self, data: list[Any]) -> list[Any]:
        x = np.concatenate(data)
        state = np.zeros((2, x.shape[0], 128), dtype=np.float32)
        y = self._session.run(["output"], {"input": x, "state": state, "sr": self._rate})[0]
        return [y[i : i + 1] for i in range(len(data))]


if __name__ == "__main__":
    runtimes = {"/identity": [Runtime(Echo)], "/identbig": [Runtime(LargeEcho)]}
    if os.environ.get("VAD_MODEL"):
        runtimes["/vad"] = [Runtime(Vad, num=1, max_batch_size=8, max_wait_time=1)]
    server = Server()
    server.register_runtime(runtimes)
    server.run()
