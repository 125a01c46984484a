"""Templates of models that think between ``<think>`` and ``</think>``, and what their replies are."""

from __future__ import annotations

import tokenizers
from template_models import CHATML, byte_library

MARKS = ("<think>", "</think>")
VOCABULARIES = {
    "of bytes": (),
    "with marks": MARKS,
    "with parts of marks": (".</", "<th", ">\n", "\n\n", "k> Y", "k>\n", "k>>\n\n", "r>D"),
}
"""Tokens of several letters."""
_OPENED = "<|im_start|>assistant\\n"
TEMPLATES = {
    "may think": CHATML + "{# </think> #}",
    "thinks": CHATML.replace(_OPENED, _OPENED + "<think>\\n"),
    "wraps answers": CHATML + "{# </think> </answer> #}",
    "is not to think": CHATML.replace(_OPENED, _OPENED + "<think>\\n\\n</think>\\n\\n"),
}
REPLIES = [
    ("may think", "<think>\n Hm.\n\nOh. \n</think>\n\n Yes.\n", "Hm.\n\nOh.", "Yes.\n"),
    ("may think", "\n Yes.", "", "\n Yes."),
    ("may think", "Say <think>, then </think>.", "", "Say <think>, then </think>."),
    ("may think", "<think>\nHm", "Hm", ""),
    ("may think", "<think>\n\n</think>\n\nYes.<think>", "", "Yes.<think>"),
    ("thinks", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("thinks", "<think>A <think> é</think></think>", "A <think> é", "</think>"),
    ("thinks", "\nHm.</think> Yes.", "Hm.", "Yes."),
    ("thinks", " \n", "", ""),
    ("thinks", "Hm </th</think>>\n\né", "Hm </th", ">\n\né"),
    ("thinks", "Hm.</thin", "Hm.</thin", ""),
    ("may think", "<thin ice>", "", "<thin ice>"),
    ("may think", "<think>A</think><answer>B</answer>", "A", "<answer>B</answer>"),
    ("wraps answers", "<think>A</think>\n<answer>\nB\n</answe\n</answer>\n", "A", "B\n</answe"),
    ("wraps answers", "<think>A</think><answer>B\nC</answer>D", "A", "B\nCD"),
    ("wraps answers", "<think>A</think>B<answer>\n</answer>", "A", "B<answer>\n</answer>"),
    ("wraps answers", "<answer>B</answer>", "", "B"),
    ("is not to think", "Yes.</think>", "", "Yes.</think>"),
    ("is not to think", "<think>A</think>B", "A", "B"),
]
"""By the name of a template: a reply, its thoughts and its answer."""


def library_of(*marks: str, special: bool = False) -> tokenizers.Tokenizer:
    """A tokenizer of bytes with these marks; text may spell those that are not special."""
    library = byte_library()
    library.add_tokens([tokenizers.AddedToken(mark, normalized=False, special=special) for mark in marks])
    return library
