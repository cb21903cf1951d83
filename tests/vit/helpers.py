"""Folders of pictures that say where they came from."""

import torch
from PIL import Image

NOWHERE = "/nonexistent"


def write_folder(folder, split_sizes):
    """Pictures of one colour each: {"train/cat": 5} writes five; red counts the folders, green the pictures."""
    for i, (name, size) in enumerate(split_sizes.items()):
        (folder / name).mkdir(parents=True)
        for green in range(size):
            Image.new("RGB", (5, 3), (10 * i, 10 * green, 7)).save(folder / name / f"{green}.png")
    return folder


def colours(pictures):
    """The colour of each picture, which says where it came from."""
    return [tuple(colour) for colour in pictures.images[:, 0, 0, :2].tolist()]


def some_pictures(n=5, height=31, width=37):
    """Noise, (n, H, W, 3) uint8."""
    return torch.randint(0, 256, (n, height, width, 3), dtype=torch.uint8)
