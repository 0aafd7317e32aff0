"""The reader of machine code, and each rule, on a few lines each."""

import unittest
from unittest import mock

import check
from assembly import Flow, parse

NAME = "ringstep_nn::kernels::rows::sum_columns::avx512"


def kernel(text, name=NAME, slots={}):
    """A function of the lines: `label: instruction`, where a jump names a label as its target."""
    rows = [line.strip() for line in text.strip().splitlines()]
    addresses = {row.split(": ")[0]: at for at, row in enumerate(rows, 0x10) if ": " in row}
    lines = [f"{0x10:016x} <{name}>:"]
    for at, row in enumerate(rows, 0x10):
        mnemonic, _, operands = row.split(": ")[-1].partition(" ")
        if operands in addresses:
            operands = f"{addresses[operands]:x} <{name}+0x{addresses[operands] - 0x10:x}>"
        lines.append(f"  {at:x}:\t{mnemonic:<6} {operands}")
    return parse(lines, lambda _: True, slots)[0]


def loops(function):
    flow = Flow(function)
    return sorted([i.mnemonic for block in sorted(loop) for i in flow.blocks[block]] for loop in flow.innermost_loops())


class Reading(unittest.TestCase):
    def test_functions_and_instructions(self):
        lines = [
            "Disassembly of section .text:",
            "0000000000000010 <ringstep_nn::one::avx2>:",
            "  10:\tvmovups 0x4(%rdi,%rcx,4),%ymm0",
            "  17:\tdata16 cs nopw 0x0(%rax,%rax,1)",
            "  20:\trepz ret",
            "",
            "0000000000000030 <other>:",
            "  30:\tret",
        ]
        [function] = parse(lines, check.level_of)
        self.assertEqual(function.name, "ringstep_nn::one::avx2")
        self.assertEqual([i.mnemonic for i in function.instructions], ["vmovups", "nopw", "ret"])
        self.assertEqual(function.instructions[0].operands(), ["0x4(%rdi,%rcx,4)", "%ymm0"])

    def test_calls_through_the_global_offset_table(self):
        lines = [
            "0000000000000010 <ringstep_nn::one::avx2>:",
            "  10:\tcall   *0x152d91(%rip)        # 712980 <memset@GLIBC_2.2.5>",
            "  16:\tcall   *0x152d91(%rip)        # 712988 <_DYNAMIC+0x258>",
            "  1c:\tcall   *%rax",
            "  1e:\tcall   30 <core::panicking::panic>",
            "0000000000000030 <ringstep_nn::helper>:",
        ]
        [function] = parse(lines, check.level_of, {0x712988: 0x30})
        self.assertEqual(
            [i.callee() for i in function.instructions],
            ["memset", "ringstep_nn::helper", None, "core::panicking::panic"],
        )

    def test_levels(self):
        self.assertEqual(check.level_of(NAME), "avx512")
        self.assertEqual(check.level_of("ringstep_nn::kernels::matmul::tiles::avx2_6"), "avx2")
        self.assertEqual(check.level_of("ringstep_nn::kernels::rows::sum_columns::avx512::{{closure}}"), "avx512")
        self.assertEqual(check.level_of("<ringstep_nn::Sum as ringstep_cpu::Kernel>::run::avx2"), "avx2")
        self.assertIsNone(check.level_of("ringstep_nn::kernels::rows::sum_rows"))
        self.assertIsNone(check.level_of("rand_chacha::guts::refill_wide::impl_avx2"))


class Loops(unittest.TestCase):
    def test_the_inner_of_two(self):
        function = kernel("""
            xor %eax,%eax
            outer: inc %rdi
            inner: vaddps (%rsi),%zmm0,%zmm0
            jne inner
            dec %rdx
            jne outer
            ret
        """)
        self.assertEqual(loops(function), [["vaddps", "jne"]])

    def test_one_that_goes_on_in_two_places(self):
        function = kernel("""
            head: vaddps (%rsi),%zmm0,%zmm0
            je head
            vmulps (%rsi),%zmm0,%zmm0
            jne head
            ret
        """)
        self.assertEqual(loops(function), [["vaddps", "je", "vmulps", "jne"]])

    def test_a_jump_back_to_a_common_end_is_none(self):
        function = kernel("""
            je second
            end: vzeroupper
            ret
            second: vaddps (%rsi),%zmm0,%zmm0
            jmp end
        """)
        self.assertEqual(loops(function), [])

    def test_within_a_branch_of_a_jump_table(self):
        function = kernel("""
            jmp *%rax
            head: vaddps (%rsi),%zmm0,%zmm0
            jne head
            ret
            ret
        """)
        self.assertEqual(loops(function), [["vaddps", "jne"]])

    def test_what_panics_does_not_go_on(self):
        function = kernel("""
            head: vaddps (%rsi),%zmm0,%zmm0
            je out
            call 99 <core::panicking::panic_bounds_check>
            jmp head
            out: ret
        """)
        self.assertEqual(loops(function), [])


