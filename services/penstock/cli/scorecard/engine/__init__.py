"""The proof of the engine: no mesh, no process but this one, the model that workers serve.

Speed is held against what the machine's memory allows and against static batches of the same engine, so that no figure
depends on a machine; texts are held against the same tokens computed one by one.
"""
