"""Random numbers that are a function of what they are for, so that nothing has to be remembered to resume exactly."""

import random

import torch


def derive_seed(*parts: int | str) -> int:
    """A seed of 63 bits from numbers and words, such as ("augment", seed, step); the same in every process."""
    return random.Random("/".join(str(part) for part in parts)).getrandbits(63)


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator with ``derive_seed(*parts)``."""
    return torch.Generator().manual_seed(derive_seed(*parts))
