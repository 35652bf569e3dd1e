"""The engine: a process of its own that owns the KV pool and the batch and runs the model. It uses no network.

`batching` decides which sequences a step computes, without tensors. `torch`, `native` (C++ for CPUs) and `cuda` compute
the step, without sequences; `torch.engine` connects the two. `vllm` and `simulated` are further engines. `loaders` read
models, `sampling` draws tokens, `machine` finds limits of the host, and `host` runs the step loop of the process.

The folder has more than a dozen entries: ten parts of the engine, and four modules that connect them (`interface`,
`options`, `model_card`, `build`). The worker process imports only `interface`, `options`, `model_card`, the errors of
`batching` and the messages of `host`.
"""
