"""The models that the edge can serve: the registry of models over all queue shards, model cards with their
tokenizers, and the planning of a request for one model.
"""
