"""Picture files of every kind, against the pixels each fixture was made from."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from common.errors import UserError
from vit.pictures import AHEAD, CHUNK, decode_pictures, read_picture

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def noise(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def decode_all(paths, image_size):
    """All blocks as one, and all bad pictures."""
    blocks = list(decode_pictures(paths, image_size))
    return np.concatenate([block for block, *_ in blocks]), {i: bad for *_, some in blocks for i, bad in some.items()}


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
    "rgb.tga": (Image.fromarray(row(RED, (1, 2, 3))), row(RED, (1, 2, 3))),
    "rgb.pcx": (Image.fromarray(row(RED, (1, 2, 3))), row(RED, (1, 2, 3))),
    "rgb.sgi": (Image.fromarray(row(RED, (1, 2, 3))), row(RED, (1, 2, 3))),
    "rgb.qoi": (Image.fromarray(row(RED, (1, 2, 3))), row(RED, (1, 2, 3))),
    "rgba.dds": (Image.fromarray(np.array([[(*RED, 255), (*RED, 0)]], np.uint8)), row(RED, WHITE)),
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


def tiff(order, bits, photometric, rows, sample_format=1):
    """A grey TIFF file from the bytes of its rows, two pixels each."""
    tags = {256: 2, 257: len(rows), 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: len(rows)}
    tags |= {279: len(b"".join(rows)), 339: sample_format}
    data = b"".join(rows) + b"\0" * (len(b"".join(rows)) % 2)
    entries = [struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in sorted(tags.items())]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(data))
    return head + data + struct.pack(f"{order}H", len(entries)) + b"".join(entries) + bytes(4)


@pytest.mark.parametrize(
    ("content", "right"),
    [
        # Two pixels of 12 bits are three bytes: 0x123 and 0xFFF, then 0 and 0x800.
        (tiff("<", 12, 1, [b"\x12\x3f\xff", b"\x00\x08\x00"]), [[18, 255], [0, 128]]),
        (tiff("<", 16, 1, [b"\x34\x12\xff\xff"]), [[18, 255]]),
        (tiff(">", 16, 1, [b"\x12\x34\xff\xff"]), [[18, 255]]),
        (tiff("<", 16, 0, [b"\x34\x12\xff\xff", b"\0\0\0\x80"]), [[237, 0], [255, 127]]),
        (tiff("<", 16, 1, [b"\x34\x12\xff\x7f"], sample_format=2), [[18, 127]]),
        (tiff("<", 8, 0, [b"\x12\xff"]), [[237, 0]]),
        (tiff("<", 4, 1, [b"\x1f"]), [[17, 255]]),
        (tiff("<", 4, 0, [b"\x1f"]), [[238, 0]]),
    ],
)
def test_grey_tiff_of_any_depth_spans_black_to_white(tmp_path, content, right):
    (tmp_path / "a.tif").write_bytes(content)
    pixels = read_picture(tmp_path / "a.tif", (len(right), 2))
    np.testing.assert_array_equal(pixels, np.repeat(np.array(right)[..., None], 3, axis=2))


def test_a_kind_of_tiff_that_pillow_does_not_know_is_named(tmp_path):
    (tmp_path / "a.tif").write_bytes(tiff(">", 16, 0, [b"\x12\x34\xff\xff"]))
    with pytest.raises(UserError, match=r"a\.tif: it is a TIFF file of a kind that Pillow cannot decode, save it as"):
        read_picture(tmp_path / "a.tif", (1, 2))


def png16(colour_type, values):
    """A PNG file of one row of 16-bit pixels."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", len(values), 1, 16, colour_type, 0, 0, 0)
    row = b"\0" + np.array(values, ">u2").tobytes()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "right"),
    [
        (png16(2, [(0x1234, 0x80FF, 0xFFFF), (0, 0x7F00, 255)]), [(0x12, 0x80, 255), (0, 0x7F, 0)]),
        (png16(6, [(0x1234, 0x80FF, 0xFFFF, 0xFFFF), (0, 0, 0, 0)]), [(0x12, 0x80, 255), WHITE]),
        (png16(4, [(0x1234, 0xFFFF), (0x1234, 0)]), [(0x12, 0x12, 0x12), WHITE]),
    ],
)
def test_sixteen_bit_colour_keeps_its_upper_bits(tmp_path, content, right):
    (tmp_path / "a.png").write_bytes(content)
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", (1, 2)), row(*right))


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


@pytest.mark.parametrize("name", ["a.avif", "a.jp2", "a.ico", "a.icns"])
def test_rarer_formats_are_the_picture_that_was_written(tmp_path, name):
    y, x = np.mgrid[0:32, 0:32] * 8
    pixels = np.stack((y, x, 255 - y), axis=2).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / name)
    assert np.abs(read_picture(tmp_path / name, (32, 32)).astype(int) - pixels).mean() < 3


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
    images, broken = decode_all([tmp_path / "a.jpg"], (3, 5))
    assert images.shape == (1, 3, 5, 3)
    assert broken == {}


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
    n = CHUNK * AHEAD + 150  # more than are decoded ahead
    colours = noise(1, n)[0]
    paths = [tmp_path / f"{i}.png" for i in range(n)]
    for path, colour in zip(paths, colours, strict=True):
        Image.new("RGB", (5, 3), tuple(int(v) for v in colour)).save(path)
    images, broken = decode_all(paths, (3, 5))
    np.testing.assert_array_equal(images, np.broadcast_to(colours[:, None, None], (n, 3, 5, 3)))
    assert broken == {}


def test_broken_files_are_black_and_told_by_their_numbers(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(200)]
    for i, path in enumerate(paths):
        path.write_bytes(b"" if i in (67, 130) else encoded("PNG") if i == 0 else paths[0].read_bytes())
    paths[199].unlink()
    images, broken = decode_all(paths, (7, 5))
    assert {i: (bad.reason, bad.passing) for i, bad in broken.items()} == {
        67: ("the file is empty", False),
        130: ("the file is empty", False),
        199: ("No such file or directory", True),
    }
    assert [i for i, image in enumerate(images) if not image.any()] == [67, 130, 199]
    assert str(broken[67]) == f"cannot read the picture {paths[67]}: the file is empty; replace it or remove it"


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_on_a_terminal_only(tmp_path, monkeypatch, capsys):
    Image.new("RGB", (5, 3)).save(tmp_path / "a.png")
    decode_all([tmp_path / "a.png"], (3, 5))
    assert capsys.readouterr() == ("", "")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    decode_all([tmp_path / "a.png"], (3, 5))
    assert "reading pictures" in screen.getvalue()
    assert capsys.readouterr().out == ""
