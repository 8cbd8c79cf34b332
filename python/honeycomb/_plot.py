"""A character plot of memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from honeycomb._address import format_bytes
from honeycomb.mapreduce import MemorySample

WIDTH = 64
HEIGHT = 12
USED, ALLOCATED, RESERVED, RESIDENT, EMPTY = "█", "▒", "·", "─", " "


def memory_plot(
    samples: Sequence[MemorySample], at_rest: int = 0, width: int = WIDTH, height: int = HEIGHT
) -> str:
    """Used, allocated and resident memory over time, and the additional memory that a reservation of the
    peak for the whole job would have held. Each column shows the largest values of its interval. Resident
    memory is drawn only above ``at_rest``, the bytes of the servers themselves."""
    if not samples:
        return "(no samples)"
    samples = [replace(one, resident=max(0, one.resident - at_rest)) for one in samples]
    columns = resample(samples, width)
    reserved = max(one.allocated for one in samples)
    top = max(reserved, max(one.resident for one in samples), 1)
    lines = []
    for row in range(height, 0, -1):
        floor = top * (row - 0.5) / height
        cells = "".join(_cell(one, row, floor, reserved, top / height) for one in columns)
        label = format_bytes(top * row / height) if row in (height, (height + 1) // 2) else ""
        lines.append(f"{label:>11} ┤{cells}".rstrip())
    seconds = samples[-1].seconds
    lines.append(f"{'0':>11} └{'─' * width}")
    lines.append(f"{'':13}0 s{f'{seconds:.2f} s':>{width - 3}}")
    lines.append(
        f"{'':13}{USED} used  {ALLOCATED} allocated  "
        f"{RESIDENT} resident (above {format_bytes(at_rest)} at rest)  "
        f"{RESERVED} wasted by a reservation of the peak"
    )
    return "\n".join(lines)


def _cell(sample: MemorySample, row: int, floor: float, reserved: int, step: float) -> str:
    if sample.used >= floor:
        return USED
    if sample.resident and int(sample.resident / step + 0.5) == row:
        return RESIDENT
    if sample.allocated >= floor:
        return ALLOCATED
    return RESERVED if reserved >= floor else EMPTY


def resample(samples: Sequence[MemorySample], count: int) -> list[MemorySample]:
    """The samples in ``count`` intervals of equal length, each with its largest values. An interval
    without samples repeats the last sample."""
    end = samples[-1].seconds or 1.0
    steps: list[list[MemorySample]] = [[] for _ in range(count)]
    for one in samples:
        steps[min(count - 1, int(one.seconds / end * count))].append(one)
    result: list[MemorySample] = []
    last = samples[0]
    for index, step in enumerate(steps):
        seen = step or [last]
        last = seen[-1]
        result.append(
            MemorySample(
                end * (index + 1) / count,
                max(one.used for one in seen),
                max(one.allocated for one in seen),
                max(one.resident for one in seen),
            )
        )
    return result


def memory_table(samples: Sequence[MemorySample], rows: int = 10) -> str:
    """The same data as a table, in ``rows`` intervals of equal length."""
    if not samples:
        return "(no samples)"
    reserved = max(one.allocated for one in samples)
    lines = [f"{'time':>9}{'used':>12}{'allocated':>12}{'resident':>12}{'reserved by job':>18}"]
    for one in resample(samples, rows):
        lines.append(
            f"{one.seconds:>7.2f} s{format_bytes(one.used):>12}{format_bytes(one.allocated):>12}"
            f"{format_bytes(one.resident):>12}{format_bytes(reserved):>18}"
        )
    return "\n".join(lines)
