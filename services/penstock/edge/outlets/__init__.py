"""The client's end of a flight: takes pieces without waiting, and joins those that a slow reader left unread."""
