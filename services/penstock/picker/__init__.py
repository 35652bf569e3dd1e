"""Endpoint picker for the Gateway API Inference Extension: an external processor of Envoy.

It chooses the server of each request of a fleet of OpenAI servers, such as vLLM, whose load it scrapes. Placement,
order and limits are those of the scheduler and the queue. It never carries a request to a server, and knows no worker,
edge or tenant of a mesh.
"""
