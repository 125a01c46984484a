"""How the passes of the fast plan are shaped for a renderer: what changes speed, and last digits at most."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glinfer.errors import PlanError
from glinfer.gl.blocks import BLOCK_EDGE


@dataclass(frozen=True)
class Kernels:
    """The choices that differ between renderers; see docs/performance.md for what each is worth.

    Attributes:
        tiles: tiles that the blocks of a vector are dealt to (see :mod:`glinfer.gl.blocks`).
        pitch: texels from tile to tile. llvmpipe gives one thread to each 64×64 tile of a target.
        cover: ``points``, one 4×4 point a block, which needs points that large; or ``quads``, two triangles a block.
        quad: let the four fragments of a quad share the inputs, which needs exact derivatives.
        lookup_texture: read with the shading language's texture function instead of its texel fetch.
        unroll: how many steps of a product are fetched together: more hide the latency of a GPU's memory.
        part_steps: steps of each instance of the products that add to the residual stream, which blending then adds
            up; 0 for one instance and no blending. A step is 16 inputs.
        split_values: let each 64 tokens' values be added up by an instance of their own, and blending add those up,
            where a single row is run.
        mantissa: turn integer weights into floats by way of the mantissa, not by conversion.
        targets: rows that a pass over many rows computes at once, a target each: 1, 2, 4 or 8.
        row_tiles: tiles that the blocks of a row are dealt to in passes over many rows, 64 texels apart.
        largest_cell: how many blocks a side one point, or pair of triangles, may cover in passes over many rows.
        blends: let blending add to the residual stream of many rows in place, where it could also be read and added.
        chunk: how many tokens of a prompt are run at once.
        flush_every: tell the driver to begin each time so many draws were issued; 0 to leave it to the driver.
        products: which maps the strategies of products of tensors are chosen by, see
            :mod:`glinfer.ops.matmul_choice`: those of a ``gpu``, or of ``llvmpipe``.
        fused: add a product's terms one after the other, each a fused multiply-add on GPUs, not in two pairs.
    """

    tiles: int = 1
    pitch: int = 64
    cover: str = "quads"
    quad: bool = True
    lookup_texture: bool = False
    unroll: int = 1
    part_steps: int = 0
    split_values: bool = False
    mantissa: bool = False
    targets: int = 4
    row_tiles: int = 4
    largest_cell: int = 1
    blends: bool = False
    chunk: int = 512
    flush_every: int = 0
    products: str = "gpu"
    fused: bool = False

    def __post_init__(self) -> None:
        """Refuse what no plan can be built with."""
        if self.cover not in ("points", "quads"):
            raise PlanError(f"found cover {self.cover!r}; expected points or quads")
        for name, least in (
            ("tiles", 1),
            ("unroll", 1),
            ("part_steps", 0),
            ("chunk", 1),
            ("largest_cell", 1),
            ("flush_every", 0),
        ):
            if getattr(self, name) < least:
                raise PlanError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if self.products not in ("gpu", "llvmpipe"):
            raise PlanError(f"found products {self.products!r}; expected gpu or llvmpipe")
        if self.targets not in (1, 2, 4, 8):
            raise PlanError(f"targets is {self.targets}; expected 1, 2, 4 or 8")
        if self.pitch < BLOCK_EDGE or self.pitch % BLOCK_EDGE:
            raise PlanError(f"pitch is {self.pitch}; expected a multiple of {BLOCK_EDGE}")


def default_kernels(renderer: str, max_point_size: float, weights: str = "f32") -> Kernels:
    """A good choice for a renderer that nobody has measured yet, by its name and largest point, and a weight format."""
    cover = "points" if max_point_size >= BLOCK_EDGE else "quads"
    cell = 4 if max_point_size >= 4 * BLOCK_EDGE or cover == "quads" else 1
    plain = Kernels(cover=cover, targets=8, largest_cell=cell, blends=True)
    if "llvmpipe" in renderer.lower():
        return replace(plain, tiles=8, lookup_texture=True, products="llvmpipe")
    # Few bytes of weights are best shared by neighbours, as many rows' inputs are; points of one block fill a GPU most
    # evenly where a pass has few of them.
    row_tiles = 8 if weights == "f32" else 1
    cell = 1 if cover == "points" else cell
    plain = replace(plain, tiles=8, row_tiles=row_tiles, largest_cell=cell)
    return replace(plain, part_steps=8, split_values=True, flush_every=6, fused=True)
