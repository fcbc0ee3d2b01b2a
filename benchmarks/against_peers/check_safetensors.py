"""Which damaged safetensors files are accepted, and what they contain, against the package safetensors."""
import collections
import json
import random
import shutil

import numpy
import safetensors
import safetensors.numpy

import support

FILES = 6000
WORDS = [0, 1, 2, 3, 4, 8, 16, 24, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -1, 1.5, 1e3, "", "F32", "F16",
         "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "F4", "f32", None, True, [], [2], [0], [2, 3], {}]


def original(rng):
    dtypes = ["float32", "float16", "float64", "int64", "uint8", "bool", "int32"]
    tensors = {}
    for i in range(rng.randint(0, 4)):
        shape = [rng.randint(0 if rng.random() < 0.1 else 1, 4) for _ in range(rng.randint(0, 3))]
        tensors[rng.choice(["a", "b.weight", "é", "名", "x" * 20, "q\"\\\n"]) + str(i)] = numpy.ones(
            shape, rng.choice(dtypes))
    return safetensors.numpy.save(tensors, {"format": "pt"} if rng.random() < 0.5 else None)


def places(value, path=()):
    """The paths of all values in JSON."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def edit_header(rng, header):
    """Changes one value of the header, or a key, or writes the JSON in another way."""
    kind = rng.randrange(6)
    path = rng.choice(list(places(header)))
    if kind <= 2 and path:
        parent = header
        for key in path[:-1]:
            parent = parent[key]
        if kind == 0:
            parent[path[-1]] = rng.choice(WORDS)
        elif kind == 1:
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[rng.choice(["dtype", "shape", "data_offsets", "more", "__metadata__", "z"])] = \
                parent[path[-1]] if rng.random() < 0.5 else rng.choice(WORDS)
        else:
            parent.append(rng.choice(WORDS))
        return json.dumps(header)
    text = json.dumps(header, ensure_ascii=rng.random() < 0.5)
    if kind == 3:
        return rng.choice(["", " ", "\n", "\t", "\0", "\ufeff"]) + text + rng.choice(["", "  ", "\n", "\0", "}", ","])
    if kind == 4 and len(text) > 4:  # a member twice
        return text[:-1] + ("," if len(header) > 0 else "") + text[1:]
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(["\\u0000", "\\ud800", "\"", ",", "0", "-", ".", "[", "]", " "]) + text[at:]


def mutate(rng, data):
    kind = rng.randrange(6)
    length = int.from_bytes(data[:8], "little")
    if kind == 0:
        return data
    if kind == 1:
        return data[:rng.randrange(len(data))]
    if kind == 2:
        return data + bytes(rng.randint(1, 9))
    if kind == 3:
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(8 + length)] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == 4 and rng.random() < 0.3:
        changed = max(0, length + rng.choice([-8, -1, 1, 8, 10**8, 2**40]))
        return changed.to_bytes(8, "little") + data[8:]
    text = edit_header(rng, json.loads(data[8:8 + length])).encode(errors="surrogatepass")
    return len(text).to_bytes(8, "little") + text + data[8 + length:]


def theirs(path, data):
    """The tensors, or why the file is refused."""
    try:
        with safetensors.safe_open(str(path), framework="np") as file:
            names = sorted(file.keys())
        return {name: (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
                for name, tensor in safetensors.deserialize(data) if name in names}
    except Exception as error:  # the package's own type, and of Rust's panics
        return f"{type(error).__name__}: {error}"


def ours(line, data):
    if line.startswith("refuse "):
        return line
    tensors = {}
    for name, text in json.loads(line).items():
        dtype, begin, end, *shape = text.split()
        tensors[name] = (dtype, [int(extent) for extent in shape], data[int(begin):int(end)])
    return tensors


def expected_reason(own, other):
    """Why a difference is intended; empty if it is not."""
    if isinstance(own, str) and isinstance(other, dict):
        if " appears twice" in own:
            return "Octavo refuses a key that appears twice; safetensors uses one of the two"
        if "which the format does not define" in own:
            return "Octavo refuses a tensor with a key that the format does not define"
        if "in __metadata__: expected an object, but found null" in own:
            return "Octavo refuses null as __metadata__"
    return ""


def check(report, programs, work):
    folder = work / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rng = random.Random(7)
    paths = []
    for i in range(FILES):
        paths.append(folder / f"{i}.safetensors")
        paths[-1].write_bytes(mutate(rng, original(rng)))
    out = support.call(programs / "against_peers_probe", "safetensors",
                       input="".join(f"{path}\n" for path in paths).encode())
    lines = out.decode(errors="surrogateescape").split("\n")[:-1]
    assert len(lines) == FILES
    differences, expected, accepted = [], collections.Counter(), 0
    for path, line in zip(paths, lines):
        data = path.read_bytes()
        own, other = ours(line, data), theirs(path, data)
        accepted += isinstance(other, dict)
        if own == other or (isinstance(own, str) and isinstance(other, str)):
            continue
        why = expected_reason(own, other)
        if why:
            expected[why] += 1
        else:
            differences.append(f"{path.name}: {own if isinstance(own, str) else 'accepted'}; "
                               f"safetensors: {other if isinstance(other, str) else 'accepted'}; "
                               f"{data[8:200]!r}")
    report.add(f"files, of which safetensors accepts {accepted:,}", FILES, differences, expected)


if __name__ == "__main__":
    support.main(check)
