#!/usr/bin/env python3
"""Makes the golden vectors of this folder from an implementation that shares nothing with kvdepot's.

Logits: a forward pass in float64 over the weights that the `gguf` package dequantises. Token ids: the `tokenizers`
package, given the vocabulary and merges of the file and the pre-tokenizer that SmolLM2 was published with; bytes
that aren't UTF-8, which that package can't take, by a plain byte-pair encoder that is first checked against it.
Formats: README.md. Needs numpy, gguf, tokenizers from PyPI.

Usage: make_golden.py MODEL.gguf               writes tokenizer.txt and logits.txt
       make_golden.py --tiny TINY.gguf         writes logits_tiny.txt (TINY made by `kvd-tiny-gguf TINY 7`)
"""
import hashlib
import pathlib
import random
import sys

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
TOP = 20


# ---------------------------------------------------------------- forward pass


def rope(x, positions, base):
    """Rotates pairs (2i, 2i+1) of the last axis. x: [tokens, heads, dim]."""
    dim = x.shape[-1]
    freq = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    angle = positions[:, None] * freq[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos
    return out


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.tensors = {t.name: t for t in reader.tensors}
        self.fields = reader.fields
        self.sha256 = hashlib.sha256(open(path, "rb").read()).hexdigest()
        self.layers = self.key("llama.block_count")
        self.heads = self.key("llama.attention.head_count")
        self.kv_heads = self.key("llama.attention.head_count_kv")
        self.eps = self.key("llama.attention.layer_norm_rms_epsilon")
        self.base = float(self.key("llama.rope.freq_base"))

    def key(self, name):
        return self.fields[name].contents()

    def weight(self, name):
        t = self.tensors[name]
        return dequantize(t.data, t.tensor_type).astype(np.float64)

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weight(name)

    def attention(self, q, k, v):
        """q: [tokens, heads, dim]; k, v: [tokens, kv_heads, dim]. Causal."""
        n, _, dim = q.shape
        share = self.heads // self.kv_heads
        mask = np.triu(np.full((n, n), -np.inf), 1)
        out = np.empty_like(q)
        for h in range(self.heads):
            scores = q[:, h] @ k[:, h // share].T / np.sqrt(dim) + mask
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, h] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, h // share]
        return out

    def layer(self, n, xs):
        """One layer over several sequences, so that its weights are dequantised once."""
        w = {r: self.weight(f"blk.{n}.{r}.weight") for r in
             ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
        outs, ks, vs = [], [], []
        for x in xs:
            t = len(x)
            h = self.norm(x, f"blk.{n}.attn_norm.weight")
            pos = np.arange(t, dtype=np.float64)
            q = rope((h @ w["attn_q"].T).reshape(t, self.heads, -1), pos, self.base)
            k = rope((h @ w["attn_k"].T).reshape(t, self.kv_heads, -1), pos, self.base)
            v = (h @ w["attn_v"].T).reshape(t, self.kv_heads, -1)
            x = x + self.attention(q, k, v).reshape(t, -1) @ w["attn_output"].T
            h = self.norm(x, f"blk.{n}.ffn_norm.weight")
            gate = h @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
            outs.append(x)
            ks.append(k)
            vs.append(v)
        return outs, ks, vs

    def forward(self, sequences, watch=None):
        """Final normed states of each sequence. watch(layer, xs, ks, vs) sees each layer's results."""
        embedding = self.weight("token_embd.weight")
        xs = [embedding[np.array(s)] for s in sequences]
        for n in range(self.layers):
            xs, ks, vs = self.layer(n, xs)
            if watch:
                watch(n, xs, ks, vs)
        return [self.norm(x, "output_norm.weight") for x in xs]

    def logits(self, states):
        name = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        return states @ self.weight(name).T


# ---------------------------------------------------------------- tokenizer


class Tokens:
    def __init__(self, model):
        self.texts = model.key("tokenizer.ggml.tokens")
        types = model.key("tokenizer.ggml.token_type")
        merges = [tuple(m.split(" ")) for m in model.key("tokenizer.ggml.merges")]
        self.ids = {t: i for i, t in enumerate(self.texts)}
        self.ranks = {m: i for i, m in enumerate(merges)}
        self.specials = [t for t, kind in zip(self.texts, types) if kind == 3]
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [b for b in range(256) if b not in printable]
        self.alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
        self.with_special = self.build(self.ids, merges)
        self.plain = self.build(self.ids, merges)
        self.plain.encode_special_tokens = True

    def build(self, vocab, merges):
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False))
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False)])
        t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in self.specials])
        return t

    def piece(self, data):
        """Plain byte-pair encoding of one piece."""
        parts = [self.alphabet[b] for b in data if self.alphabet[b] in self.ids]
        while len(parts) > 1:
            ranks = [self.ranks.get(p, 1 << 30) for p in zip(parts, parts[1:])]
            best = min(ranks)
            if best == 1 << 30:
                break
            at = ranks.index(best)
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[p] for p in parts]

    def encode(self, data, special):
        """Ids of bytes: runs of UTF-8 through `tokenizers`, other runs as one piece each."""
        text = data.decode("utf-8", errors="surrogateescape")
        ids, run, bad = [], "", b""
        for c in text + "\0":
            is_bad = 0xDC80 <= ord(c) <= 0xDCFF
            if bad and not is_bad:
                ids += self.piece(bad)
                bad = b""
            if is_bad:
                ids += self.utf8(run, special)
                run, bad = "", bad + bytes([ord(c) - 0xDC00])
            else:
                run += c
        return ids + self.utf8(run[:-1], special)

    def utf8(self, text, special):
        if not text:
            return []
        ids = (self.with_special if special else self.plain).encode(text, add_special_tokens=False).ids
        if not special:  # the plain encoder must agree before it may speak for broken bytes
            parts = self.plain.pre_tokenizer.pre_tokenize_str(text)
            reverse = {c: b for b, c in self.alphabet.items()}
            assert ids == [i for p, _ in parts for i in self.piece(bytes(reverse[c] for c in p))], repr(text)
        return ids


