"""Callers before a request of theirs is read: who they are, and what an unidentified caller may keep busy or hold."""
