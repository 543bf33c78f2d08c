"""TensorRT plans from ONNX models, for `naiad build`: what to build, with which module, and what
config.pbtxt then says."""
