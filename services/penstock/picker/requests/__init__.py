"""What a request asks for: its model, prompt and output limit from its body, its tenant and class from its headers."""
