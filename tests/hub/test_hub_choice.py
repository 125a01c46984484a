"""Which files of a repository a name takes."""

from __future__ import annotations

import pytest
from each_case import each_case

from glinfer.errors import HubError
from glinfer.formats.files import is_plain_path
from glinfer.hub.choice import Chosen, Repository, base_format, choose, gguf_choices, read_listing
from glinfer.hub.names import HubName

COMMIT = "c" * 40


def sized(files: dict[str, int], quant: str = "", path: str = "") -> Repository:
    entries = [
        {"rfilename": file, "size": size, "lfs": {"size": size, "sha256": "a" * 64}} for file, size in files.items()
    ]
    return read_listing(HubName("org/name", quant=quant, path=path), {"sha": COMMIT, "siblings": entries})


def repository(*files: str, quant: str = "", path: str = "") -> Repository:
    """Files of one megabyte, two megabytes and so on."""
    return sized({file: 1_000_000 * (number + 1) for number, file in enumerate(files)}, quant, path)


def chosen(found: Repository) -> Chosen:
    return choose(found, lambda index: ["model-1.safetensors"])


def taken(found: Repository) -> list[str]:
    return [file.path for file in chosen(found).files]


QUANTS = {
    **{"Qwen3-0.6B-Q8_0.gguf": "Q8_0", "llama-2-7b.Q4_K_M.gguf": "Q4_K_M", "Model.fp16.gguf": "FP16"},
    **{"gemma-UD-Q4_K_XL.gguf": "UD-Q4_K_XL", "BF16/model-BF16-00001-of-00002.gguf": "BF16", "q5_1.gguf": "Q5_1"},
    **{"Q6_K/model.gguf": "Q6_K", "Q8_0-draft-Q4_0.gguf": "Q4_0", "Qwen2-0.5B.gguf": "", "x-IQ2_XXS.gguf": "IQ2_XXS"},
}


@each_case("file, quant", QUANTS.items())
def test_the_weights_that_a_file_name_tells_of(file: str, quant: str) -> None:
    (found,) = gguf_choices(repository(file).files.values())
    assert found.quant == quant


def test_the_format_of_a_name() -> None:
    names = ("Q4_K_M", "UD-Q6_K_XL", "Q4_0", "IQ4_NL", "FP16", "BF16", "Q3_K_S", "MXFP4_MOE", "IQ9_M", "Q4_0_4_8", "")
    assert [base_format(name) for name in names] == [
        *("Q4_K", "Q6_K", "Q4_0", "IQ4_NL", "F16", "BF16", "Q3_K", "MXFP4"),
        *("", "", ""),
    ]


SIZES = {"Q2_K": 26, "Q4_0": 45, "Q4_K_M": 48, "Q4_1": 50, "Q5_K_S": 55, "Q5_K_M": 57, "Q8_0": 85, "IQ9": 90}
SIZES |= {"F16": 160, "F32": 320}


@each_case(
    ("files", "expected"),
    [
        (("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"), "m-Q4_K_M.gguf"),
        (("m-Q2_K.gguf", "m-Q8_0.gguf", "m-F16.gguf"), "m-Q8_0.gguf"),
        (("m-Q5_K_S.gguf", "m-Q5_K_M.gguf", "m-Q4_0.gguf"), "m-Q5_K_M.gguf"),
        (("m-Q4_0.gguf", "m-Q4_1.gguf", "m-IQ9_XS.gguf"), "m-Q4_1.gguf"),
        (("m-F32.gguf", "m-F16.gguf"), "m-F16.gguf"),
        (("m.gguf",), "m.gguf"),
        (("m-Q8_0.gguf", "mmproj-m-Q4_K_M.gguf", "m.imatrix.gguf"), "m-Q8_0.gguf"),
        (("m-UD-Q4_K_M.gguf", "m-Q8_0.gguf"), "m-UD-Q4_K_M.gguf"),
    ],
)
def test_a_name_without_weights_takes_the_usual_ones_else_the_best_that_are_read(
    files: tuple[str, ...], expected: str
) -> None:
    sizes = {file: next((size for quant, size in SIZES.items() if quant in file), 1) for file in files}
    assert taken(sized(sizes)) == [expected]
    assert taken(sized(dict(reversed(sizes.items())))) == [expected]


