"""Upper-cases strings: how a model in Python reads and writes tensors of bytes."""

import numpy as np
import triton_python_backend_utils as pb_utils

# bytes.upper, never str.upper: decoding would refuse or change what is not UTF-8.
upper_case = np.frompyfunc(bytes.upper, 1, 1)


class TritonPythonModel:
    """One input of strings [n, k] gives as many strings, with the ASCII letters in upper case."""

    def execute(self, requests):
        """Strings come, and go, as arrays of objects: one bytes object per element."""
        responses = []
        for request in requests:
            strings = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = pb_utils.Tensor("OUTPUT0", upper_case(strings))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
