#!/usr/bin/env python3
"""Writes tiny_vocab.txt: the vocabulary of the small generated model that tests use.

Its pieces are real: the first merges of SmolLM2's tokenizer, over all 256 bytes. Needs `gguf` from PyPI.
Usage: make_tiny_vocab.py MODEL.gguf tiny_vocab.txt
"""
import sys

from gguf import GGUFReader

VOCAB = 768
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def alphabet():
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return [table[b] for b in range(256)]


def main():
    fields = GGUFReader(sys.argv[1]).fields
    merges = fields["tokenizer.ggml.merges"].contents()[: VOCAB - 256 - len(SPECIALS)]
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write("# Made by make_tiny_vocab.py. Tokens in order of their ids, then what a merge makes.\n")
        for s in SPECIALS:
            out.write(f"special {s}\n")
        for c in alphabet():
            out.write(f"byte {c}\n")
        for m in merges:
            out.write(f"merge {m}\n")


main()
