"""How many samples each of the formats holds, each read by itself."""
import gzip
import json
import re
from pathlib import Path

ENDINGS = ("folded", "svg", "html", "json", "gecko.json", "pb.gz", "perfetto")


def varint(data, at):
    """(value, where it ends)."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def packed(data):
    numbers, at = [], 0
    while at < len(data):
        number, at = varint(data, at)
        numbers.append(number)
    return numbers


def fields(data):
    """The fields of one protobuf message: [(number, value), ...]."""
    found, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            found.append((key >> 3, value))
        else:
            assert key & 7 == 2, key
            length, at = varint(data, at)
            assert at + length <= len(data)
            found.append((key >> 3, data[at:at + length]))
            at += length
    return found


def pprof(path):
    """(samples, nanoseconds, period, the names of both) of a pprof file."""
    message = fields(gzip.decompress(Path(path).read_bytes()))
    strings = [value.decode() for number, value in message if number == 6]
    types = [strings[dict(fields(value))[1]] for number, value in message if number == 1]
    values = [packed(dict(fields(value))[2]) for number, value in message if number == 2]
    return sum(n for n, _ in values), sum(ns for _, ns in values), dict(message)[12], types


def perfetto(path):
    """(clocks of the snapshot by number, its primary clock, [(packet's clock, when in us, names outermost first), ...]
    of all samples)."""
    clocks, primary, samples, known = {}, None, [], {}
    for number, data in fields(Path(path).read_bytes()):
        assert number == 1
        packet = fields(data)
        one = dict(packet)
        sequence = one.get(10)
        names, frames, stacks, cleared = known.setdefault(sequence, ({}, {}, {}, None))
        if 6 in one:
            for field, value in fields(one[6]):
                if field == 1:
                    clock = dict(fields(value))
                    clocks[clock[1]] = clock[2]
                if field == 2:
                    primary = value
        if 12 in one:
            for kind, value in fields(one[12]):
                entry = dict(fields(value)) if kind != 7 else None
                if kind == 5:
                    names[entry[1]] = entry[2].decode()
                if kind == 6:
                    frames[entry[1]] = entry[2]
                if kind == 7:
                    parts = fields(value)
                    stacks[parts[0][1]] = [frame for field, frame in parts if field == 2]
        if 54 in one:
            ids = [value for field, value in fields(one[54]) if field == 1]
            steps = [value for field, value in fields(one[54]) if field == 2]
            assert len(ids) == len(steps)
            at = one[8] // 1000
            for stack, step in zip(ids, steps):
                at += step
                samples.append((one.get(58), at, [names[frames[frame]] for frame in stacks[stack]]))
    return clocks, primary, samples


def samples(path, rate):
    """All of a file; rate: samples a second, which is what speedscope's weights are made of."""
    path = Path(path)
    if path.name.endswith(".folded"):
        return sum(int(line.rsplit(" ", 1)[1]) for line in path.read_text().splitlines())
    if path.name.endswith((".svg", ".html")):
        return int(re.search(r"<title>all\n([\d,]+) samples", path.read_text())[1].replace(",", ""))
    if path.name.endswith(".pb.gz"):
        return pprof(path)[0]
    if path.name.endswith(".perfetto"):
        return len(perfetto(path)[2])
    profile = json.loads(path.read_text())
    if path.name.endswith(".gecko.json"):
        return sum(sum(thread["samples"]["weight"]) for thread in profile["threads"])
    weights = [weight for thread in profile["profiles"] for stack, weight in zip(thread["samples"], thread["weights"])
               if stack]
    return round(sum(weights) * rate / 1000)
