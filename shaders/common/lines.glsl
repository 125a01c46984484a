// The first texel of a line, in a texture that glinfer/gl/layouts/packing.py lays out in lines, several side by side.
ivec2 line_at(int line, int columns, int texels) {
    return ivec2(int(uint(line) % uint(columns)) * texels, int(uint(line) / uint(columns)));
}
