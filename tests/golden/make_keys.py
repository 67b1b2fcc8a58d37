#!/usr/bin/env python3
"""Writes proto/keys/golden_vectors.txt: make_keys.py > proto/keys/golden_vectors.txt

Follows proto/keys/README.md and shares no code with proto/keys/keys.c. Needs the package xxhash from PyPI.
"""
import hashlib
import random
import struct

import xxhash

TAGS = {
    "model": 1, "weights": 2, "kv_dtype": 3, "layout": 4, "layers": 5, "kv_heads": 6, "head_dim": 7, "latent_dim": 8,
    "latent_rope_dim": 9, "block_tokens": 10, "rope_base_bits": 11, "rope_scale_bits": 12, "adapter": 13,
    "numerics": 14, "ranks": 15,
}
TAG_TENANT_NAME, TAG_ROOT_SPACE, TAG_ROOT_TENANT, TAG_ROOT_EXTRA = 32, 48, 49, 50
F16, BF16, F32, FP8 = 1, 2, 3, 4
HEADS, LATENT = 1, 2
ELEMENT_BYTES = {F16: 2, BF16: 2, F32: 4, FP8: 1}


def field(tag, data):
    return struct.pack("<HQ", tag, len(data)) + data


def space_digest(desc):
    h = hashlib.blake2b(key=b"kvdepot space 1", digest_size=32)
    for name, tag in TAGS.items():
        value = desc[name]
        h.update(field(tag, value if isinstance(value, bytes) else struct.pack("<Q", value)))
    return h.digest()


def payload_bytes(d):
    if d["layout"] == HEADS:
        elements = 2 * d["kv_heads"] * d["head_dim"]
        scales = 2 * d["kv_heads"]
    else:
        elements = d["latent_dim"] + d["latent_rope_dim"]
        scales = 1
    n = d["layers"] * d["block_tokens"] * elements * ELEMENT_BYTES[d["kv_dtype"]]
    return n + (4 * d["layers"] * scales if d["kv_dtype"] == FP8 else 0)


def tenant_digest(name):
    if not name:
        return bytes(32)
    h = hashlib.blake2b(key=b"kvdepot tenant 1", digest_size=32)
    h.update(field(TAG_TENANT_NAME, name))
    return h.digest()


def root_key(seed, space, tenant, extra):
    data = field(TAG_ROOT_SPACE, space) + field(TAG_ROOT_TENANT, tenant) + field(TAG_ROOT_EXTRA, extra or bytes(32))
    return xxhash.xxh3_128_digest(data, seed=seed)


def block_key(seed, parent, tokens):
    return xxhash.xxh3_128_digest(parent + struct.pack("<%dI" % len(tokens), *tokens), seed=seed)


def show(value):
    if isinstance(value, bytes):
        return value.hex() or "-"
    if isinstance(value, list):
        return ",".join(show(v) for v in value)
    return str(value)


def line(kind, **values):
    print(kind, " ".join("%s=%s" % (k, show(v)) for k, v in values.items()))


def double_bits(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def spaces(rnd):
    smol = {
        "model": b"SmolLM2-135M-Instruct", "weights": rnd.randbytes(32), "kv_dtype": F16, "layout": HEADS, "layers": 30,
        "kv_heads": 3, "head_dim": 64, "latent_dim": 0, "latent_rope_dim": 0, "block_tokens": 64,
        "rope_base_bits": double_bits(100000.0), "rope_scale_bits": double_bits(1.0), "adapter": bytes(32),
        "numerics": b"q8a-f32-1", "ranks": 1,
    }
    latent = dict(smol, model="名前".encode(), layout=LATENT, kv_dtype=BF16, layers=61, kv_heads=0, head_dim=0,
                  latent_dim=512, latent_rope_dim=64, ranks=8, adapter=rnd.randbytes(32))
    longest = dict(smol, model=b"m" * 255, numerics=b"n" * 255, kv_dtype=F32, layers=1, kv_heads=1, head_dim=1,
                   block_tokens=1, weights=b"\xff" * 32, rope_scale_bits=double_bits(0.25), ranks=1024)
    return [smol, latent, longest, dict(smol, kv_dtype=FP8), dict(latent, kv_dtype=FP8, block_tokens=1024)]


def main():
    rnd = random.Random(20260131)
    print("# Keys of kvdepot: inputs and what must come out. README.md beside this file explains the lines.")
    print("# Written by tests/golden/make_keys.py.")
    digests = []
    for desc in spaces(rnd):
        digests.append(space_digest(desc))
        line("space", **desc, payload_bytes=payload_bytes(desc), out=digests[-1])
    tenants = [b"", b"a", b"alice", "Zoë 名".encode(), b"\x00\xff", b"x" * 512]
    for name in tenants:
        line("tenant", name=name, out=tenant_digest(name))
    seeds = [0, 1, 0x9E3779B185EBCA87, 2**64 - 1]
    roots = []
    for i, seed in enumerate(seeds):
        for extra in (b"", rnd.randbytes(32)):
            space, tenant = digests[i % len(digests)], tenant_digest(tenants[i])
            roots.append(root_key(seed, space, tenant, extra))
            line("root", seed=seed, space=space, tenant=tenant, extra=extra, out=roots[-1])
    # the lengths lie on both sides of every bound at which XXH3 changes its way: 128, 240, 1024 bytes
    for n in (1, 2, 16, 28, 29, 56, 57, 64, 252, 253, 1024):
        for seed in seeds:
            parent = roots[n % len(roots)]
            tokens = [rnd.choice((0, 1, 2**32 - 1, rnd.randrange(50000))) for _ in range(n)]
            line("block", seed=seed, parent=parent, tokens=tokens, out=block_key(seed, parent, tokens))
    for block_tokens, blocks in ((4, 70), (64, 3)):
        tokens = [rnd.randrange(49152) for _ in range(block_tokens * blocks)]
        keys, parent = [], roots[2]
        for b in range(blocks):
            parent = block_key(seeds[2], parent, tokens[b * block_tokens:(b + 1) * block_tokens])
            keys.append(parent)
        groups = [keys[b - b % 32][:12] for b in range(blocks)]
        line("chain", seed=seeds[2], root=roots[2], block_tokens=block_tokens, tokens=tokens, out=keys, groups=groups)


main()