CODE = '''def mean(values: list[float]) -> float:
    """Arithmetic mean; raises ValueError on nothing."""
    if not values:
        raise ValueError("empty")

    total = 0.0
    for i, v in enumerate(values):
        total += v * 1e-3  # keep it small
\treturn total / len(values)


int main(void) { for (int i = 0; i < 10; ++i) { printf("%d\\n", i); } return 0; }
'''

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "  a", "a ", "a  ", "Hello", "Hello, world!", "hello world", "HELLO WORLD",
    "The quick brown fox jumps over the lazy dog.", "\n", "\n\n", "\n\n\n", "a\nb", "a\n\nb", "a\n \nb", " \n ",
    "\t", "\t\tx", "a\t b", "x\r\ny\r\n", "    indented\n        more\n", "trailing spaces   \n  next",
    "I'm you're he's we've they'll I'd can't", "I'M YOU'RE", "'s't're", "don''t", "rock'n'roll", "'", "''", "l'été",
    "0", "1234567890", "3.14159", "1,000,000.00", "x1y22z333", "in 2024 there were 365 days", "  12  34", " 7", "7 ",
    "12:34:56", "½ ² Ⅷ ٣ ४ 一二三", "v1.2.3-rc4", "!?...", " !!! ", "a!b?c", "==> <== != && ||", "/usr/lib/x86_64-linux-gnu",
    "https://example.org/a?b=c&d=e#f", "user@example.org", "snake_case camelCase PascalCase kebab-case",
    "naïve café über straße", "Привет, мир!", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
    "你好，世界！", "こんにちは世界", "안녕하세요 세계", "今天是2024年1月31日。", "🙂", "🙂🙃 text 👩‍👩‍👧‍👦 🇳🇴", "e\u0301 combining",
    "\u00a0nbsp\u00a0\u00a0two", "\u3000ideographic\u3000 space", "a\u2003\u2003b", "\u180ex", "a\u200bb", "\u0085next",
    "line\u2028sep\u2029para", "\x00", "a\x00b", "\x01\x04\x06\x1b[0m\x1f", "\x1c \x1d\x1e x", "\ufeffbom", "\U000f0000 private",
    "\U0010ffff", "ﬁ ﬂ Ⅳ ℵ", "𝒜𝓁𝑔", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n",
    "a<|im_end|>b", "<|im_end", "<|im_start|><|im_start|>", "<|im_start|> x", "<filename>a.c<gh_stars>1",
    "<repo_name><reponame>", "<|IM_START|>", "don't <|endoftext|> stop", CODE,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "=" * 70, " " * 33 + "x", "\n" * 9 + "x", "ab" * 40, "{'a': [1, 2, {\"b\": null}]}", "SELECT * FROM t WHERE x >= 10;--",
]

BYTES = [
    b"\xff", b"\x80", b"a\xffb", b" \xff ", b"\xc3", b"\xc3(", b"\xe4\xbd", b"\xe4\xbd\xa0\xe5", b"\xf0\x9f\x99", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xe0\x80\xaf", b"abc \xa0\xa1\xa2\xa3 def", b"\xfe\xfftext", b"latin1: caf\xe9 na\xefve",
    b"\xe2\x80\xe2\x80\xa8", b"<|im_start|>\xff<|im_end|>",
]


def random_texts(n):
    rng = random.Random(20240131)
    atoms = [" ", " ", "  ", "\n", "\n\n", "\t", "a", "The", " the", "ing", "'s", "'", "'ll", "0", "42", "é", "ß", "你", "好", "🙂", "!",
             "...", "-", "_", "\u00a0", "\u3000", "\u2028", "²", "٣", "\u0301", "<|im_end|>", "<|im_", "X", "\x1f", "\x85"]
    return ["".join(rng.choice(atoms) for _ in range(rng.randint(3, 40))) for _ in range(n)]


