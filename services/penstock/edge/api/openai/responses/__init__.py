"""The Responses API: its bodies, objects, items and events."""
