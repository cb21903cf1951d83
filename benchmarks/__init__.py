"""Side by side with other implementations; nothing imports it."""