def write_tokenizer(tokens, sha256):
    datas = [t.encode("utf-8") for t in TEXTS + random_texts(60)] + BYTES
    with open(HERE / "tokenizer.txt", "w", encoding="ascii") as out:
        out.write(f"# Made by make_golden.py; format in README.md.\nmodel {sha256}\n")
        for data in datas:
            plain, special = tokens.encode(data, False), tokens.encode(data, True)
            for flag, ids in (("0", plain), ("1", special)) if special != plain else (("*", plain),):
                out.write(f"{flag} {data.hex() or '-'} {' '.join(map(str, ids))}".rstrip() + "\n")


# ---------------------------------------------------------------- logits


def chat(*turns):
    text = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    for role, content in turns:
        text += f"<|im_start|>{role}\n{content}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def numbers(values):
    return " ".join(f"{v:.7g}" for v in values)


def continue_greedily(model, ids, n):
    ids = list(ids)
    for _ in range(n):
        state = model.forward([ids])[0][-1:]
        ids.append(int(np.argmax(model.logits(state)[0])))
    return ids


class Writer:
    def __init__(self, path, model):
        self.model = model
        self.out = open(path, "w", encoding="ascii")
        self.out.write(f"# Made by make_golden.py; format in README.md.\nmodel {model.sha256}\n")

    def position(self, pos, logits):
        top = np.argsort(-logits, kind="stable")[:TOP]
        peak = logits.max()
        lse = peak + np.log(np.exp(logits - peak).sum())
        self.out.write(f"top {pos} {lse:.7g} " + " ".join(f"{i}:{logits[i]:.7g}" for i in top) + "\n")

    def nll(self, ids, logits):
        peak = logits.max(axis=-1, keepdims=True)
        lse = (peak + np.log(np.exp(logits - peak).sum(axis=-1, keepdims=True)))[:, 0]
        lp = logits[np.arange(len(ids) - 1), ids[1:]] - lse[:-1]
        self.out.write(f"next {numbers(lp)}\n")
        return float(np.exp(-lp.mean()))

    def cases(self, cases, watched, layers):
        """cases: (name, prompt length, ids, positions or 'all'). watched: index of the case with activations."""
        kept = []

        def watch(n, xs, ks, vs):
            if n in layers:
                kept.append((n, xs[watched][-1], ks[watched][-1], vs[watched][-1]))

        states = self.model.forward([c[2] for c in cases], watch)
        for i, ((name, n_prompt, ids, positions), state) in enumerate(zip(cases, states)):
            self.out.write(f"case {name} {len(ids)} {n_prompt}\nids {' '.join(map(str, ids))}\n")
            logits = self.model.logits(state)
            for p in positions:
                self.position(p, logits[p])
            ppl = self.nll(ids, logits)
            print(f"{name}: {len(ids)} tokens, perplexity {ppl:.4f}")
            if i == watched:
                for n, x, k, v in kept:
                    self.out.write(f"key {n} {len(ids) - 1} {numbers(k.ravel())}\n")
                    self.out.write(f"value {n} {len(ids) - 1} {numbers(v.ravel())}\n")
                    self.out.write(f"layer {n} {len(ids) - 1} {numbers(x)}\n")
                self.out.write(f"final {len(ids) - 1} {numbers(state[-1])}\n")
        self.out.close()


def write_logits(model, tokens):
    def enc(text):
        return tokens.encode(text.encode("utf-8"), True)

    def spread(n, count):
        return sorted({0, n - 1, *((63, 64) if n > 65 else ()), *np.linspace(0, n - 1, count).astype(int).tolist()})

    prose = (HERE / "prose.txt").read_text(encoding="utf-8")
    short = enc("Water boils at 100 degrees Celsius, and it freezes at")[:16]
    code = enc(CODE)
    question = enc(chat(("user", "What is the capital of France?")))
    answered = continue_greedily(model, question, 16)
    print(repr(tokens.with_special.decode(answered[len(question):], skip_special_tokens=False)))
    turns = enc(chat(("user", "Tell me about harbours. " + prose[:900]), ("assistant", "Harbours freeze in winter."),
                     ("user", "你好! And 12 + 30?")))
    text = enc(prose)
    cases = [
        ("short", len(short), short, range(len(short))),
        ("code", len(code), code, spread(len(code), 10)),
        ("chat", len(question), answered, range(len(question) - 1, len(answered))),
        ("turns", len(turns), turns, spread(len(turns), 12)),
        ("prose", len(text), text, spread(len(text), 16)),
    ]
    Writer(HERE / "logits.txt", model).cases(cases, 0, {0, 1, model.layers // 2, model.layers - 1})


def write_tiny(model):
    rng = random.Random(7)
    vocab = len(model.key("tokenizer.ggml.tokens"))
    cases = []
    for n in (5, 64, 65, 200):
        ids = [rng.randrange(vocab) for _ in range(n)]
        cases.append((f"random{n}", n, ids, sorted({0, n // 2, n - 2, n - 1})))
    Writer(HERE / "logits_tiny.txt", model).cases(cases, 0, set(range(model.layers)))


def main():
    if sys.argv[1] == "--tiny":
        write_tiny(Model(sys.argv[2]))
        return
    model = Model(sys.argv[1])
    tokens = Tokens(model)
    write_tokenizer(tokens, model.sha256)
    write_logits(model, tokens)


main()
