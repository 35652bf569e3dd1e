"""The engine: a process of its own that owns torch, the KV pool and the batch, and knows no network.

`batch.py` and what it rests on decide, without a tensor; `model.py` and what it rests on compute, without a sequence;
`torch_engine.py` joins the two. `interface.py` and `messages.py` are all that the front knows of it.
"""
