"""What is asked and by whom: one form for all APIs, the caps on every field, the caller's credential."""
