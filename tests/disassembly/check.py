"""Reads the machine code of every AVX2 and AVX-512 kernel in a program, and fails where it is not what was meant. It needs
objdump, but no processor that has the instructions. tests/disassembly.sh builds the program and runs this.

A kernel is a function of ours that has its level in its name, such as `kernels::rows::sum_rows::avx512` or, where there
are several of a level, `kernels::matmul::tiles::avx512_24`.
"""

import argparse
import re
import sys
from collections import Counter
from typing import NamedTuple

from assembly import Flow, disassemble

# Multiply-adds of whole vectors in the inner loop of a tile: the number here, times each number that the pattern finds in
# the kernel's name. The compiler may unroll a loop, so a multiple of it will do, too.
TILES = {
    r"kernels::matmul::avx2_(\d+)": 2,  # rows of two vectors
    r"kernels::matmul::avx512_(\d+)": 1,
    r"kernels::correlate::correlate_planes::avx(?:2|512)": 12,
    r"kernels::correlate::dots::avx2": 10,
    r"kernels::correlate::dots::avx512": 15,
    r"kernels::windows::(?:filter|send_back|add_filter_gradients)::avx2": 12,
    r"kernels::windows::(?:filter|send_back|add_filter_gradients)::avx512": 10,
    r"kernels::peak::multiply_and_add::avx(?:2|512)": 12,
    r"kernels::dot_tiles::dot_tiles::avx2": 12,  # three rows of two vectors, even and odd bytes
    r"kernels::dot_tiles::dot_tiles::avx2_vnni": 12,
    r"kernels::dot_tiles::dot_tiles::avx512": 40,
    r"kernels::dot_tiles::dot_tiles::avx512_vnni": 24,
    r"kernels::dot_tiles::word_tiles::avx2(?:_vnni)?": 12,
    r"kernels::dot_tiles::word_tiles::avx512(?:_vnni)?": 24,
}

# Kernels whose multiply-adds are this instruction and no other.
INSTRUCTIONS = {
    r"kernels::dot_tiles::dot_tiles::avx(?:2|512)_vnni": "vpdpbusd",
    r"kernels::dot_tiles::word_tiles::avx(?:2|512)_vnni": "vpdpwssd",
}


class Room(NamedTuple):
    accesses: int
    reason: str


# Kernels that keep vectors on the stack within an inner loop because they must: how many instructions there may access
# them, and why.
WINDOW = "a window, and what becomes of it, has 36 vectors: more than there are registers"
BESIDE = "short rows are added up side by side, in an array"
CONSTANTS = "what stays the same in the loop finds no register around it"
ON_STACK = {
    r"layers::conv2d::passes::transform_windows::avx2": Room(104, WINDOW),
    r"layers::conv2d::passes::transform_windows::avx512": Room(60, WINDOW),
    r"layers::conv2d::passes::spread_tiles::avx2": Room(31, WINDOW),
    r"layers::conv2d::passes::transform_filters::avx(?:2|512)": Room(36, "nine weights are transposed in an array"),
    r"layers::conv2d::passes::transform_filters_transposed::avx2": Room(24, WINDOW),
    r"layers::conv2d::passes::inverse_filters::avx2": Room(16, WINDOW),
    r"layers::conv2d::passes::inverse_tiles::avx2": Room(80, WINDOW),
    r"layers::conv2d::passes::inverse_tiles::avx512": Room(26, WINDOW),
    r"layers::conv2d::passes::finish_tiles::avx2": Room(120, WINDOW),
    r"layers::conv2d::passes::finish_tiles::avx512": Room(34, WINDOW),
    r"layers::conv2d::passes::add_windows::avx(?:2|512)": Room(6, WINDOW),
    r"integer::winograd::transform_windows::avx(?:2|512)(?:_vnni)?": Room(6, WINDOW),
    r"integer::winograd::finish_tiles::avx2(?:_vnni)?": Room(90, WINDOW),
    r"integer::winograd::finish_tiles::avx512(?:_vnni)?": Room(6, WINDOW),
    r"integer::sum::add::avx2(?:_vnni)?": Room(20, CONSTANTS),
    r"integer::sum::add::avx512(?:_vnni)?": Room(2, CONSTANTS),
    r"kernels::rows::sum_rows::avx(?:2|512)": Room(2, BESIDE),
    r"layers::average_pool::average::avx(?:2|512)": Room(2, CONSTANTS),
    r"layers::average_pool::spread::avx2": Room(2, CONSTANTS),
    r"layers::max_pool::largest::avx(?:2|512)": Room(2, CONSTANTS),
    r"layers::max_pool::send_back::avx(?:2|512)": Room(2, CONSTANTS),
}

# Kernels without vectors that are as wide as they can be, and why.
SQUARES = "squares of eight numbers a side are transposed"
NARROW = {
    r"kernels::transpose::transpose_into::avx512": SQUARES,
    r"kernels::planes::from_planes::avx512": SQUARES,
}

