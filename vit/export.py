"""``python -m vit.export WEIGHTS DIR --to onnx|torch|int8``: a ViT for programs that do not have this package.

Shapes: B batch, H and W pixels, K classes.
"""

import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from common import UserError
from common.training.checkpoint import first_difference, write_json
from common.training.cli import data_folder, read_options
from common.training.command import run_command
from common.training.export import new_folder, require_onnx, write_graph
from common.training.run import say, weights_of
from vit.data import Pictures, load_data
from vit.model import ViT
from vit.pictures import fit, grey_range, to_rgb
from vit.quantization import Measured, measure, quantize, require_onnxruntime
from vit.weights import SHIPPED, LoadedViT, load_vit

README, TRANSFORM, ONNX, PROGRAM = "README.txt", "transform.json", "model.onnx", "model.pt2"
FILES = {README, TRANSFORM, ONNX, PROGRAM}
"""All that an export may write."""


@dataclass(frozen=True)
class Options:
    """Write a ViT as a folder that ONNX Runtime or torch runs, with its transform, its classes and a README.txt."""

    weights: tyro.conf.Positional[Path]
    """A run folder, its best.safetensors, or the name of weights that come with the program: cifar10."""
    out: tyro.conf.Positional[Path]
    """The folder to be made."""
    to: Literal["onnx", "torch", "int8"]
    """Who shall run it: onnx, any ONNX runtime; torch, torch.export.load; int8, ONNX with linear layers in 8 bits."""
    data: str | None = None
    """With --to int8: pictures (a data set, or a folder) on whose test split the model is measured in both forms."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace an export in the folder."""

    def __post_init__(self) -> None:
        if self.data is not None and self.to != "int8":
            raise UserError(f"data={self.data} is for --to int8; leave it out")


def export(loaded: LoadedViT, options: Options) -> list[tuple[str, Measured]]:
    """Writes model, transform and README.txt into ``options.out``, all or nothing.

    Returns:
        With ``data``, the forms of the model and what was measured of each.

    Raises:
        ValueError: the folder is taken, an extra is missing, or the data has other classes.
    """
    if options.to != "torch":
        require_onnx(options.to)
    if options.to == "int8":
        require_onnxruntime()
    pictures = None if options.data is None else _test_pictures(loaded, options.data, options.data_dir)
    measured: list[tuple[str, Measured]] = []
    with new_folder(options.out, FILES, overwrite=options.overwrite) as folder:
        if options.to == "torch":
            write_program(loaded.model, folder / PROGRAM)
        else:
            write_onnx(loaded.model, folder / ONNX)
        if options.to == "int8":
            plain = (folder / ONNX).rename(folder / "float32.onnx")
            quantize(plain, folder / ONNX)
            if pictures is not None:
                forms = {"float32": plain, "int8": folder / ONNX}
                measured = [(name, measure(path, loaded.transform, pictures)) for name, path in forms.items()]
            plain.unlink()
        transform = loaded.transform
        settings = {
            "image_size": transform.image_size,
            "fit": "scaled (bicubic) until it covers image_size (height, width), the centre cut out",
            "mode": "RGB, upright by EXIF, transparent pixels on white, 9- to 16-bit grey scaled to 8",
            "mean": transform.mean,
            "std": transform.std,
            "classes": loaded.classes,
        }
        write_json(folder / TRANSFORM, settings)
        (folder / README).write_text(usage(options.to, loaded), encoding="utf-8")
    return measured


def _test_pictures(loaded: LoadedViT, data: str, data_dir: Path) -> Pictures:
    found = load_data(data, data_dir, image_size=loaded.transform.image_size)
    for note in found.notes:
        say(note)
    if difference := first_difference(loaded.classes, found.classes, "classes"):
        raise UserError(f"data={data} is not what the weights are for, {difference}; give pictures of their classes")
    return found.test


def _example(model: ViT) -> tuple[tuple[torch.Tensor], tuple[dict[int, Any]]]:
    """Two pictures, and the axis of theirs that may have any length."""
    images = torch.zeros(2, model.config.channels, *model.config.image_size)
    return (images,), ({0: torch.export.Dim("batch")},)


@torch.no_grad()
def write_onnx(model: ViT, path: Path) -> None:
    """One graph: ``images`` (B, 3, H, W), normalised, to ``logits`` (B, K), any B.

    Raises:
        ValueError: the packages that write ONNX files are missing.
    """
    require_onnx()
    images, axes = _example(model)
    write_graph(model, path, images, axes, ["images"], ["logits"])


@torch.no_grad()
def write_program(model: ViT, path: Path) -> None:
    """A program of ``torch.export``: images (B, 3, H, W), normalised, to logits (B, K), any B."""
    images, axes = _example(model)
    torch.export.save(torch.export.export(model.eval(), images, dynamic_shapes=axes), path)


def usage(to: str, loaded: LoadedViT) -> str:
    """What README.txt tells beside the model."""
    height, width = loaded.transform.image_size
    what, package, load, call = {
        "onnx": (
            "an ONNX graph (https://onnx.ai)",
            "onnxruntime",
            'session = onnxruntime.InferenceSession("model.onnx")',
            'session.run(None, {"images": pixels})[0]',
        ),
        "torch": (
            "a program of torch.export",
            "torch",
            'model = torch.export.load("model.pt2").module()',
            "model(torch.from_numpy(pixels)).detach().numpy()",
        ),
    }["torch" if to == "torch" else "onnx"]
    if to == "int8":
        what += ", its linear layers in 8 bits"
    # The program's own functions, so that pictures become the same pixels here and there.
    sources = "\n\n".join(inspect.getsource(one) for one in (grey_range, to_rgb, fit))
    functions = textwrap.indent(sources, "    ")
    return f"""A Vision Transformer for {len(loaded.classes)} classes, as {what}.

It takes pictures of {height} x {width} pixels (height x width), any number at a time, normalised as transform.json
says, and gives each class's logit, in the order of the classes there.

    pip install numpy pillow {package}

In this folder, with Python:

    import json
    from pathlib import Path

    import numpy as np
    import {package}
    from PIL import Image, ImageOps
    from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TiffImageFile

    {load}
    transform = json.loads(Path("transform.json").read_text(encoding="utf-8"))
    height, width = transform["image_size"]

{functions}
    pictures = ["picture.jpg"]
    pixels = np.zeros((len(pictures), height, width, 3), dtype=np.float32)
    for row, name in zip(pixels, pictures):
        with Image.open(name) as image:
            image.draft(None, (4 * max(height, width), 4 * max(height, width)))  # large JPEGs are decoded at 1/2 to 1/8
            ImageOps.exif_transpose(image, in_place=True)
            row[:] = fit(to_rgb(image), (height, width))
    pixels = (pixels / 255 - np.float32(transform["mean"])) / np.float32(transform["std"])
    pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))

    logits = {call}
    found = [transform["classes"][i] for i in logits.argmax(axis=1)]
    print(found)
"""


def run(options: Options) -> None:
    """Exports as the options say."""
    options = replace(options, weights=weights_of(options.weights, SHIPPED))
    measured = export(load_vit(options.weights), options)
    for name, figures in measured:
        print(f"{name}: {figures.accuracy:.2%} of {figures.pictures} pictures, {figures.per_second:,.0f} pictures/s, "
              f"{figures.megabytes:.2f} MB")  # fmt: skip
    say(f"everything is in {options.out}; its {README} tells how to use it")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)))


if __name__ == "__main__":
    main()
