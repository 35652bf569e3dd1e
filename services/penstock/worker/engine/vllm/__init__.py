"""vLLM behind our own front, for models and hardware that our engine does not run. Nothing here loads vLLM but `build`.

What resuming promises is less than with our own engines. A greedy text goes on as it would have, up to the rounding
of batches of other sizes. A drawn one goes on from the same tokens with the same settings, but with other draws: vLLM
draws from a generator that starts with its request, where ours depend on seed and position alone.
"""
