"""Functions of an x86-64 program as objdump prints them: instructions, innermost loops, and what lies on the stack."""

import re
import subprocess
from typing import NamedTuple

HEADER = re.compile(r"([0-9a-f]+) <(.+)>:")
LINE = re.compile(r" *([0-9a-f]+):\t(.*)")
SLOT = re.compile(r"# ([0-9a-f]+) <.*>")
RELOCATION = re.compile(r"^([0-9a-f]+) R_X86_64_RELATIVE +\*ABS\*\+0x([0-9a-f]+)$", re.MULTILINE)
PREFIXES = {"{vex}", "notrack", "bnd", "lock", "rep", "repz", "repnz", "data16", "cs"}
# Of the registers that hold addresses, those that a called function may change (System V).
CHANGED_BY_CALLS = {"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"}
NEVER_RETURNS = re.compile(r"core::.*(panic|fail)")
KEEPS_DESTINATION = {"cmp", "test", "bt", "push", "nop"}
MOVES_ADDRESS = {"add", "sub", "and", "inc", "dec"}


class Instruction(NamedTuple):
    address: int
    mnemonic: str
    text: str  # the operands in AT&T's order, the destination last

    def __str__(self):
        return f"{self.mnemonic} {self.text}".rstrip()

    def operands(self):
        """Split at the commas that are not within parentheses."""
        return [operand.strip() for operand in re.split(r",(?![^(]*\))", self.text.split("#")[0]) if operand.strip()]

    def jumps(self):
        return self.mnemonic.startswith("j")

    def ends_path(self):
        """Whether control never goes on to the next instruction."""
        panics = self.mnemonic == "call" and NEVER_RETURNS.match(self.callee() or "")
        return bool(panics) or self.mnemonic in ("jmp", "ret", "ud2", "int3")

    def target(self):
        """Where a direct jump goes to."""
        found = re.match(r"([0-9a-f]+) <", self.text) if self.jumps() else None
        return int(found[1], 16) if found else None

    def callee(self):
        """The function that a call or jump goes to; None if that is only known when the program runs."""
        found = re.search(r"<(.+?)(\+0x[0-9a-f]+|@\S+)?>$", self.text)
        return found[1] if found and (self.jumps() or self.mnemonic == "call") else None


class Function(NamedTuple):
    name: str
    instructions: list


def parse(lines, wanted, slots={}):
    """The functions in objdump's lines whose names are `wanted`. Some are called through a slot of the global offset
    table, `call *0x4f859c(%rip)  # 7128f8 <_DYNAMIC+0x258>`; `slots` has the address in each."""
    functions, names, body = [], {}, None
    for line in lines:
        if header := HEADER.fullmatch(line):
            names[int(header[1], 16)] = header[2]
            body = None
            if wanted(header[2]):
                body = []
                functions.append(Function(header[2], body))
        elif body is not None and (found := LINE.fullmatch(line)):
            words = found[2].split()
            while words and words[0] in PREFIXES:
                words.pop(0)
            if words:
                body.append(Instruction(int(found[1], 16), words[0], " ".join(words[1:])))

    def name_callee(instruction):
        slot = SLOT.search(instruction.text) if instruction.mnemonic in ("call", "jmp") else None
        name = names.get(slots.get(int(slot[1], 16))) if slot else None
        return instruction._replace(text=f"{instruction.text[: slot.start()]}# <{name}>") if name else instruction

    return [Function(name, [name_callee(instruction) for instruction in body]) for name, body in functions]


def objdump(binary, *options):
    try:
        done = subprocess.run(["objdump", *options, "--wide", str(binary)], text=True, capture_output=True)
    except OSError as error:
        raise RuntimeError(f"objdump (of binutils): {error.strerror}") from error
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def disassemble(binary, wanted):
    """The functions of a program whose names, as they are in Rust, are `wanted`."""
    slots = {int(slot, 16): int(to, 16) for slot, to in RELOCATION.findall(objdump(binary, "--dynamic-reloc"))}
    return parse(objdump(binary, "--disassemble", "--demangle", "--no-show-raw-insn").splitlines(), wanted, slots)


