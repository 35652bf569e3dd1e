"""The home region: sends its catalog to other regions, grants shares of limits to them, and stores their usage."""
