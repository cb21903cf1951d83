"""Pictures, splits and data sets, against right values known from how each fixture was made."""

import http.server
import io
import pickle
import subprocess
import sys
import tarfile
import threading
from dataclasses import dataclass
from hashlib import md5

import numpy as np
import pytest
import torch
from PIL import Image

from common.errors import UserError
from vit.data import channel_statistics, hold_out, load_data
from vit.pictures import read_picture, read_pictures

NOWHERE = "/nonexistent"
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


# ---- one picture


def noise(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def row(*colours):
    """A picture of one row: (1, W, 3)."""
    return np.array([colours], dtype=np.uint8)


def palette(transparency):
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *GREEN])
    image.putpixel((1, 0), 1)
    image.info["transparency"] = transparency
    return image


def grey16(dtype: type = np.uint16):
    return Image.fromarray(np.array([[0, 257, 385, 386, 32768, 65535]], dtype))


GREY8 = row(*[(v, v, v) for v in (0, 1, 1, 2, 128, 255)])  # the nearest of v / 257
LOSSLESS = {
    "rgb.png": (Image.fromarray(row(RED, (1, 2, 3))), row(RED, (1, 2, 3))),
    "rgb.bmp": (Image.fromarray(row(RED, (1, 2, 3))), row(RED, (1, 2, 3))),
    "rgb.PPM": (Image.fromarray(row(RED, (1, 2, 3))), row(RED, (1, 2, 3))),
    "grey.png": (Image.fromarray(np.array([[0, 7]], np.uint8)), row((0, 0, 0), (7, 7, 7))),
    "bit.png": (Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1"), row((0, 0, 0), WHITE)),
    "bit.tif": (Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1"), row((0, 0, 0), WHITE)),
    # 51 of 255 is a fifth: 100 / 5 + 255 * 4 / 5 = 224
    "la.png": (
        Image.merge("LA", [Image.fromarray(np.array([v], np.uint8)) for v in ([9, 9, 100], [255, 0, 51])]),
        row((9, 9, 9), WHITE, (224, 224, 224)),
    ),
    "rgba.png": (
        Image.fromarray(np.array([[(*RED, 255), (*RED, 0), (100, 0, 200, 51)]], np.uint8)),
        row(RED, WHITE, (224, 204, 244)),
    ),
    "palette-index.png": (palette(1), row(RED, WHITE)),
    "palette-bytes.png": (palette(bytes([51, 255])), row((255, 204, 204), GREEN)),
    "palette.gif": (palette(0), row(WHITE, GREEN)),
    "cmyk.tiff": (
        Image.merge("CMYK", [Image.fromarray(np.array([v], np.uint8)) for v in ([0, 0], [255, 0], [255, 0], [0, 255])]),
        row(RED, (0, 0, 0)),
    ),
    "grey16.png": (grey16(), GREY8),
    "grey16.tif": (grey16(), GREY8),
    "grey32.tif": (grey16(np.int32), GREY8),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_files_give_their_very_pixels(tmp_path, name):
    image, right = LOSSLESS[name]
    image.save(tmp_path / name)
    pixels = read_picture(tmp_path / name, right.shape[:2])
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    np.testing.assert_array_equal(pixels, right)


def test_sixteen_bit_grey_with_a_transparent_value(tmp_path):
    image = grey16()
    image.save(tmp_path / "a.png", transparency=32768)
    right = GREY8.copy()
    right[0, 4] = 255
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", (1, 6)), right)


def test_sixteen_bit_ppm(tmp_path):
    values = np.array([[0, 257, 385, 386, 32768, 65535]], ">u2")
    (tmp_path / "a.pgm").write_bytes(b"P5 6 1 65535\n" + values.tobytes())
    np.testing.assert_array_equal(read_picture(tmp_path / "a.pgm", (1, 6)), GREY8)


def test_cmyk_jpeg_is_red(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    np.testing.assert_allclose(read_picture(tmp_path / "a.jpg", (7, 5)).astype(int), np.full((7, 5, 3), RED), atol=3)


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tif"])
def test_animations_are_their_first_frame(tmp_path, name):
    frames = [Image.new("RGB", (5, 3), colour) for colour in (RED, BLUE, GREEN)]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], lossless=True)
    np.testing.assert_array_equal(read_picture(tmp_path / name, (3, 5)), np.full((3, 5, 3), RED))


def test_content_counts_and_not_the_name(tmp_path):
    pixels = noise(5, 7)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", "PNG")
    np.testing.assert_array_equal(read_picture(tmp_path / "a.jpg", (5, 7)), pixels)


def test_colours_hidden_under_transparency_have_no_effect(tmp_path):
    visible = np.indices((40, 40)).sum(axis=0) % 2 * 255  # a chequerboard of opaque black and full transparency
    seen = []
    for i, hidden in enumerate([(255, 0, 255), (0, 90, 0)]):
        pixels = np.zeros((40, 40, 4), np.uint8)
        pixels[..., :3][visible == 0] = hidden
        pixels[..., 3] = visible
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        seen.append(read_picture(tmp_path / f"{i}.png", (7, 5)).astype(int))
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_allclose(seen[0], 127.5, atol=3)  # black on white, mixed half and half


UPRIGHT = {  # EXIF orientation: how to turn the stored pixels
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_rotation(tmp_path, orientation):
    pixels = noise(3, 5)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    right = UPRIGHT[orientation](pixels)
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", right.shape[:2]), right)


def test_damaged_exif_is_ignored(tmp_path):
    entry = b"\x12\x01\x03\x00\x01\0\0\0\x01\0\0\0"
    Image.new("RGB", (16, 16), RED).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + entry)
    assert read_pictures([tmp_path / "a.jpg"], (3, 5)).shape == (1, 3, 5, 3)


@pytest.mark.parametrize(("width", "height"), [(640, 427), (427, 640), (1, 1), (200, 3), (3, 200), (20, 20)])
@pytest.mark.parametrize("image_size", [(32, 32), (7, 5)])
def test_any_size_is_scaled_to_cover_and_cropped_at_the_centre(tmp_path, width, height, image_size):
    scale = max(image_size[0] / height, image_size[1] / width)
    # What falls off on either side is red, less the few pixels that the bicubic filter reads beyond an edge.
    reach = 2 * max(1, 1 / scale) + 1
    top, left = (
        max(0, int((full - part / scale) / 2 - reach)) for full, part in zip((height, width), image_size, strict=True)
    )
    pixels = np.full((height, width, 3), RED, np.uint8)
    pixels[top : height - top, left : width - left] = GREEN
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", image_size), np.full((*image_size, 3), GREEN))


def test_scaling_keeps_a_ramp_and_reaches_the_edge_of_the_crop(tmp_path):
    ramp = np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[:, None], 60, axis=1)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    pixels = read_picture(tmp_path / "a.png", (6, 6))[..., 0].astype(int)
    # Row i of 6 stands for rows 10 i to 10 i + 9, whose mean is 4 (10 i + 4.5); the outer rows miss a neighbour.
    np.testing.assert_allclose(pixels[2:4], [[98] * 6, [138] * 6], atol=1)
    np.testing.assert_allclose(pixels[[0, 5]], [[18] * 6, [218] * 6], atol=5)


def test_scaling_down_averages(tmp_path):
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "a.png")
    np.testing.assert_allclose(read_picture(tmp_path / "a.png", (5, 5)).astype(int), 127.5, atol=3)


