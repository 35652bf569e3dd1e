"""The OpenAI shapes: request bodies in, answer bytes out; pure functions of what they are given.

Owns how `/v1/responses`, `/v1/chat/completions`, `/v1/completions` and `/v1/models` look. Never serves a connection and
never decides how a request runs. A field that nobody here knows is ignored; one that is known and cannot be served is
refused, so that no answer is silently not what was asked for.
"""
