"""Adds and subtracts: the shape of every model in Python, by Triton's model.py convention."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Two inputs FP32 [n, 16] give their sum (OUTPUT0) and their difference (OUTPUT1)."""

    def execute(self, requests):
        """Answer each request by itself: they come as one batch, but each keeps its own arrays."""
        responses = []
        for request in requests:
            first = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            second = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("OUTPUT0", first + second),
                        pb_utils.Tensor("OUTPUT1", first - second),
                    ]
                )
            )
        return responses
