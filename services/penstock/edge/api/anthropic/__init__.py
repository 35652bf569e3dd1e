"""The Messages API of Anthropic: request bodies to requests, and generation events to response bytes.

Pure functions, which share the fields, options and types of the package `openai`. A field that this server does not
support is rejected; an unknown field is ignored.
"""
