/** Bugs that the published guide warns of, planted into the bound reference plan, and taken out again. */

import { Program } from "../glinfer/program.js";

/**
 * @typedef {object} Bug
 * @property {string} id
 * @property {string} title
 * @property {string} text
 * @property {string} draw the name of the draw that has it.
 * @property {(replay: import("../glinfer/replay.js").Replay) => () => void} plant returns what takes it out.
 */

/** The bound draw of a name, and where it is. */
function drawOf(replay, name) {
  const index = replay.plan.draws.findIndex((draw) => draw.name === name);
  return { index, draw: replay.draws[index] };
}

/** Replaces bound draws, and returns what puts the old ones back. */
function replaced(replay, change) {
  const before = replay.draws;
  replay.draws = before.map((draw) => ({ ...draw, textures: [...draw.textures] })).map(change);
  return () => (replay.draws = before);
}

function weightOf(replay, name, unit = 1) {
  return drawOf(replay, name).draw.textures[unit];
}

/** Replaces the fragment shader of all draws of a kind. */
function reshaded(replay, kind, change) {
  const { gl } = replay;
  const files = new Map(replay.shaders);
  const made = new Map(); // by the program that it replaces
  const undo = replaced(replay, (draw) => {
    if (draw.spec.kind !== kind) return draw;
    if (!made.has(draw.program)) {
      const { fragment } = draw.program.spec;
      files.set(fragment, change(replay.shaders.get(fragment)));
      const program = new Program(gl, draw.program.spec, files);
      program.link();
      program.finish();
      made.set(draw.program, program);
    }
    return { ...draw, program: made.get(draw.program) };
  });
  return () => {
    undo();
    for (const program of made.values()) program.release();
  };
}

/** @type {Bug[]} */
const BUGS = [
  {
    id: "feedback",
    title: "Feedback loop",
    text: "A draw samples the texture that it paints into. OpenGL leaves the result undefined; WebGL drops the draw and records an error.",
    draw: "h.1.mlp.fc_in",
    plant: (replay) => {
      const { index } = drawOf(replay, "h.1.mlp.fc_in");
      return replaced(replay, (draw, number) => (number === index ? { ...draw, textures: [draw.framebuffer.textures[0], ...draw.textures.slice(1)] } : draw));
    },
  },
  {
    id: "linear",
    title: "LINEAR filtering",
    text: "New textures blend neighbours by default. Float textures cannot, so the texture counts as incomplete and reads as zeros.",
    draw: "h.0.mlp.fc_out",
    plant: (replay) => {
      const { gl } = replay;
      const set = (filter) => {
        gl.activeTexture(gl.TEXTURE0);
        gl.bindTexture(gl.TEXTURE_2D, weightOf(replay, "h.0.mlp.fc_out").handle);
        for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, filter);
      };
      set(gl.LINEAR);
      return () => set(gl.NEAREST);
    },
  },
  {
    id: "uniform",
    title: "Integer set as a float",
    text: "uniform1f for an int is an error, and the uniform keeps its old value, here 0. The shader then reads row −1, which does not exist.",
    draw: "lm_head",
    plant: (replay) => {
      const { gl } = replay;
      const { program } = drawOf(replay, "lm_head").draw;
      const { location } = program.uniforms.get("rows");
      gl.useProgram(program.handle);
      gl.uniform1i(location, 0);
      program.set = (name, value) => gl.uniform1f(location, value);
      return () => {
        delete program.set;
        program.values.clear();
      };
    },
  },
  {
    id: "transpose",
    title: "Missing transpose",
    text: "A square matrix still fits when its rows and columns are swapped. There is no error, and the text still reads well.",
    draw: "h.5.attn.v_proj",
    plant: (replay) => {
      const texture = weightOf(replay, "h.5.attn.v_proj");
      const edge = texture.spec.width;
      const bits = new Float32Array(texture.readBits(0, edge).buffer);
      texture.upload(bits.map((_, index) => bits[(index % edge) * edge + Math.floor(index / edge)]));
      return () => texture.upload(bits);
    },
  },
  {
    id: "ping-pong",
    title: "No ping-pong",
    text: "Heads are gathered in one texture instead of two alternating ones, so each copy reads its own target. Only the first head gets through.",
    draw: "h.0.attn.head.1.joined",
    plant: (replay) => {
      const [one, other] = ["joined.a", "joined.b"].map((name) => replay.plan.textures.findIndex((texture) => texture.name === name));
      const [kept, left] = [replay.textures[one], replay.textures[other]];
      return replaced(replay, (draw) => ({
        ...draw,
        textures: draw.textures.map((texture) => (texture === left ? kept : texture)),
        framebuffer: draw.framebuffer.textures.includes(left) ? replay.framebuffer([one]) : draw.framebuffer,
      }));
    },
  },
  {
    id: "mask",
    title: "−1e9 mask in half floats",
    text: "The mask −1,000,000,000 exceeds the half-float limit, 65,504, and becomes −∞. Softmax tolerates one −∞, but a row with nothing else gives NaN.",
    draw: "h.0.attn.head.0.scores",
    plant: (replay) =>
      reshaded(replay, "attn.scores", (text) =>
        text.replace("MASKED = -1e30", "MASKED = -1e9").replace("scores = MASKED;", "scores = unpackHalf2x16(packHalf2x16(vec2(MASKED))).x;").replace("scores = sum * SCALE;", "scores = unpackHalf2x16(packHalf2x16(vec2(sum * SCALE))).x;")),
  },
];

/** The bugs that a plan can have: those whose draws it has. */
export function bugsOf(plan) {
  return BUGS.filter(({ draw }) => plan.draws.some(({ name }) => name === draw));
}
