"""Options that shape passes for a renderer; they change the speed, and at most the last digits of results."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from glinfer.errors import PlanError, check_flag
from glinfer.gl.layouts.blocks import BLOCK_EDGE


@dataclass(frozen=True)
class KernelOptions:
    """Options of kernels that differ between renderers; docs/notes/performance.md has their measured effects.

    Attributes:
        tiles: number of tiles for the blocks of a vector (see :mod:`glinfer.gl.layouts.blocks`).
        pitch: texels from one tile to the next. llvmpipe gives one thread to each 64×64 tile of a target.
        cover: ``points`` for one 4×4 point a block, which needs points that large; ``quads`` for two triangles a block.
        quad: the four fragments of a quad share the inputs, which needs exact derivatives.
        lookup_texture: read textures with GLSL's texture function instead of texelFetch.
        unroll: steps of a product that are fetched together; more of them hide the latency of a GPU's memory.
        part_steps: steps of each instance of the products that add to the residual stream, whose sums blending adds;
            0 for one instance without blending. A step is 16 inputs.
        split_norms: split the product of keys, values and queries of a single row too, by ``part_steps``; each
            instance computes the norm of all inputs.
        split_inner: split the MLP's first product of a single row too; its reader finishes it.
        split_values: in runs of a single row, one instance sums the values of each 64 tokens, and blending adds the
            instances.
        mantissa: turn integer weights into floats through the mantissa instead of a conversion.
        rows_per_draw: rows that a pass over many rows computes at once, one in each render target: 1, 2, 4 or 8.
        row_tiles: number of tiles for the blocks of a row in passes over many rows, 64 texels apart.
        largest_cell: blocks a side that one point or pair of triangles may cover in passes over many rows.
        blends: blending adds to the residual stream of many rows in place; otherwise the pass reads it and adds.
        chunk: tokens of a prompt in one run.
        flush_every: flush after this many draws; 0 leaves it to the driver.
        product_table: the table for choosing strategies of tensor products, ``gpu`` or ``llvmpipe``; see
            :mod:`glinfer.kernels.flat.matmul_choice`.
        fused: add a product's terms one after the other, each a fused multiply-add on GPUs, instead of in two pairs.
        one_state: the activations of a single token are regions of one texture, which needs a texture barrier.
    """

    tiles: int = 1
    pitch: int = 64
    cover: str = "quads"
    quad: bool = True
    lookup_texture: bool = False
    unroll: int = 1
    part_steps: int = 0
    split_norms: bool = False
    split_inner: bool = False
    split_values: bool = False
    mantissa: bool = False
    rows_per_draw: int = 4
    row_tiles: int = 4
    largest_cell: int = 1
    blends: bool = False
    chunk: int = 512
    flush_every: int = 0
    product_table: str = "gpu"
    fused: bool = False
    one_state: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no plan can be built with."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool":
                check_flag(field.name, value)
            elif field.type == "int" and not isinstance(value, int):
                raise PlanError(f"{field.name} is {value!r}; expected an integer")
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
        if self.product_table not in ("gpu", "llvmpipe"):
            raise PlanError(f"found product_table {self.product_table!r}; expected gpu or llvmpipe")
        if self.rows_per_draw not in (1, 2, 4, 8):
            raise PlanError(f"rows_per_draw is {self.rows_per_draw}; expected 1, 2, 4 or 8")
        if self.pitch < BLOCK_EDGE or self.pitch % BLOCK_EDGE:
            raise PlanError(f"pitch is {self.pitch}; expected a multiple of {BLOCK_EDGE}")


def without_blending(kernels: KernelOptions) -> KernelOptions:
    """The options for renderers without float blending; a pass over four rows then has at most 16 textures."""
    return replace(
        kernels,
        unroll=1,
        part_steps=0,
        split_norms=False,
        split_inner=False,
        split_values=False,
        blends=False,
        rows_per_draw=4,
    )


def default_kernels(renderer: str, max_point_size: float, weights: str = "f32") -> KernelOptions:
    """Good options for a renderer that was not measured, by its name, its largest point and the weight format."""
    cover = "points" if max_point_size >= BLOCK_EDGE else "quads"
    cell = 4 if max_point_size >= 4 * BLOCK_EDGE or cover == "quads" else 1
    plain = KernelOptions(cover=cover, rows_per_draw=8, largest_cell=cell, blends=True)
    if "llvmpipe" in renderer.lower():
        return replace(plain, tiles=8, lookup_texture=True, product_table="llvmpipe")
    # Neighbours best share small weights, as they share many rows' inputs; points of one block fill a GPU most evenly
    # if a pass has few of them.
    row_tiles = 8 if weights == "f32" else 1
    cell = 1 if cover == "points" else cell
    plain = replace(plain, tiles=8, row_tiles=row_tiles, largest_cell=cell)
    # With float weights, finishing the inner row at its reader costs as much as splitting gains.
    packed = weights != "f32"
    plain = replace(plain, unroll=4 if packed else 8, split_inner=packed)
    shared = replace(plain, part_steps=8, split_norms=True, split_values=True)
    return replace(shared, flush_every=6, fused=True, one_state=True)
