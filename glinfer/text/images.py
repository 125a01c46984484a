"""Images in conversations: decoding within limits, squares of pixels, and the tokens that stand for them in a prompt.

Tokens have numbers beyond the vocabulary, other ones for each image, so that prompts with equal ids have equal images.
The sizes of squares and the texts around them are those of transformers' processors of SmolVLM and Idefics 3; in
Qwen3-VL an image is one piece of any shape.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import math
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import FormatError, InputError, install_command
from glinfer.families.settings import quoted
from glinfer.formats.files import opened, shown
from glinfer.formats.vision import ImageForm, Vision
from glinfer.limits import (
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_RATIO,
    MAX_IMAGES,
    MAX_KNOWN_IMAGES,
)
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

Floats = npt.NDArray[np.float32]
Grid = tuple[int, int]
"""Rows and columns."""
Steps = Generator[None, None, Floats]
"""Work in pieces, which returns rows."""
Encode = Callable[[Floats, npt.NDArray[np.intp], Grid], Steps]
"""The patches of a square, their positions and its grid → its rows, see :class:`glinfer.engine.vision.ImageEncoder`."""
MARKS = ("<image>", "<|image_pad|>")
"""The control tokens that chat templates write for an image."""
IMAGE = "[image]"
"""An image in a text for people."""
BEYOND = 2**31 - 1
"""A token beyond every vocabulary, for the table of rows."""
_AROUND, _WHOLE, _PART = "<fake_token_around_image>", "<global-img>", "<row_{}_col_{}>"
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_DATA = re.compile(r"data:image/[\w.+-]+;base64,", re.ASCII)
_TEXTS = ("text", "input_text", "output_text")
_FEW = f"expected at most {MAX_IMAGES} in a conversation"


class Square:
    """A square of an image, or a whole one: its pixels, and its rows after the first use.

    Attributes:
        shape: rows and columns of its tokens.
        grid: the same where row and column rotate its tokens; (0, 0) where their positions in the prompt do.
    """

    def __init__(self, pixels: npt.NDArray[np.uint8], reader: ImageReader) -> None:
        """Hold pixels [height, width, 3]."""
        self._pixels, self.reader = pixels, reader
        self._rows: Floats | None = None
        height, width, each = *pixels.shape[:2], reader.patch * reader.scale
        self.shape = height // each, width // each
        self.grid = self.shape if reader.by_grid else (0, 0)

    @property
    def rows(self) -> Floats:
        """The rows [tokens, width]; the first use runs the image encoder, in the thread of the model."""
        while self._rows is None:
            self.reader.advance(self)
        return self._rows

    @property
    def ready(self) -> bool:
        """Whether the rows are there."""
        return self._rows is not None

    def encoded(self) -> Steps:
        """The work of the image encoder, which keeps the rows here."""
        self._rows = yield from self.reader.encoded(self._pixels)
        self._pixels = self._pixels[:0]
        return self._rows


class ImageToken(int):
    """A token of a prompt that stands for row ``index`` of a ``square``; its number is beyond the vocabulary."""

    square: Square
    index: int

    @classmethod
    def of(cls, number: int, square: Square, index: int) -> ImageToken:
        """The token of one row."""
        made = cls(number)
        made.square, made.index = square, index
        return made

    @property
    def row(self) -> Floats:
        """Its row [width]."""
        return np.asarray(self.square.rows[self.index])


def unready(ids: Sequence[int]) -> Square | None:
    """The first square among tokens whose rows are not there yet."""
    squares = (token.square for token in ids if isinstance(token, ImageToken))
    return next((square for square in squares if not square.ready), None)


def image_rows(ids: Sequence[int]) -> dict[int, Floats]:
    """The rows of images among tokens, by index."""
    return {index: token.row for index, token in enumerate(ids) if isinstance(token, ImageToken)}


def rotary_positions(ids: Sequence[int]) -> tuple[npt.NDArray[np.intp], int]:
    """The time, row and column that rotate each token [tokens, 3], and how many positions images have left out.

    A text's token has three equal numbers. Those of an image have one time, and the text after it continues after its
    largest number.
    """
    found, back = np.repeat(np.arange(len(ids))[:, None], 3, axis=1), 0
    if {*map(type, ids)} <= {int}:  # a text alone, which is much faster to see
        return found, 0
    indices = np.array([index for index, token in enumerate(ids) if isinstance(token, ImageToken)], np.intp)
    for run in np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1) if len(indices) else ():
        first, end = int(run[0]), int(run[-1]) + 1
        rows, cols = ids[first].square.grid  # type: ignore[attr-defined]
        if rows:
            inside = np.array([ids[index].index for index in run])
            found[first:end] = found[first] + np.stack([0 * inside, inside // cols, inside % cols], axis=1)
            left_out = len(run) - min(len(run), max(rows, cols))
            found[end:] -= left_out
            back += left_out
    return found, back


def conversation_of(messages: object, read: Callable[[object], tuple[str | int, ...]]) -> Any:
    """A conversation whose contents are texts, some of them :class:`Pictured`; malformed messages stay as they are.

    Raises:
        InputError: as :func:`content_of`; or a message that is not a user's has an image.
    """
    if not isinstance(messages, (list, tuple)):
        return messages
    found, budget = [], MAX_IMAGES
    for index, message in enumerate(messages):
        if isinstance(message, Mapping) and isinstance(message.get("content"), (list, tuple)):
            content = content_of(message["content"], f"message {index}", read, budget)
            if isinstance(content, Pictured):
                budget -= len(content.images)
                if message.get("role") != "user":
                    role = quoted(message.get("role"))
                    raise InputError(
                        f"message {index} of the role {role} has an image; expected it in a user's message"
                    )
            message = {**message, "content": content}
        found.append(message)
    return found


def without_images(ids: Sequence[int]) -> Sequence[int]:
    """The tokens of the vocabulary among tokens."""
    pictured = ImageToken in set(map(type, ids))  # far faster than to look at each
    return [token for token in ids if not isinstance(token, ImageToken)] if pictured else ids


def placeholders(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Tokens with the control token of images in place of those of images."""
    mark = next((tokenizer.control_tokens[each] for each in MARKS if each in tokenizer.control_tokens), 0)
    return [mark if isinstance(token, ImageToken) else token for token in ids]


