"""The engine "onnxruntime-training": its gradient builder, its lowering, its limits."""
