// The first texel of a line, in a layout of glinfer/gl/layouts/packing.py with several lines side by side.
ivec2 line_at(int line, int columns, int texels) {
    return ivec2(int(uint(line) % uint(columns)) * texels, int(uint(line) / uint(columns)));
}