LEVELS = {"avx2": "%ymm", "avx512": "%zmm"}  # with the registers that are as wide as they can be
FUSED = re.compile(r"vfn?m(add|sub)|vpdp(busd|wssd)|vpmaddwd")  # of floats, of bytes, and of words
SCALAR_FUSED = re.compile(r"vfn?m(add|sub)\d+s[sdh]")
GATHER_OR_SCATTER = re.compile(r"vp?(gather|scatter)")
VECTOR = re.compile(r"%[xyz]mm\d")
# What a kernel may call besides kernels of its level: what panics, the memory functions of C, and what is done number by
# number at the end of an image, where no vector is left.
MAY_CALL = re.compile(r"core::.*(panic|fail)|mem(cpy|set|move|cmp|chr)$|ringstep_nn::.*(_one_by_one|::copy_transposed)$")


def level_of(name):
    """The level that a function is a kernel for."""
    words = re.split(r"\W+|_", name)
    levels = [level for level in LEVELS if level in words]
    return levels[0] if levels and "ringstep" in words else None


def entry(table, name):
    """The pattern of a table that a kernel's name ends with, and its match."""
    matches = ((pattern, re.search(rf"(?:^|::){pattern}$", name)) for pattern in table)
    return next(((pattern, match) for pattern, match in matches if match), (None, None))


def faults_of_code(kernel):
    """What has no place anywhere in a kernel."""
    level, counts = level_of(kernel.name), Counter()
    for instruction in kernel.instructions:
        if SCALAR_FUSED.match(instruction.mnemonic):
            counts["multiply-adds of single numbers"] += 1
        if GATHER_OR_SCATTER.match(instruction.mnemonic):
            counts["gathers or scatters"] += 1
        callee = instruction.callee()
        if callee and callee != kernel.name and level_of(callee) != level and not MAY_CALL.match(callee):
            counts[f"calls of {callee}, which should be inlined"] += 1
    return [f"{count} {what}" for what, count in counts.items()]


def uses_vector_on_stack(instruction, stack_operands):
    """A broadcast reads one number only, which is no vector."""
    broadcasts = "broadcast" in instruction.mnemonic or "{1to" in instruction.text
    return instruction.address in stack_operands and VECTOR.search(instruction.text) and not broadcasts


def faults_of_loops(kernel):
    """What is wrong with the innermost loops: vectors on the stack, or not the multiply-adds that the tile has."""
    flow, faults = Flow(kernel), []
    loops = [[i for block in sorted(loop) for i in flow.blocks[block]] for loop in flow.innermost_loops()]

    stack_operands = flow.stack_operands()
    pattern, _ = entry(ON_STACK, kernel.name)
    allowed = ON_STACK[pattern].accesses if pattern else 0
    for loop in loops:
        accesses = [i for i in loop if uses_vector_on_stack(i, stack_operands)]
        if len(accesses) > allowed:
            size = f"an inner loop of {len(loop)} instructions at {loop[0].address:x}"
            faults.append(f"{len(accesses)} times a vector on the stack in {size}: {accesses[0]}")

    pattern, match = entry(TILES, kernel.name)
    if pattern:
        expected = TILES[pattern]
        for number in match.groups():
            expected *= int(number)
        register = LEVELS[level_of(kernel.name)]
        wanted = INSTRUCTIONS.get(entry(INSTRUCTIONS, kernel.name)[0])
        fused = re.compile(wanted) if wanted else FUSED
        found = [sum(1 for i in loop if fused.match(i.mnemonic) and register in i.text) for loop in loops]
        most = max(found, default=0)
        if most == 0 or most % expected:
            faults.append(f"{most} multiply-adds of {register[1:]} in the inner loop of a tile that has {expected}")
    return faults


def faults_of_width(kernel):
    """Loops of integers are vectorised by the compiler, or so it is hoped."""
    register = LEVELS[level_of(kernel.name)]
    wide = any(register in instruction.text for instruction in kernel.instructions)
    if wide or entry(NARROW, kernel.name)[0] or not Flow(kernel).innermost_loops():
        return []
    return [f"loops, but no vectors of {register[1:]}"]


def check(kernels):
    """Lines that each name a fault."""
    lines = []
    for level in LEVELS:
        if not any(level_of(kernel.name) == level for kernel in kernels):
            lines.append(f"no kernels for {level}: is this the program, with its symbols, for x86-64?")
    for table in (TILES, INSTRUCTIONS, ON_STACK, NARROW):
        matched = {entry(table, kernel.name)[0] for kernel in kernels}
        lines += [f"no kernel is called {pattern}, which the tables name" for pattern in table if pattern not in matched]
    for kernel in kernels:
        faults = faults_of_code(kernel) + faults_of_loops(kernel) + faults_of_width(kernel)
        lines += [f"{kernel.name}: {fault}" for fault in faults]
    return lines


def main():
    parser = argparse.ArgumentParser(prog="tests/disassembly.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("program", nargs="?", default="target/release/ringstep")
    args = parser.parse_args()
    try:
        kernels = disassemble(args.program, level_of)
    except (OSError, RuntimeError) as error:
        sys.exit(f"tests/disassembly.sh: {error}")
    faults = check(kernels)
    print("\n".join(faults))
    counts = " and ".join(f"{sum(level_of(kernel.name) == level for kernel in kernels)} for {level}" for level in LEVELS)
    print(f"{len(faults)} faults in the machine code of {counts}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
