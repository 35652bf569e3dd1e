"""The format of a model's output: the tool calls and the reasoning in its text. Pure; text goes in as it arrives."""
