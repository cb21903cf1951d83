"""CPU implementations of torch's functions, and what decides between them."""
