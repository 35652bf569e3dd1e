"""Facts of a request: its model, prompt and output limit from its body, its tenant and class from its headers."""