class Pictured(str):
    """The content of a message with images; as a text it has a mark for each."""

    parts: tuple[str | tuple[str | int, ...], ...]
    """Texts, and the prompt of each image: texts, control tokens and :class:`ImageToken`."""

    @classmethod
    def of(cls, parts: Iterable[str | tuple[str | int, ...]]) -> Pictured:
        """The content with these parts."""
        parts = tuple(parts)
        made = cls("".join(each if isinstance(each, str) else IMAGE for each in parts))
        made.parts = parts
        return made

    @property
    def images(self) -> list[tuple[str | int, ...]]:
        """The prompts of its images."""
        return [each for each in self.parts if not isinstance(each, str)]


def template_content(content: str) -> list[dict[str, str]]:
    """The content of a message in the form for templates of models that take images."""
    parts = content.parts if isinstance(content, Pictured) else (content,)
    return [{"type": "text", "text": each} if isinstance(each, str) else {"type": "image"} for each in parts]


class ImageReader:
    """Reads images of one model; any thread may use it, but only the model's own computes rows."""

    def __init__(self, vision: Vision, tokenizer: Tokenizer, vocab: int, encode: Encode) -> None:
        """Read images for an encoder, whose rows ``encode`` computes."""
        config = vision.checkpoint.config
        self.width = config.dense[-1][0]
        self.form, self.patch, self.scale = vision.form, config.patch_size, math.isqrt(config.patches_per_token)
        self.by_grid, self._control, self._encode = config.family.by_grid, tokenizer.control_tokens, encode
        self._next, self._lock = vocab, Lock()
        self._under_way: Steps | None = None
        self._known = OrderedDict[bytes, list[tuple[int, Square]]]()

    def advance(self, square: Square) -> None:
        """Run one piece of the image under way, or begin with a square if there is none."""
        steps, self._under_way = self._under_way or square.encoded(), None
        with suppress(StopIteration):
            next(steps)
            self._under_way = steps

    def encoded(self, pixels: npt.NDArray[np.uint8]) -> Steps:
        """The work that gives the rows of pixels [height, width, 3]."""
        mean, std = np.array(self.form.mean, np.float32), np.array(self.form.std, np.float32)
        scaled = np.asarray((pixels.astype(np.float32) / np.float32(255) - mean) / std, np.float32)
        rows, cols = (side // self.patch for side in pixels.shape[:2])  # pixels beyond whole patches are not seen
        scaled = scaled[: rows * self.patch, : cols * self.patch]
        by_patch = scaled.reshape(rows, self.patch, cols, self.patch, 3).transpose(0, 2, 4, 1, 3)
        if self.by_grid:
            by_patch = np.repeat(by_patch[:, :, :, None], 2, axis=3)  # two equal frames
        order = merged_order(rows, cols, self.scale)
        return self._encode(by_patch.reshape(rows * cols, -1)[order], order, (rows, cols))

    def prompt(self, image: object) -> tuple[str | int, ...]:
        """The texts, control tokens and image tokens of an image: a path, the bytes of a file, or Pillow's Image.

        Raises:
            InputError: the image cannot be read, or is beyond a limit; or Pillow is not installed.
        """
        squares, rows, cols = squares_of(decoded(image), self.form)
        shape = repr((rows, cols, squares[-1].shape)).encode()
        key = hashlib.sha256(b"".join(each.tobytes() for each in squares) + shape).digest()
        with self._lock:
            known = self._known.pop(key, None)
            if known is None:
                known = [self._numbered(Square(each, self)) for each in squares]
            self._known[key] = known
            while len(self._known) > MAX_KNOWN_IMAGES:
                self._known.popitem(last=False)
        parts = [self._tokens(*each) for each in known]
        if self.by_grid:
            return tuple(parts[-1])
        found: list[str | int] = []
        for index, part in enumerate(parts[:-1]):
            row, col = divmod(index, cols)
            found += (self._named(_AROUND), self._named(_PART.format(row + 1, col + 1)), *part)
            found += ("\n",) if col == cols - 1 else ()
        found += ("\n",) if rows else ()
        return (*found, self._named(_AROUND), self._named(_WHOLE), *parts[-1], self._named(_AROUND))

    def _numbered(self, square: Square) -> tuple[int, Square]:
        """A square with the number of its first token."""
        first, self._next = self._next, self._next + math.prod(square.shape)
        return first, square

    def _tokens(self, first: int, square: Square) -> list[ImageToken]:
        return [ImageToken.of(first + index, square, index) for index in range(math.prod(square.shape))]

    def _named(self, token: str) -> str | int:
        return self._control.get(token, token)


def content_of(
    given: object, where: str, read: Callable[[object], tuple[str | int, ...]], budget: int = MAX_IMAGES
) -> str:
    """The content of a message from a text, or from a list of parts, of which ``read`` gives the prompts of images.

    Other values are returned as they are.

    Raises:
        InputError: a part is malformed, an image cannot be read, or there are more than ``budget``; ``where`` names the
            message.
    """
    if isinstance(given, str) or not isinstance(given, (list, tuple)):
        return given  # type: ignore[return-value]  # other types are refused with the message
    found: list[str | tuple[str | int, ...]] = []
    images = [part for part in given if isinstance(part, Mapping) and part.get("type") not in _TEXTS]
    if len(images) > budget:
        raise InputError(f"{where} has {len(images)} images; {_FEW}")
    for index, part in enumerate(given):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _TEXTS and isinstance(part.get("text"), str):
            found.append(part["text"])
        elif kind in ("image", "image_url", "input_image"):
            found.append(read(_source_of(part, f"part {index} of {where}")))
        else:
            raise InputError(
                f"part {index} of {where} is {quoted(part)}; expected {{'type': 'text', 'text': …}} or "
                "{'type': 'image', 'image': …}"
            )
    return Pictured.of(found) if any(not isinstance(each, str) for each in found) else "".join(map(str, found))


def _source_of(part: Mapping[str, Any], where: str) -> object:
    """What an image's part names: an image, or the bytes of its data URL."""
    if part["type"] == "image" and (given := part.get("image")) is not None:
        return given
    url = part.get("image_url", part.get("url"))
    url = url.get("url") if isinstance(url, Mapping) else url
    if not isinstance(url, str):
        raise InputError(f"{where} has no image; expected image, or image_url with a data URL")
    found = _DATA.match(url)
    if found is None:
        raise InputError(
            f"{where} has the URL {quoted(url[:40])}; expected a data URL, data:image/png;base64,… (nothing is fetched)"
        )
    if len(url) > 2 * MAX_IMAGE_BYTES:
        raise InputError(f"{where} has a URL of {len(url)} characters; expected an image of {MAX_IMAGE_BYTES} bytes")
    try:
        return base64.b64decode(url[found.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise InputError(f"{where} has a data URL whose base64 is damaged; send the image again") from None


def decoded(image: object) -> Image:
    """An image in red, green and blue, turned as its file says.

    Args:
        image: the path of a file, its bytes, or Pillow's Image.

    Raises:
        InputError: the image cannot be read, or is beyond a limit; or Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise InputError(f"images need the package pillow; install it: {install_command('vision')}") from None
    label = "the image"
    if isinstance(image, (str, os.PathLike)):
        label, image = shown(image), _file_of(image)
    if isinstance(image, (bytes, bytearray)):
        if len(image) > MAX_IMAGE_BYTES:
            raise InputError(f"{label} has {len(image)} bytes; expected at most {MAX_IMAGE_BYTES}")
        try:
            # The limit of pixels below holds before pixels are decoded.
            image = Image.open(io.BytesIO(image), formats=_FORMATS)
        except Exception as error:  # Pillow's readers raise many kinds
            raise _unreadable(label, error, "expected " + ", ".join(_FORMATS)) from None
    if not isinstance(image, Image.Image):
        raise InputError(f"the image is {type(image).__name__}; expected a path, bytes, or an Image of Pillow")
    width, height = image.size
    if width * height > MAX_IMAGE_PIXELS or not width or not height:
        raise InputError(f"{label} has {width} × {height} pixels; expected 1 to {MAX_IMAGE_PIXELS} in all")
    if max(width, height) > MAX_IMAGE_RATIO * min(width, height):
        raise InputError(
            f"{label} has {width} × {height} pixels; expected an aspect ratio of at most {MAX_IMAGE_RATIO}"
        )
    try:
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:
        raise _unreadable(label, error, "its pixels are damaged") from None


def _file_of(path: str | os.PathLike[str]) -> bytes:
    try:
        with opened(path) as (stream, size):
            if size > MAX_IMAGE_BYTES:
                raise InputError(f"{shown(path)} has {size} bytes; expected at most {MAX_IMAGE_BYTES}")
            return stream.read()
    except FormatError as error:
        raise InputError(str(error)) from None


def _unreadable(label: str, error: Exception, what: str) -> InputError:
    return InputError(f"{label} cannot be decoded: {what} ({type(error).__name__}); give another image")


def squares_of(image: Image, form: ImageForm) -> tuple[list[npt.NDArray[np.uint8]], int, int]:
    """The squares [side, side, 3] of an image, row by row and then the whole; and rows and columns, 0 for one square.

    The image's longest side becomes ``form.longest``, then both sides whole squares.
    """
    side = form.side

    def resized(given: Image, width: int, height: int) -> Image:
        return given if given.size == (width, height) else given.resize((width, height), form.filter)

    if form.pixels[1]:
        return [np.asarray(resized(image, *_within(*image.size, form)))], 0, 0
    image = resized(image, *_longest_side(*image.size, form.longest))
    if not form.splits:
        return [np.asarray(resized(image, side, side))], 0, 0
    image = resized(image, *_whole_squares(*image.size, side))
    rows, cols = image.height // side, image.width // side
    if rows == cols == 1:
        return [np.asarray(image)], 0, 0
    pixels = np.asarray(image)
    parts = [pixels[r * side : (r + 1) * side, c * side : (c + 1) * side] for r in range(rows) for c in range(cols)]
    return [*parts, np.asarray(resized(image, side, side))], rows, cols


def _within(width: int, height: int, form: ImageForm) -> tuple[int, int]:
    """Whole multiples of the side of a token within the limits of pixels, as ``smart_resize`` of transformers."""
    least, most = form.pixels
    found = [round(side / form.side) * form.side for side in (width, height)]
    if math.prod(found) > most:
        by = math.sqrt(width * height / most)
        found = [max(form.side, math.floor(side / by / form.side) * form.side) for side in (width, height)]
    elif math.prod(found) < least:
        by = math.sqrt(least / (width * height))
        found = [math.ceil(side * by / form.side) * form.side for side in (width, height)]
    if math.prod(found) > form.longest:
        raise InputError(
            f"the image of {width} × {height} pixels becomes one of {found[0]} × {found[1]}; expected at most "
            f"{form.longest} pixels; give a less narrow image"
        )
    return found[0], found[1]


def _longest_side(width: int, height: int, longest: int) -> tuple[int, int]:
    other = int(longest / (width / height)) if width >= height else int(longest * (width / height))
    other += other % 2
    return (longest, max(other, 1)) if width >= height else (max(other, 1), longest)


def _whole_squares(width: int, height: int, side: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    return width, height


def merged_order(rows: int, cols: int, scale: int) -> npt.NDArray[np.intp]:
    """The numbers of patches, row by row, in the order in which those of a token are neighbours."""
    grid = np.arange(rows * cols).reshape(rows // scale, scale, cols // scale, scale)
    return np.asarray(grid.transpose(0, 2, 1, 3).reshape(-1))
