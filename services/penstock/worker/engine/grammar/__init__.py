"""Masks of outputs that must have a form. Grammars compile in a thread, and masks are computed beside the model."""
