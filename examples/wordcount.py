"""Counts the words of text files, on this machine or in an object store.

    honeycomb run examples/wordcount.py -- examples/data/king-james-bible.txt.gz
    honeycomb run examples/wordcount.py -- --top 5 --json 'books/*.txt' s3://bucket/more/

``python examples/wordcount.py ...`` does the same: ``connect()`` finds a running cluster or starts
an embedded one.
"""

import argparse
import heapq
import json
import sys
from collections.abc import Iterator

from honeycomb.errors import HoneycombError
from honeycomb.mapreduce import MapReduce, counter, inputs


def words(part: inputs.FilePart) -> Iterator[tuple[bytes, int]]:
    """The map function: yields each word with the count 1."""
    for line in part:
        counter("lines").add()
        for word in line.split():
            yield word, 1


def total(word: bytes, counts: list[int]) -> int:
    """The reduce function, and the combiner: each part sends a word once, with its count."""
    return sum(counts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="wordcount.py", description="Counts words.")
    parser.add_argument(
        "paths", nargs="+", help="files, folders, patterns or URLs; .gz is unpacked"
    )
    parser.add_argument("--top", type=int, default=20, metavar="N", help="words to print")
    parser.add_argument("--reducers", type=int, default=8, metavar="N")
    parser.add_argument("--output", metavar="FOLDER", help="write all counts there, as text")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        parts = inputs.from_paths(options.paths)
        program = MapReduce(words, total, combine=total)
        with program.run(parts, reducers=options.reducers, progress=sys.stderr.isatty()) as result:
            top = heapq.nsmallest(options.top, ((-count, word) for word, count in result))
            if options.output:
                result.write(options.output, overwrite=True)
            lines = result.counters.get("lines", 0)
    except (HoneycombError, OSError) as error:
        print(f"wordcount: {error}", file=sys.stderr)
        return 1
    words_found = [(word.decode(errors="backslashreplace"), -count) for count, word in top]
    if options.json:
        print(json.dumps({"lines": lines, "top": words_found}))
    else:
        for word, count in words_found:
            print(f"{count:>9,}  {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
