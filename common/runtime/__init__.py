"""This process and its machine; nothing here knows a model."""