def test_a_large_jpeg_is_the_same_picture_as_its_png(tmp_path):
    # A wave of 32 pixels in 1200, which are 2.6 pixels of the result: lost if the file is decoded too small.
    y, x = np.mgrid[0:1200, 0:1600] * (2 * np.pi / 32)
    image = Image.fromarray((128 + 100 * np.sin(x) * np.sin(y)).astype(np.uint8))
    image.save(tmp_path / "a.jpg", quality=95)
    image.save(tmp_path / "a.png", compress_level=1)
    jpeg, png = (read_picture(tmp_path / name, (97, 89)).astype(int) for name in ("a.jpg", "a.png"))
    assert png.std() > 20
    np.testing.assert_allclose(jpeg, png, atol=5)


def encoded(kind):
    file = io.BytesIO()
    Image.fromarray(noise(48, 64)).save(file, kind)
    return file.getvalue()


BROKEN = {
    "half.jpg": (lambda: encoded("JPEG")[:2000], "truncated"),
    "half.png": (lambda: encoded("PNG")[:5000], "truncated"),
    "half.gif": (lambda: encoded("GIF")[:3000], "truncated"),
    "half.webp": (lambda: encoded("WEBP")[:900], "decoder"),
    "empty.png": (lambda: b"", "empty"),
    "html.png": (lambda: b"<html><body>404</body></html>", "none of"),
    "script.png": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n", "none of"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_with_the_reason(tmp_path, name):
    make, reason = BROKEN[name]
    (tmp_path / name).write_bytes(make())
    with pytest.raises(UserError, match=reason) as caught:
        read_picture(tmp_path / name, (7, 5))
    assert str(tmp_path / name) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no\.png: No such file"):
        read_picture(tmp_path / "no.png", (7, 5))
    with pytest.raises(UserError, match="Is a directory"):
        read_picture(tmp_path, (7, 5))


def test_pixels_without_a_known_range_are_refused(tmp_path):
    Image.fromarray(np.zeros((3, 5), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(UserError, match=r"float\.tif: .*floating-point"):
        read_picture(tmp_path / "float.tif", (3, 5))
    Image.fromarray(np.full((3, 5), 65536, np.int32)).save(tmp_path / "wide.tif")
    with pytest.raises(UserError, match=r"wide\.tif: .*beyond 16 bits"):
        read_picture(tmp_path / "wide.tif", (3, 5))


def test_many_pictures_keep_their_order(tmp_path):
    colours = noise(1, 150)[0]
    paths = [tmp_path / f"{i}.png" for i in range(150)]
    for path, colour in zip(paths, colours, strict=True):
        Image.new("RGB", (5, 3), tuple(int(v) for v in colour)).save(path)
    images = read_pictures(paths, (3, 5))
    np.testing.assert_array_equal(images, np.broadcast_to(colours[:, None, None], (150, 3, 5, 3)))


def test_of_several_broken_files_the_first_is_named_and_all_are_counted(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(200)]
    for i, path in enumerate(paths):
        path.write_bytes(b"" if i in (67, 130, 199) else encoded("PNG") if i == 0 else paths[0].read_bytes())
    with pytest.raises(UserError, match=r"67\.png.*\(3 such pictures in all\)"):
        read_pictures(paths, (7, 5))
    with pytest.raises(UserError, match=r"130\.png: the file is empty; replace it or remove it$"):
        read_pictures(paths[68:150], (7, 5))


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_on_a_terminal_only(tmp_path, monkeypatch, capsys):
    Image.new("RGB", (5, 3)).save(tmp_path / "a.png")
    read_pictures([tmp_path / "a.png"], (3, 5))
    assert capsys.readouterr() == ("", "")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    read_pictures([tmp_path / "a.png"], (3, 5))
    assert "reading pictures" in screen.getvalue()
    assert capsys.readouterr().out == ""


# ---- splitting


def test_hold_out_takes_the_fraction_from_every_class():
    labels = torch.tensor([0] * 30 + [1] * 50 + [2] * 20)[torch.randperm(100, generator=torch.manual_seed(0))]
    kept, held = hold_out(labels, 0.1, 3, "abc")
    assert torch.bincount(labels[held]).tolist() == [3, 5, 2]
    assert torch.bincount(labels[kept]).tolist() == [27, 45, 18]
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(100))
    assert kept.tolist() == sorted(kept.tolist())
    assert torch.equal(hold_out(labels, 0.1, 3, "abc")[1], held)
    assert not torch.equal(hold_out(labels, 0.1, 4, "abc")[1], held)
    assert len(hold_out(labels, 0.1, -1, "abc")[1]) == 10


def test_hold_out_of_few_pictures_leaves_each_class_one():
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    kept, held = hold_out(labels, 0.1, 0, "abc")
    assert sorted(labels[kept].tolist()) == sorted(labels[held].tolist()) == [0, 1, 2]
    with pytest.raises(UserError, match=r"'b' has too few pictures to split \(1\): give it at least 2"):
        hold_out(torch.tensor([0, 0, 1, 2, 2]), 0.1, 0, "abc")


def test_channel_statistics():
    images = torch.randint(0, 256, (5, 3, 7, 3), dtype=torch.uint8, generator=torch.manual_seed(0))
    images[..., 2] = 51
    mean, std = channel_statistics(images)
    scaled = images.double() / 255
    np.testing.assert_allclose(mean, scaled.mean(dim=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std[:2], scaled[..., :2].std(dim=(0, 1, 2), correction=0), rtol=1e-12)
    assert std[2] == 1 / 255  # never 0: it is a divisor


# ---- digits


def test_digits_are_all_there_once_in_fixed_stratified_splits():
    from sklearn.datasets import load_digits

    data = load_data("digits", NOWHERE, image_size=(8, 8))
    splits = (data.train, data.valid, data.test)
    assert [len(split) for split in splits] == [1258, 180, 359]
    assert data.name == "digits"
    assert data.classes == tuple("0123456789")
    pixels, target = load_digits(return_X_y=True)
    right = np.column_stack([np.rint(pixels * 255 / 16), target])
    seen = np.concatenate([np.column_stack([s.images[..., 1].reshape(-1, 64), s.labels]) for s in splits])
    np.testing.assert_array_equal(seen[np.lexsort(seen.T)], right[np.lexsort(right.T)])
    for split in splits:
        share = torch.bincount(split.labels) / len(split)
        np.testing.assert_allclose(share, np.bincount(target) / 1797, atol=0.006)
        assert torch.equal(split.images[..., 0], split.images[..., 1])
        assert torch.equal(split.images[..., 0], split.images[..., 2])
    again = load_data("digits", NOWHERE, image_size=(8, 8), seed=5, valid_fraction=0.3)
    assert torch.equal(again.valid.images, data.valid.images)
    np.testing.assert_allclose(data.mean, data.train.images.numpy().mean(axis=(0, 1, 2)) / 255)
    np.testing.assert_allclose(data.std, data.train.images.numpy().std(axis=(0, 1, 2)) / 255)


def test_digits_are_enlarged_between_their_pixels():
    small = load_data("digits", NOWHERE, image_size=(8, 8)).train.images[..., 0].double().numpy()
    large = load_data("digits", NOWHERE, image_size=(16, 24)).train.images
    assert large.shape == (1258, 16, 24, 3)
    assert large.dtype == torch.uint8
    assert large.is_contiguous()
    # Pixel 4 of 16 lies at 1.75 of 8 and pixel 10 of 24 at 3.0: a quarter of row 1, three quarters of row 2, column 3.
    right = 0.25 * small[:, 1, 3] + 0.75 * small[:, 2, 3]
    np.testing.assert_allclose(large[:, 4, 10, 0], right, atol=1)
    np.testing.assert_allclose(large[:, 0, 0, 0], small[:, 0, 0], atol=1)


# ---- folders


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


def sources(data):
    """The tens of red in each split: which folders the pictures came from."""
    return [sorted({r // 10 for r, _ in colours(split)}) for split in (data.train, data.valid, data.test)]


def test_folder_with_three_splits(tmp_path):
    names = ["train/cat", "train/dog", "valid/dog", "test/cat", "test/dog"]
    data = load_data(write_folder(tmp_path / "pets", dict.fromkeys(names, 3)), NOWHERE, image_size=(7, 11))
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert sources(data) == [[0, 1], [2], [3, 4]]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.valid.labels.tolist() == [1, 1, 1]
    assert colours(data.test) == [(30, 0), (30, 10), (30, 20), (40, 0), (40, 10), (40, 20)]
    assert data.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train.images.shape == (6, 7, 11, 3)
    assert data.train.images.dtype == torch.uint8
    np.testing.assert_allclose(data.mean, [5 / 255, 10 / 255, 7 / 255])
    np.testing.assert_allclose(data.std, [5 / 255, (200 / 3) ** 0.5 / 255, 1 / 255])


def test_folder_without_validation_holds_some_out_by_seed(tmp_path):
    write_folder(tmp_path, {"train/cat": 20, "train/dog": 20, "test/cat": 3})
    data = load_data(tmp_path, NOWHERE, valid_fraction=0.2)
    assert [len(split) for split in (data.train, data.valid, data.test)] == [32, 8, 3]
    assert data.valid.labels.tolist() == [0] * 4 + [1] * 4
    assert [r // 10 for r, _ in colours(data.valid)] == data.valid.labels.tolist()
    assert len({*colours(data.train), *colours(data.valid)}) == 40
    assert colours(load_data(tmp_path, NOWHERE, valid_fraction=0.2).valid) == colours(data.valid)
    assert colours(load_data(tmp_path, NOWHERE, valid_fraction=0.2, seed=1).valid) != colours(data.valid)


def test_without_test_folder_the_validation_folder_is_the_test_split(tmp_path):
    data = load_data(write_folder(tmp_path, {"train/cat": 5, "train/dog": 5, "val/dog": 3}), NOWHERE)
    assert sources(data) == [[0, 1], [0, 1], [2]]
    assert len(data.valid) == 2
    assert len({*colours(data.train), *colours(data.valid)}) == 10


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_without_either_both_are_held_out_and_the_test_split_stays(tmp_path, prefix):
    write_folder(tmp_path, {f"{prefix}cat": 20, f"{prefix}dog": 20})
    data, other = (load_data(tmp_path, NOWHERE, seed=seed) for seed in (0, 1))
    assert [torch.bincount(s.labels).tolist() for s in (data.train, data.valid, data.test)] in (
        [[14, 15], [2, 1], [4, 4]],
        [[15, 14], [1, 2], [4, 4]],
    )
    assert len({*colours(data.train), *colours(data.valid), *colours(data.test)}) == 40
    assert colours(other.test) == colours(data.test)
    assert colours(other.valid) != colours(data.valid)


def test_classes_match_by_name_whatever_else_lies_about(tmp_path):
    write_folder(tmp_path, {"train/1": 2, "train/2": 2, "train/10": 2, "val/1": 1, "val/10": 1, "test/10": 1})
    write_folder(tmp_path, {"train/.hidden": 1, "train/empty": 0, "test/empty": 0, "test/.hidden": 1})
    (tmp_path / "train/1/0.png").rename(tmp_path / "train/1/0.PNG")
    (tmp_path / "train/1/notes.txt").write_text("stray")
    (tmp_path / "train/1/.0.png").write_text("stray")
    (tmp_path / "train/1/deep.png").mkdir()
    (tmp_path / "train/stray.png").write_text("stray")
    data = load_data(tmp_path, NOWHERE)
    assert data.classes == ("1", "10", "2")
    assert colours(data.train) == [(0, 0), (0, 10), (20, 0), (20, 10), (10, 0), (10, 10)]
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.valid.labels.tolist() == [0, 1]
    assert data.test.labels.tolist() == [1]


def test_paths_with_blanks_brackets_and_accents(tmp_path):
    folder = tmp_path / "mes [photos] d'été"
    # The accent of the second é is a character of its own, as some file systems store it.
    write_folder(folder, {"train/caf\u00e9 [1]": 2, "train/*": 2, "test/cafe\u0301 [1]": 1, "val/*": 1})
    data = load_data(str(folder), NOWHERE)
    assert data.name == "mes [photos] d'été"
    assert data.classes == ("*", "caf\u00e9 [1]")
    assert data.test.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"train/cat": 2, "train/dog": 2, "test/cow": 1}, r"test has a class 'cow' without training pictures"),
        ({"train/cat": 2, "train/dog": 2, "val/cow": 1, "test/cat": 1}, r"val has a class 'cow' without training"),
        ({"train/cat": 2, "train/dog": 1, "test/cat": 1}, r"class 'dog' has too few pictures to split \(1\)"),
        ({"cat": 3, "dog": 2}, r"class 'dog' has too few pictures to split \(2\): give it at least 3"),
        ({"cat": 3}, r"one class only, 'cat'"),
        ({"train/cat": 0, "test/cat": 1}, r"train has no class folders with pictures: .*\.jpeg"),
        ({"train/cat": 2, "train/dog": 2, "test": 3}, r"test has no class folders with pictures"),
        ({"test/cat": 1}, r"has test/ but no train/"),
        ({"val/cat": 1, "cat": 2}, r"has val/ but no train/"),
        ({"train/cat": 1, "val/cat": 1, "valid/cat": 1}, r"both val/ and valid/"),
        ({}, r"no data set '.*': give one of cifar10, cifar100, digits, or a folder that exists"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path, sizes, message):
    with pytest.raises(UserError, match=message) as caught:
        load_data(write_folder(tmp_path / "data", sizes), NOWHERE)
    assert len(str(caught.value).splitlines()) == 1
    assert str(tmp_path) in str(caught.value) or "class 'dog'" in str(caught.value)


def test_broken_pictures_of_all_splits_are_found_before_training(tmp_path):
    write_folder(tmp_path, {"train/cat": 2, "train/dog": 2, "val/cat": 1, "test/cat": 2})
    (tmp_path / "train/dog/1.png").write_bytes(b"")
    (tmp_path / "test/cat/0.png").write_text("<html>")
    with pytest.raises(UserError, match=r"train/dog/1\.png: the file is empty.*\(2 such pictures in all\)"):
        load_data(tmp_path, NOWHERE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": ""}, "no data set ''"),
        ({"image_size": (0, 7)}, "0x7"),
        ({"valid_fraction": 0.0}, r"fraction 0\.0"),
        ({"valid_fraction": 0.6}, r"fraction 0\.6"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        load_data(**{"data": "digits", "data_dir": NOWHERE, **options})


# ---- CIFAR, from a small set in the very format of the large ones


PUBLISHED = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def cifar_files(name, rng):
    """The files of the set and the pixels and labels they hold: {path: bytes}, train, test."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if name == "cifar10" else ["train", "test"]
    classes = ["cat", "dog", "cow"]
    key, meta = ("labels", "batches.meta") if name == "cifar10" else ("fine_labels", "meta")
    folder = "cifar-10-batches-py" if name == "cifar10" else "cifar-100-python"
    files, batches = {}, []
    for batch in names:
        pixels = rng.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
        labels = rng.permutation([0, 1, 2] * 4).tolist()
        entry = {"data": pixels.reshape(12, 3072), key: labels, "coarse_labels": [7] * 12}
        files[f"{folder}/{batch}"] = pickle.dumps(entry, protocol=2)
        batches.append((pixels.transpose(0, 2, 3, 1), labels))
    label_key = "label_names" if name == "cifar10" else "fine_label_names"
    files[f"{folder}/{meta}"] = pickle.dumps({label_key: classes, "coarse_label_names": ["pet"]}, protocol=2)
    files[f"{folder}/readme.html"] = b"<html></html>"
    train = np.concatenate([pixels for pixels, _ in batches[:-1]]), [v for _, labels in batches[:-1] for v in labels]
    return files, train, batches[-1]


@dataclass
class SmallCifar:
    """A small set under the name of a large one."""

    name: str
    dataset: type
    files: dict
    archive: bytes
    train: tuple
    test: tuple

    def check(self, data):
        assert data.name == self.name
        assert data.classes == ("cat", "dog", "cow")
        assert (data.mean, data.std) == PUBLISHED[self.name]
        np.testing.assert_array_equal(data.test.images, self.test[0])
        assert data.test.labels.tolist() == self.test[1]
        right = {picture.tobytes(): label for picture, label in zip(*self.train, strict=True)}
        seen = np.concatenate([data.train.images, data.valid.images])
        labels = [*data.train.labels.tolist(), *data.valid.labels.tolist()]
        assert len(labels) == len(right)
        assert {picture.tobytes(): label for picture, label in zip(seen, labels, strict=True)} == right


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(request, monkeypatch):
    """A small CIFAR, with its checksums in place of the real ones and an address where nothing answers."""
    from torchvision.datasets import CIFAR10, CIFAR100

    name, dataset = request.param, {"cifar10": CIFAR10, "cifar100": CIFAR100}[request.param]
    files, train, test = cifar_files(name, np.random.default_rng(0))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

    def digest(file):
        return md5(files[f"{dataset.base_folder}/{file}"]).hexdigest()

    monkeypatch.setattr(dataset, "train_list", [[file, digest(file)] for file, _ in dataset.train_list])
    monkeypatch.setattr(dataset, "test_list", [[file, digest(file)] for file, _ in dataset.test_list])
    monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": digest(dataset.meta["filename"])})
    monkeypatch.setattr(dataset, "tgz_md5", md5(buffer.getvalue()).hexdigest())
    monkeypatch.setattr(dataset, "url", f"http://127.0.0.1:9/{dataset.filename}")

    return SmallCifar(name, dataset, files, buffer.getvalue(), train, test)


def unpack(cifar, folder):
    for path, content in cifar.files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)


def test_cifar_from_its_archive_and_then_from_its_files(tmp_path, cifar):
    (tmp_path / cifar.dataset.filename).write_bytes(cifar.archive)
    data = load_data(cifar.name, tmp_path, valid_fraction=0.25)
    cifar.check(data)
    n_train = len(cifar.train[1])
    assert len(data.valid) == n_train / 4
    assert torch.bincount(data.valid.labels).tolist() == [n_train // 12] * 3
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([cifar.dataset.base_folder, cifar.dataset.filename])
    (tmp_path / cifar.dataset.filename).unlink()
    cifar.check(load_data(cifar.name, tmp_path))
    other = load_data(cifar.name, tmp_path, valid_fraction=0.25, seed=1)
    assert not torch.equal(other.valid.images, data.valid.images)
    assert load_data(cifar.name, tmp_path, image_size=(7, 11)).test.images.shape == (12, 7, 11, 3)


def test_cifar_archive_that_is_damaged_is_named_with_the_cure(tmp_path, cifar):
    archive = tmp_path / cifar.dataset.filename
    flipped = bytearray(cifar.archive)
    flipped[len(flipped) // 2] ^= 1
    for content in (cifar.archive[:-1], bytes(flipped), b""):
        archive.write_bytes(content)
        with pytest.raises(UserError, match=r"is damaged .*delete it") as caught:
            load_data(cifar.name, tmp_path)
        assert str(archive) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert list(tmp_path.iterdir()) == [archive]


def test_cifar_without_network_says_what_to_put_where(tmp_path, cifar):
    folder = tmp_path / "new"
    with pytest.raises(UserError, match="is missing and cannot be downloaded") as caught:
        load_data(cifar.name, folder)
    message = str(caught.value)
    assert str(folder / cifar.dataset.filename) in message
    assert cifar.dataset.url in message
    assert "--data digits" in message
    assert len(message.splitlines()) == 1
    assert list(folder.iterdir()) == []


def test_cifar_that_is_half_unpacked_is_never_taken_for_whole(tmp_path, cifar):
    unpack(cifar, tmp_path)
    batch = tmp_path / cifar.dataset.base_folder / cifar.dataset.test_list[0][0]
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(UserError, match="is missing or damaged and cannot be downloaded") as caught:
        load_data(cifar.name, tmp_path)
    assert str(batch) in str(caught.value)
    (tmp_path / cifar.dataset.filename).write_bytes(cifar.archive)
    cifar.check(load_data(cifar.name, tmp_path))


def test_cifar_below_a_file_is_refused_in_one_line(tmp_path, cifar):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot read the data 'cifar") as caught:
        load_data(cifar.name, tmp_path / "file")
    assert len(str(caught.value).splitlines()) == 1


def test_cifar_is_downloaded_whole_or_not_at_all(tmp_path, cifar, monkeypatch):
    served = tmp_path / "server"
    served.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(served))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{cifar.dataset.filename}"
        monkeypatch.setattr(cifar.dataset, "url", url)
        (served / cifar.dataset.filename).write_bytes(cifar.archive[:-1])
        with pytest.raises(UserError, match="cannot be downloaded"):
            load_data(cifar.name, tmp_path / "data")
        assert list((tmp_path / "data").iterdir()) == []
        (served / cifar.dataset.filename).write_bytes(cifar.archive)
        cifar.check(load_data(cifar.name, tmp_path / "data"))
        server.shutdown()
    assert (tmp_path / "data" / cifar.dataset.filename).read_bytes() == cifar.archive


def test_import_is_light():
    code = "import sys, vit.data; print(sorted({'sklearn', 'torchvision'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
