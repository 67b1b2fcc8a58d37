#!/usr/bin/env python3
"""Reproduces vectors of keys from what proto/keys/README.md and the public description of XXH3 say, and from nothing
else: no package, none of the project's code. It is the proof that the page is enough to write a binding from.

usage: test_keys_vectors.py VECTORS…
"""
import hashlib
import struct
import sys

M64 = 2**64 - 1

# ---- XXH3 of 128 bits, as xxHash's doc/xxhash_spec.md describes it

P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
PMX1 = 0x165667919E3779F9
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
ACC0 = (P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0])


def u32(b, at):
    return struct.unpack_from("<I", b, at)[0]


def u64(b, at):
    return struct.unpack_from("<Q", b, at)[0]


def fold(a, b):
    """The two halves of a product of 128 bits, one over the other."""
    p = a * b
    return (p & M64) ^ (p >> 64)


def avalanche(x):
    x ^= x >> 37
    x = x * PMX1 & M64
    return x ^ x >> 32


def mix16(b, at, secret, s_at, seed):
    return fold(u64(b, at) ^ (u64(secret, s_at) + seed & M64), u64(b, at + 8) ^ (u64(secret, s_at + 8) - seed & M64))


def mix32(low, high, b, i, j, secret, s_at, seed):
    low = (low + mix16(b, i, secret, s_at, seed) & M64) ^ (u64(b, j) + u64(b, j + 8) & M64)
    high = (high + mix16(b, j, secret, s_at + 16, seed) & M64) ^ (u64(b, i) + u64(b, i + 8) & M64)
    return low & M64, high & M64


def end_mid(low, high, n, seed):
    out_low = avalanche(low + high & M64)
    out_high = avalanche(low * P64[0] + high * P64[3] + (n - seed) * P64[1] & M64)
    return out_low, -out_high & M64


