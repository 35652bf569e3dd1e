"""The OpenAI API formats: request bodies to requests, and generation events to response bytes.

Pure functions. A field that this server does not support is rejected; an unknown field is ignored.
"""
