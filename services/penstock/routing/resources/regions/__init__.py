"""Resources of other regions: the region door, routes to other regions and from them, and their clusters."""