class Stack(unittest.TestCase):
    def faults(self, text):
        return check.faults_of_loops(kernel(text))

    def test_a_vector_within_the_loop(self):
        [fault] = self.faults("""
            head: vmovups %zmm3,0x40(%rsp)
            jne head
            ret
        """)
        self.assertIn("1 times a vector on the stack", fault)

    def test_through_a_pointer_that_moves(self):
        [fault] = self.faults("""
            lea 0x1b4(%rsp),%rax
            outer: mov %rax,%rdx
            head: vfmadd213ps -0x7c(%rdx),%zmm0,%zmm1
            add $0x80,%rdx
            jne head
            dec %rdi
            jne outer
            ret
        """)
        self.assertIn("-0x7c(%rdx)", fault)

    def test_through_the_frame_pointer(self):
        [fault] = self.faults("""
            push %rbp
            mov %rsp,%rbp
            and $0xffffffffffffffe0,%rsp
            head: vmovaps -0x40(%rbp),%ymm1
            jne head
            ret
        """)
        self.assertIn("-0x40(%rbp)", fault)

    def test_what_is_none(self):
        # Outside of the loop; a counter; one number; a pointer that may point elsewhere; a register that was overwritten.
        self.assertEqual(
            self.faults("""
            vmovups %zmm3,0x40(%rsp)
            lea 0x40(%rsp),%rdx
            je head
            mov %rdi,%rdx
            head: mov 0x8(%rsp),%rax
            vbroadcastss 0x10(%rsp),%zmm1
            vfmadd231ps 0x14(%rsp){1to16},%zmm1,%zmm2
            vmovups (%rdx),%zmm1
            jne head
            lea 0x40(%rsp),%rcx
            mov (%rdi),%rcx
            second: vmovups (%rcx),%zmm1
            jne second
            vmovups 0x40(%rsp),%zmm3
            ret
        """),
            [],
        )

    def test_room_that_was_granted(self):
        text = """
            head: vmovups %zmm3,0x40(%rsp)
            vmovups 0x80(%rsp),%zmm3
            jne head
            ret
        """
        with mock.patch.dict(check.ON_STACK, {"rows::sum_columns::avx512": check.Room(2, "why")}, clear=True):
            self.assertEqual(self.faults(text), [])
        with mock.patch.dict(check.ON_STACK, {"rows::sum_columns::avx512": check.Room(1, "why")}, clear=True):
            self.assertEqual(len(self.faults(text)), 1)


class Code(unittest.TestCase):
    def faults(self, *instructions):
        return check.faults_of_code(kernel("\n".join(instructions)))

    def test_single_numbers(self):
        self.assertEqual(len(self.faults("vfmadd231ss (%rdi),%xmm0,%xmm1")), 1)
        self.assertEqual(len(self.faults("vfnmsub132sd (%rdi),%xmm0,%xmm1")), 1)
        self.assertEqual(self.faults("vfmadd231ps (%rdi),%zmm0,%zmm1", "vaddss %xmm0,%xmm1,%xmm1"), [])

    def test_gathers_and_scatters(self):
        for instruction in ("vgatherdps", "vpgatherdd", "vscatterqps", "vpscatterdd"):
            self.assertEqual(len(self.faults(f"{instruction} (%rdi,%zmm1,4),%zmm2{{%k1}}")), 1)

    def test_calls(self):
        for callee in (
            "core::core_arch::x86::avx512f::_mm512_fmadd_ps",
            "<ringstep_cpu::vector::Avx512 as ringstep_cpu::vector::Simd>::load",
            "ringstep_nn::kernels::rows::sum_rows::avx2",
        ):
            self.assertEqual(len(self.faults(f"call 99 <{callee}>")), 1, callee)
            self.assertEqual(len(self.faults(f"jmp 99 <{callee}>")), 1, callee)
        for callee in (
            "core::panicking::panic_bounds_check",
            "core::slice::index::slice_index_fail",
            "memcpy@plt",
            "ringstep_nn::kernels::rows::other::avx512",
        ):
            self.assertEqual(self.faults(f"call 99 <{callee}>"), [], callee)
        self.assertEqual(self.faults("head: inc %rax", "jne head", "ret"), [])


class Width(unittest.TestCase):
    def faults(self, *instructions):
        return check.faults_of_width(kernel("\n".join(instructions)))

    def test_loops_without_wide_vectors(self):
        self.assertEqual(len(self.faults("head: vaddps (%rsi),%ymm0,%ymm0", "jne head", "ret")), 1)
        self.assertEqual(self.faults("head: vaddps (%rsi),%zmm0,%zmm0", "jne head", "ret"), [])
        self.assertEqual(self.faults("ret"), [])
        with mock.patch.dict(check.NARROW, {"rows::sum_columns::avx512": "why"}, clear=True):
            self.assertEqual(self.faults("head: vaddps (%rsi),%ymm0,%ymm0", "jne head", "ret"), [])


class Tiles(unittest.TestCase):
    def faults(self, fused, name="ringstep_nn::kernels::matmul::tiles::avx512_3"):
        text = "head: inc %rax\n" + "\n".join(fused) + "\njne head\nret"
        with mock.patch.dict(check.TILES, {r"kernels::matmul::tiles::avx512_(\d+)": 2}, clear=True):
            return check.faults_of_loops(kernel(text, name))

    def test_as_many_as_it_has(self):
        whole = ["vfmadd231ps (%rdi),%zmm0,%zmm1"]
        self.assertEqual(self.faults(whole * 6), [])
        self.assertEqual(self.faults(whole * 12), [])
        self.assertEqual(self.faults([], name=NAME), [])
        for wrong in (whole * 5, whole * 8, [], ["vfmadd231ps (%rdi),%ymm0,%ymm1"] * 6):
            self.assertEqual(len(self.faults(wrong)), 1)

    def test_tables_and_levels_that_nothing_is_found_for(self):
        tiles = mock.patch.dict(check.TILES, {r"kernels::gone::avx2": 2}, clear=True)
        others = (mock.patch.dict(table, clear=True) for table in (check.INSTRUCTIONS, check.ON_STACK, check.NARROW))
        with tiles, next(others), next(others), next(others):
            faults = check.check([kernel("ret")])
        self.assertEqual(len(faults), 2)
        self.assertIn("no kernels for avx2", faults[0])
        self.assertIn("kernels::gone::avx2", faults[1])


if __name__ == "__main__":
    unittest.main()
