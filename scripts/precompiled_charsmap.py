"""Builds a precompiled_charsmap from arbitrary rules, for the normalizer Precompiled of Hugging Face tokenizers.

Layout: u32 size of the trie in bytes; the trie, a double array of u32 units in Darts-clone's layout; the replacement
texts, each terminated by NUL. The value of a key is the offset of its replacement text.
"""

import struct

# Characters of all grapheme cluster classes. The rules below reveal the boundaries of clusters of less than six bytes.
CLUSTERS = [
    "a",
    "b",
    "\r",
    "\n",
    "\u00a9",
    "\u2122",
    "\U0001f600",
    "\U0001f1e6",
    "\u200d",
    "\u200c",
    "\u0301",
    "\u0308",
    "\u0903",
    "\ufe0f",
    "\u0600",
    "\u06dd",
    "\u0915",
    "\u0937",
    "\u094d",
    "\u093c",
    "\u0995",
    "\u09cd",
    "\u1000",
    "\u1039",
    "\u1780",
    "\u17d2",
    "\u1100",
    "\u1161",
    "\u11a8",
    "\uac00",
    "\uac01",
    "\u200b",
    "\u00ad",
    "\u00e9",
    "e",
    "\u0435",
    "\u0e33",
    "\U00011347",
    "\U000e0020",
    "\u302a",
    "\u1b44",
    "\u1b13",
    "\U00016d63",
    "\u0378",
]
CLUSTER_RULES = {c: f"<{i}>" for i, c in enumerate(CLUSTERS) if i % 3 != 1} | {
    "b\u0301": "?",
    "\u00e9\u0308": "!",
    "\u0308": "",
    "\u0435\u0301\u0301": "\u0451",
    "\u0915\u0301": "_",
    "\u200b": "",
    "\u200d": "",
}


def charsmap(rules):
    """`rules`: {text to replace (str or bytes): replacement (str)}."""
    texts, values = b"", {}
    for key, text in rules.items():
        values[key if isinstance(key, bytes) else key.encode()] = len(texts)
        texts += text.encode() + b"\0"
    units = double_array(values)
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts


def double_array(values):
    """The units of a double array trie with the keys of `values`, {bytes: number}."""
    items, units, taken, state = sorted(values.items()), {0: 0}, set(), {"next": 1}

    def free_base(labels):
        while state["next"] in units and state["next"] in taken:
            state["next"] += 1
        base = state["next"]
        while base in taken or any((base ^ label) in units for label in labels):
            base += 1
        taken.add(base)
        return base

    def place(node, low, high, depth):
        """Places the children of a node: items low to high share their first `depth` bytes."""
        groups = {}
        for index in range(low, high):
            key = items[index][0]
            groups.setdefault(key[depth] if depth < len(key) else 0, []).append(index)
        base = free_base(groups)
        offset = base ^ node
        if offset >= 1 << 21:
            raise ValueError("too many rules for this simple builder")
        units[node] |= offset << 10
        units.update({base ^ label: label for label in groups})
        for label, members in groups.items():
            if label == 0:
                units[base] = items[members[0]][1] | 1 << 31
                units[node] |= 1 << 8
            else:
                place(base ^ label, members[0], members[-1] + 1, depth + 1)

    place(0, 0, len(items), 0)
    return [units.get(i, 0) for i in range((max(units) | 0xFF) + 1)]


def fields(message):
    """Yields (field number, value) of a protocol buffers message; values are bytes, or int for varints."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        size = {1: 8, 5: 4}.get(kind)
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = varint() if kind == 2 else size
        yield key >> 3, message[at : at + size]
        at += size


def charsmap_of(model):
    """The precompiled_charsmap of a SentencePiece model's bytes: normalizer_spec (3), precompiled_charsmap (2)."""
    spec = next(value for number, value in fields(model) if number == 3)
    return next(value for number, value in fields(spec) if number == 2)


def pieces_of(model):
    """Yields (text, score, type) of a model's pieces (field 1): piece (1), score (2), type (3, default 1)."""
    for number, value in fields(model):
        if number == 1:
            piece = dict(fields(value))
            yield piece[1].decode(), struct.unpack("<f", piece[2])[0], piece.get(3, 1)
