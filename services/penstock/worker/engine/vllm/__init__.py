"""vLLM as an engine, for models and hardware that our engine does not support. Only `build` and `logits` load vLLM.

Resuming is less exact than with our own engines. A greedy text continues with the same tokens, up to the rounding of
batches of other sizes. A sampled text continues from the same tokens with the same settings but with other draws,
because vLLM draws from a generator that starts with each request; our draws depend on seed and position alone.

Forms of an output are enforced by our masks, as functions of all output. vLLM's own structured output begins anew in a
resumed run, whose earlier output is prompt for vLLM.
"""
