"""Silero's speech detector for single frames: FP32 [n,576] to FP32 [n,1], in one run per batch.

Beside this file lies vad.onnx (silero_vad_16k_op15.onnx of the wheel silero-vad 6.2.3).
"""

import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            os.path.join(os.path.dirname(__file__), "vad.onnx"),
            options,
            providers=["CPUExecutionProvider"],
        )
        self._rate = np.array(16000, dtype=np.int64)

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        x = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
        state = np.zeros((2, x.shape[0], 128), dtype=np.float32)
        y = self._session.run(["output"], {"input": x, "state": state, "sr": self._rate})[0]
        responses = []
        start = 0
        for array in arrays:
            end = start + array.shape[0]
            output = pb_utils.Tensor("OUTPUT0", y[start:end])
            responses.append(pb_utils.InferenceResponse([output]))
            start = end
        return responses