def hash_17_to_128(b, seed):
    n = len(b)
    low, high = n * P64[0] & M64, 0
    for i in range((n - 1) // 32, -1, -1):
        low, high = mix32(low, high, b, 16 * i, n - 16 * (i + 1), SECRET, 32 * i, seed)
    return end_mid(low, high, n, seed)


def hash_129_to_240(b, seed):
    n = len(b)
    low, high = n * P64[0] & M64, 0
    for i in range(4):
        low, high = mix32(low, high, b, 32 * i, 32 * i + 16, SECRET, 32 * i, seed)
    low, high = avalanche(low), avalanche(high)
    for i in range(4, n // 32):
        low, high = mix32(low, high, b, 32 * i, 32 * i + 16, SECRET, 3 + 32 * (i - 4), seed)
    low, high = mix32(low, high, b, n - 16, n - 32, SECRET, 136 - 17 - 16, -seed & M64)
    return end_mid(low, high, n, seed)


def accumulate(acc, b, at, secret, s_at):
    for i in range(8):
        value = u64(b, at + 8 * i)
        key = value ^ u64(secret, s_at + 8 * i)
        acc[i ^ 1] = acc[i ^ 1] + value & M64
        acc[i] = acc[i] + (key & 0xFFFFFFFF) * (key >> 32) & M64


def scramble(acc, secret):
    for i in range(8):
        a = acc[i] ^ acc[i] >> 47 ^ u64(secret, len(secret) - 64 + 8 * i)
        acc[i] = a * P32[0] & M64


def merge(acc, secret, s_at, start):
    out = start
    for i in range(4):
        out += fold(acc[2 * i] ^ u64(secret, s_at + 16 * i), acc[2 * i + 1] ^ u64(secret, s_at + 16 * i + 8))
    return avalanche(out & M64)


def hash_long(b, seed):
    secret = b"".join(struct.pack("<QQ", u64(SECRET, i) + seed & M64, u64(SECRET, i + 8) - seed & M64)
                      for i in range(0, len(SECRET), 16))
    n = len(b)
    stripes = (len(secret) - 64) // 8
    block = 64 * stripes
    acc = list(ACC0)
    blocks = (n - 1) // block
    for k in range(blocks):
        for i in range(stripes):
            accumulate(acc, b, k * block + 64 * i, secret, 8 * i)
        scramble(acc, secret)
    for i in range((n - 1 - block * blocks) // 64):
        accumulate(acc, b, blocks * block + 64 * i, secret, 8 * i)
    accumulate(acc, b, n - 64, secret, len(secret) - 64 - 7)
    return (merge(acc, secret, 11, n * P64[0] & M64),
            merge(acc, secret, len(secret) - 64 - 11, ~(n * P64[1]) & M64))


def xxh3_128(b, seed):
    """Canonical bytes: big-endian. A block's input has 20 bytes and more, a root's 126: no way for less is needed."""
    assert len(b) > 16
    low, high = (hash_17_to_128 if len(b) <= 128 else hash_129_to_240 if len(b) <= 240 else hash_long)(b, seed)
    return struct.pack(">QQ", high, low)


# ---- proto/keys/README.md

NUMBERS = ("kv_dtype", "layout", "layers", "kv_heads", "head_dim", "latent_dim", "latent_rope_dim", "block_tokens",
           "rope_base_bits", "rope_scale_bits", "ranks")
TAGS = (("model", 1), ("weights", 2), ("kv_dtype", 3), ("layout", 4), ("layers", 5), ("kv_heads", 6), ("head_dim", 7),
        ("latent_dim", 8), ("latent_rope_dim", 9), ("block_tokens", 10), ("rope_base_bits", 11),
        ("rope_scale_bits", 12), ("adapter", 13), ("numerics", 14), ("ranks", 15))


def field(tag, data):
    return struct.pack("<HQ", tag, len(data)) + data


def hex_bytes(text):
    return b"" if text == "-" else bytes.fromhex(text)


def space(line):
    h = hashlib.blake2b(key=b"kvdepot space 1", digest_size=32)
    for name, tag in TAGS:
        h.update(field(tag, struct.pack("<Q", int(line[name])) if name in NUMBERS else hex_bytes(line[name])))
    return h.hexdigest()


def payload_bytes(line):
    d = {name: int(line[name]) for name in NUMBERS}
    heads = d["layout"] == 1
    elements = 2 * d["kv_heads"] * d["head_dim"] if heads else d["latent_dim"] + d["latent_rope_dim"]
    size = {1: 2, 2: 2, 3: 4, 4: 1}[d["kv_dtype"]]
    scales = 0 if d["kv_dtype"] != 4 else 4 * d["layers"] * (2 * d["kv_heads"] if heads else 1)
    return d["layers"] * d["block_tokens"] * elements * size + scales


def tenant(line):
    name = hex_bytes(line["name"])
    if not name:
        return bytes(32).hex()
    return hashlib.blake2b(field(32, name), key=b"kvdepot tenant 1", digest_size=32).hexdigest()


def root(line):
    extra = hex_bytes(line["extra"]) or bytes(32)
    data = field(48, hex_bytes(line["space"])) + field(49, hex_bytes(line["tenant"])) + field(50, extra)
    return xxh3_128(data, int(line["seed"])).hex()


def block_key(seed, parent, tokens):
    return xxh3_128(parent + struct.pack("<%dI" % len(tokens), *tokens), seed)


def numbers(text):
    return [int(t) for t in text.split(",")]


def block(line):
    return block_key(int(line["seed"]), hex_bytes(line["parent"]), numbers(line["tokens"])).hex()


def chain(line):
    tokens, n = numbers(line["tokens"]), int(line["block_tokens"])
    parent, keys = hex_bytes(line["root"]), []
    for at in range(0, len(tokens) - n + 1, n):
        parent = block_key(int(line["seed"]), parent, tokens[at:at + n])
        keys.append(parent.hex())
    return ",".join(keys)


def groups(line):
    keys = line["out"].split(",")
    return ",".join(keys[i - i % 32][:24] for i in range(len(keys)))


KINDS = {"space": space, "tenant": tenant, "root": root, "block": block, "chain": chain}


def check(kind, line):
    good = KINDS[kind](line) == line["out"]
    if kind == "space":
        good = good and payload_bytes(line) == int(line["payload_bytes"])
    if kind == "chain":
        good = good and groups(line) == line["groups"]
    return good


def main(paths):
    passed, failed, seen = 0, 0, set()
    for path in paths:
        with open(path, encoding="ascii") as f:
            for number, text in enumerate(f, 1):
                if text.startswith("#"):
                    continue
                kind, *fields = text.split()
                seen.add(kind)
                if check(kind, dict(part.split("=", 1) for part in fields)):
                    passed += 1
                else:
                    failed += 1
                    print("failed: %s:%d: %s" % (path, number, kind))
    for kind in sorted(KINDS.keys() - seen):
        failed += 1
        print("failed: there is no vector of kind %s" % kind)
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return 1 if failed else 0


sys.exit(main(sys.argv[1:]))
