#version 300 es
// hidden[r, c] = token_embedding[tokens[r], c] + position_embedding[r, c]
// tokens [CONTEXT, 1] int; token_embedding [VOCAB, DIM]; position_embedding [CONTEXT, DIM].
// An id outside the vocabulary contributes a zero row (callers check ids before they get here).
#include "common/matrix.glsl"
uniform isampler2D tokens;
uniform sampler2D token_embedding;
uniform sampler2D position_embedding;
layout(location = 0) out float hidden;

void main() {
    ivec2 e = output_element(DIM);
    int id = at(tokens, e.x, 0, 1);
    float token = id >= 0 && id < VOCAB ? at(token_embedding, id, e.y, DIM) : 0.0;
    hidden = token + at(position_embedding, e.x, e.y, DIM);
}