class Flow:
    """The basic blocks of a function that can be reached, and where control goes from each."""

    def __init__(self, function):
        instructions = function.instructions
        targets = {instruction.target() for instruction in instructions}
        begins = [0]
        for at in range(1, len(instructions)):
            before = instructions[at - 1]
            if before.jumps() or before.ends_path() or instructions[at].address in targets:
                begins.append(at)
        self.blocks = [instructions[a:b] for a, b in zip(begins, [*begins[1:], len(instructions)])]
        self.successors = self.find_successors()
        self.reached = self.reachable_from(0)
        # A jump through a table goes to what nothing else leads to: to the first such block, and to the first that still
        # cannot be reached from there, and so on.
        tables = [at for at in self.reached if self.blocks[at][-1].mnemonic == "jmp" and "*" in self.blocks[at][-1].text]
        for block in range(len(self.blocks)):
            if tables and block not in self.reached:
                self.successors[tables[0]].add(block)
                self.reached |= self.reachable_from(block)
        self.predecessors = {block: set() for block in self.reached}
        for block in self.reached:
            for successor in self.successors[block]:
                self.predecessors[successor].add(block)

    def find_successors(self):
        block_at = {block[0].address: index for index, block in enumerate(self.blocks)}
        successors = []
        for index, block in enumerate(self.blocks):
            last = block[-1]
            found = {block_at[last.target()]} if last.target() in block_at else set()
            if not last.ends_path() and index + 1 < len(self.blocks):
                found.add(index + 1)
            successors.append(found)
        return successors

    def reachable_from(self, start):
        reached, pending = {start}, [start]
        while pending:
            new = self.successors[pending.pop()] - reached
            reached |= new
            pending += new
        return reached

    def agreed(self, at_entry, everything, after):
        """For each block the largest set that all paths to its begin agree on, where `after(block, set)` is what the
        block makes of the set at its begin."""
        begins = {block: frozenset(everything) for block in self.reached}
        begins[0] = frozenset(at_entry)
        changed = True
        while changed:
            changed = False
            for block in sorted(self.reached):
                paths = [after(predecessor, begins[predecessor]) for predecessor in self.predecessors[block]]
                begin = begins[block].intersection(*paths)
                changed |= begin != begins[block]
                begins[block] = begin
        return begins

    def innermost_loops(self):
        """Sets of blocks: the natural loops that no other loop lies within."""
        dominators = self.agreed({0}, self.reached, lambda block, begin: begin | {block})
        loops = {}  # header -> blocks
        for header in self.reached:
            ends = {block for block in self.predecessors[header] if header == block or header in dominators[block]}
            if ends:
                body, pending = {header}, list(ends - {header})
                while pending:
                    block = pending.pop()
                    if block not in body:
                        body.add(block)
                        pending += self.predecessors[block]
                loops[header] = body
        return [body for header, body in loops.items() if not any(other in body for other in loops if other != header)]

    def stack_operands(self):
        """{address of an instruction} whose memory operand certainly lies on the stack: addressed by %rsp, or by a
        register that was computed from it."""

        def after(block, begin):
            holders = set(begin)
            for instruction in self.blocks[block]:
                follow(instruction, holders)
            return frozenset(holders)

        registers = {"rsp", *CHANGED_BY_CALLS, "rbx", "rbp", "r12", "r13", "r14", "r15"}
        found = set()
        for block, begin in self.agreed({"rsp"}, registers, after).items():
            holders = set(begin)
            for instruction in self.blocks[block]:
                if instruction.mnemonic != "lea" and address_registers(instruction) & holders:
                    found.add(instruction.address)
                follow(instruction, holders)
        return found


def whole(register):
    """The 64-bit register that one is a part of: eax, ax and al are parts of rax."""
    if found := re.fullmatch(r"[er]?([abcd])[xlh]", register):
        return f"r{found[1]}x"
    if found := re.fullmatch(r"[er]?(si|di|bp|sp)l?", register):
        return f"r{found[1]}"
    return re.sub(r"^(r\d+)[bwd]$", r"\1", register)


def address_registers(instruction):
    """The registers that make the address of an instruction's memory operand."""
    return {whole(name) for inner in re.findall(r"\(([^)]*)\)", instruction.text) for name in re.findall(r"%(\w+)", inner)}


def follow(instruction, holders):
    """Updates the set of registers that hold addresses within the stack."""
    operands = instruction.operands()
    if instruction.mnemonic == "call":
        holders -= CHANGED_BY_CALLS
        return
    if instruction.mnemonic in ("mul", "div", "idiv") or (instruction.mnemonic == "imul" and len(operands) == 1):
        holders -= {"rax", "rdx"}
        return
    if not operands or not operands[-1].startswith("%") or instruction.mnemonic in KEEPS_DESTINATION:
        return
    to = whole(operands[-1][1:].split("{")[0])
    if to == "rsp" or (instruction.mnemonic in MOVES_ADDRESS and to in holders):
        return
    if instruction.mnemonic == "lea":
        holds = bool(address_registers(instruction) & holders)
    else:
        holds = instruction.mnemonic == "mov" and operands[0].startswith("%") and operands[0][1:] in holders
    (holders.add if holds else holders.discard)(to)
