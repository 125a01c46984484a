"""Storage of tensors: a texture, or the matrix that will fill it. Views of one tensor share it."""

from __future__ import annotations

from collections.abc import Callable

from glinfer.errors import InputError
from glinfer.gl.context import Device as Context
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.texture import Texture
from glinfer.kernels.spec import Array


class Storage:
    """One texture, or the matrix to upload at its first use; released with the last tensor that holds it.

    ``holders`` counts the tensors that hold it, and ``on_release`` is called after its release.
    """

    def __init__(
        self, context: Context, layout: FlatLayout, *, matrix: Array | None = None, texture: Texture | None = None
    ) -> None:
        """Hold a matrix of the layout's type, to be uploaded at its first use, or a texture."""
        self.layout = layout
        self.holders = 0
        self._context, self._matrix, self._texture = context, matrix, texture
        self.on_release: Callable[[Storage], object] | None = None

    @property
    def uploaded(self) -> bool:
        """Whether there is a texture."""
        return self._texture is not None

    @property
    def gone(self) -> bool:
        """Whether it was released, by its tensors or its device."""
        return self._texture is None and self._matrix is None and bool(self.layout.height)

    @property
    def nbytes(self) -> int:
        """Bytes of texture memory that it uses now."""
        return self.layout.nbytes if self.uploaded else 0

    def texture(self) -> Texture:
        """The texture, uploaded now if this is the first use; InputError after the release, or without elements."""
        if not self.layout.height:
            raise InputError("a tensor without elements has no texture")
        if self._texture is None:
            if self._matrix is None:
                raise InputError("this tensor was released; its elements are gone")
            self._texture = Texture(self._context, self.layout, "tensor", self.layout.pack(self._matrix))
            self._matrix = None
        return self._texture

    def matrix(self) -> Array:
        """The elements [rows, cols], before their upload or read back."""
        if self._matrix is not None:
            return self._matrix.copy()
        return self.texture().read().copy()

    def let_go(self) -> None:
        """Remove a holder, and release the storage after the last one."""
        self.holders -= 1
        if self.holders == 0:
            self.release()

    def release(self) -> None:
        """Give the texture back to the driver; harmless when repeated."""
        self._matrix = None
        if self._texture is not None:
            texture, self._texture = self._texture, None
            if not self._context.closed:
                texture.release()
        if self.on_release is not None:
            self.on_release(self)
