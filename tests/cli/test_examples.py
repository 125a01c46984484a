"""Every example runs as a user would run it, and prints what it promises."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import DEADLINE, finished
from tiers import tiered

import glinfer

pytestmark = pytest.mark.gl

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PAGE_RENDERER = "llvmpipe (LLVM 15.0.6, 256 bits)"
"""Where docs/diagnostics.md was written: what a feedback loop reads differs from renderer to renderer."""
PROMISES = {
    "10_other_models.py": [
        "noise-float32.gguf: 39 tensors in F32",
        "noise-q4_0.gguf: 9 tensors in F32, 30 tensors in Q4_0",
        "issued; as planned: True",
        "the reference plan chooses the same ids: True",
    ],
    "01_generate.py": ["41 draws/token, 30 tokens, stopped by length", "OpenGL ES 3"],
    "02_draw_calls.py": [
        "reference: 244 by formula, 244 in the plan, 244 issued per token",
        "fast: 39 by formula, 39 in the plan, 39 issued per token",
    ],
    "03_verify_textures.py": [
        "78 textures, 20,244,480 bytes: ok True",
        "20 comparisons of 5% while it ran, which together see every line: ok True",
        "'NaN payloads': True, 'infinities': True, 'negative zero': True, 'denormals': True",
    ],
    "04_first_wrong_draw.py": [
        "lm_head.bias, element [0, 7]: ",
        "244 draws checked, first wrong one: none",
        "first wrong one: 6 of 244, h.0.attn.head.0.scores, shader attention_scores",
    ],
    "05_own_sampler.py": ["ROMEO:"],
    "07_batch.py": ["each as it is alone: True", "prompt 4: ", "ended by "],
    "08_score.py": [" bits/byte, perplexity ", "'To be, or not to be: that is the question'", "token by token:"],
    "09_tensors.py": [
        "OpenGL ES 3",
        "matmul: (64, 300) @ (300, 200) is (64, 200), off by at most ",
        "softmax: rows add up to 1.0, ",
        "memory: 6 tensors, 5 in textures, ",
        "and at the end: Memory(tensors=1, textures=0, bytes=0)",
    ],
    "11_look_inside.py": [
        ", spends ",
        " of its attention on the token before",
        " → ",
        "the stream after block 0 has a norm of ",
    ],
    "12_planted_bugs.py": [
        "verify: 244 draws, all within tolerance",
        "the first wrong draw is 80 of 244, h.1.mlp.fc_in",
        "feedback loop of mlp.inner: found sampled as x by the draw that renders to it",
        "weight of transformer.h.5.attn.v_proj.weight: found the matrix transposed",
        "the first wrong draw is 41 of 244, h.0.mlp.fc_out",
        "min filter of transformer.h.0.mlp.fc_out.weight: found GL_LINEAR; expected GL_NEAREST",
        "the first wrong draw is 243 of 244, lm_head",
        "error: GL_INVALID_OPERATION",
        "uniform of rows: found int 0; expected int 2",
        "the first wrong draw is 1 of 244, embed",
        "precision of sampler2D: found lowp, the default of GLSL ES; expected highp; ",
    ],
    "13_scheduler.py": [
        "duke cancelled after ",
        "king ended by length",
        "reused of the prompts: [0, 22, 22]",
        "the queen says what she says alone: True",
    ],
    "14_own_shader.py": [
        "layer_norm: off by at most ",
        "matmul: off by at most ",
        "dev.ops.matmul: ",
        "own.matmul      2 draws, one of them took ",
        "matmul:10: ",
    ],
    "15_async.py": ["'", "'", "'", "stopped"],
    "06_session.py": ["likeliest: '", "drawn:     '", "after 'Gaunt': b'", " tokens held, 0 dropped"],
}


SHORT = ("01_generate.py", "02_draw_calls.py", "03_verify_textures.py")
"""Run Gab, count its draws, check the round trip: in at most ten lines of code each."""


def tree_of(name: str) -> ast.Module:
    return ast.parse((EXAMPLES / name).read_text("utf-8"), name)


def test_the_first_examples_are_short() -> None:
    for name in SHORT:
        statements = [node for node in ast.walk(tree_of(name)) if isinstance(node, ast.stmt)]
        lines = {line for node in statements[1:] for line in (node.lineno, node.end_lineno)}  # without the docstring
        assert len(lines) <= 10, name


def test_the_page_of_examples_has_each_once() -> None:
    page = (EXAMPLES / "README.md").read_text("utf-8")
    named = [line.partition("](")[2].partition(")")[0] for line in page.splitlines() if line.startswith("* [")]
    examples = [path.name for pattern in ("[0-9]*.py", "*.ipynb") for path in EXAMPLES.glob(pattern)]
    assert sorted(named) == sorted([*examples, "train/"])


def test_the_sampler_of_example_5_is_right() -> None:
    (function,) = (node for node in tree_of("05_own_sampler.py").body if isinstance(node, ast.FunctionDef))
    assert len(ast.unparse(function).splitlines()) <= 15
    space: dict[str, Any] = {"np": np}
    exec(compile(ast.Module([function], []), "05_own_sampler.py", "exec"), space)
    sample, rng = space["sample"], np.random.default_rng(1)
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))

    def shares(**options: float) -> Any:
        drawn = [sample(logits, rng, **options) for _ in range(1000)]
        return np.bincount(drawn, minlength=4) / len(drawn)

    for options, expected in (
        ({"temperature": 1, "top_p": 1}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 1, "top_p": 0.65}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1, "top_p": 0.01}, [0, 1, 0, 0]),
        ({"temperature": 0.5, "top_p": 1}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"temperature": 0.01, "top_p": 1}, [0, 1, 0, 0]),
    ):
        assert np.abs(shares(**options) - expected).max() < 0.05, options


def test_every_example_is_checked_here() -> None:
    examples = sorted(EXAMPLES.glob("[0-9]*.py"))
    assert [path.name for path in examples] == sorted(PROMISES)
    for path in examples:
        ast.parse(path.read_text("utf-8"), path.name)


@tiered("name", PROMISES, keep=(1,))
def test_example(name: str, tmp_path: Path) -> None:
    done = finished([sys.executable, EXAMPLES / name], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for promise in PROMISES[name]:
        assert promise in done.stdout
    if name == "12_planted_bugs.py" and PAGE_RENDERER in done.stdout:
        texts, found = planted_bugs_on_the_page()
        lines = done.stdout.splitlines()
        assert texts == [line for line in lines if not line.startswith(("  verify", "    "))]
        without_text = [line for line in lines if not line.startswith("  writes")]
        assert found == without_text


@pytest.mark.slow
def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter's kernel runs it; it is kept without outputs, since the page alone has 14 MB."""
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed; pip install -e '.[all-tests]'")
    client = pytest.importorskip("nbclient", reason="nbclient is not installed; pip install -e '.[all-tests]'")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent), prepend=":")
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert [cell.outputs for cell in code.values()] == [[]] * len(code)
    client.NotebookClient(notebook, timeout=DEADLINE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {name: "".join(map(str, cell.outputs)) for name, cell in code.items()}
    with glinfer.load("shakespeare") as model:
        want = model.generate("ROMEO:", max_tokens=60, seed=1)
    assert "".join(output.text for output in code["stream"].outputs) == want
    assert "6 float32 arrays" in shown["capture"]
    assert "image/png" in shown["picture"]
    assert "244 and 39" in shown["draws"]
    assert "<table>" in shown["draws"]
    assert "TourDraw(number=17" in shown["tour"]
    assert "<iframe srcdoc=" in shown["page"]


def test_the_page_has_the_bugs_in_two_parts() -> None:
    texts, found = planted_bugs_on_the_page()
    assert PAGE_RENDERER in "".join(texts)
    for part in (texts, found):
        assert [line for line in part if not line.startswith(" ")] == [
            "as it is",
            "feedback loop",
            "transposed weight",
            "linear filtering",
            "integer uniform as float",
            "samplers of lowp",
        ]


def planted_bugs_on_the_page() -> tuple[list[str], list[str]]:
    """What docs/diagnostics.md shows of example 12: what the model writes with each bug, and what verify finds."""
    text = (EXAMPLES.parent / "docs" / "diagnostics.md").read_text("utf-8")
    blocks = [block.partition("\n```")[0].splitlines() for block in text.split("```text\n")[1:]]
    texts, found = (block for block in blocks if block[0] == "as it is")
    return texts, found