@each_case(
    "quant, expected",
    [("q8_0", "Q8_0"), ("f16", "fp16"), ("m-q2_k", "Q2_K"), ("M-Q2_K.GGUF", "Q2_K"), ("q4_k_xl", "UD-Q4_K_XL")],
)
def test_weights_are_matched_without_regard_to_case(quant: str, expected: str) -> None:
    files = ("m-Q8_0.gguf", "m-fp16.gguf", "m-Q2_K.gguf", "m-UD-Q4_K_XL.gguf")
    assert taken(repository(*files, quant=quant)) == [f"m-{expected}.gguf"]


@each_case(
    ("files", "quant", "words"),
    [
        (("a-Q4_K_M.gguf", "b-Q4_K_M.gguf"), "", r"2 files of Q4_K_M; choose one of a-Q4_K_M \(1\.0 MB\), b-Q4_K_M"),
        (("a-Q8_0.gguf", "b-Q8_0.gguf", "a-Q2_K.gguf"), "q8_0", r"2 files of q8_0; .* a-Q8_0 .*, b-Q8_0 [^,]*, as"),
        (("a-Q8_0.gguf", "a-Q2_K.gguf"), "Q6_K", r"has no Q6_K; choose one of Q2_K \(2\.0 MB\), Q8_0 .*org/name:Q2_K"),
        (("a.gguf", "b.gguf"), "", r"no usual one; choose one of a \(1\.0 MB\), b \(2\.0 MB\), as org/name:a"),
        (("config.json", "model.safetensors"), "Q8_0", "has no GGUF files; leave out :Q8_0"),
        (("README.md", "pytorch_model.bin"), "", r"has files that end in \.bin, \.md; expected a \.gguf file"),
        ((), "", "has no files"),
        (("m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"), "", "has 2 of the 3 parts of m-Q8_0"),
    ],
)
def test_several_or_none_are_told_with_sizes_and_nothing_is_guessed(
    files: tuple[str, ...], quant: str, words: str
) -> None:
    with pytest.raises(HubError, match=words):
        chosen(repository(*files, quant=quant))


def test_a_folder_of_a_repository_is_a_model_of_its_own() -> None:
    files = ("a/m-Q8_0.gguf", "b/config.json", "b/model.safetensors", "b/tokenizer.json", "config.json")
    assert taken(repository(*files, path="a")) == ["a/m-Q8_0.gguf"]
    assert taken(repository(*files, path="b")) == ["b/config.json", "b/tokenizer.json", "b/model.safetensors"]
    assert taken(repository(*files, path="b/model.safetensors"))[-1] == "b/model.safetensors"
    with pytest.raises(HubError, match="has no file or folder c"):
        chosen(repository(*files, path="c"))
    with pytest.raises(HubError, match=r"b/tokenizer\.json is not a model"):
        chosen(repository(*files, path="b/tokenizer.json"))
    sharded = ("config.json", "model.safetensors.index.json", "model-1.safetensors")
    assert taken(repository(*sharded)) == list(sharded), "shards are in the index"


def test_paths_that_may_lead_elsewhere() -> None:
    for path in ("a", "a/b.gguf", "ä/模型.gguf", ".hidden", "a b", "console.gguf", "a..b", "x/" * 15 + "y"):
        assert is_plain_path(path), path
    for path in (
        *("", "/a", "a/", "a//b", "..", "../a", "a/../b", "./a", "a/.", "a\\b", "C:a", "a\0b", "a\nb", "a\u202eb"),
        *("con", "AUX.gguf", "a/nul", "com1.txt", "lpt9", "a.", "a ", "a/b. ", "x" * 201, "x/" * 20 + "y", "a\ud800"),
        *("a?b", "a*", "a|b", "<a>", 'a"b'),
    ):
        assert not is_plain_path(path), path
