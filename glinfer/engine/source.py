"""Read a model's weights from its files again, to compare them with textures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glinfer.errors import GlinferError, InputError
from glinfer.formats import Checkpoint
from glinfer.formats.files import FileStamp, shown
from glinfer.models.choice import weights_for
from glinfer.ops.spec import Array

WeightSource = Callable[[], Mapping[str, Array]]
"""Returns the arrays that a plan uploads, by tensor name; raises InputError if they are unavailable."""


@dataclass(frozen=True)
class FileWeights:
    """Reads the weights of a checkpoint from its files again.

    Attributes:
        read: reads the checkpoint.
        files: the stamps of all its files, by absolute path.
        plan: one of :data:`glinfer.models.choice.PLANS`.
        weights: their format in textures.
    """

    read: Callable[[], Checkpoint]
    files: Mapping[str, FileStamp]
    plan: str
    weights: str

    def __call__(self) -> Mapping[str, Array]:
        """The arrays, each made at its first use.

        Raises:
            InputError: a file is missing or has changed since the model was loaded.
        """
        for path, stamp in self.files.items():
            try:
                found = FileStamp.of(Path(path).stat())
            except OSError as error:
                raise _changed(path, f"gone ({os.strerror(error.errno or 0)})") from None
            if found != stamp:
                what = "written again" if found.size == stamp.size else f"now {found.size} bytes long, not {stamp.size}"
                raise _changed(path, f"{what} since the model was loaded")
        try:
            checkpoint = self.read()
        except GlinferError as error:
            raise _changed("the model's file", f"no longer readable ({error})") from None
        return weights_for(checkpoint, self.plan, self.weights)


def _changed(path: str, what: str) -> InputError:
    return InputError(
        f"{shown(path)} is {what}; expected the unchanged file; compare with the checksums of the upload "
        "(share below 1), which needs no file, or load the model again"
    )
