"""Stored responses: the transitions of one response, their messages, and the service for edges.

Auth stores what edges have sealed with a key that it does not have, so that it sees no prompt and no output.
"""
