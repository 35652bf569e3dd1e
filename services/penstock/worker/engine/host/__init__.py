"""The engine's side of its process: the step loop and the non-blocking pipe to the worker that started it."""
